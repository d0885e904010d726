"""δ(ε), ε(δ) and B_κ from lattice laws: a tilt whose window is narrow, and a lattice as fine as is wanted.

B_κ = sup{μ(E): ν(E) ≤ κ}. Upper: B_κ ≤ κe^x + δ(x) for every x, with δ of the law that dominates. Lower: any test has
at most the power B_κ; the test is the one of the law that is dominated, L > x and a part of L = x.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from leakcore.numerics.arithmetic import AccuracyError
from leakcore.numerics.lattice import CoarseLaw, LatticeLaw, LossCells, StepLaw, Tails, Window
from leakcore.numerics.moments import ManySteps, log_delta_above

FIRST_BITS, SECOND_BITS, LAST_BITS = 13, 16, 19
"""log₂ of the lattice's points: to choose a tilt, to begin with, and at most (half a second)."""
_WEAKER = (0.75, 0.56, 0.42, 0.32, 0.24, 0.18, 0.13, 0.1)
"""Tilts that are tried, as parts of the last one: rare large losses may have most of a stronger one's mass."""
_SHARE = 9.0
"""−log of the part of the tilted law's mass that δ may be under a weaker tilt."""
_ROUNDING = 1e-12
"""More than rounding can move Chernoff's bound by, relative to its parts."""
_DEEPER, _DEEPEST = 4.0, 24
"""How much further out single steps are known at each attempt to reach δ, and how many attempts there are."""
_WELL = 25.0
"""−log of the part of Chernoff's bound that may lie beyond the reach of single steps."""
_MOST_CELLS = 1 << 20
_ENOUGH = 2e-7
"""Width of the limits (relative, above 1) at which refining the lattice stops."""
_MANY, TOO_MANY = 1 << 20, 1 << 40
"""Numbers of steps from which moments may prove more than a lattice, and from which a lattice's rounding, which every
step multiplies, is as large as what it is asked for."""
_CONTRARY = "what is proved from below, {:g}, lies above what is proved from above, {:g}"
_MANY_FLOOR, _LAST_FLOOR = -60.0, -800.0
"""log δ down to which single steps are known where moments are taken of them: at first, and where δ is below that."""
_LOOSE = 0.05
"""Width of a lattice's limits (relative, above 1) that has moments asked as well."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A gap between the tilt and the profile's own power, made for this ε and log δ."""

    gap: float
    epsilon: float
    log_delta: float


@dataclasses.dataclass(frozen=True)
class ProfileQuestion:
    """What is asked of the laws: `log_delta` at `epsilon`, or `epsilon` at `log_delta` (the other one is None)."""

    epsilon: float | None = None
    log_delta: float | None = None

    def rest(self, coarse: CoarseLaw) -> float:
        """What of `log_delta` the finite losses may have; −∞ where those that are certain take all of it."""
        assert self.log_delta is not None
        share = math.exp(min(coarse.log_infinite - self.log_delta, 0.0))
        return self.log_delta + math.log1p(-share) if share < 1.0 - 1e-12 else -math.inf

    def chernoff(self, coarse: CoarseLaw) -> Point:
        """Chernoff's bound and its tilt."""
        if self.epsilon is None:
            assert self.log_delta is not None
            if (rest := self.rest(coarse)) == -math.inf:
                return Point(coarse.best_gap(log_delta=self.log_delta)[0], math.inf, self.log_delta)
            return Point(*coarse.best_gap(log_delta=rest), self.log_delta)
        gap, bound = coarse.best_gap(epsilon=self.epsilon)
        return Point(gap, self.epsilon, min(float(np.logaddexp(bound, coarse.log_infinite)), 0.0))

    def proved(self, point: Point, coarse: CoarseLaw) -> float:
        """Chernoff's bound with the mass that the coarse law leaves out; 0 or ∞, the useless one, where that is all."""
        rounding = _ROUNDING * (1e3 + abs(point.log_delta) + abs(point.gap * point.epsilon)) + coarse.rounding
        if self.epsilon is not None:
            return min(float(np.logaddexp(point.log_delta + rounding, coarse.log_outside)), 0.0)
        rest = self.rest(coarse)
        if coarse.log_outside >= rest or point.epsilon == math.inf:
            return math.inf
        # ε moves by −log(1 − e^{outside − rest}) / gap where δ has to hold that mass as well.
        more = -math.log1p(-math.exp(coarse.log_outside - rest)) / point.gap
        return point.epsilon + more + rounding / point.gap

    def answer(self, law: LatticeLaw, start: float) -> float:
        """The law's limit; AccuracyError where it has none."""
        if self.epsilon is not None:
            return law.log_delta(self.epsilon)[0]
        assert self.log_delta is not None
        return law.epsilon(self.log_delta, start)

    def moved(self, point: Point, answer: float) -> Point:
        """The point with a better answer than Chernoff's."""
        if not math.isfinite(answer):
            return point
        name = "epsilon" if self.epsilon is None else "log_delta"
        return dataclasses.replace(point, **{name: answer})


class _LatestCells:
    """The cells of all steps on the latest lattice: both limits are made from them."""

    def __init__(self) -> None:
        self._latest: tuple[float, list[LossCells]] | None = None

    def on(self, spacing: float, make: Callable[[float], list[LossCells]]) -> list[LossCells]:
        if self._latest is None or self._latest[0] != spacing:
            self._latest = None  # let go of the last ones first
            self._latest = spacing, make(spacing)
        return self._latest[1]


@dataclasses.dataclass(frozen=True)
class Limit:
    """What one limit is made from. The other limit of the same steps, by `dataclasses.replace`, shares their cells."""

    coarse: CoarseLaw
    window: Window
    dominating: bool
    latest: _LatestCells = dataclasses.field(default_factory=_LatestCells, repr=False, compare=False)

    def law(self, bits: int) -> LatticeLaw:
        size = 1 << max(bits - (len(self.coarse.laws) - 1).bit_length(), 12)
        spacing = self.window.width / (size - 4)
        cells = self.latest.on(spacing, self._cells)
        return LatticeLaw(self.coarse, self.window, spacing, size, cells, self.dominating)

    def _cells(self, spacing: float) -> list[LossCells]:
        fine = list(zip(self.coarse.laws, self.window.fine, strict=True))
        for law, ends in fine:
            low, high = law.loss_range(self.coarse.reach)
            if not min(high, ends[1]) - max(low, ends[0]) <= _MOST_CELLS * spacing:
                raise AccuracyError("one step's loss is too wide for the lattice of their sum")
        return [law.cells(spacing, self.coarse.reach, ends) for law, ends in fine]

    def answer(self, question: ProfileQuestion, bits: int, start: float) -> float:
        """The limit from this side; ±∞, the useless one, where there is none."""
        try:
            return question.answer(self.law(bits), start)
        except AccuracyError:
            return math.inf if self.dominating else -math.inf


@contextlib.contextmanager
def in_floats(laws: Sequence[StepLaw]) -> Iterator[None]:
    """AccuracyError where a float cannot hold the loss of so little noise."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        try:
            yield
        except (OverflowError, ZeroDivisionError, ValueError, IndexError, MemoryError) as error:
            raise AccuracyError(f"the privacy loss is out of a float's reach at {laws[0]}") from error


@dataclasses.dataclass(frozen=True)
class DominatingLaws:
    """A composition from both sides: step laws that dominate it, and step laws that it dominates; often the same."""

    upper: tuple[StepLaw, ...]
    lower: tuple[StepLaw, ...]


def upper_limit(sides: DominatingLaws, question: ProfileQuestion, direction: str, bits: int) -> float:
    """The upper limit alone, from a lattice of 2^bits points; proved like the other one."""
    most = _upper_by_moments(sides, question, direction) if _total(sides) >= _MANY else math.inf
    if _total(sides) >= TOO_MANY:
        return most
    with in_floats(sides.upper):
        floor = _log_floor(sides.upper, question, direction)
        side, high = prepared(sides.upper, floor, direction, question, True, (0.5, 0.25, 0.1))
        return min(high, side.answer(question, bits, high), most)


def limits(
    sides: DominatingLaws, question: ProfileQuestion, direction: str, bits: int = LAST_BITS
) -> tuple[float, float]:
    """(low, high) around the answer, low perhaps −∞. `bits`: log₂ of the most lattice points. AccuracyError where a
    float cannot hold the loss."""
    many = _total(sides) >= _MANY
    least = _lower_by_moments(sides, question, direction) if many else -math.inf
    most = _upper_by_moments(sides, question, direction) if many else math.inf
    low, high = least, most
    if _total(sides) < TOO_MANY:
        try:
            low, high = _lattice_limits(sides, question, direction, bits)
        except AccuracyError:
            if not many or most == math.inf:
                raise
            low, high = -math.inf, math.inf
        if not high - low <= _LOOSE * (1.0 + abs(high)):
            if not many:
                most = min(most, _upper_by_moments(sides, question, direction))
            high = min(high, _by_the_other_tilt(sides, question, high, direction, bits))
        low, high = max(low, least), min(high, most)
    if low > high + _ENOUGH * (1.0 + abs(high)):
        raise AccuracyError(_CONTRARY.format(low, high))
    return min(low, high), high


def _total(sides: DominatingLaws) -> int:
    return sum(law.count for law in sides.upper)


def _upper_by_moments(sides: DominatingLaws, question: ProfileQuestion, direction: str) -> float:
    """The upper limit from moments of steps; ∞, or 0 of log δ, for laws that have none."""
    unknown = math.inf if question.epsilon is None else 0.0
    with in_floats(sides.upper):
        for floor in (min(question.log_delta or 0.0, _MANY_FLOOR), _LAST_FLOOR):
            steps = ManySteps(sides.upper, direction, floor)
            if not steps.known:
                if _total(sides) >= TOO_MANY:
                    raise AccuracyError(f"the rounding of {_total(sides):.3g} steps is too large at {sides.upper[0]}")
                return unknown
            out = steps.upper(epsilon=question.epsilon, log_delta=question.log_delta)
            if question.epsilon is None or out > 0.8 * floor:
                break
        return out


def _lower_by_moments(sides: DominatingLaws, question: ProfileQuestion, direction: str) -> float:
    """The lower limit from moments of many steps; −∞ for fewer, or for laws that have none."""
    if not sides.lower:
        return -math.inf
    with in_floats(sides.lower):
        steps = ManySteps(sides.lower, direction, min(question.log_delta or 0.0, _MANY_FLOOR))
        if not steps.known:
            return -math.inf
        moments = steps.moments()
        if question.epsilon is not None:
            return moments.log_delta(question.epsilon)
        assert question.log_delta is not None
        return moments.epsilon(math.exp(question.log_delta))


def _lattice_limits(sides: DominatingLaws, question: ProfileQuestion, direction: str, bits: int) -> tuple[float, float]:
    with in_floats(sides.upper):
        floor = _log_floor(sides.upper, question, direction)
        upper, high = prepared(sides.upper, floor, direction, question, True)
        lower = dataclasses.replace(upper, dominating=False)
        if sides.lower != sides.upper:
            lower, _ = prepared(sides.lower, floor, direction, question, False)
        low, size = -math.inf, min(SECOND_BITS, bits)
        while True:
            high = min(high, upper.answer(question, size, high))
            low = max(low, lower.answer(question, size, high))
            if low > high + _ENOUGH * (1.0 + abs(high)):
                raise AccuracyError(_CONTRARY.format(low, high))
            low, high = min(low, high), max(low, high)  # which rounding may exchange
            wide = (high - low) / (_ENOUGH * max(1.0, abs(high)))
            if size >= bits or wide <= 1.0:
                break
            # The width falls with the square of the spacing.
            size = min(bits, size + max(1, math.ceil(0.5 * math.log2(min(wide, 1e9)))))
    return low, high


def _by_the_other_tilt(
    sides: DominatingLaws, question: ProfileQuestion, high: float, direction: str, bits: int
) -> float:
    """The upper limit from a tilt for the contrary question at the limit that is known: where a lattice is coarse, ε
    of a δ and δ of that ε would else come from different laws, and disagree."""
    unknown = math.inf if question.epsilon is None else 0.0
    if not -math.inf < high < unknown:
        return unknown
    other = ProfileQuestion(epsilon=high) if question.epsilon is None else ProfileQuestion(log_delta=high)
    try:
        with in_floats(sides.upper):
            floor = _log_floor(sides.upper, other, direction)
            return prepared(sides.upper, floor, direction, other, True)[0].answer(question, bits, high)
    except AccuracyError:
        return unknown


def prepared(
    laws: Sequence[StepLaw],
    log_floor: float,
    direction: str,
    question: ProfileQuestion,
    dominating: bool,
    weaker: tuple[float, ...] = _WEAKER,
) -> tuple[Limit, float]:
    """The tilt to work with, and the upper limit from a first lattice under Chernoff's tilt, or Chernoff's bound."""
    coarse = CoarseLaw(laws, log_floor, direction == "remove")
    point = question.chernoff(coarse)
    best = coarse.window(point.gap)
    answer = question.proved(point, coarse)
    for _ in range(2 if weaker is _WEAKER else 1):
        answer = min(answer, Limit(coarse, best, True).answer(question, FIRST_BITS, answer))
        point = question.moved(point, answer)
        for gap in [part * best.gap for part in weaker]:
            cumulant = float(coarse.cumulant(np.array([coarse.theta(gap)]))[0])
            if cumulant - gap * point.epsilon - point.log_delta > _SHARE:
                break
            window = coarse.window(gap)
            if window.width < 0.8 * best.width:
                best = window
    return Limit(coarse, best, dominating), answer


def chernoff_tables(laws: Sequence[StepLaw], log_floor: float) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """`CoarseLaw.chernoff_table` of "remove" and of "add"."""
    with in_floats(laws):
        return tuple(CoarseLaw(laws, log_floor, remove).chernoff_table() for remove in (True, False))


def _log_floor(laws: Sequence[StepLaw], question: ProfileQuestion, direction: str) -> float:
    """A guess from below of log δ: how far out single steps must be known. Where ε is beyond the losses that are known,
    Chernoff's bound of the rest is any number, however low: it only says that one has to know more."""
    if question.epsilon is None:
        assert question.log_delta is not None
        return question.log_delta
    floor = min(-20.0, log_delta_above(laws, question.epsilon, direction) - 5.0)
    best, least = floor, math.inf
    for _ in range(_DEEPEST):
        coarse = CoarseLaw(laws, floor, direction == "remove")
        point = question.chernoff(coarse)
        proved = question.proved(point, coarse)
        if proved >= least:  # a wider range is known less well
            break
        best, least = floor, proved
        if coarse.log_outside <= point.log_delta - _WELL:
            break
        floor = max(1.05 * point.log_delta - 20.0, _DEEPER * floor)
    return best


_ENOUGH_BLOW_UP = 1e-6
"""Width of the limits of log B at which refining the lattice stops."""
_AS_GOOD = 3.0
"""Width of the limits, relative to that at the κ that the tilt was made for, with which another κ is answered, too."""
_THRESHOLDS = 2001


def log_blow_up(sides: DominatingLaws, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of log B_κ for each of a 1-d array of log κ ≤ 0; low at least log κ, high at most 0."""
    low, high = log_kappa.copy(), np.zeros_like(log_kappa)
    pending = np.flatnonzero(log_kappa < 0.0)
    high[log_kappa == 0.0] = 0.0
    # From the far tail inwards; a law answers all κ whose thresholds lie near its tilt.
    pending = pending[np.argsort(log_kappa[pending], kind="stable")]
    while len(pending):
        first = pending[:1]
        for bits in (SECOND_BITS, LAST_BITS):
            upper, lower = _laws(sides, float(log_kappa[first[0]]), bits)
            if upper is not None:
                high[pending] = np.minimum(high[pending], _from_above(upper, log_kappa[pending]))
            if lower is not None:
                low[pending] = np.maximum(low[pending], _from_below(lower, log_kappa[pending]))
            if high[first[0]] - low[first[0]] <= _ENOUGH_BLOW_UP:
                break
        wide = max(_ENOUGH_BLOW_UP, _AS_GOOD * float(high[first[0]] - low[first[0]]))
        pending = pending[1:]
        pending = pending[high[pending] - low[pending] > wide]
    return low, high


def _laws(sides: DominatingLaws, log_kappa: float, bits: int) -> tuple[Tails | None, Tails | None]:
    """The tails of the laws on both sides under a tilt for this κ."""
    out: list[Tails | None] = []
    for laws, dominating in ((sides.upper, True), (sides.lower, False)):
        if not laws or sum(law.count for law in laws) >= TOO_MANY:
            out.append(None)
            continue
        try:
            with in_floats(laws):
                floor = log_kappa - 20.0
                question = ProfileQuestion(epsilon=_threshold(CoarseLaw(laws, floor, True), log_kappa))
                limit: Limit = prepared(laws, floor, "remove", question, dominating)[0]
                out.append(limit.law(bits).tails())
        except AccuracyError:
            out.append(None)
    return out[0], out[1]


def _threshold(coarse: CoarseLaw, log_kappa: float) -> float:
    """x at which κe^x + δ(x) is about least, with Chernoff's bound in place of δ."""
    s, k = coarse.chernoff_table()
    top = max(float(np.min((k - log_kappa) / (s + 1.0))), 1.0)
    x = np.linspace(coarse.mean - 3.0 * coarse.deviation - top, top + 1.0, _THRESHOLDS)
    log_delta = np.minimum(np.min(k[:, None] - np.outer(s, x), axis=0), 0.0)
    return float(x[int(np.argmin(np.logaddexp(log_kappa + x, log_delta)))])


def _from_above(tails: Tails, log_kappa: np.ndarray) -> np.ndarray:
    return np.array([np.min(np.logaddexp(one + tails.x, tails.log_delta)) for one in log_kappa])


def _from_below(tails: Tails, log_kappa: np.ndarray) -> np.ndarray:
    out = np.full(len(log_kappa), -np.inf)
    for i, one in enumerate(log_kappa):
        enough = np.flatnonzero(tails.log_nu <= one)
        if len(enough) == 0:
            continue
        k = int(enough[0])
        rest = np.exp(one) * -np.expm1(min(tails.log_nu[k] - one, 0.0))
        with np.errstate(divide="ignore"):
            more = min(float(np.log(rest)), float(tails.log_at[k])) + tails.x[k]
        out[i] = min(float(np.logaddexp(tails.log_mu[k], more)), 0.0)
    return out
