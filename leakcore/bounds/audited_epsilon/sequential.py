"""A claimed ε tested while trials arrive: one may look after every chunk of them, and stop whenever one likes.

The test bets against trade-off curves, with factors whose mean no mechanism of the curve can lift above 1, whatever the
scores are (docs/explanation/bounds.md, "Bets, valid at every look"). With A = 1{in ≥ τ}, B = 1{out ≥ τ}, lines (a, b)
above the curve and weights w, w₀, w₁ with the sum 1, the factors of a model with and one without the rows are

    f(in) = 2 w₁ + Σ 2w A/(a + b),    g(out) = 2 w₀ + Σ 2w a(1 − B)/(a + b).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result
from leakcore._base.validate import asks_adjacency
from leakcore.bounds.audited_epsilon.families import ATTACKER, Family, Hypothesis, RefutableClaim
from leakcore.bounds.audited_epsilon.ranks import allowed
from leakcore.bounds.audited_epsilon.thresholds import ScoredAudit

_STEPS, _POWER = 300, 2.0
"""Steps and power of the multiplicative rule that looks for weights. A bet is valid without the best ones."""
_NEAR = 2e-4
"""The rule stops this close to the best growth for each score."""
_TANGENTS = np.linspace(-3.0, 3.0, 9)
"""Standard deviations from the middle of a Gaussian curve at which its tangents lie."""
_SHARES = np.linspace(0.1, 0.9, 9)
"""Shares of all earlier scores at which there are thresholds, besides those in the tails."""
_MOST = 700.0


@dataclasses.dataclass(frozen=True)
class Curve:
    """The trade-off curves of k rows, one for each parameter: ε of "dp", μ of "gdp"."""

    family: Family
    delta: float
    k: int

    def lines(self, parameter: float) -> tuple[np.ndarray, np.ndarray]:
        """(a, b) of the lines above a parameter's curve that are bet on."""
        separation = min(_MOST, self.k * parameter)
        if self.family == "gdp":
            slopes = np.exp(-separation * _TANGENTS)
            at = _TANGENTS - separation / 2
            return slopes, np.asarray(special.ndtr(at + separation) - slopes * special.ndtr(at))
        ratio = math.exp(separation)
        start = float(allowed(np.zeros(1), parameter, "dp", self.delta, self.k)[0])
        return np.array([ratio, 1 / ratio]), np.array([start, 1 - (1 - start) / ratio])

    def most(self, parameter: float) -> float:
        """The largest factor of one pair, from above. Where in is at the top with probability T(q) and out at the
        bottom with 1 − q, the mean factor is at most 1. So the factor is at most 1/(T(q)(1 − q)), for every q."""
        q = special.expit(np.linspace(-30.0, 0.0, 4001))
        return float(1 / (allowed(q, parameter, self.family, self.delta, self.k) * (1 - q)).max())


class Bet(NamedTuple):
    """Factors of a model by the cell of its score: cell i has i thresholds at or below it."""

    thresholds: np.ndarray
    inside: np.ndarray
    outside: np.ndarray

    def log_growth(self, inside: np.ndarray, outside: np.ndarray) -> float:
        """Logarithm of the product over pairs."""
        return sum(
            math.fsum(np.log(factors)[np.searchsorted(self.thresholds, scores, side="right")])
            for scores, factors in ((inside, self.inside), (outside, self.outside))
        )


def bet_on(inside: np.ndarray, outside: np.ndarray, curve: Curve, parameter: float) -> Bet:
    """The bet that would have grown most on these trials, and one more on each side that went wrong."""
    thresholds = _thresholds(inside, outside)
    slopes, heights = curve.lines(parameter)
    cells, size = len(thresholds) + 1, len(thresholds) * len(slopes)
    above = np.arange(cells)[:, None] > np.arange(cells - 1)
    worth = 2 / (slopes + heights)
    won = (above[:, :, None] * worth).reshape(cells, size)
    lost = (~above[:, :, None] * (worth * slopes)).reshape(cells, size)
    two, none = np.full((cells, 1), 2.0), np.zeros((cells, 1))
    factors = np.block([[two, none, won], [none, two, lost]])
    counts = [
        np.bincount(np.searchsorted(thresholds, scores, side="right"), minlength=cells).astype(np.float64)
        for scores in (inside, outside)
    ]
    counts[0][0] += 1.0
    counts[1][-1] += 1.0
    share = np.concatenate(counts) / np.sum(counts)
    weights = np.full(size + 2, 0.2 / size)
    weights[:2] = 0.4
    for _ in range(_STEPS):
        gains = factors.T @ (share / (factors @ weights))
        if gains.max() < 1 + _NEAR:
            break
        weights *= gains**_POWER
        weights /= weights.sum()
    weights = np.maximum(weights, 1e-12)  # a factor of 0 would end all bets
    weights /= weights.sum() * (1 + 1e-12)  # and a sum that rounding lifted above 1 would make them false
    grown = factors @ weights
    return Bet(thresholds, grown[:cells], grown[cells:])


def _thresholds(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Above the 1st, 2nd, 4th, … highest score without the rows, above the lowest ones with them, and between."""
    every = np.unique(np.concatenate([inside, outside]))
    high, low = np.sort(outside)[::-1], np.sort(inside)
    ranks = [2**i - 1 for i in range(40) if 2**i <= max(1, len(inside) // 2)]
    shares = np.quantile(np.concatenate([inside, outside]), _SHARES, method="lower")
    at = np.searchsorted(every, np.concatenate([high[ranks], low[ranks], shares]), side="right")
    here, above = every[at - 1], every[np.minimum(at, len(every) - 1)]
    finite = np.isfinite(here) & np.isfinite(above)
    half = np.where(finite, 0.5, 0.0)
    between = np.where(finite, half * np.where(finite, here, 0) + half * np.where(finite, above, 0), above)
    return np.unique(between)


_STEP, _FACTOR = 0.05, 1.07
"""Between tested parameters: in shares of the claim's below it, and the factor above."""
_MARGIN = 1e-3
"""By which what is proved exceeds a refuted claim at least, so that four digits tell them apart."""
_WIDTH = 1e-4
"""Relative width of the bracket of a ceiling."""
_LARGEST = 200
"""Parameters above the claim's; what is proved is never near the last of them."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SequentialEpsilon(Result):
    """A lower bound on ε that holds whenever one stops, as `SequentialTest.proof` returns it.

    Attributes:
        value: ε for one row.
        claim: the ε that is tested.
        refuted: whether `value` is above it.
        p_value: p-value of the claim; at most p with probability at most p, however often one looks.
        trials: on each data set, for each audit.
        looks: how often trials were added.
        considered: names of the audits, whose evidence is averaged.
        delta: as asked.
        family: as asked.
        mu: with family "gdp", the separation of unit Gaussians that was proved for one row; else None.
    """

    quantity: str = "ε"
    claim: float
    refuted: bool
    p_value: float
    trials: int
    looks: int
    considered: tuple[str, ...]
    delta: float
    family: str
    mu: float | None


class SequentialTest:
    """A test of a claimed ε by scores that arrive in chunks, valid at every look.

    After each chunk a bet on the next ones is chosen: thresholds, lines of the trade-off curve and stakes that would
    have grown most so far. If the claim holds, a capital that starts at 1 reaches 1/(1 − confidence) with probability
    at most 1 − confidence, in however many looks (Ville's inequality; docs/explanation/bounds.md). On the first chunk
    nobody bets.

    Args:
        epsilon: the claim, above 0.
        adjacency: relation of the audits, as in `epsilon_lower_bound`.
        confidence: as in `epsilon_lower_bound`.
        delta: as in `epsilon_lower_bound`.
        family: "dp" or "gdp", as in `Hypothesis`. A curve bounds events in both directions.

    Guarantees:
        Assumes independent trials. The rule that says when to stop may look at everything. Deterministic given the
        scores and the chunks.

    Example:
        >>> import numpy as np
        >>> from leakcore import bounds
        >>> rng = np.random.default_rng(0)
        >>> test = bounds.SequentialTest(1.0, adjacency="add-remove", delta=1e-5)
        >>> while not test.refuted:
        ...     test.add({"k = 1": (rng.normal(3.0, size=50), rng.normal(size=50), 1)})
        >>> test.trials, test.proof().value > 1.0
        (100, True)
    """

    @asks_adjacency
    def __init__(
        self, epsilon: float, *, adjacency: str, confidence: float = 0.99, delta: float = 0.0, family: Family = "dp"
    ) -> None:
        self._family: Family = "gdp" if validate.one_of("dp", "gdp", family=family) == "gdp" else "dp"
        self._hypothesis = Hypothesis(family=self._family)
        self._claim = RefutableClaim.parse(confidence, delta, 1, adjacency, self._hypothesis)
        self._epsilon = validate.positive(epsilon=epsilon)
        self._parameter = _just_above(self._claim, self._epsilon)
        self._needed = -math.log1p(-self._claim.confidence)
        self._audits: dict[str, _Audit] = {}
        self._looks = 0

    @property
    def trials(self) -> int:
        """Trials so far, on each data set of each audit."""
        return next(iter(self._audits.values())).trials if self._audits else 0

    def add(self, audits: Mapping[str, tuple[Any, Any, int]]) -> None:
        """Take the scores of the next trials: name → (scores_in, scores_out, k), as in `epsilon_lower_bound_best`.

        Names and k must be the same in every look, and all sides must have equally many scores.
        """
        if not isinstance(audits, Mapping) or not audits:
            raise ValueError("`audits` must be a mapping of at least one name to (scores_in, scores_out, k)")
        chunk: dict[str, tuple[np.ndarray, np.ndarray, Curve]] = {}
        claim = self._claim
        for name, (inside, outside, k) in audits.items():
            asked = RefutableClaim.parse(claim.confidence, claim.delta, k, claim.adjacency, self._hypothesis)
            sides = {f"audits[{name!r}] scores_in": inside, f"audits[{name!r}] scores_out": outside}
            arrays = tuple(ScoredAudit.parse(asked, **sides).sides.values())
            chunk[str(name)] = (arrays[0], arrays[1], Curve(self._family, claim.delta, asked.k))
        sizes = sorted({len(side) for a, b, _ in chunk.values() for side in (a, b)})
        if len(sizes) > 1:
            raise ValueError(f"`audits` must have equally many scores on all sides, got {sizes[0]} and {sizes[-1]}")
        new = {name: curve.k for name, (_, _, curve) in chunk.items()}
        old = {name: audit.curve.k for name, audit in self._audits.items()}
        if old and new != old:
            raise ValueError(f"`audits` must have the names and k of the first look, {old}, got {new}")
        for name, (a, b, curve) in chunk.items():
            self._audits.setdefault(name, _Audit(curve)).add(a, b)
        self._looks += 1

    @property
    def refuted(self) -> bool:
        """Whether the claim has fallen: what is proved is above it."""
        return self._evidence(self._parameter) >= self._needed and (float(self.proof().value) > self._epsilon)

    @property
    def p_value(self) -> float:
        """The p-value of the claim; at most p with probability at most p if it holds, however often one looks."""
        return math.exp(-self._evidence(self._parameter))

    def hopeless(self, trials: int) -> bool:
        """Whether not even perfect scores of so many more trials, on each data set, could refute the claim."""
        left = validate.integer(0, trials=trials)
        if self._evidence(self._parameter) >= self._needed:
            return False
        best = [
            a.path(self._parameter)[-1] + left * math.log(a.curve.most(self._parameter)) for a in self._audits.values()
        ]
        return bool(best) and _log_mean(np.array(best)[:, None])[0] < self._needed

    def ceiling(self, trials: int) -> float:
        """The most that could be proved by so many trials in all, on each data set: ε for one row, from above."""
        audits = list(self._audits.values())
        total = validate.integer(0, trials=trials)
        betted = total - min([total, *(a.learnt for a in audits)])

        def reaches(parameter: float) -> bool:
            best = [betted * math.log(a.curve.most(parameter)) for a in audits]
            return bool(best) and _log_mean(np.array(best)[:, None])[0] >= self._needed

        low, high = 0.0, self._parameter
        if not reaches(1e-9):
            return 0.0
        while reaches(high):
            low, high = high, 2 * high
        while high - low > _WIDTH * high:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if reaches(middle) else (low, middle)
        return self._claim.epsilon(high)

    def proof(self) -> SequentialEpsilon:
        """What is proved so far, of kind "lower"."""
        parameter, claim = self._proved(), self._claim
        value = claim.epsilon(parameter) if parameter > 0 else 0.0
        ks = sorted({a.curve.k for a in self._audits.values()})
        return SequentialEpsilon(
            value=value,
            kind="lower",
            confidence=claim.confidence,
            interval=None,
            method="bets that earlier trials chose, on pairs of later ones; the capital of all audits is averaged",
            assumptions=Assumptions(
                adjacency=claim.adjacency,
                attacker=ATTACKER,
                notes=(
                    "the bound holds at every look: one may stop for any reason",
                    "larger scores are likelier with the k rows; audits and k were fixed before the trials",
                    *dict.fromkeys(note for k in ks for note in dataclasses.replace(claim, k=k).notes()),
                ),
            ),
            provenance="Waudby-Smith and Ramdas (2024) for bets; Dong, Roth and Su (2022) for curves; Ville (1939)",
            claim=self._epsilon,
            refuted=value > self._epsilon,
            p_value=self.p_value,
            trials=self.trials,
            looks=self._looks,
            considered=tuple(self._audits),
            delta=claim.delta,
            family=self._family,
            mu=parameter if self._family == "gdp" else None,
        )

    def _evidence(self, parameter: float) -> float:
        """The largest logarithm so far of the capital, averaged over the audits, against a parameter."""
        if not self._audits:
            return 0.0
        return float(_log_mean(np.array([a.path(parameter) for a in self._audits.values()])).max(initial=0.0))

    def _proved(self) -> float:
        """The last refuted one of parameters that were fixed beforehand, where all before it are refuted, too. If the
        truth lies between two of them, more than the truth is proved only if the next one, which is true, is refuted:
        with probability at most 1 − confidence."""
        below = [self._parameter * _STEP * i for i in range(1, round(1 / _STEP))]
        proved = 0.0
        for parameter in (*below, *(self._parameter * _FACTOR**i for i in range(_LARGEST))):
            if self._evidence(parameter) < self._needed:
                break
            proved = parameter
        return proved


class _Audit:
    """One audit's trials by look, and the capital against each parameter."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self._chunks: list[tuple[np.ndarray, np.ndarray]] = []
        self._paths: dict[float, list[float]] = {}

    @property
    def trials(self) -> int:
        return sum(len(a) for a, _ in self._chunks)

    @property
    def learnt(self) -> int:
        """Trials of the first chunk, on which nobody bets."""
        return len(self._chunks[0][0])

    def add(self, inside: np.ndarray, outside: np.ndarray) -> None:
        self._chunks.append((inside, outside))

    def path(self, parameter: float) -> list[float]:
        """Logarithm of the capital after each look."""
        path = self._paths.setdefault(parameter, [0.0])
        while len(path) < len(self._chunks):
            past = self._chunks[: len(path)]
            inside, outside = (np.concatenate([chunk[side] for chunk in past]) for side in (0, 1))
            bet = bet_on(inside, outside, self.curve, parameter)
            path.append(path[-1] + bet.log_growth(*self._chunks[len(path)]))
        return path


def _log_mean(logs: np.ndarray) -> np.ndarray:
    """The logarithm of the mean of the exponentials of each column."""
    top = logs.max(axis=0)
    return np.asarray(top + np.log(np.exp(logs - top).mean(axis=0)))


def _just_above(claim: RefutableClaim, epsilon: float) -> float:
    """The parameter whose ε is above the claim by a thousandth: refuting it refutes the claim."""
    above = epsilon * (1 + _MARGIN)
    if claim.family == "dp":
        return above
    high = 1.0
    while claim.epsilon(high) <= above:
        high *= 2.0
    low = 0.0
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (low, middle) if claim.epsilon(middle) > above else (middle, high)
    return high
