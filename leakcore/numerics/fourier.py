"""Tails of the privacy loss by inverting its characteristic function under an exponential tilt.

The law of S = L under ν tilted by e^{θL} has density g on a window [a, b] that holds all but a negligible part of its
mass. Its Fourier coefficients are products of one-step characteristic functions, and
    ν(S > t) = e^{K(θ)} ∫_t^b e^{−θs} g(s) ds,    μ(S > t) = e^{K(θ)} ∫_t^b e^{(1−θ)s} g(s) ds
are integrated term by term in closed form. Near the tilt's mean these have full *relative* accuracy however small they
are, which is what makes κ = 4⁻⁷⁸⁴ as easy as κ = 1/10.
"""

from __future__ import annotations

import math

import numpy as np

from leakcore.numerics.arithmetic import AccuracyError, dot, log1p, times
from leakcore.numerics.loss import PrivacyLoss, StepGroup

_WORK_LIMIT = 3e7
"""Frequencies times nodes: about a fifth of a second of one core."""
_FREQUENCY_LIMIT = 50_000


class TiltedLaw:
    """The law of the privacy loss tilted by θ, as a Fourier series on a window. By `refine` every grid is finer and the
    window wider; two such laws, compared, estimate the error. `effort` is the factor of the usual work that is
    allowed."""

    def __init__(self, loss: PrivacyLoss, theta: float, refine: float = 1.0, effort: float = 1.0) -> None:
        self.theta, self._effort = theta, effort
        at = loss.cumulants(theta)
        self.log_moment, self.mean, self.std = at.value, at.mean, math.sqrt(at.variance)
        a, b = loss.window(theta, -40.0 * refine)
        pad = 0.02 * refine * (b - a)
        self.low, self.high = a - pad, b + pad
        self.width = self.high - self.low
        spacing = 2.0 * math.pi / self.width
        self.omega, self.phi = _characteristic_function(loss, theta, self.mean, spacing, refine, effort)

    def checked_by(self, loss: PrivacyLoss, power: float) -> TiltedLaw:
        """Another discretisation of the same loss, to be compared with this one: finer, and with a mean half a standard
        deviation nearer to the law tilted by `power`."""
        gap = self.theta - power
        near = gap - math.copysign(min(0.5 / self.std, 0.15 * abs(gap)), gap)
        return TiltedLaw(loss, power + near, 1.15, self._effort)

    def log_upper(self, t: np.ndarray, power: float) -> np.ndarray:
        """log E_ν[e^{power·S}; S > t] for power < θ."""
        return self._log_tail(t, power, self.high)

    def log_lower(self, t: np.ndarray, power: float) -> np.ndarray:
        """log E_ν[e^{power·S}; S ≤ t] for power > θ."""
        return self._log_tail(t, power, self.low)

    def density(self, t: np.ndarray) -> np.ndarray:
        """g(t), the tilted density."""
        return np.asarray((2.0 * self._series(self.phi, t).real - 1.0) / self.width)

    def _log_tail(self, t: np.ndarray, power: float, end: float) -> np.ndarray:
        slope = power - self.theta
        # Beyond the window there is nothing left.
        inside = (t < end) if end > self.mean else (t > end)
        at = np.where(inside, t, self.mean)
        gap = end - at
        weights = np.zeros_like(self.phi)
        weights[1:] = self.phi[1:] / (slope - 1j * self.omega[1:])
        series = np.exp(slope * gap) * self._series(weights, np.array([end])) - self._series(weights, at)
        flat = np.expm1(slope * gap) / slope if slope != 0.0 else gap
        integral = (2.0 * series.real + flat) / self.width
        if end < self.mean:
            integral = -integral
        usable = inside & (integral > 0.0)
        return np.where(usable, self.log_moment + slope * at + np.log(np.where(usable, integral, 1.0)), -np.inf)

    def _series(self, weights: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Σ_k w_k exp(−iω_k(t − mean)) for every t, ω_k = ω_coarse + ω_fine: one matrix product, few exponentials."""
        fine = max(1, math.isqrt(len(weights)))
        coarse = -(-len(weights) // fine)
        block = np.zeros((coarse, fine), dtype=np.complex128)
        block.reshape(-1)[: len(weights)] = weights
        turn = -1j * (t - self.mean) * (2.0 * math.pi / self.width)
        inner = np.exp(np.outer(turn, np.arange(fine)))
        outer = np.exp(np.outer(turn, fine * np.arange(coarse)))
        return np.asarray(((inner @ block.T) * outer).sum(axis=1))


_EXCESS = 1e-6
"""How far log |φ| may exceed 0 by rounding; for a probability law it is at most 0."""


def _characteristic_function(
    loss: PrivacyLoss, theta: float, mean: float, spacing: float, refine: float, effort: float
) -> tuple[np.ndarray, np.ndarray]:
    """E_θ[exp(iω(S − mean))] at ω = 0, spacing, 2·spacing, …, until it is below rounding."""
    total = _count_frequencies(loss, theta, spacing, refine, effort)
    blocks: list[np.ndarray] = []
    start = 0
    while start < total:
        # The grid in z is made for the block's highest frequency, so low frequencies do not pay for high ones.
        count = min(total - start, max(32, start // 2))
        top = (start + count) * spacing
        omega = (start + np.arange(count)) * spacing
        log_phi = np.zeros(count, dtype=np.complex128)
        offset = mean
        if loss.gaussian_variance > 0.0:
            log_phi += -0.5 * loss.gaussian_variance * omega**2
            offset -= loss.gaussian_variance * (theta - 0.5)
        for group in loss.groups:
            weights, values, centre = _tilted_nodes(group, theta, top, refine)
            offset -= group.count * centre
            with np.errstate(divide="ignore"):
                log_phi += times(group.count, log1p(_transform_less_one(weights, values, start, count, spacing)))
        if (log_phi.real > _EXCESS).any():
            steps = sum(group.count for group in loss.groups)
            raise AccuracyError(f"the rounding of steps={steps} exceeds the whole")
        blocks.append(np.exp(log_phi - 1j * omega * offset))
        start += count
    return np.arange(total) * spacing, np.concatenate(blocks)


def _tilted_nodes(
    group: StepGroup, theta: float, frequency: float, refine: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """(weights that sum to 1, ℓ − mean, mean) of one step's tilted law."""
    logs, values = group.nodes(theta, frequency, refine)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    centre = dot(weights, values)
    return weights, values - centre, centre


def _count_frequencies(loss: PrivacyLoss, theta: float, spacing: float, refine: float, effort: float) -> int:
    """How many multiples of `spacing` it takes until |characteristic function| < e^(−40·refine); AccuracyError when the
    work would exceed the limit (the loss piles up near its minimum, and its characteristic function decays slowly)."""
    count = 32
    while True:
        # Three neighbouring frequencies, so that a zero of the function is not mistaken for its decay.
        probe = count * spacing * np.array([0.83, 0.91, 1.0])
        log_size = -0.5 * loss.gaussian_variance * probe**2
        work = 0.0
        for group in loss.groups:
            weights, values, _ = _tilted_nodes(group, theta, float(probe[-1]), refine)
            work += float(count) * len(values)
            with np.errstate(divide="ignore"):
                log_size += group.count * log1p(np.expm1(1j * np.outer(probe, values)) @ weights).real
        if float(log_size.max()) < -40.0 * refine:
            return count
        if work > effort * _WORK_LIMIT or count > _FREQUENCY_LIMIT:
            raise AccuracyError("the privacy loss is too rough for Fourier inversion")
        count = max(count + 32, int(1.25 * count))


def _transform_less_one(weights: np.ndarray, values: np.ndarray, start: int, count: int, spacing: float) -> np.ndarray:
    """Σ_j w_j (exp(iω_k x_j) − 1) for k = start … start+count−1, as one matrix product: ω_k = ω_coarse + ω_fine. Less
    1, so that what many steps multiply is rounded relative to its own size: with a = e^{iω_coarse·x} − 1 and b
    likewise, e^{i(ω_coarse + ω_fine)x} − 1 = ab + a + b."""
    fine = max(1, math.isqrt(count))
    coarse = -(-count // fine)
    inner = np.expm1(1j * np.outer(np.arange(fine) * spacing, values))
    outer = np.expm1(1j * np.outer((start + fine * np.arange(coarse)) * spacing, values)) * weights
    out = outer @ inner.T + outer.sum(axis=1)[:, None] + (inner @ weights)[None, :]
    return np.asarray(out.reshape(-1)[:count])
