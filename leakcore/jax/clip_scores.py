"""The kernel `clip_scores` as an operation of JAX: under `jit` through XLA's FFI, with a rule for `vmap`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore.jax.call_frame import register

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
