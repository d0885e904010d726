"""How unlikely a large privacy loss is where rare steps make most of it: small q, little noise or a far threshold.

There the moments that Chernoff's bound takes come from losses too rare to matter, and the bound is far off; Fourier
inversion and the recursion lose their digits as well. Losses above a cap c are counted instead, and moments taken of
those below: with ℓ = log(1 − q + q·e^g), g = (2x − 1)/(2σ²), and any s > 0,

    P_μ(L > ε) ≤ Σ_t μ(ℓ_t > c) + e^{−sε}·Π_t E_μ[e^{sℓ_t}; ℓ_t ≤ c].

Every term is bounded by normal distribution functions: e^{sℓ} ≤ 1 + sℓ + ψ(sℓ) with ψ(u) = e^u − 1 − u, where ψ(u)/u²
and ψ on [0, ∞) rise, ℓ ≤ q(e^g − 1) and |ℓ| ≤ q|e^g − 1|/(1 − q).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from leakcore._base.validate import LARGE
from leakcore.numerics.dot import dot
from leakcore.numerics.privacy_loss.loss import PrivacyLoss, StepGroup

_EDGES = np.geomspace(1e-3, 1.0, 200)
"""Edges of the bins of ℓ, as fractions of ε."""
_CAPS = range(10, len(_EDGES), 5)
_SLACK = 1e-11
"""More than the rounding of a difference of normal distribution functions, relative to them."""
_ROUNDING = 1e-9
"""More than all other rounding, relative to the probability."""
_LARGEST = 600.0
"""Largest exponent sℓ."""


def log_tail_bound(loss: PrivacyLoss, epsilon: float) -> float:
    """An upper bound of log P_μ(L > ε), hence of log δ_remove(ε); 0 where ε ≤ 0. Steps with σ = 0 are not in it."""
    from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

    if epsilon <= 0.0 or not loss.groups or max(group.sigma for group in loss.groups) > LARGE:
        return 0.0
    edges = epsilon * _EDGES
    steps = [_Step(group, edges) for group in loss.groups]
    best = 0.0
    for k in _CAPS:
        above = float(np.logaddexp.reduce([step.log_above[k] + math.log(step.count) for step in steps]))
        if above >= best:
            continue
        capped = [step.capped(k) for step in steps]
        if not all(math.isfinite(mean + square) for mean, square, _ in capped):
            continue  # moments beyond a float, as of very little noise: nothing to be had at this cap

        def below(log_s: float, k: int = k, capped: list[tuple[float, float, np.ndarray]] = capped) -> float:
            s = math.exp(log_s)
            psi = np.expm1(s * edges[: k + 1]) - s * edges[: k + 1]
            value = 0.5 * loss.gaussian_variance * s * (1.0 + s) - s * epsilon
            for step, (mean, square, masses) in zip(steps, capped, strict=True):
                grown = s * mean + square * psi[0] / edges[0] ** 2 + dot(masses, psi[1:])
                value += step.count * math.log1p(grown)
            return value

        ends = math.log(0.05 / epsilon), math.log(_LARGEST / edges[k])
        least = float(minimize_scalar(below, bounds=ends, method="bounded").fun)
        best = min(best, float(np.logaddexp(above, least)))
    return min(best + _ROUNDING, 0.0)


class _Step:
    """One step's loss under μ: the law at the edges, and moments below them."""

    def __init__(self, group: StepGroup, edges: np.ndarray) -> None:
        self.count, self._q, self._v = group.count, group.rate, group.sigma**-2
        near = np.minimum(edges, 30.0)
        shift = np.log(np.expm1(near) + group.rate) + (edges - near) - math.log(group.rate)
        self._x = group.sigma**2 * shift + 0.5
        parts = [log_ndtr((k - self._x) / group.sigma) for k in (0.0, 1.0)]
        self.log_above = np.logaddexp(math.log1p(-group.rate) + parts[0], math.log(group.rate) + parts[1])
        above = np.exp(self.log_above)
        self._masses = above[:-1] - above[1:] + _SLACK * above[:-1]
        self._sigma = group.sigma

    def capped(self, k: int) -> tuple[float, float, np.ndarray]:
        """Upper bounds: of E[ℓ; ℓ ≤ edge k], of E[ℓ²; ℓ ≤ edge 0], and the masses of the bins between."""
        one, exponential, _ = self._moments(k)
        mean = self._q * (exponential - one + _SLACK * (exponential + one))
        one, exponential, squared = self._moments(0)
        whole = squared + 2.0 * exponential + one
        spread = whole - 4.0 * exponential + _SLACK * whole if math.isfinite(whole) else math.inf
        return mean, (self._q / (1.0 - self._q)) ** 2 * spread, self._masses[:k]

    def _moments(self, k: int) -> tuple[float, float, float]:
        """E_μ of 1, e^g and e^{2g} where ℓ ≤ edge k: under N(i, σ²), e^{jg} moves the normal law to N(i + j, σ²)."""
        q, v, x = self._q, self._v, float(self._x[k])
        log_below = [float(log_ndtr((x - i) / self._sigma)) for i in range(4)]
        grown = (0.0, 0.0, v, 3.0 * v)  # log E e^{jg} = j(j − 1)v/2 + ijv under N(i, σ²)
        with np.errstate(over="ignore"):
            parts = np.exp(np.add(grown, log_below))
        one, exponential, squared = (1.0 - q) * parts[:3] + q * parts[1:]
        return float(one), float(exponential), float(squared)
