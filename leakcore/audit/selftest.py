"""Test the lower bounds on ε: each method on mechanisms whose ε is known, audited thousands of times."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import special

from leakcore import accounting, bounds, kernels, mechanisms
from leakcore._base import validate
from leakcore._base.progress import Progress
from leakcore._base.results import without
from leakcore._base.version import __version__
from leakcore._base.workers import answers
from leakcore.audit.shared.elements import Table, table_of
from leakcore.audit.shared.format import number, percent
from leakcore.audit.shared.report import Document
from leakcore.numerics import clopper_pearson, gaussian_pair_epsilon

DELTA = 1e-2
_FAMILIES: dict[Literal["dp", "gdp"], float] = {"dp": 0.0, "gdp": DELTA}
"""Families, each with the δ at which it is tested where nothing leaks."""
_SELECTS = ("split", "simultaneous")
_DIRECTIONS: tuple[Literal["in", "both"], ...] = ("in", "both")
_TRIALS = 100
_COUNTS = 1000
_EVENTS = (0.5, 0.05, 0.9)
_LOOKS = 4
OWN = ", the mechanism's own family"
"""Ends the name of a method that takes longest."""
MANY = 100
"""Audits from which on the self-test includes what takes minutes."""

Scores = Callable[[np.random.Generator], np.ndarray]
Audit = Callable[[np.random.Generator, int], float]
Case = tuple[str, float, float, str, int, Audit]
"""Mechanism, its ε, δ, the method, trials of each audit, and the audit."""


def cases(level: float, many: bool) -> list[Case]:
    """Every method on every mechanism that it is tested on. many: those that take minutes as well."""
    return [*_null_cases(level), *_known_cases(level), *(_of_own_family(level) if many else [])]


def _normal(mean: float = 0.0, size: int = _TRIALS) -> Scores:
    return lambda rng: rng.normal(mean, size=size)


def _rounded(scores: Scores, places: int) -> Scores:
    return lambda rng: scores(rng).round(places)


def _response(p: float) -> Scores:
    return lambda rng: (rng.random(_TRIALS) < p).astype(float)


def _null_cases(level: float) -> Iterator[Case]:
    def null(method: str, audit: Audit, delta: float = 0.0, trials: int = _TRIALS) -> Case:
        return "null", 0.0, delta, method, trials, audit

    none, tied = _normal(), _rounded(_normal(), 0)
    for direction, p in itertools.product(_DIRECTIONS, _EVENTS):
        audit = _counting(p, p, level, bounds.Hypothesis(direction=direction))
        yield null(f"counts, {_way(direction)}, P = {p:g}", audit, trials=_COUNTS)
    for (family, delta), select, direction in itertools.product(_FAMILIES.items(), _SELECTS, _DIRECTIONS):
        audit = _scoring(none, none, level, select, bounds.Hypothesis(family, direction), delta)
        yield null(f"scores, {select}, {_way(direction)}{_named(family)}", audit, delta)
    audit = _scoring(tied, tied, level, "simultaneous", bounds.Hypothesis(direction="both"), 0.0)
    yield null("scores, simultaneous, ties, direction open", audit)
    for select in ("split", "correction"):
        yield null(f"best of four, {select}", _best(level, select))
    for family, delta in _FAMILIES.items():
        yield null(f"bets, {_LOOKS} looks{_named(family)}", _betting(none, none, level, family, delta), delta)
    for family in _FAMILIES:
        yield null(f"one run{_named(family)}", _canaries(0.0, level, family), DELTA, _COUNTS)
    yield from _guessing(0.0, level)


def _known_cases(level: float) -> Iterator[Case]:
    name = "randomised response"
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        p = 1 / (1 + math.exp(-epsilon))
        for direction in _DIRECTIONS:
            audit = _counting(p, 1 - p, level, bounds.Hypothesis(direction=direction))
            yield name, epsilon, 0.0, f"counts, {_way(direction)}", _COUNTS, audit
        answers = _response(p), _response(1 - p)
        for select in _SELECTS:
            audit = _scoring(*answers, level, select, bounds.Hypothesis(), 0.0)
            yield name, epsilon, 0.0, f"scores, {select}", _TRIALS, audit
        audit = _betting(*answers, level, "dp", 0.0, claim=4 * epsilon)
        yield name, epsilon, 0.0, f"bets, {_LOOKS} looks", _TRIALS, audit
        yield from _guessing(epsilon, level)

    def gauss(method: str, audit: Audit, trials: int = _TRIALS) -> Case:
        return "Gaussian", truth, DELTA, method, trials, audit

    truth = float(gaussian_pair_epsilon(1.0, delta=DELTA))
    sides = _normal(1.0), _normal()
    laplace = (lambda rng: rng.laplace(1.0, size=_TRIALS), lambda rng: rng.laplace(0.0, size=_TRIALS))
    for select in _SELECTS:
        audit = _scoring(*laplace, level, select, bounds.Hypothesis(), 0.0)
        yield "Laplace", 1.0, 0.0, f"scores, {select}", _TRIALS, audit
        for family in _FAMILIES:
            audit = _scoring(*sides, level, select, bounds.Hypothesis(family), DELTA)
            yield gauss(f"scores, {select}{_named(family)}", audit)
    for family in _FAMILIES:
        audit = _betting(*sides, level, family, DELTA, claim=4 * truth)
        yield gauss(f"bets, {_LOOKS} looks{_named(family)}", audit)
    # The order of equal scores is random, and the sides have different sizes.
    rounded = _rounded(_normal(1.0), 1), _rounded(_normal(size=2 * _TRIALS), 1)
    audit = _scoring(*rounded, level, "simultaneous", bounds.Hypothesis("gdp", "both"), DELTA)
    yield gauss("scores, simultaneous, ties, direction open, Gaussian family", audit)
    for family in _FAMILIES:
        yield gauss(f"one run{_named(family)}", _canaries(1.0, level, family), _COUNTS)


def _of_own_family(level: float) -> Iterator[Case]:
    """Audits by the claimed mechanism's own curve."""
    claimed = mechanisms.GDP(1.0)
    truth = float(gaussian_pair_epsilon(1.0, delta=DELTA))
    inside, outside = _normal(1.0), _normal()
    tested, method = bounds.Hypothesis(claimed), f"scores, simultaneous{OWN}"
    yield "null", 0.0, DELTA, method, _TRIALS, _scoring(outside, outside, level, "simultaneous", tested, DELTA)
    yield "Gaussian", truth, DELTA, method, _TRIALS, _scoring(inside, outside, level, "simultaneous", tested, DELTA)
    yield "Gaussian", truth, DELTA, f"one run{OWN}", _COUNTS, _canaries(1.0, level, claimed)
    yield _sampled(level)


def _sampled(level: float) -> Case:
    """Canaries of one Poisson-sampled run, audited by the run's own curve, as `audit.from_canaries` does."""
    claimed = mechanisms.Poisson(noise_multiplier=0.7, sample_rate=0.2, steps=4)
    truth = float(accounting.epsilon(claimed, delta=DELTA).value)

    def scores(side: Literal["null", "alternative"]) -> Scores:
        return lambda rng: claimed.sample_log_ratio(_TRIALS, side, int(rng.integers(2**63)), 0)

    tested = bounds.Hypothesis(claimed)
    audit = _scoring(scores("alternative"), scores("null"), level, "simultaneous", tested, DELTA, "add-remove")
    return ("Poisson sampling", truth, DELTA, f"scores, simultaneous{OWN}", _TRIALS, audit)


def _canaries(separation: float, level: float, family: str | mechanisms.Mechanism) -> Audit:
    """A run's canaries, each with a Gaussian release of its own; the clearest fifth is guessed."""

    @functools.cache
    def bound(hits: int, guesses: int) -> float:
        more: dict[str, Any] = {"confidence": level, "delta": DELTA, "family": family}
        return float(bounds.epsilon_lower_bound_one_run(hits, guesses, _COUNTS, **more).value)

    def audit(rng: np.random.Generator, _: int) -> float:
        coins = rng.random(_COUNTS) < 0.5
        order = np.argsort(separation * coins + rng.normal(size=_COUNTS))
        half = _COUNTS // 10
        return bound(int(coins[order[-half:]].sum()) + int((~coins[order[:half]]).sum()), 2 * half)

    return audit


def _guessing(epsilon: float, level: float) -> list[Case]:
    """Guesses of coins that randomised response answers: the worst case of an ε-private mechanism."""
    right = 1 / (1 + math.exp(-epsilon))
    name = "randomised response" if epsilon > 0 else "null"

    @functools.cache
    def one_run(hits: int) -> float:
        return float(bounds.epsilon_lower_bound_one_run(hits, _TRIALS, _COUNTS, confidence=level).value)

    @functools.cache
    def models(hits: int) -> float:
        return float(bounds.epsilon_from_membership(hits, _TRIALS, coins="models", confidence=level).value)

    def over(bound: Callable[[int], float]) -> Audit:
        return lambda rng, _: bound(int(rng.binomial(_TRIALS, right)))

    return [
        (name, epsilon, 0.0, "one run, canaries", _TRIALS, over(one_run)),
        (name, epsilon, 0.0, "membership over models", _TRIALS, over(models)),
    ]


def _counting(p_in: float, p_out: float, level: float, tested: bounds.Hypothesis) -> Audit:
    @functools.cache
    def bound(a: int, b: int) -> float:
        more: dict[str, Any] = {"confidence": level, "hypothesis": tested, "adjacency": "replace"}
        return float(bounds.epsilon_lower_bound(a, b, _COUNTS, **more).value)

    return lambda rng, _: bound(int(rng.binomial(_COUNTS, p_in)), int(rng.binomial(_COUNTS, p_out)))


def _scoring(
    inside: Scores,
    outside: Scores,
    level: float,
    select: str,
    tested: bounds.Hypothesis,
    delta: float,
    adjacency: Literal["add-remove", "replace"] = "replace",
) -> Audit:
    # Audits by a mechanism share the simulated law of their test.
    shared = not isinstance(tested.family, str)

    def audit(rng: np.random.Generator, key: int) -> float:
        result = bounds.epsilon_lower_bound_from_scores(
            inside(rng),
            outside(rng),
            threshold=_threshold(select, 0 if shared else key),
            confidence=level,
            delta=delta,
            hypothesis=tested,
            adjacency=adjacency,
        )
        return float(result.value)

    return audit


def _betting(
    inside: Scores, outside: Scores, level: float, family: Literal["dp", "gdp"], delta: float, *, claim: float = 1.0
) -> Audit:
    """What is proved only grows from look to look: nobody who stops at a better moment proves more."""

    def audit(rng: np.random.Generator, _: int) -> float:
        test = bounds.SequentialTest(claim, adjacency="replace", confidence=level, delta=delta, family=family)
        for a, b in zip(np.split(inside(rng), _LOOKS), np.split(outside(rng), _LOOKS), strict=True):
            test.add({"k = 1": (a, b, 1)})
        return float(test.proof().value)

    return audit


def _best(level: float, select: str) -> Audit:
    def audit(rng: np.random.Generator, key: int) -> float:
        four = {f"k={k}": (rng.normal(size=_TRIALS), rng.normal(size=_TRIALS), k) for k in (1, 2, 4, 8)}
        more: dict[str, Any] = {"threshold": _threshold(select, key), "confidence": level, "adjacency": "replace"}
        return float(bounds.epsilon_lower_bound_best(four, **more).value)

    return audit


def _threshold(select: str, seed: int) -> bounds.Threshold:
    return bounds.SplitThreshold(seed=seed) if select == "split" else bounds.SimultaneousThreshold(seed=seed)


def _way(direction: str) -> str:
    return "direction fixed" if direction == "in" else "direction open"


def _named(family: str) -> str:
    return ", Gaussian family" if family == "gdp" else ""


GATE = 0.999
"""Confidence, over all rows together, with which the verdict blames a method rightly."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise:
    """One method on one mechanism, in `audits` audits of `trials` trials each.

    epsilon: the true ε at δ. above: how many bounds exceeded it. rate: above/audits, with its two-sided 95% interval.
    allowed: 1 − confidence. mean: the mean bound. kept: False if the rate is above `allowed` beyond doubt (`GATE`, over
    all rows together).
    """

    mechanism: str
    epsilon: float
    delta: float
    method: str
    trials: int
    audits: int
    above: int
    rate: float
    interval: tuple[float, float]
    allowed: float
    mean: float
    kept: bool


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SelfTest(Document):
    """The result of the self-test; `passed` is False if any promise is broken.

    Attributes:
        promises: one for each method and mechanism.
        confidence: level of the bounds, in (0, 1).
        audits: per method and mechanism.
        seed: seed of everything random.
    """

    schema: ClassVar[str] = "leakcore.selftest/1"

    promises: tuple[Promise, ...]
    confidence: float
    audits: int
    seed: int

    @property
    def passed(self) -> bool:
        return all(p.kept for p in self.promises)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the fields, with leakcore's version and the verdict."""
        return {**super().to_dict(), "version": __version__, "passed": self.passed}

    @classmethod
    def from_dict(cls, data: Any) -> SelfTest:
        """The inverse of `to_dict`. ValueError for anything else."""
        return super().from_dict(without(data, "version", "passed"))

    def tables(self) -> tuple[Table, Table]:
        """False positives where nothing leaks, and coverage where ε is known."""
        first = table_of(
            "False positives: a mechanism that leaks nothing",
            [p for p in self.promises if p.epsilon == 0],
            {
                "method": lambda p: p.method,
                "trials per\naudit": lambda p: f"{p.trials:,}",
                "audits": lambda p: f"{p.audits:,}",
                "reported\nε > 0 [estimate]": lambda p: (percent(p.rate), _range(p.interval)),
                "allowed": lambda p: percent(p.allowed),
                "": _word,
            },
            f"At {100 * self.confidence:g}% a method may report ε > 0 in at most {100 * (1 - self.confidence):g}% of "
            "audits; below each rate its 95% Clopper–Pearson interval.",
            highlight=lambda p: not p.kept,
        )
        second = table_of(
            "Coverage: mechanisms whose ε is known",
            [p for p in self.promises if p.epsilon > 0],
            {
                "mechanism": lambda p: p.mechanism,
                "true ε": lambda p: number(p.epsilon),
                "method": lambda p: p.method,
                "trials per\naudit": lambda p: f"{p.trials:,}",
                "audits": lambda p: f"{p.audits:,}",
                "mean\nbound [lower]": lambda p: number(p.mean, 3),
                "bound at or\nbelow ε [estimate]": lambda p: (
                    percent(1 - p.rate),
                    _range((1 - p.interval[1], 1 - p.interval[0])),
                ),
                "promised": lambda p: percent(1 - p.allowed),
                "": _word,
            },
            f"Gaussian and Poisson sampling: δ = {DELTA:g}; the others δ = 0. Bounds at {100 * self.confidence:g}%.",
            highlight=lambda p: not p.kept,
        )
        return first, second

    def to_text(self, width: int = 130) -> str:
        """Tables and verdict for a terminal."""
        broken = [p for p in self.promises if not p.kept]
        verdict = (
            f"All {len(self.promises)} promises are kept."
            if not broken
            else "BROKEN PROMISES: "
            + "; ".join(f"{p.method} on {p.mechanism} (ε = {number(p.epsilon)})" for p in broken)
            + ". Do not rely on these bounds of this installation."
        )
        return "\n\n".join([f"leakcore {__version__} selftest", *(t.to_text(width) for t in self.tables()), verdict])


def selftest(
    *,
    audits: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> SelfTest:
    """Test whether leakcore's lower bounds on ε hold as often as they promise, on mechanisms whose ε is known.

    Mechanisms: one that leaks nothing (ε = 0), randomised response (ε of 0.5, 1, 2 and 4), the Laplace mechanism and
    the Gaussian mechanism. Methods: event counts (direction fixed and open), scores (thresholds by a split and by
    simultaneous tests, with ties; (ε, δ) and Gaussian family), bets in four looks, the best of four audits, one run
    with canaries (also Gaussian ones), and membership guesses over coins. From 100 audits on also scores and canaries
    by the mechanism's own family, of the Gaussian mechanism and of a Poisson-sampled one.

    Args:
        audits: per method and mechanism, at least 10; five times as many where nothing leaks, and a tenth where the
            mechanism's own family is refuted, which takes longest.
        confidence: level of the bounds, in (0, 1).
        seed: seed of everything random.
        executor: any `concurrent.futures.Executor`; a worker takes the audits of one method and mechanism.
        progress: called as `progress(task, done, total)`.

    Returns:
        A `SelfTest`.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic on one machine, for any number of workers.

    Example:
        >>> from leakcore import audit
        >>> audit.selftest(audits=1000).passed  # minutes  # doctest: +SKIP
        True
        >>> audit.selftest(audits=1)
        Traceback (most recent call last):
        ValueError: ...
    """
    count = validate.integer(10, None, audits=audits)
    level, key = validate.confidence(confidence=confidence), validate.seed(seed=seed)
    validate.executor(executor=executor)
    validate.callback(progress=progress)
    tested = cases(level, count >= MANY)
    show = progress or (lambda task, done, total: None)
    jobs = (
        (i, functools.partial(_audited, level, count >= MANY, key, i, _repeats(count, epsilon, method)))
        for i, (_, epsilon, _, method, *_) in enumerate(tested)
    )
    bounds_of: dict[int, np.ndarray] = {}
    with contextlib.closing(answers(jobs, executor)) as finished:
        for i, proved in finished:
            bounds_of[i] = proved
            show("self-test", len(bounds_of), len(tested))
    promises = tuple(_promise(case, bounds_of[i], level, len(tested)) for i, case in enumerate(tested))
    return SelfTest(promises=promises, confidence=level, audits=count, seed=key)


def _repeats(count: int, epsilon: float, method: str) -> int:
    """Audits of one method on one mechanism."""
    many = count if epsilon > 0 else 5 * count
    return many // 10 if method.endswith(OWN) else many


def _audited(level: float, many: bool, seed: int, i: int, repeats: int) -> np.ndarray:
    """The bounds of all audits of case i, one after the other from its own generator."""
    *_, audit = cases(level, many)[i]
    rng = kernels.generator(seed, kernels.Stream.SELFTEST_SCORES, step=i)
    keys = (kernels.subseed(seed, kernels.Stream.SELFTEST_SPLITS, step=i, row=j) for j in range(repeats))
    return np.array([audit(rng, key) for key in keys])


def _promise(case: Case, values: np.ndarray, level: float, cases: int) -> Promise:
    mechanism, epsilon, delta, method, trials, _ = case
    repeats = len(values)
    # A bound that exceeds ε by rounding alone is not a false one.
    above = int((values > epsilon * (1 + 1e-9)).sum())
    low, high = (float(v) for v in clopper_pearson(above, repeats, confidence=0.95))
    # One-sided: is the rate above what is allowed?
    doubt = float(special.bdtrc(above - 1, repeats, 1 - level)) if above else 1.0
    return Promise(
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
        method=method,
        trials=trials,
        audits=repeats,
        above=above,
        rate=above / repeats,
        interval=(low, high),
        allowed=1 - level,
        mean=float(values.mean()),
        kept=doubt >= (1 - GATE) / cases,
    )


def _word(promise: Promise) -> str:
    return "kept" if promise.kept else "BROKEN"


def _range(interval: tuple[float, float]) -> str:
    return "–".join(percent(v) for v in interval)
