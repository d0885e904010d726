"""The privacy loss of DP-SGD as a sum of independent terms: groups of equal steps, cumulant generating function, tilts.

L = Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))) is the log-likelihood ratio of the dominating pair of Hayes et al.
(2023), Corollary 4: ν = N(0, σ²I), μ = Π_t [(1 − q_t) N(0, σ_t²) + q_t N(1, σ_t²)]. With z = x/σ, one term is
ℓ(z) = log(1 − q + q·exp(z/σ − 1/(2σ²))) with z ~ N(0, 1) under ν. Everything here is a trapezoid rule in z, which
converges geometrically because the integrand is analytic in the strip |Im z| < πσ and decays like a Gaussian.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore.numerics.arithmetic import AccuracyError, dot

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_NEGLIGIBLE = 46.0
"""Log of the relative size below which a tail is dropped (e⁻⁴⁶ = 1e-20)."""
_ROUNDING = 37.0
"""−log of the unit roundoff 2⁻⁵³: the target of every discretisation error."""
_MAX_NODES = 4_000_000
LEAST_SIGMA = 1e-150
"""Below it 1/σ² overflows."""
_TAPER = 5.0
"""Steepness of a cut's taper, in standard normal units per unit of z."""


def parse_schedule(noise_multiplier: Any, sample_rate: Any, steps: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """σ in [0, ∞] and q in [0, 1], each 0-d or of length `steps`, and `steps`.

    ValueError or TypeError names the argument that is out of range or of another length.
    """
    count = validate.integer(0, steps=steps)
    sigma = validate.real_array("at least 0", lambda v: v >= 0.0, noise_multiplier=noise_multiplier)
    rate = validate.real_array("in [0, 1]", lambda v: (v >= 0.0) & (v <= 1.0), sample_rate=sample_rate)
    for name, array in (("noise_multiplier", sigma), ("sample_rate", rate)):
        if array.ndim > 1 or (array.ndim == 1 and len(array) != count):
            raise ValueError(f"`{name}` must be a number or an array of length steps={count}, got shape {array.shape}")
    return sigma, rate, count


@dataclasses.dataclass(frozen=True)
class StepGroup:
    """`count` steps of equal noise multiplier σ and sampling rate q in (0, 1).

    Beyond `cut` ν's density is tapered to 0. It is set where ν has no mass that matters to the question, but a tilt
    strong enough for that question could still have put all of its mass there: e^{θℓ} grows like e^{θz/σ}.
    """

    sigma: float
    rate: float
    count: int
    cut: float = math.inf

    def term(self, z: np.ndarray) -> np.ndarray:
        """ℓ(z), to full relative accuracy also where it is tiny."""
        shift = z / self.sigma - 0.5 / (self.sigma * self.sigma)
        q = self.rate
        small = np.minimum(shift, 30.0)
        if q <= 0.5:
            low = np.log1p(q * np.expm1(small))
        else:
            # 1 + q·expm1(a) cancels when q is close to 1 and a is very negative.
            low = np.where(
                small < -1.0,
                np.logaddexp(math.log1p(-q), math.log(q) + small),
                np.log1p(q * np.expm1(np.maximum(small, -1.0))),
            )
        return np.where(
            shift > 30.0, shift + math.log(q) + np.log1p((1.0 - q) / q * np.exp(-np.maximum(shift, 30.0))), low
        )

    @property
    def minimum(self) -> float:
        """The infimum log(1 − q) of ℓ."""
        return math.log1p(-self.rate)

    def out_of_reach(self, theta: float) -> AccuracyError:
        """The error to raise where a float cannot hold the loss, or θ times it."""
        return AccuracyError(
            f"one step's loss tilted by {theta:.3g} is out of reach at noise_multiplier={self.sigma:g}, "
            f"sample_rate={self.rate:g}"
        )

    def nodes(self, theta: float, frequency: float = 0.0, refine: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """(weights, ℓ) of the trapezoid rule under ν tilted by e^{θℓ}: log weights, normalisation included.

        The step h resolves exp(iu·ℓ) for |u| ≤ `frequency`: at distance y from the real axis the integrand has grown by
        about u·y·max ℓ′ + y²/2 in the logarithm, and the rule's error is exp(−2πy/h) times that.
        """
        if self.sigma < LEAST_SIGMA:
            raise self.out_of_reach(theta)
        low, high = self._support(theta)
        reach = min(1.5 * self.sigma, 6.0)
        # ℓ′ = (1/σ)·odds·e^a/(1 + odds·e^a), a = z/σ − 1/(2σ²), is largest at the upper end.
        odds = self.rate / (1.0 - self.rate) * math.exp(min(high / self.sigma - 0.5 / (self.sigma * self.sigma), 700.0))
        slope = min(1.0, 2.0 * odds) / self.sigma
        step = 2.0 * math.pi / (frequency * slope + reach / 2.0 + _ROUNDING / reach) / refine
        count = (high - low) / step
        if not count <= _MAX_NODES:
            raise AccuracyError(
                f"one step's loss needs {count:.2g} nodes at noise_multiplier={self.sigma:g}, sample_rate={self.rate:g}"
            )
        z = np.arange(math.floor(low / step), math.ceil(high / step) + 1) * step
        if len(z) == 0:
            raise self.out_of_reach(theta)
        values = self.term(z)
        logs = -0.5 * z * z + theta * values
        if z[-1] > self.cut:
            logs += special.log_ndtr(_TAPER * (self.cut + 1.0 - z))
        keep = logs > logs.max() - _NEGLIGIBLE
        if not keep.any():  # θ·ℓ beyond what a float holds
            raise self.out_of_reach(theta)
        return (logs + (math.log(step) - _HALF_LOG_2PI))[keep], values[keep]

    def _support(self, theta: float) -> tuple[float, float]:
        """Where exp(−z²/2 + θℓ(z)) is not negligible; it may have two modes, both inside."""
        span = math.sqrt(2.0 * _NEGLIGIBLE)
        if theta >= 0.0:
            low, high = -span - 0.5, min(theta / self.sigma + span + 0.5, self.cut + 3.0)
        else:
            zero = np.zeros(1)
            drop = float(self.term(zero)[0]) - self.minimum
            low, high = -math.sqrt(2.0 * -theta * drop + span * span) - span, span + 0.5
        if high - low < 60.0:
            return low, high
        if high - low > _MAX_NODES:
            raise self.out_of_reach(theta)
        # Curvature is at least −1, so modes are at least one unit wide and a half-unit grid sees them all.
        z = np.arange(math.floor(2.0 * low), math.ceil(2.0 * high) + 1) * 0.5
        logs = -0.5 * z * z + theta * self.term(z)
        matters = np.flatnonzero(logs > logs.max() - _NEGLIGIBLE - 8.0)
        if len(matters) == 0:
            raise self.out_of_reach(theta)
        return float(z[max(matters[0] - 2, 0)]), float(z[min(matters[-1] + 2, len(z) - 1)])


@dataclasses.dataclass(frozen=True)
class Cumulants:
    """K(θ) = log E_ν[e^{θL}] and its first two derivatives: mean and variance of L under the tilted law."""

    value: float
    mean: float
    variance: float


class PrivacyLoss:
    """L = Σ_t ℓ_t with steps grouped by (σ, q); steps with q = 1 are one Gaussian term, exact.

    `log_no_escape` is the log of the probability under μ that L is finite (steps with σ = 0 reveal sampled records);
    the rest describes the other steps. Steps with q = 0 or σ = ∞ contribute nothing and are dropped. `cache` is for
    callers that compute something costly from it.
    """

    def __init__(
        self, groups: tuple[StepGroup, ...], gaussian_variance: float = 0.0, log_no_escape: float = 0.0
    ) -> None:
        self.groups = groups
        self.gaussian_variance = gaussian_variance
        self.log_no_escape = log_no_escape
        self.minimum = -math.inf if gaussian_variance > 0.0 else math.fsum(g.count * g.minimum for g in groups)
        self._cumulants: dict[float, Cumulants] = {}
        self.cache: dict[Any, Any] = {}

    @classmethod
    def of_steps(cls, sigma: np.ndarray, rate: np.ndarray, steps: int) -> PrivacyLoss:
        """Group `steps` steps; sigma and rate are 0-d, or of length `steps` (already validated)."""
        if steps == 0:
            return cls(())
        if sigma.ndim == 0 and rate.ndim == 0:
            pairs, counts = np.array([[float(sigma), float(rate)]]), np.array([steps])
        else:
            both = np.stack(np.broadcast_arrays(sigma, rate), axis=-1).reshape(-1, 2)
            pairs, counts = np.unique(both, axis=0, return_counts=True)
        groups, variances, log_no_escape = [], [0.0], 0.0
        for (s, q), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            if q == 0.0 or math.isinf(s):
                continue
            if s == 0.0:
                log_no_escape += count * math.log1p(-q) if q < 1.0 else -math.inf
            elif q == 1.0:
                variances.append(count / s / s)
            else:
                groups.append(StepGroup(s, q, count))
        return cls(tuple(groups), math.fsum(variances), log_no_escape)

    def limited(self, log_floor: float) -> PrivacyLoss:
        """The same loss for questions about probabilities of e^{log_floor} or more: see `StepGroup.cut`.

        All mass dropped is below e^{log_floor} times 1e-19, under ν and under μ.
        """
        count = max(self.num_mixture_steps, 1)
        reach = math.sqrt(2.0 * (44.0 + abs(log_floor) + math.log(count)))
        groups = tuple(dataclasses.replace(g, cut=reach + 1.0 / g.sigma) for g in self.groups)
        return PrivacyLoss(groups, self.gaussian_variance, self.log_no_escape)

    def revealed(self) -> tuple[PrivacyLoss, float] | None:
        """(the same loss with the quietest steps at σ = 0, log η), η = Σ Φ(−1/(2σ)) over those steps; None without any.

        The quieter loss leaks more, so its blow-up B₀ is an upper bound. Telling a sampled record by x > 1/2 in one of
        those steps costs η of κ and misses with probability η, so by concavity B ≥ B₀·(1 − 2η/κ).
        """
        quiet = [g for g in self.groups if g.sigma < 0.15]
        if not quiet:
            return None
        log_eta = float(np.logaddexp.reduce([math.log(g.count) + special.log_ndtr(-0.5 / g.sigma) for g in quiet]))
        quiet_minimum = math.fsum(g.count * g.minimum for g in quiet)
        rest = tuple(g for g in self.groups if g.sigma >= 0.15)
        return PrivacyLoss(rest, self.gaussian_variance, self.log_no_escape + quiet_minimum), log_eta

    @property
    def silent(self) -> bool:
        """Whether nothing leaks: L is 0."""
        return not self.groups and self.gaussian_variance == 0.0 and self.log_no_escape == 0.0

    def total_variation(self) -> float:
        """An upper bound of the total variation distance between μ and ν, δ(0) in both directions.

        1 − Π(1 − d_t) with d_t = q_t·erf(1/(σ_t√8)), the steps' own distances (a coupling of each); exact for one step.
        """
        log_equal = self.log_no_escape
        if self.gaussian_variance > 0.0:
            log_equal += math.log1p(-min(math.erf(math.sqrt(self.gaussian_variance / 8.0)), 1.0 - 2.0**-53))
        log_equal += math.fsum(
            g.count * math.log1p(-g.rate * math.erf(1.0 / (g.sigma * 8.0**0.5))) for g in self.groups
        )
        # What underflows in a step is less than the least positive float.
        return -math.expm1(log_equal) + (self.num_mixture_steps + 1) * math.ulp(0.0)

    def full_batch_separation(self) -> float:
        """s of the Gaussian pair of the same steps without sampling, which leaks at least as much; ∞ with σ = 0."""
        if self.log_no_escape != 0.0:
            return math.inf
        return math.sqrt(self.gaussian_variance + math.fsum(g.count / g.sigma / g.sigma for g in self.groups))

    @property
    def num_mixture_steps(self) -> int:
        """Steps with 0 < q < 1."""
        return sum(g.count for g in self.groups)

    def cumulants(self, theta: float) -> Cumulants:
        """K, K′ and K″ at real θ."""
        if theta in self._cumulants:
            return self._cumulants[theta]
        v = self.gaussian_variance
        value, mean, variance = 0.5 * v * theta * (theta - 1.0), v * (theta - 0.5), v
        # E e^{θℓ} is taken as E e^{(θ − base)ℓ} under ν (base 0) or μ (base 1), whichever is nearer: both have mass 1,
        # so that what rounds is a small difference from 1, which many steps multiply.
        base = 1.0 if theta > 0.5 else 0.0
        for group in self.groups:
            logs, values = group.nodes(theta)
            peak = float(logs.max())
            weights = np.exp(logs - peak)
            total = float(weights.sum())
            m = dot(weights, values) / total
            log_moment = peak + math.log(total)
            tilted = (theta - base) * values
            if float(np.abs(tilted).max()) < 1.0:
                # A stronger tilt has dropped nodes that are negligible under it but not under the base.
                log_moment = math.log1p(dot(np.exp(logs - tilted), np.expm1(tilted)))
            value += group.count * log_moment
            mean += group.count * m
            variance += group.count * dot(weights, (values - m) ** 2) / total
        if not (math.isfinite(value) and math.isfinite(mean) and 0.0 < variance < math.inf):
            raise AccuracyError(f"the privacy loss tilted by {theta:.3g} has no variance that a float can hold")
        self._cumulants[theta] = out = Cumulants(value, mean, variance)
        return out

    def rounding(self, theta: float) -> float:
        """By how much rounding may move the loss's place under this tilt: what a step rounds, as often as it is taken.

        A step's mean is a sum of losses of either sign, each exact to a relative 2⁻⁵³ times a few.
        """
        out = 0.0
        for group in self.groups:
            logs, values = group.nodes(theta)
            weights = np.exp(logs - logs.max())
            out += group.count * dot(weights, np.abs(values)) / float(weights.sum())
        return 2.0**-51 * out

    def log_chernoff(self, theta: float) -> float:
        """K(θ) − θ·K′(θ) ≥ log ν(S > K′(θ)) for θ > 0."""
        at = self.cumulants(theta)
        return at.value - theta * at.mean

    def log_tail_estimate(self, theta: float) -> float:
        """Saddle-point estimate of log ν(S > K′(θ)), θ ≥ 0, or of log ν(S ≤ K′(θ)), θ < 0; exact for a Gaussian."""
        at = self.cumulants(theta)
        root = math.sqrt(0.5 * at.variance)
        return at.value - theta * at.mean + math.log(0.5 * float(special.erfcx(abs(theta) * root)))

    def log_profile_estimate(self, theta: float) -> float:
        """Saddle-point estimate of log δ(ε) at ε = K′(θ), θ > 1 (remove), or at ε = −K′(θ), θ < 0 (add)."""
        at = self.cumulants(theta)
        root = math.sqrt(0.5 * at.variance)
        power = 1.0 if theta > 1.0 else 0.0
        near = abs(theta - power)
        # erfcx(near) − erfcx(near + 1), never quite 0: only the position of a window depends on it.
        gap = float(special.erfcx(near * root)) * max(
            1.0 - float(special.erfcx((near + 1.0) * root)) / float(special.erfcx(near * root)), 1e-300
        )
        return at.value - (theta - power) * at.mean + math.log(0.5 * gap)

    def solve_tilt(self, function: Callable[[float], float], target: float, power: float, sign: float) -> float:
        """θ = power + sign·s, s > 0, with function(θ) = target to a few per cent, where function decreases in s.

        Only the position of a window depends on θ, so it need not be exact. Where the function levels off above the
        target (the loss piles up at its minimum) the far end is returned.
        """
        scale = 1.0 / math.sqrt(self.cumulants(power).variance)
        inside, outside = 0.0, 0.25 * scale
        while function(power + sign * outside) > target:
            inside, outside = outside, 1.5 * outside
            if outside > 1e6 * scale:
                return power + sign * inside
        for _ in range(12):
            middle = 0.5 * (inside + outside)
            inside, outside = (middle, outside) if function(power + sign * middle) > target else (inside, middle)
        return power + sign * max(0.5 * (inside + outside), 1e-3 * scale)

    def tilt_with_mean(self, threshold: float, power: float, sign: float) -> float:
        """θ on that side of `power` with K′(θ) ≈ threshold, or as near to `power` as is sensible."""
        return self.solve_tilt(lambda theta: -sign * self.cumulants(theta).mean, -sign * threshold, power, sign)

    def window(self, theta: float, log_negligible: float) -> tuple[float, float]:
        """[a, b] outside which the law tilted by θ has mass below e^{log_negligible} on either side (Chernoff)."""
        base = self.cumulants(theta)

        def end(step: float) -> float:
            """P(±S > ±c) ≤ exp(K(θ+s) − K(θ) − s·c): the c that makes this equal to the target, as a distance."""
            try:
                value = (self.cumulants(theta + step).value - base.value - log_negligible) / step - base.mean
            except AccuracyError:
                return math.inf
            return math.copysign(1.0, step) * value

        ends = []
        for sign in (-1.0, 1.0):
            step = sign * 0.5 / math.sqrt(base.variance)
            best = end(step)
            for _ in range(20):
                if math.isfinite(best):
                    break
                # A jump too rare for the variance to know of it is out of a float's reach under so strong a tilt.
                step *= 0.5
                best = end(step)
            for factor in (1.0 / 1.25, 1.25):
                moved = False
                while (new := end(step * factor)) < best:
                    best, step, moved = new, step * factor, True
                if moved:
                    break
            ends.append(base.mean + sign * best)
        low = max(ends[0], self.minimum)
        if not (math.isfinite(low) and math.isfinite(ends[1]) and low < base.mean < ends[1]):
            raise AccuracyError("the tails of the privacy loss could not be bounded")
        return low, ends[1]
