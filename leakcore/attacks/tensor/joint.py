"""One fit of all orders in all d coordinates, started from the answer in the span: what noise on the gradient needs.

The span's eigenvectors come from order 2 alone, whose coefficient is the smallest part of most activations: an input's
part outside the estimated span is lost, though order 1 shows it, too. Under noise that is a
large part of the error.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import optimize

from leakcore.attacks.tensor.moments import Moments

_STEPS = 300


@dataclasses.dataclass(frozen=True, eq=False)
class JointFit:
    """Σ_p ‖M_p − c_p Σ_i r_i x_i^{⊗p}‖²/(2 p! error_p²), ‖x_i‖ = 1, over what is known of the M_p: orders 1 and 2 in
    all coordinates, order 3 with one index in all and two in the span, order 4 in the span."""

    moments: Moments
    coefficients: tuple[float, ...]

    def __call__(self, z: np.ndarray, k: int) -> tuple[float, np.ndarray]:
        """(value, slope) at k rows of free length, then k weights."""
        known, c, basis = self.moments, self.coefficients, self.moments.basis
        free, r = z[:-k].reshape(k, -1), z[-k:]
        lengths = np.linalg.norm(free, axis=1, keepdims=True)
        x = free / lengths
        value, at_x, at_r = 0.0, np.zeros_like(x), np.zeros(k)
        if abs(c[1]) > 1e-6:
            rest, unit = known.linear - c[1] * (r @ x), known.across[1] ** 2
            value += float(rest @ rest) / (2.0 * unit)
            at_x -= c[1] * r[:, None] * rest / unit
            at_r -= c[1] * (x @ rest) / unit
        if known.second is not None:
            square, unit = known.second - c[2] * (x.T * r) @ x, known.across[2] ** 2
            moved = x @ square
            value += float(np.square(square).sum()) / (4.0 * unit)
            at_x -= c[2] * r[:, None] * moved / unit
            at_r -= c[2] * (moved * x).sum(axis=1) / (2.0 * unit)
        u = x @ basis
        last = max(known.tensors)
        unit, scale = known.errors[last] ** 2, c[last]
        tensor = known.tensors[last].copy()
        power = np.asarray(scale * r)
        for p in range(last):
            power = np.einsum("i...,ia->i...a", power, u) if p else power[:, None] * u
        tensor -= power.sum(axis=0)
        value += float(np.square(tensor).sum()) / (2.0 * math.factorial(last) * unit)
        reduced = np.stack([_applied(tensor, row) for row in u])
        at_x -= scale * r[:, None] * (reduced @ basis.T) / (math.factorial(last - 1) * unit)
        at_r -= scale * (reduced * u).sum(axis=1) / (math.factorial(last) * unit)
        if known.outside is not None:
            away = x - u @ basis.T
            third = known.outside - scale * np.einsum("i,ia,ib,ic->abc", r, away, u, u)
            value += float(np.square(third).sum()) / (4.0 * known.across[3] ** 2)
            towards = np.einsum("abc,ib,ic->ia", third, u, u)
            unit = known.across[3] ** 2
            along = np.einsum("abc,ia,ic->ib", third, away, u)
            at_x -= scale * r[:, None] * (towards / 2.0 + along @ basis.T) / unit
            at_r -= scale * (towards * away).sum(axis=1) / (2.0 * unit)
        at_x = (at_x - (at_x * x).sum(axis=1, keepdims=True) * x) / lengths
        return value, np.concatenate([at_x.ravel(), at_r])


def _applied(tensor: np.ndarray, v: np.ndarray) -> np.ndarray:
    """All indices but one contracted with v."""
    while tensor.ndim > 1:
        tensor = tensor @ v
    return tensor


def fit(
    inputs: np.ndarray, weights: np.ndarray, moments: Moments, coefficients: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, residuals) at the minimum that the start leads to."""
    k, d = inputs.shape
    scale = float(np.abs(weights).max())
    start = np.concatenate([inputs.ravel(), weights / scale])
    through = JointFit(moments, coefficients)

    def scaled(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = through(np.concatenate([z[:-k], z[-k:] * scale]), k)
        return value, np.concatenate([slope[:-k], slope[-k:] * scale])

    solution = optimize.minimize(
        scaled, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "ftol": 1e-14, "gtol": 1e-9}
    )
    if not np.isfinite(solution.x).all():
        return inputs, weights
    x = solution.x[:-k].reshape(k, d)
    return x / np.linalg.norm(x, axis=1, keepdims=True), solution.x[-k:] * scale
