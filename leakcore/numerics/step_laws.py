"""The step laws: what one step of each kind leaks, as masses of its loss between any two places.

`SampledStep` and `ReplacementStep` are Poisson-sampled Gaussian steps, `FixedBatchStep` has a batch of fixed size,
`ShuffledLowerStep` is an epoch of shuffled batches from below, and `AtomLaw` has finitely many losses.
`dominating_laws` makes step laws of a `PrivacyLoss`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from leakcore.numerics.arithmetic import AccuracyError, log1mexp, log_differences, log_normal_masses
from leakcore.numerics.lattice import EVERYWHERE, ROUNDING, Grid, KnownMasses, LossCells, StepLaw
from leakcore.numerics.lattice_profile import DominatingLaws
from leakcore.numerics.loss import PrivacyLoss, StepGroup
from leakcore.numerics.moments import gaussian_log_moments


class StepCells(LossCells):
    """The cells of a sampled Gaussian step; `group.rate` may be 1. The other law is N(1, σ²) in place of μ, so that
    small losses keep their digits."""

    def __init__(self, group: StepGroup, grid: Grid) -> None:
        edges = _positions(grid.edges()[:-1], group)
        edges[0] = -math.inf
        edges = np.append(edges, math.inf)
        super().__init__(grid, log_normal_masses(edges), log_normal_masses(edges - 1.0 / group.sigma))
        self._rate = group.rate

    def _log_mu(self, part: int) -> float:
        with np.errstate(divide="ignore"):
            return float(np.logaddexp(np.log1p(-self._rate) + self._nu[part], math.log(self._rate) + self._other[part]))

    def _log_ratio(self, nu: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.asarray(np.logaddexp(np.log1p(-self._rate) + nu, math.log(self._rate) + other) - nu)

    def _excess(self, nu: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q, at = self._rate, self._points(len(nu))
        empty = ~np.isfinite(nu)
        with np.errstate(invalid="ignore"):
            gain = np.where(empty, 0.0, np.maximum(other - nu, -800.0))
        sampled = np.exp(np.minimum(gain + (math.log(q) - at), 700.0))
        near = np.minimum(at, 1.0)
        small = (q * np.expm1(np.minimum(gain, 50.0)) - np.expm1(near)) * np.exp(-near)
        with np.errstate(over="ignore"):
            direct = (1.0 - q) * np.exp(-at) + sampled - 1.0
        excess = np.where((at < 1.0) & (gain < 50.0), small, direct)
        size = 8.0 + np.abs(at) + np.where(empty, 0.0, np.abs(nu) + np.abs(gain))
        return excess, ROUNDING * (size * sampled + np.abs(at))


@dataclasses.dataclass(frozen=True)
class SampledStep(StepLaw):
    """A group of equal sampled Gaussian steps as a step law; its rate may be 1."""

    group: StepGroup

    @property
    def count(self) -> int:
        """How many steps there are in the group."""
        return self.group.count

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        # "remove": norms of order 1 + s have ‖1 − q + qX‖ ≤ 1 − q + q‖X‖ as well. "add": no loss is below log(1 − q).
        sigma, rate = self.group.sigma, self.group.rate
        out = gaussian_log_moments(s, 1.0 / sigma, rate)
        if rate == 1.0:
            return out
        if not remove:
            return np.asarray(np.minimum(out, -s * math.log1p(-rate)))
        norm = np.logaddexp(math.log1p(-rate), math.log(rate) + 0.5 * s / sigma**2)
        return np.asarray(np.minimum(out, (1.0 + s) * norm))

    def loss_range(self, reach: float) -> tuple[float, float]:
        return loss_range(self.group, reach)

    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> StepCells:
        origin = _origin(self.group, spacing)
        return StepCells(self.group, Grid.within(self.loss_range(reach), fine, origin, spacing))

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = _positions(edges, self.group)
        nu, hit = log_normal_masses(z), log_normal_masses(z - 1.0 / self.group.sigma)
        with np.errstate(divide="ignore"):
            return nu, np.logaddexp(np.log1p(-self.group.rate) + nu, math.log(self.group.rate) + hit)

    def out_of_reach(self, theta: float) -> AccuracyError:
        return self.group.out_of_reach(theta)


def loss_range(group: StepGroup, reach: float) -> tuple[float, float]:
    """The losses within `reach` standard deviations of the means under ν and μ, from the minimum where there is one."""
    low, high = -reach, reach + 1.0 / group.sigma
    if group.rate == 1.0:
        return tuple(float(z / group.sigma - 0.5 / group.sigma**2) for z in (low, high))  # type: ignore[return-value]
    return group.minimum, float(group.term(np.array([high]))[0])


def _origin(group: StepGroup, spacing: float) -> float:
    """A point of the lattice: the mean loss of ν's mass around its median, where it may be piled up."""
    if group.rate == 1.0:
        return 0.0
    at = float(group.term(np.zeros(1))[0])
    for _ in range(4):
        edges = _positions(at + spacing * np.array([-0.5, 0.5]), group)
        nu, hit = (float(log_normal_masses(part)[0]) for part in (edges, edges - 1.0 / group.sigma))
        if not nu > -2.0:
            break  # spread over many cells
        at = math.log1p(group.rate * math.expm1(hit - nu))
    return at


def _positions(losses: np.ndarray, group: StepGroup) -> np.ndarray:
    """z at which the step's loss is each of these; −∞ below its minimum."""
    q = group.rate
    if q == 1.0:
        return np.asarray(group.sigma * losses + 0.5 / group.sigma)
    above = losses - group.minimum
    near = np.clip(above, 0.0, 30.0)
    with np.errstate(divide="ignore"):
        log_sampled = np.where(above > 30.0, above, np.log(np.expm1(near))) + (math.log1p(-q) - math.log(q))
    return np.asarray(group.sigma * log_sampled + 0.5 / group.sigma)


@dataclasses.dataclass(frozen=True)
class ReplacementStep(KnownMasses):
    """`count` Poisson-sampled Gaussian steps under replacement, of noise multiplier sigma > 0 and rate q in (0, 1].

    μ = (1−q)N(0, σ²) + qN(1, σ²) and ν = (1−q)N(0, σ²) + qN(−1, σ²). Exchanging x and −x exchanges them, so that both
    directions of the profile agree. With z = x/σ and a = q·e^{−1/(2σ²)} the loss ℓ rises with z, and
    z = σ·(ℓ/2 + arsinh((1−q)·sinh(ℓ/2)/a)).
    """

    sigma: float
    rate: float

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """Also μ/ν ≤ 1 + cX with c = q/(1 − q) and X = dN(1, σ²)/dN(0, σ²), whose norms of order s ≥ 1
        are at most 1 + c‖X‖ under N(1, σ²), where ‖X‖ = e^{(s + 1)/(2σ²)}."""
        out = gaussian_log_moments(s, 2.0 / self.sigma, self.rate)
        if self.rate == 1.0:
            return out
        odds = math.log(self.rate) - math.log1p(-self.rate)
        norm = np.logaddexp(0.0, odds + 0.5 * (np.maximum(s, 1.0) + 1.0) / self.sigma**2)
        return np.asarray(np.minimum(out, s * norm))

    def loss_range(self, reach: float) -> tuple[float, float]:
        z = reach + 1.0 / self.sigma
        high = float(np.logaddexp(*self._parts(z)) - np.logaddexp(*self._parts(-z)))
        return -high, high

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z, shift = self._positions(edges), 1.0 / self.sigma
        with np.errstate(divide="ignore"):
            unsampled = np.log1p(-self.rate) + log_normal_masses(z)
        hit = math.log(self.rate)
        below, above = (hit + log_normal_masses(z + side * shift) for side in (1.0, -1.0))
        return np.logaddexp(unsampled, below), np.logaddexp(unsampled, above)

    def _parts(self, z: float) -> tuple[float, float]:
        """log of the two parts of μ's density over that of N(0, 1)."""
        unsampled = math.log1p(-self.rate) if self.rate < 1.0 else -math.inf
        return unsampled, math.log(self.rate) + z / self.sigma - 0.5 / self.sigma**2

    def _positions(self, losses: np.ndarray) -> np.ndarray:
        half = 0.5 * losses
        if self.rate == 1.0:
            return self.sigma * half
        size = np.abs(half)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_sinh = np.where(size > 20.0, size - math.log(2.0), np.log(np.sinh(np.minimum(size, 20.0))))
            log_ratio = log_sinh + math.log1p(-self.rate) - math.log(self.rate) + 0.5 / self.sigma**2
            angle = np.where(
                log_ratio > 20.0, log_ratio + math.log(2.0), np.arcsinh(np.exp(np.minimum(log_ratio, 20.0)))
            )
        return np.asarray(self.sigma * (half + np.copysign(angle, half)))


@dataclasses.dataclass(frozen=True)
class FixedBatchStep(KnownMasses):
    """`count` steps under replacement whose batch has a fixed size, of noise multiplier sigma > 0 and rate γ in (0, 1].

    γ = b/n, Q = N(0, σ²), P = N(2, σ²), ℓ(x) = 2(x − 1)/σ². No pair of one variable is known that has the step's
    profile; this one, made from its loss, has (Balle, Barthe and Gaboardi 2018; Zhu, Dong and Wang 2022). Under μ the
    loss is log(1 − γ + γe^{ℓ(x)}), x ~ (1−γ)Q + γP, where x > 1; −log(1 − γ + γe^{−ℓ(x)}), x ~ P, where x < 1; and 0
    otherwise. Under ν it is distributed as its negative under μ.
    """

    sigma: float
    rate: float

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """A convex function of μ/ν has a mean that is linear in the profile, which is one pair's at ε ≥
        0 and another's at ε < 0, each a mixture with two Gaussians: M ≤ 1 + (M₁ − 1) + (M₂ − 1)."""
        one = gaussian_log_moments(s, 2.0 / self.sigma, self.rate)
        if self.rate == 1.0:
            return one
        # Norms of 1 − γ + γe^ℓ under Q, and the least value of 1 − γ + γe^{−ℓ}.
        norm = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + 2.0 * s / self.sigma**2)
        first, second = np.minimum(one, (1.0 + s) * norm), np.minimum(one, -s * math.log1p(-self.rate))
        return np.asarray(first + np.log1p(np.exp(-first) * np.expm1(np.minimum(second, first))))

    def loss_range(self, reach: float) -> tuple[float, float]:
        log_ratio = 2.0 * (self.sigma * reach + 1.0) / self.sigma**2
        high = (
            float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + log_ratio))
            if self.rate < 1.0
            else log_ratio
        )
        return -high, high

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        positive, negative = np.maximum(edges, 0.0), np.minimum(edges, 0.0)
        # ν's mass of (a, b] is μ's of [−b, −a).
        up, down = self._standard(positive), self._standard(-negative[::-1])
        with np.errstate(divide="ignore"):
            unsampled, sampled = np.log1p(-self.rate), math.log(self.rate)
            more, less = (
                np.logaddexp(
                    unsampled + log_normal_masses(z + 1.0 / self.sigma),
                    sampled + log_normal_masses(z - 1.0 / self.sigma),
                )
                for z in (up, down)
            )
            fewer, fewest = (log_normal_masses(z + 1.0 / self.sigma) for z in (up, down))
            mu, nu = np.logaddexp(more, fewest[::-1]), np.logaddexp(fewer, less[::-1])
            atom = unsampled + np.log(math.erf(1.0 / (self.sigma * math.sqrt(2.0))))
        at_zero = (edges[:-1] < 0.0) & (edges[1:] >= 0.0)
        mu[at_zero], nu[at_zero] = (np.logaddexp(part[at_zero], atom) for part in (mu, nu))
        return nu, mu

    def _standard(self, losses: np.ndarray) -> np.ndarray:
        """(x − 1)/σ ≥ 0 at which the loss is each of these, which are not negative."""
        with np.errstate(over="ignore"):
            small = np.log1p(np.expm1(np.minimum(losses, 30.0)) / self.rate)
        return np.asarray(0.5 * self.sigma * np.where(losses > 30.0, losses - math.log(self.rate), small))


_POINTS = 1 << 15


@dataclasses.dataclass(frozen=True)
class ShuffledLowerStep(KnownMasses):
    """What `count` shuffled epochs of b batches leak at least: a pair that every dominating pair dominates.

    The row is in one of b batches, each order of the batches alike; with the row the batch's sum is 2, without it 1,
    all other batches' sums are 0 (Chua et al. 2024, ICML): P = (1/b)Σ_t N(2e_t, σ²I), Q = (1/b)Σ_t N(e_t, σ²I). Who
    sees only M = max_t w_t sees less, and
        P(M ≤ c) = Φ((c − 2)/σ)·Φ(c/σ)^{b−1},  Q(M ≤ c) = Φ((c − 1)/σ)·Φ(c/σ)^{b−1}.
    Who sees only the cell that M is in sees less again, whatever the cells: they hold losses between two points of the
    lattice.
    """

    sigma: float
    batches: int

    def loss_range(self, reach: float) -> tuple[float, float]:
        _, losses = self._table(reach)
        return float(losses[0]), float(losses[-1])

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # M between the places where its loss is at the edges.
        places, losses = self._table(60.0)
        ends = np.interp(edges, losses, places)
        ends[0], ends[-1] = -np.inf, np.inf
        nu, mu = (log_differences(self._log_below(ends, mean), self._log_above(ends, mean)) for mean in self._means)
        return nu, mu

    @property
    def _means(self) -> tuple[float, float]:
        return 1.0 / self.sigma, 2.0 / self.sigma

    def _table(self, reach: float) -> tuple[np.ndarray, np.ndarray]:
        """(M/σ, the loss there), rising."""
        return _table(self.sigma, self.batches, reach)

    def _log_below(self, c: np.ndarray, mean: float) -> np.ndarray:
        return np.asarray(special.log_ndtr(c - mean) + _times(self.batches - 1, special.log_ndtr(c)))

    def _log_above(self, c: np.ndarray, mean: float) -> np.ndarray:
        """log P(M > c): 1 − (1 − u)(1 − v)^{b−1} with u = Φ(mean − c), v = Φ(−c)."""
        hit = special.log_ndtr(mean - c)
        if self.batches == 1:
            return np.asarray(hit)
        other = special.log_ndtr(-c)
        log_no = log1mexp(hit) + (self.batches - 1) * log1mexp(other)
        # Where 1 − e^{log_no} underflows, the sum of the two is as good.
        small = np.logaddexp(hit, math.log(self.batches - 1) + other)
        return np.where(log_no < -1e-280, log1mexp(np.minimum(log_no, 0.0)), small)


@functools.lru_cache(maxsize=8)
def _table(sigma: float, batches: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    c = np.linspace(-reach, 2.0 / sigma + reach, _POINTS)
    losses = _log_density(c, 2.0 / sigma, batches) - _log_density(c, 1.0 / sigma, batches)
    return c, np.maximum.accumulate(losses)


def _log_density(c: np.ndarray, mean: float, batches: int) -> np.ndarray:
    """log of M's density, less (b − 2)·log Φ(c)."""
    hit = -0.5 * (c - mean) ** 2 + special.log_ndtr(c)
    if batches == 1:
        return np.asarray(hit)
    return np.asarray(np.logaddexp(hit, math.log(batches - 1) + special.log_ndtr(c - mean) - 0.5 * c * c))


def _times(count: int, logs: np.ndarray) -> np.ndarray:
    """count·logs, with 0·(−∞) = 0."""
    return np.asarray(count * logs) if count else np.zeros_like(logs)


@dataclasses.dataclass(frozen=True, eq=False)
class AtomLaw(KnownMasses):
    """Atoms with masses under ν and μ, in the order of their losses log μ/ν.

    Attributes:
        log_nu: logarithm of each atom's mass under ν, finite.
        log_mu: logarithm of its mass under μ, finite.
        log_lost: logarithm of μ's mass where ν has none, and of ν's where μ has none.
        anchor: a loss that the lattice has as a point: that of the heaviest atom, where one is heavy.
    """

    log_nu: np.ndarray
    log_mu: np.ndarray
    log_lost: tuple[float, float] = (-math.inf, -math.inf)
    anchor: float = 0.0

    @classmethod
    def of(
        cls,
        log_nu: np.ndarray,
        log_mu: np.ndarray,
        log_lost: tuple[float, float] = (-math.inf, -math.inf),
        *,
        count: int = 1,
        anchor: float = 0.0,
    ) -> AtomLaw:
        """The law of atoms in any order; those that lack mass under one law alone are counted as lost."""
        finite_nu, finite_mu = log_nu > -np.inf, log_mu > -np.inf
        lost = [
            float(np.logaddexp.reduce(np.append(part[mine & ~other], at)))
            for part, mine, other, at in (
                (log_mu, finite_mu, finite_nu, log_lost[0]),
                (log_nu, finite_nu, finite_mu, log_lost[1]),
            )
        ]
        both = finite_nu & finite_mu
        log_nu, log_mu = log_nu[both], log_mu[both]
        order = np.argsort(log_mu - log_nu, kind="stable")
        return cls(log_nu[order], log_mu[order], (lost[0], lost[1]), anchor, count=count)

    @property
    def log_infinite(self) -> tuple[float, float]:
        return self.log_lost

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        losses = self.log_mu - self.log_nu
        logs, outward = (self.log_mu, losses) if remove else (self.log_nu, -losses)
        out = np.empty(len(s))
        for i, power in enumerate(s):
            parts = logs + power * outward
            most = float(parts.max())
            out[i] = most + math.log(float(np.exp(parts - most).sum())) if math.isfinite(most) else math.inf
        return out

    def loss_range(self, reach: float) -> tuple[float, float]:
        losses = self.log_mu - self.log_nu
        heavy = losses[np.maximum(self.log_nu, self.log_mu) > -0.5 * reach * reach - 30.0]
        low, high = float(heavy[0]), float(heavy[-1])
        pad = 1e-9 * (1.0 + abs(low) + abs(high))
        return low - pad, high + pad

    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends = np.searchsorted(self.log_mu - self.log_nu, edges, side="right")
        used = ends[1:] > ends[:-1]
        out = []
        for part in (self.log_nu, self.log_mu):
            masses = np.full(len(edges) - 1, -np.inf)
            if used.any():
                masses[used] = np.logaddexp.reduceat(part, ends[:-1][used])
            out.append(masses)
        return out[0], out[1]

    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> LossCells:
        grid = Grid.within(self.loss_range(reach), fine, self.anchor, spacing)
        return LossCells(grid, *self.log_masses(grid.edges()), self.log_infinite)

    def __repr__(self) -> str:
        return f"AtomLaw of {len(self.log_nu)} atoms"


_MOST_GROUPS = 24


def dominating_laws(loss: PrivacyLoss) -> DominatingLaws:
    """The step laws of a privacy loss: its groups, the full batches as one more.

    Many different steps are brought to a few: less noise and a larger sample for the upper limit, the contrary for the
    lower one. Who sees a step of less noise, or of a larger rate, can make one of the other from it.
    """
    groups = list(loss.groups)
    if loss.gaussian_variance > 0.0:
        groups.append(StepGroup(1.0 / math.sqrt(loss.gaussian_variance), 1.0, 1))
    if len(groups) <= _MOST_GROUPS:
        laws = tuple(SampledStep(group) for group in groups)
        return DominatingLaws(laws, laws)
    upper, lower = (tuple(SampledStep(group) for group in _merged(groups, up)) for up in (True, False))
    return DominatingLaws(upper, lower)


def repeated(law: StepLaw, times: int) -> StepLaw:
    """The law of `times` as many steps."""
    if times == 1:
        return law
    if isinstance(law, SampledStep):
        return SampledStep(dataclasses.replace(law.group, count=times * law.count))
    out: StepLaw = dataclasses.replace(law, count=times * law.count)  # type: ignore[type-var]
    return out


def _merged(groups: list[StepGroup], up: bool) -> list[StepGroup]:
    sigma, rate = np.array([g.sigma for g in groups]), np.array([g.rate for g in groups])
    count = np.array([g.count for g in groups])
    bins = 1 if np.ptp(rate) == 0.0 else (_MOST_GROUPS if np.ptp(sigma) == 0.0 else math.isqrt(_MOST_GROUPS))
    places = _bins(np.log(rate), bins) * _MOST_GROUPS + _bins(np.log(sigma), _MOST_GROUPS // bins)
    quiet, loud = (np.min, np.max) if up else (np.max, np.min)
    return [
        StepGroup(float(quiet(sigma[places == k])), float(loud(rate[places == k])), int(count[places == k].sum()))
        for k in np.unique(places)
    ]


def _bins(values: np.ndarray, bins: int) -> np.ndarray:
    """Which of `bins` equal parts of the range each value lies in."""
    width = float(np.ptp(values))
    if width == 0.0:
        return np.zeros(len(values), dtype=np.intp)
    return np.asarray(np.minimum(((values - values.min()) / width * bins).astype(np.intp), bins - 1))
