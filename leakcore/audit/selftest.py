"""Test the lower bounds on ε: each method on mechanisms whose ε is known, audited thousands of times."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from concurrent.futures import Executor
from typing import Any, ClassVar

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.futures import answers
from leakcore._base.progress import Progress
from leakcore._base.results import without
from leakcore._base.version import __version__
from leakcore.audit.selftest_cases import DELTA, MANY, OWN, Case, cases
from leakcore.audit.shared.format import number, percent
from leakcore.audit.shared.page import Table, heads, row_of
from leakcore.audit.shared.report import Document
from leakcore.numerics import clopper_pearson

GATE = 0.999
"""Confidence, over all rows together, with which the verdict blames a method rightly."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise:
    """One method on one mechanism.

    Attributes:
        mechanism: what was audited.
        epsilon: true ε of the mechanism at δ.
        delta: δ.
        method: how each audit bounds ε.
        trials: trials in each audit.
        audits: how many audits.
        above: how many bounds exceeded ε.
        rate: above/audits.
        interval: 95% interval of the rate, two-sided.
        allowed: 1 − confidence.
        mean: mean of the bounds.
        kept: False if the rate is above `allowed` beyond doubt (`GATE`, over all rows together).
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
        null = [p for p in self.promises if p.epsilon == 0]
        known = [p for p in self.promises if p.epsilon > 0]
        share = 100 * (1 - self.confidence)
        first = Table(
            "False positives: a mechanism that leaks nothing",
            heads("method", "trials per\naudit", "audits", "reported\nε > 0 [estimate]", "allowed", ""),
            tuple(
                row_of(
                    p.method,
                    f"{p.trials:,}",
                    f"{p.audits:,}",
                    (percent(p.rate), _range(p.interval)),
                    percent(p.allowed),
                    _word(p),
                    highlight=not p.kept,
                )
                for p in null
            ),
            f"At {100 * self.confidence:g}% a method may report ε > 0 in at most {share:g}% of audits; below each rate "
            "its 95% Clopper–Pearson interval.",
        )
        second = Table(
            "Coverage: mechanisms whose ε is known",
            heads(
                *("mechanism", "true ε", "method", "trials per\naudit", "audits"),
                *("mean\nbound [lower]", "bound at or\nbelow ε [estimate]", "promised", ""),
            ),
            tuple(
                row_of(
                    p.mechanism,
                    number(p.epsilon),
                    p.method,
                    f"{p.trials:,}",
                    f"{p.audits:,}",
                    number(p.mean, 3),
                    (percent(1 - p.rate), _range((1 - p.interval[1], 1 - p.interval[0]))),
                    percent(1 - p.allowed),
                    _word(p),
                    highlight=not p.kept,
                )
                for p in known
            ),
            f"Gaussian and Poisson sampling: δ = {DELTA:g}; the others δ = 0. Bounds at {100 * self.confidence:g}%.",
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
