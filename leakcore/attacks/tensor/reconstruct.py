"""The tensor method: inputs of a batch from the gradient of a two-layer network's output weights alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy import optimize

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.results import Result, attack_guarantee
from leakcore.attacks.tensor.decompose import Parts, Refined, decompose, fit, refine
from leakcore.attacks.tensor.moments import Moments, estimate
from leakcore.attacks.tensor.weights import Orders, Weights, choose, read_orders

LARGEST_ERROR = 0.5
"""An input whose estimated error is above this (of at most 2) is not called recovered."""
_STRUCTURE = 0.05
"""What least squares may leave that still depends on w, in units of what the lower orders left."""
_MORE = 2.0
"""Further above noise than a sample must be to count: what is left of g is not quite independent of w."""
SOURCE = "Wang, Lee and Lei (2023); Lecture 13 (Lei 2024), Section 5.2, eq. 5.2"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TensorReconstruction(Result):
    """Inputs that the tensor method recovered from one gradient.

    Attributes:
        value: share of the batch that was recovered; kind "estimate".
        inputs: (k, d) recovered inputs of unit length, k ≤ B, in no particular order.
        residuals: (k,) their r_i, in the units of the gradient.
        error_estimates: (k,) estimated ‖x̂ − x‖₂ of each, from the gradient alone.
        signs_known: False: each (x_i, r_i) may just as well be (−x_i, −r_i).
        unrecoverable: B − k samples whose share in the gradient is not above its noise: their residual is near 0, or
            two inputs are nearly parallel, or the decomposition failed.
        failed: whether the decomposition failed or the gradient showed nothing; then k = 0.
        reason: in words, why inputs are missing; "" if all were recovered.
        orders: the Hermite orders that were used.
        coefficients: c_0 … c_4 of the activation.
        spectrum: all eigenvalues (singular values) of the span's moment, by falling magnitude.
        edge: where noise begins in the spectrum.
        misfit: χ² of the moments per degree of freedom.
        remainder: rms of the part of the gradient that inputs and residuals, after least squares, leave unexplained,
            over the gradient's own rms: 0 for the exact gradient of such a network.
    """

    quantity: str = "share of rows reconstructed"
    inputs: np.ndarray
    residuals: np.ndarray
    error_estimates: np.ndarray
    signs_known: bool
    unrecoverable: int
    failed: bool
    reason: str
    orders: tuple[int, ...]
    coefficients: tuple[float, ...]
    spectrum: np.ndarray
    edge: float
    misfit: float
    remainder: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decomposition:
    """Which moments of the gradient are estimated, and how their tensor is decomposed.

    Attributes:
        orders: None: computed by `choose`. (2, 3), (2, 4) or (3,) forces them. The attack refuses orders that
            vanish for the activation (ValueError).
        subtract: subtract the lower orders from g before the next one is estimated, and fit all orders in all
            coordinates at the end. False: the plain moments of the paper, in the span.
        method: "diagonal": simultaneous diagonalisation and a least-squares polish against all moments, for any
            residuals. "power": whitening and robust power iteration with deflation, no polish, for residuals of one
            sign and order 2. "auto": both as starts, polished; the better one wins.
        margin: a direction counts as signal above margin × the largest eigenvalue that noise alone would have, > 0.
    """

    orders: Sequence[int] | None = None
    subtract: bool = True
    method: Literal["auto", "diagonal", "power"] = "auto"
    margin: float = 1.2

    def __post_init__(self) -> None:
        if self.orders is not None:
            object.__setattr__(self, "orders", read_orders(self.orders))
        object.__setattr__(self, "subtract", validate.boolean(subtract=self.subtract))
        validate.one_of("auto", "diagonal", "power", method=self.method)
        object.__setattr__(self, "margin", validate.positive(margin=self.margin))


def reconstruct(
    gradient: Any,
    weights: Any,
    *,
    num_examples: int,
    activation: Any,
    decomposition: Decomposition | None = None,
    refined: bool = False,
    certify: bool = True,
    seed: int = 0,
) -> TensorReconstruction:
    """Inputs of unit length from the gradient g_j = Σ_i r_i σ(w_jᵀx_i) of a two-layer network's output weights.

    (1/m) Σ_j g_j He_p(w_j) estimates c_p Σ_i r_i x_i^{⊗p} for known w_j ~ N(0, I_d) (Wang, Lee and Lei 2023). Order 2
    gives the span of the inputs, order 3 or 4 a tensor in that span whose components are the inputs; a fit of all
    orders in all coordinates follows. The error is O(B√(d/m)) (Lecture 13, eq. 5.2). Memory beyond g is O(d² + B⁴), or
    O(d³) for order 3 alone.

    Args:
        gradient: (m,) dL/da_j, finite, NumPy or CPU torch. Any common factor goes into the residuals.
        weights: `GaussianWeights`, or an (m, d) array.
        num_examples: B, from 1 to d.
        activation: a name, an `Activation`, or an elementwise callable on torch tensors.
        decomposition: orders, method and margin; None: the defaults.
        refined: also run least squares on the gradient, which is exact for exact gradients and goes beyond the paper.
        certify: False: return the answer untested, with errors NaN (with refined: the distance moved). Faster, and for
            gradients that a defence changed.
        seed: seed of the random starts.

    Returns:
        `TensorReconstruction`. Inputs that cannot be told from noise are counted, not guessed; an answer that the
        gradient contradicts counts as failed and is withheld.

    Raises:
        ValueError: for bad shapes or values, and for a linear network, which leaks only Σ r_i x_i.

    Guarantees:
        Deterministic for a machine and its BLAS threads. How answers are tested: docs/explanation/attacks.md.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import tensor
        >>> x = np.eye(5)[:2]  # two inputs of unit length
        >>> weights = tensor.GaussianWeights(num_neurons=4_000, num_inputs=5, seed=0)
        >>> g = tensor.output_gradient(x, [1.0, -0.5], weights, "elu")  # released
        >>> answer = tensor.reconstruct(g, weights, num_examples=2, activation="elu", refined=True)
        >>> error = tensor.match(answer.inputs, x).root_mean_square
        >>> answer.value, bool(error < 1e-3)
        (1.0, True)
    """
    source = Weights.read(weights)
    g, _ = validate.host_array(gradient=gradient)
    if g.shape != (source.num_neurons,):
        raise ValueError(f"`gradient` must have shape ({source.num_neurons},), one entry per neuron, got {g.shape}")
    count = validate.integer(1, num_examples=num_examples)
    if count > source.num_inputs:
        raise ValueError(
            f"`num_examples` must be at most d={source.num_inputs}, got {count}: more inputs than that have "
            "no subspace to recover"
        )
    how = validate.settings(Decomposition, decomposition=decomposition)
    attempt = _Attempt(
        source=source,
        orders=choose(activation, orders=how.orders),
        count=count,
        how=how,
        refined=validate.boolean(refined=refined),
        certify=validate.boolean(certify=certify),
        seed=validate.seed(seed=seed),
    )
    if how.method == "power" and attempt.orders.used[0] != 2:
        raise ValueError(
            f"`method='power'` needs order 2, for whitening, which {attempt.orders.name} lacks: use 'diagonal'"
        )
    if not g.any():
        return attempt.result(g, "the gradient is zero")
    # A power of two, exactly: squares of a tiny gradient would vanish.
    exponent = math.frexp(float(np.abs(g).max()))[1] - 1
    unit = math.ldexp(1.0, exponent)
    out = attempt.run(np.ldexp(g, -exponent), unit)
    return dataclasses.replace(out, residuals=out.residuals * unit, spectrum=out.spectrum * unit, edge=out.edge * unit)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Attempt:
    """One reconstruction, with everything read and checked."""

    source: Weights
    orders: Orders
    count: int
    how: Decomposition
    refined: bool
    certify: bool
    seed: int

    def run(self, g: np.ndarray, unit: float) -> TensorReconstruction:
        """Reconstruct from g in units of `unit`; only the reason, a text, is converted back."""
        used, count, margin = self.orders, self.count, self.how.margin
        rng = kernels.generator(self.seed, kernels.Stream.TENSOR_STARTS)
        moments = estimate(g, self.source, used, count, self.how.subtract, margin)
        rank = moments.basis.shape[1]
        if rank == 0:
            return self.result(g, "nothing in the gradient is above its noise", moments)
        visible = int((np.abs(moments.values) > _MORE * margin * moments.edge).sum())
        if self.certify and visible > count:
            shows = f"the gradient shows at least {visible} inputs, more than num_examples={count}"
            return self.result(g, f"the decomposition failed: {shows}", moments)
        parts = decompose(moments, used.coefficients, used.used, self.how.method, rng)
        if parts is None:
            return self.result(g, "no decomposition of the tensor was found", moments)
        inputs = parts.directions @ moments.basis.T
        inputs, residuals = inputs / np.linalg.norm(inputs, axis=1, keepdims=True), parts.weights
        if self.how.method != "power" and self.how.subtract:  # else the paper's plain steps are asked for
            inputs, residuals = fit(inputs, residuals, moments, self.orders.coefficients)
        reason = ""
        hidden = margin * moments.edge / abs(used.coefficients[used.used[0]])
        if rank < count:
            reason = (
                f"{count - rank} of {count} samples are not above the noise: their residuals are near 0 (below about "
                f"{unit * hidden:.2g}), or inputs are nearly parallel, "
                "and then a found one may stand for several, further from each than its error estimate says"
            )
        if not (self.certify or self.refined):
            unknown = np.full(rank, np.nan)
            return self.result(g, reason, moments, parts, answer=(inputs, residuals, unknown))
        better = refine(inputs, residuals, g, self.source, used.function, all_rows=self.refined, others=rank < count)
        moved = np.linalg.norm(better.inputs - inputs, axis=1)
        allowed = 1.1 * moments.remainder**2 + 0.5 * (count - rank) * (margin * moments.edge) ** 2
        # Samples below the noise leave structure behind; if all samples were recovered, none may remain.
        shaped = rank == count and better.structure > _STRUCTURE * moments.remainder
        if self.certify and (better.remainder**2 > allowed or shaped):
            reason = "the decomposition failed: what it found leaves a part of the gradient that depends on the weights"
            return self.result(g, reason, moments, parts, better)
        near = moved <= (LARGEST_ERROR if self.certify else np.inf)
        if not near.all():
            reason += "; " if reason else ""
            reason += f"{int((~near).sum())} moved more than {LARGEST_ERROR} under least squares"
        x, r = (better.inputs, better.residuals) if self.refined else (inputs, residuals)
        # The distance to the least-squares answer, its own noise, and how far samples below the noise bend the span.
        bent = 0.5 * math.sqrt(count - rank) * hidden / (np.abs(r) * np.linalg.svd(x, compute_uv=False)[-1])
        way = 0.0 if self.refined and self.certify else moved**2
        errors = np.minimum(2.0, np.sqrt(way + better.errors**2 + bent**2))
        return self.result(g, reason, moments, parts, better, answer=(x[near], r[near], errors[near]))

    def result(
        self,
        g: np.ndarray,
        reason: str,
        moments: Moments | None = None,
        parts: Parts | None = None,
        better: Refined | None = None,
        *,
        answer: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    ) -> TensorReconstruction:
        """The result: answer (inputs, residuals, error estimates), or why there is none."""
        used = self.orders
        inputs, residuals, errors = answer or (np.empty((0, self.source.num_inputs)), np.empty(0), np.empty(0))
        size = math.sqrt(float(g @ g) / len(g))
        method = f"tensor method, orders {used.used}"
        if answer is not None and parts is not None:
            method += "" if self.how.subtract else ", plain moments"
            method += f", {parts.method}" + (", refined on the gradient" if self.refined else "")
        return TensorReconstruction(
            value=len(inputs) / self.count,
            method=method,
            **attack_guarantee(
                "knows the hidden weights, drawn from N(0, I), the activation and the batch size, and sees dL/da",
                notes=("two layers, no bias, inputs of unit length",),
            ),
            seed=self.seed,
            provenance=SOURCE,
            inputs=inputs,
            residuals=residuals,
            error_estimates=errors,
            signs_known=used.used == (2, 3) or (used.used == (2, 4) and abs(used.coefficients[1]) > 1e-6),
            unrecoverable=self.count - len(inputs),
            failed=len(inputs) == 0,
            reason=reason,
            orders=used.used,
            coefficients=used.coefficients,
            spectrum=np.empty(0) if moments is None else moments.values,
            edge=math.nan if moments is None else moments.edge,
            misfit=math.nan if parts is None else parts.misfit,
            remainder=math.nan if better is None or size == 0 else better.remainder / size,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Matched:
    """Recovered inputs matched with true ones.

    Attributes:
        errors: (k,) ‖x̂ − x‖₂ of each recovered input and its true one.
        order: (k,) index of the true input that each was matched with.
        root_mean_square: √(mean of errors²), the left side of Lecture 13, eq. 5.2; NaN for k = 0.
    """

    errors: np.ndarray
    order: np.ndarray
    root_mean_square: float


def match(recovered: Any, inputs: Any, *, signs_known: bool | None = None) -> Matched:
    """Distances of recovered inputs to the true ones, under the assignment with the least sum of squares.

    Args:
        recovered: a `TensorReconstruction`, or its inputs, (k, d).
        inputs: (B, d), k ≤ B.
        signs_known: False: the nearer of x and −x counts. None: as the reconstruction says; of an array, True.

    Returns:
        `Matched`.

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import tensor
        >>> matched = tensor.match(np.array([[0.0, -1.0]]), np.eye(2), signs_known=False)
        >>> matched.order.tolist(), matched.root_mean_square
        ([1], 0.0)
    """
    if isinstance(recovered, TensorReconstruction):
        signs_known = recovered.signs_known if signs_known is None else signs_known
        recovered = recovered.inputs
    here, _ = validate.host_array(recovered=recovered)
    truth, _ = validate.host_array(inputs=inputs)
    if truth.ndim != 2 or here.ndim != 2 or here.shape[1] != truth.shape[1] or len(here) > len(truth):
        raise ValueError(
            f"`recovered` and `inputs` must have shapes (k, d) and (B, d), k ≤ B, got {here.shape} and {truth.shape}"
        )
    distance = np.linalg.norm(here[:, None] - truth[None], axis=2)
    if signs_known is False:
        distance = np.minimum(distance, np.linalg.norm(here[:, None] + truth[None], axis=2))
    _, order = optimize.linear_sum_assignment(distance**2)
    errors = distance[np.arange(len(here)), order]
    return Matched(errors, order, float(np.sqrt((errors**2).mean())) if len(errors) else math.nan)
