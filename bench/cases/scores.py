"""What many scores prove, and limits of a distribution function that hold at all points: from thousands to millions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender
from leakcore import bounds
from leakcore.bounds.audited_epsilon import ranks
from leakcore.numerics import limits

CONFIDENCE = 0.975


def cases(quick: bool) -> list[Case]:
    sizes = (20_000,) if quick else (20_000, 2_000_000)
    families: tuple[Any, ...] = ("dp", "gdp")
    return [*(_bound(n, family) for n in sizes for family in families), *(_band(n) for n in sizes)]


def _bound(n: int, family: Any) -> Case:
    """One bound from n scores a side, compared with one sort of as many: nothing that needs their order takes less."""

    def data() -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        return rng.normal(1.0, size=n), rng.normal(size=n)

    def ours(scores: tuple[np.ndarray, np.ndarray]) -> Callable[[], Any]:
        def run() -> float:
            ranks._parameter.cache_clear()  # another audit has other ranks
            proof = bounds.epsilon_lower_bound_from_scores(
                *scores, adjacency="replace", threshold=bounds.SimultaneousThreshold(), confidence=0.95, delta=1e-5,
                hypothesis=bounds.Hypothesis(family),
            )  # fmt: skip
            return float(proof.value)

        return run

    def sort(scores: tuple[np.ndarray, np.ndarray]) -> Callable[[], Any]:
        both = np.concatenate(scores)
        return lambda: np.argsort(both, kind="stable")

    return Case(
        "scores",
        f"ε of {n:,} scores a side, {family}",
        data,
        (Contender("leakcore", ours), Contender("NumPy, one stable argsort", sort, least=True)),
        2 * n,
        "score",
        limit="one stable argsort",
        least=1.0,
        seconds=8,
    )


def _band(n: int) -> Case:
    """Each call finds the local level again: in use it is kept."""

    def ours(_: Any) -> Callable[[], Any]:
        def run() -> np.ndarray:
            limits._local_level.cache_clear()
            return limits.simultaneous_lower_limits(n, confidence=CONFIDENCE)

        return run

    return Case(
        "scores",
        f"limits at all points, n={n:,}",
        lambda: None,
        (Contender("leakcore", ours),),
        n,
        "trial",
        limit="none useful: convolutions and a search, not a stream",
        seconds=8,
    )
