"""What one step of a DP-SGD training in JAX gives away about candidates; its kernel as an operation of JAX."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.version import need
from leakcore.jax.call_frame import register


class CandidateScores(NamedTuple):
    """Scores of n candidates in a step. It is a pytree, so that steps add up by `jax.tree.map` or `jax.lax.scan`.

    `dpsgd.Trace` has the same names, and says what the sums over steps mean.

    Attributes:
        membership_sum: (n,) ⟨c_j, ḡ⟩/C².
        membership_likelihood: (n,) log(1 − q + q·exp((2⟨c_j, ḡ⟩ − ‖c_j‖²)/(2σ²C²))).
        pair_sum: (n, n), entry (i, j) is the sum for j if the adversary knows all rows but i.
        pair_likelihood: (n, n), likewise for the likelihood.
        times_seen: (n,) int32, 1 for a candidate in the batch.
        clipped_share: (n,) 1 for a gradient longer than C. Divide its sum by the steps.

    Example:
        >>> from leakcore import jax
        >>> jax.CandidateScores._fields[:2]
        ('membership_sum', 'membership_likelihood')
    """

    membership_sum: Any
    membership_likelihood: Any
    pair_sum: Any
    pair_likelihood: Any
    times_seen: Any
    clipped_share: Any


def scores(
    grads: Any, noise: Any, inside: Any, *, max_grad_norm: float, noise_multiplier: Any, sample_rate: Any
) -> CandidateScores:
    """What `leakcore.record` computes in a step, of per-example gradients in JAX; it runs under `jit` and `vmap`.

    With c_j = clip_C(g_j) and the adversary of Hayes, Mahloujifar and Balle (2023, section 3 and Appendix G), who knows
    all rows but the candidates, ḡ is the released sum less the clipped gradients of all other rows of the batch: the
    noise and the c_j of the candidates that are in the batch.

    Args:
        grads: pytree of the candidates' gradients, before clipping, at the step's parameters; leaves (n, ...) of
            float16, bfloat16, float32 or float64.
        noise: pytree like one gradient, leaves (...): the noise of the release, in the scale of the sum of clipped
            gradients (released sum less clean sum), σC·N(0, I).
        inside: (n,) bool, which candidates are in the batch.
        max_grad_norm: C, a number.
        noise_multiplier: σ, may be traced.
        sample_rate: q, may be traced. Without Poisson sampling the likelihood is not that of the run.

    Returns:
        A `CandidateScores`, of float64 if a leaf is, else of float32. A non-finite gradient makes its scores NaN.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for a traced or differentiated argument that must not be, or other types.

    Guarantees:
        Products are accumulated in float64 by leakcore's CPU kernel, and rounded once. Deterministic.

    Example:
        >>> import jax.numpy as jnp
        >>> from leakcore import jax
        >>> grads = {"w": jnp.eye(3), "b": jnp.zeros(3)}
        >>> noise = {"w": jnp.array([0.5, 0.0, 0.0]), "b": jnp.array(0.0)}
        >>> step = jax.scores(
        ...     grads, noise, jnp.array([False, True, False]), max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.5
        ... )
        >>> step.membership_sum.tolist()
        [0.5, 1.0, 0.0]
    """
    need("jax")
    import jax.numpy as jnp

    norm = _number(max_grad_norm)
    rows, released = _matrix(grads, noise)
    n, dtype = rows.shape[0], jnp.promote_types(jnp.promote_types(rows.dtype, released.dtype), jnp.float32)
    inside = jnp.asarray(inside)
    if inside.shape != (n,) or inside.dtype != jnp.bool_:
        raise ValueError(f"`inside` must be bool of shape ({n},), got {inside.dtype} of shape {inside.shape}")
    if n == 0:
        none, square = jnp.zeros(0, dtype), jnp.zeros((0, 0), dtype)
        return CandidateScores(none, none, square, square, jnp.zeros(0, jnp.int32), none)
    # ⟨c_j, noise⟩ and ⟨c_j, g_i⟩. From ⟨c_i, g_i⟩ = ‖c_i‖·‖g_i‖ comes the factor that clips g_i.
    dots, clipped_norms = clip_scores(rows, jnp.concatenate([released[None], rows]), norm)
    noise_dots, gram = dots[0], dots[1:]
    lengths = jnp.where(clipped_norms > 0, jnp.diagonal(gram) / jnp.where(clipped_norms > 0, clipped_norms, 1), 0)
    crossed = jnp.where(inside[:, None], gram * jnp.minimum(1, norm / jnp.maximum(lengths, norm))[:, None], 0)
    together, alone = noise_dots + crossed.sum(0), noise_dots + crossed

    def likelihood(products: Any) -> Any:
        q, std = jnp.asarray(sample_rate, dtype), jnp.asarray(noise_multiplier, dtype) * norm
        return jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + (2 * products - clipped_norms**2) / (2 * std**2))

    return CandidateScores(
        membership_sum=together / norm**2,
        membership_likelihood=likelihood(together),
        pair_sum=alone / norm**2,
        pair_likelihood=likelihood(alone),
        times_seen=inside.astype(jnp.int32),
        clipped_share=(clipped_norms >= norm * (1 - 1e-6)).astype(dtype),
    )


def _number(max_grad_norm: Any) -> float:
    import jax

    if isinstance(max_grad_norm, jax.core.Tracer):
        raise TypeError(
            "`max_grad_norm` must be a number that is known when the function is traced, got a traced value: pass it "
            "as a static argument, or close over it"
        )
    norm = validate.positive(max_grad_norm=max_grad_norm)
    if not math.isfinite(norm * norm):
        raise ValueError(f"`max_grad_norm` must have a finite square, got {max_grad_norm}")
    return norm


def _matrix(grads: Any, noise: Any) -> tuple[Any, Any]:
    """(n, D) and (D,), the leaves next to each other."""
    import jax
    import jax.numpy as jnp

    form: Any = jax.tree.structure(grads)
    other_form: Any = jax.tree.structure(noise)
    if form != other_form:
        raise ValueError(f"`noise` must be a pytree like `grads`, {form}, got {other_form}")
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(grads)]
    others = [jnp.asarray(leaf) for leaf in jax.tree.leaves(noise)]
    if not leaves:
        raise ValueError("`grads` must hold at least one array, got an empty pytree")
    for leaf, other in zip(leaves, others, strict=True):
        if leaf.ndim == 0 or leaf.shape[:1] != leaves[0].shape[:1]:
            raise ValueError(
                f"`grads` must have one first dimension, the candidates, in all leaves, got shapes "
                f"{[one.shape for one in leaves]}"
            )
        if leaf.shape[1:] != other.shape:
            raise ValueError(f"`noise` must have leaves like one gradient, {leaf.shape[1:]}, got {other.shape}")
        for name, one in (("grads", leaf), ("noise", other)):
            if not jnp.issubdtype(one.dtype, jnp.floating):
                raise TypeError(f"`{name}` must have leaves of a floating type, got {one.dtype}")
    n = leaves[0].shape[0]
    # As many columns as there are: -1 would not say how many, without candidates.
    rows = jnp.concatenate([leaf.reshape(n, math.prod(leaf.shape[1:])) for leaf in leaves], axis=1)
    return rows, jnp.concatenate([other.reshape(-1) for other in others])


_TARGET = "leakcore_clip_scores"


def clip_scores(grads: Any, observed: Any, max_grad_norm: float) -> tuple[Any, Any]:
    """⟨clip_C(g_i), o_m⟩, (M, n), and ‖clip_C(g_i)‖, (n,), of grads (n, D) and observed (M, D)."""
    return _differentiable()(grads, observed, max_grad_norm)  # type: ignore[no-any-return]


@functools.cache
def _differentiable() -> Any:
    """The operation, with a rule for derivatives that says that there is none."""
    import jax

    operation: Any = jax.custom_jvp(_call, nondiff_argnums=(2,))
    operation.defjvp(_refuse)
    return operation


def _refuse(max_grad_norm: float, primals: Any, tangents: Any) -> Any:
    raise TypeError(
        "leakcore.jax.scores cannot be differentiated: compute it outside the function whose gradient you take, or "
        "pass jax.lax.stop_gradient of its arguments"
    )


def _call(grads: Any, observed: Any, max_grad_norm: float) -> Any:
    import jax
    import jax.numpy as jnp

    register(_TARGET, _work)
    dtype = jnp.promote_types(jnp.promote_types(grads.dtype, observed.dtype), jnp.float32)
    rows, others = grads.shape[0], observed.shape[0]
    array: Any = jax.ShapeDtypeStruct
    results = (array((others, rows), dtype), array((rows,), dtype))
    # A batch of `vmap` is one call: its dimensions come first in every buffer.
    call = jax.ffi.ffi_call(_TARGET, results, vmap_method="broadcast_all")
    return call(grads, observed, max_grad_norm=np.float64(max_grad_norm))


def _work(arguments: list[np.ndarray], results: list[np.ndarray], numbers: dict[str, float]) -> None:
    grads, observed = (array.reshape(-1, *array.shape[-2:]) for array in arguments)
    out = kernels.clip_scores(grads, observed, numbers["max_grad_norm"], runs=True, check_finite=False)
    for target, values in zip(results, (out.dots, out.clipped_norms), strict=True):
        if target.size:
            target[...] = values.reshape(target.shape)
