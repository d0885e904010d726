"""What an audit tests and how trials refute it: (ε, δ)-privacy, μ-GDP, or a claimed mechanism at any noise."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy import special

from leakcore import accounting
from leakcore._base import validate
from leakcore._base.results import Adjacency, Assumptions, parse_adjacency
from leakcore.mechanisms import GDP, ApproximateDP, Mechanism
from leakcore.numerics import AccuracyError, Precision, gaussian_pair, gaussian_pair_epsilon

_FINENESS = 128
"""Scales that are tried are 2^(k/128): steps of half a percent of the noise."""
_FARTHEST = 10 * _FINENESS
_LEVELS = np.concatenate(
    [np.geomspace(1e-7, 0.2, 48, endpoint=False), np.linspace(0.2, 0.98, 40), 1 - np.geomspace(0.015, 1e-5, 14), [1.0]]
)
"""False-positive rates at which the curve is computed; between them it is bounded by lines."""
_ROUNDING = 1e-12
"""More than the arithmetic of a line can lose."""


class Roc:
    """Limits above a concave curve of true-positive rates, from those at `_LEVELS`: by its values, and by lines through
    neighbours."""

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        high = np.minimum(high, 1.0)
        self._high = high
        steps = np.diff(_LEVELS)
        # A concave curve lies below the line through two of its points, on either side of them.
        self._before = np.append(math.inf, (high[1:] - low[:-1]) / steps)
        self._after = np.append(np.maximum(low[1:] - high[:-1], 0.0) / steps, 0.0)

    def __call__(self, p: np.ndarray) -> np.ndarray:
        """At most this true-positive rate at a false-positive rate p, any array."""
        right = np.minimum(np.searchsorted(_LEVELS, p, side="left"), len(_LEVELS) - 1)
        value = self._high[right] - self._after[right] * np.maximum(_LEVELS[right] - p, 0.0)
        left = np.maximum(right - 1, 1)
        ahead = self._high[left] + self._before[left] * np.maximum(p - _LEVELS[left], 0.0)
        value = np.where(right >= 2, np.minimum(value, ahead), value)
        return np.asarray(np.clip(value + _ROUNDING, 0.0, 1.0))


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """A mechanism at a scale, equal if it describes the same law, for the cache."""

    fingerprint: str
    adjacency: Adjacency
    mechanism: Mechanism = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class ScaledMechanism:
    """The family that a claimed mechanism spans: its noise divided by a scale, 1 for the claim itself. A bare claim has
    its parameter (μ or ε) multiplied instead. `delta` is the one at which `epsilon` is computed."""

    claimed: Mechanism
    adjacency: Adjacency
    delta: float

    def at(self, scale: float) -> Mechanism:
        """The mechanism at a scale. TypeError for one without noise to change."""
        claim: Any = self.claimed
        if isinstance(claim, GDP):
            return dataclasses.replace(claim, mu=claim.mu * scale)
        if isinstance(claim, ApproximateDP):
            return dataclasses.replace(claim, epsilon=claim.epsilon * scale)
        self.claimed.with_noise(1.0)
        sigma = np.asarray(claim.noise_multiplier, dtype=np.float64) / scale
        return self.claimed.with_noise(float(sigma) if sigma.ndim == 0 else sigma)  # type: ignore[arg-type]

    def roc(self, scale: float) -> Roc:
        """How often the best test is right. AccuracyError where no method reaches the mechanism."""
        mechanism = self.at(scale)
        return _roc(_Scaled(mechanism.fingerprint(), self.adjacency, mechanism))

    def epsilon(self, scale: float) -> float:
        """The smallest ε at δ of the mechanism at this scale, from below; 0 at scale 0."""
        if scale == 0:
            return 0.0
        spent = accounting.epsilon(self.at(scale), delta=self.delta, adjacency=self.adjacency)
        return float(spent.value if spent.interval is None else spent.interval[0])

    def noise_multiplier(self, scale: float) -> float | None:
        """The largest σ at a scale; None for a bare claim, and where nothing is refuted."""
        sigma = vars(self.claimed).get("noise_multiplier")
        return None if sigma is None or scale == 0 else float(np.max(sigma)) / scale


def largest_refuted(refutes: Any) -> float:
    """The largest scale of the grid that is refuted, 0 if none is: those below it are refuted with it. A scale at which
    the curve cannot be computed is not."""

    def fails(k: int) -> bool:
        try:
            return bool(refutes(2.0 ** (k / _FINENESS)))
        except AccuracyError:
            return False

    low, high, reach, start = -_FARTHEST, _FARTHEST, 8, 0
    if fails(start):
        low = start
        while (step := min(start + reach, _FARTHEST)) > low and fails(step):
            low, reach = step, 4 * reach
        high = step
    else:
        high = start
        while (step := max(start - reach, -_FARTHEST)) < high and not fails(step):
            high, reach = step, 4 * reach
        low = step
    if high == -_FARTHEST:
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return math.pow(2.0, low / _FINENESS)


@lru_cache(maxsize=256)
def _roc(scaled: _Scaled) -> Roc:
    low, high = scaled.mechanism.curve(scaled.adjacency).log_blow_up(np.log(_LEVELS))
    return Roc(np.exp(low), np.exp(high))


ATTACKER = "chooses the k rows, sees each trained model's test statistic, and knows both datasets"
"""Who scores models that were trained with the rows and without."""
_PROVENANCE = {
    "dp": "Jagielski, Ullman and Oprea (2020), Algorithm 2, Theorem 2, Appendix A (δ > 0, complement); errata E5, E6",
    "gdp": "Dong, Roth and Su (2022), Definition 2.6, Theorem 2.14 and Corollary 2.13, with the limits of Jagielski, "
    "Ullman and Oprea (2020), Algorithm 2",
    "mechanism": "Dong, Roth and Su (2022), Definition 2.3, with the mechanism's own trade-off curve",
}

_IS_GAUSSIAN = "the mechanism is μ-GDP for some μ (full-batch DP-SGD is, subsampled is not)"

Family = Literal["dp", "gdp"]
Direction = Literal["in", "out", "both"]


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """What an audit by counting tests, fixed before its trials are counted.

    Args:
        family: the kind of guarantee. "dp": (ε, δ)-privacy, no further assumption. "gdp": the stronger claim that the
            mechanism is μ-GDP for some μ (full-batch DP-SGD is, subsampled DP-SGD is not); needs δ > 0. A mechanism of
            `leakcore.mechanisms`: the claim that it ran, with some noise; needs δ > 0, k = 1 and direction "in".
        direction: the side on which the event is likelier. "in": with the k rows; "out": without them. "both": not
            fixed, so the error is split over both (or a split's choosing trials settle it, at no cost). Picking "in"
            or "out" by looking at the counts doubles the error.
        TypeError: for an argument of another type, or a mechanism without noise.

    Example:
        >>> from leakcore import bounds
        >>> counts = {"adjacency": "add-remove", "delta": 1e-5}
        >>> plain = bounds.epsilon_lower_bound(400, 100, 500, **counts)
        >>> gaussian = bounds.epsilon_lower_bound(400, 100, 500, hypothesis=bounds.Hypothesis(family="gdp"), **counts)
        >>> f"{plain.value:.1f}, or {gaussian.value:.1f} if the mechanism is Gaussian"
        '1.1, or 6.2 if the mechanism is Gaussian'
    """

    family: Family | Mechanism = "dp"
    direction: Direction = "in"

    def __post_init__(self) -> None:
        validate.one_of("in", "out", "both", direction=self.direction)
        if not isinstance(self.family, Mechanism):
            validate.one_of("dp", "gdp", family=self.family)
            return
        ScaledMechanism(self.family, self.family.adjacency, 0.0).at(1.0)  # refuses a mechanism without noise
        if self.direction != "in":
            raise ValueError(f"`direction` must be 'in' where `family` is a mechanism, got {self.direction!r}")


PRIVATE = Hypothesis()
"""(ε, δ)-privacy, by an event that is likelier with the k rows."""


@dataclasses.dataclass(frozen=True)
class RefutableClaim:
    """What the counts test at a confidence: k applications of a one-row guarantee, under a relation."""

    confidence: float
    delta: float
    k: int
    adjacency: Adjacency
    family: str
    direction: Direction
    mechanism: ScaledMechanism | None = None

    @classmethod
    def parse(cls, confidence: float, delta: float, k: int, adjacency: str, hypothesis: Hypothesis) -> RefutableClaim:
        """ValueError or TypeError names the argument that is out of range."""
        validate.instance(Hypothesis, hypothesis=hypothesis)
        claimed = hypothesis.family if isinstance(hypothesis.family, Mechanism) else None
        relation = parse_adjacency(adjacency) if claimed is None else claimed.relation(adjacency)
        slack = validate.below_one(delta=delta)
        out = cls(
            confidence=validate.confidence(confidence=confidence),
            delta=slack,
            k=validate.integer(1, k=k),
            adjacency=relation,
            family=str(hypothesis.family) if claimed is None else repr(claimed),
            direction=hypothesis.direction,
            mechanism=None if claimed is None else ScaledMechanism(claimed, relation, slack),
        )
        if out.family != "dp" and out.delta == 0:
            raise ValueError(
                f"`delta` must be in (0, 1) with family={out.family if claimed else 'gdp'!r}, got 0.0: no Gaussian "
                "mechanism has a finite ε there"
            )
        if claimed is not None and out.k > 1:
            raise ValueError(f"`k` must be 1 where `family` is a mechanism, got {out.k}: its curve is about one row")
        return out

    @property
    def provenance(self) -> str:
        """Paper and theorem behind the family's test."""
        return _PROVENANCE[self.family if self.mechanism is None else "mechanism"]

    def proved(self, p_hi: float, p_lo: float) -> float:
        """The least parameter (ε, μ of "gdp", or a mechanism's scale) of one row that allows an event of probabilities
        p_hi and p_lo > 0."""
        if self.mechanism is not None:
            roc, limit = self.mechanism.roc, np.array(p_lo)
            return largest_refuted(lambda scale: float(roc(scale)(limit)) < p_hi) if p_lo < p_hi else 0.0
        if self.family == "dp":
            return _group_epsilon(p_hi, p_lo, self.delta, self.k)
        return max(0.0, float(special.ndtri(p_hi) - special.ndtri(p_lo)) / self.k) if p_lo < p_hi else 0.0

    def proved_each(self, p_hi: np.ndarray, p_lo: np.ndarray) -> np.ndarray:
        """`proved` of many pairs; 0 where p_lo is. For a mechanism it is μ of "gdp", which ranks pairs much alike: it
        only chooses which event is counted on other trials."""
        if self.family == "dp" and self.delta > 0 and self.k > 1:
            pairs = zip(p_hi.tolist(), p_lo.tolist(), strict=True)
            return np.array([self.proved(a, b) if b > 0 else 0.0 for a, b in pairs])
        differs = (p_lo > 0) & (p_hi > p_lo + (self.k * self.delta if self.family == "dp" else 0.0))
        hi, lo = np.where(differs, p_hi, 0.5), np.where(differs, p_lo, 0.5)
        if self.family != "dp":
            parameters = (special.ndtri(hi) - special.ndtri(lo)) / self.k
        else:
            parameters = np.log((hi - self.delta * differs) / lo) / self.k
        return np.where(differs, np.maximum(parameters, 0.0), 0.0)

    def epsilon(self, parameter: float) -> float:
        """ε of one row at δ."""
        if self.mechanism is not None:
            return self.mechanism.epsilon(parameter)
        return parameter if self.family == "dp" else float(gaussian_pair_epsilon(parameter, delta=self.delta))

    def fields(self, *notes: str) -> dict[str, Any]:
        """The fields of a lower bound that follow from the claim, with notes on how the trials were used."""
        return {
            "kind": "lower",
            "confidence": self.confidence,
            "interval": None,
            "assumptions": Assumptions(adjacency=self.adjacency, attacker=ATTACKER, notes=(*notes, *self.notes())),
            "delta": self.delta,
            "k": self.k,
            "direction": self.direction,
            "family": self.family,
        }

    def notes(self) -> tuple[str, ...]:
        """What must be true about the trials."""
        return (
            "trials are independent, and identically distributed within each dataset",
            f"the two datasets differ in {self.k} "
            + ("replaced" if self.adjacency == "replace" else "added")
            + (" row" if self.k == 1 else " rows"),
            *((_IS_GAUSSIAN,) if self.family == "gdp" else ()),
            *(() if self.mechanism is None else (f"the mechanism is {self.family} with some noise multiplier",)),
        )


def _group_epsilon(p_hi: float, p_lo: float, delta: float, k: int) -> float:
    """The smallest ε ≥ 0 with p_hi ≤ e^(kε) p_lo + δ(e^(kε) − 1)/(e^ε − 1); p_lo > 0."""
    if p_hi <= p_lo + k * delta:
        return 0.0
    if delta == 0:
        return math.log(p_hi / p_lo) / k
    if k == 1:
        return math.log((p_hi - delta) / p_lo)
    log_hi, log_lo, log_delta = math.log(p_hi), math.log(p_lo), math.log(delta)

    def allows(epsilon: float) -> bool:
        geometric = _log_expm1(k * epsilon) - _log_expm1(epsilon)
        terms = (log_lo + k * epsilon, log_delta + geometric)
        top = max(terms)
        return top + math.log(sum(math.exp(t - top) for t in terms)) >= log_hi

    # The right side grows with ε, and dropping its δ term gives a point above the root. The end kept is the one where
    # the inequality fails, so rounding can only lower the bound.
    low, high = 0.0, (log_hi - log_lo) / k
    while low < (middle := 0.5 * (low + high)) < high:
        if allows(middle):
            high = middle
        else:
            low = middle
    return low


def _log_expm1(y: float) -> float:
    """log(e^y − 1) for y > 0, without overflow for large y or cancellation for small."""
    return y + math.log(-math.expm1(-y))


class Tangents(NamedTuple):
    """Lines above a trade-off curve: P(E) ≤ e^ε Q(E) + δ for every event E and each (ε, δ), ε ≥ 0, of the two arrays. P
    and Q are the laws of the release with a coin's two sides; where the two directions differ, δ is their mean."""

    epsilons: np.ndarray
    deltas: np.ndarray


_GAUSSIAN_LINES, _MECHANISM_LINES = 48, 12
_FAR = 6.0
"""Standard deviations of the log ratio; values further out do not change the answer."""


class CurveFamily(abc.ABC):
    """Trade-off curves by one parameter, at most `largest`; the largest that is refuted is found to a relative
    `precision`."""

    largest: ClassVar[float]
    precision: ClassVar[float] = 1e-9

    @abc.abstractmethod
    def lines(self, parameter: float) -> Tangents:
        """Lines above the curve."""

    @abc.abstractmethod
    def epsilon(self, parameter: float) -> float:
        """The smallest ε at δ of a mechanism with this curve, from below."""

    @abc.abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What must be true of the mechanism."""

    def largest_refuted(self, refutes: Callable[[Tangents], bool]) -> float:
        """The largest parameter that is refuted, from below; 0 if none is. All smaller ones are refuted with it."""
        if not refutes(Tangents(np.zeros(1), np.zeros(1))):
            return 0.0
        low, high = 0.0, 1.0
        while refutes(self.lines(high)):
            if high >= self.largest:
                return high
            low, high = high, min(2.0 * high, self.largest)
        while low < (middle := 0.5 * (low + high)) < high and high - low > self.precision * high:
            low, high = (middle, high) if refutes(self.lines(middle)) else (low, middle)
        return low


@dataclasses.dataclass(frozen=True)
class ApproximateFamily(CurveFamily):
    """(ε, δ)-privacy of one row. The parameter is ε. A coin changes k rows: group privacy turns (ε, δ) into the line
    (kε, δ(1 + e^ε + … + e^((k−1)ε)))."""

    largest: ClassVar[float] = 700.0  # e^ε overflows above it
    delta: float
    k: int = 1

    def lines(self, parameter: float) -> Tangents:
        epsilon_of_k = min(self.largest, self.k * parameter)
        times = float(self.k) if parameter == 0 else math.expm1(epsilon_of_k) / math.expm1(epsilon_of_k / self.k)
        return Tangents(np.array([epsilon_of_k]), np.array([self.delta * (times if self.k > 1 else 1.0)]))

    def epsilon(self, parameter: float) -> float:
        return parameter

    def notes(self) -> tuple[str, ...]:
        return ()


@dataclasses.dataclass(frozen=True)
class GaussianFamily(CurveFamily):
    """μ-GDP of one row. The parameter is μ. A coin changes k rows, whose release is kμ-GDP. δ is that of `epsilon`."""

    largest: ClassVar[float] = 30.0
    delta: float
    k: int = 1

    def lines(self, parameter: float) -> Tangents:
        separation = self.k * parameter
        epsilons = log_ratios(separation, _GAUSSIAN_LINES)
        return Tangents(epsilons, np.exp(gaussian_pair.log_profile(epsilons, separation)))

    def epsilon(self, parameter: float) -> float:
        return float(gaussian_pair_epsilon(parameter, delta=self.delta))

    def notes(self) -> tuple[str, ...]:
        return (_IS_GAUSSIAN,)


@dataclasses.dataclass(frozen=True)
class MechanismFamily(CurveFamily):
    """A mechanism with its noise multiplier divided by the parameter; 1 is the mechanism itself. Lines touch the curve
    at `epsilons`: any choice is valid; it matters for power alone."""

    largest: ClassVar[float] = 1024.0
    precision: ClassVar[float] = 5e-3
    mechanism: ScaledMechanism
    epsilons: np.ndarray

    def lines(self, parameter: float) -> Tangents:
        claimed, adjacency = self.mechanism.claimed, self.mechanism.adjacency
        curve = self.mechanism.at(parameter).curve(adjacency)
        precision = Precision() if claimed.steps_loss(adjacency) is not None else Precision(bits=13)
        directions = ("remove",) if claimed.is_symmetric(adjacency) else ("remove", "add")
        deltas = [
            [math.exp(curve.log_delta(float(e), direction, precision=precision)[1]) for e in self.epsilons]
            for direction in directions
        ]
        return Tangents(self.epsilons, np.mean(deltas, axis=0))

    def epsilon(self, parameter: float) -> float:
        return self.mechanism.epsilon(parameter)

    def notes(self) -> tuple[str, ...]:
        return (f"the mechanism is {self.mechanism.claimed!r} with some noise multiplier",)


def log_ratios(separation: float, count: int = _MECHANISM_LINES) -> np.ndarray:
    """Log likelihood ratios that decide between Gaussians this far apart."""
    return np.linspace(0.0, 0.5 * separation * separation + _FAR * separation, count)


def claimed_lines(family: Any, k: int) -> Tangents | None:
    """Lines above the curve of a bare claim about one row, for k rows; None for anything else."""
    if isinstance(family, GDP):
        return GaussianFamily(0.0, k).lines(family.mu)
    return ApproximateFamily(family.delta, k).lines(family.epsilon) if isinstance(family, ApproximateDP) else None
