"""Mechanisms whose ε is known, and what every public lower bound proves of them: how often that is too much.

A case is a true ε, and a function that plays the mechanism once and returns what is proved. The case's mechanism is
chosen to be the worst one for the bound: one that uses up what (ε, δ)-privacy allows, scores with ties, a rule that
looks at the scores.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from leakcore import accounting, audit, bounds, mechanisms
from tests.audit.samples import simulated

LEVEL = 0.9
"""Low, so that a bound at twice its error shows in a few hundred plays."""
Play = Callable[[np.random.Generator], float]
Rng = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Case:
    """What a bound proves of a mechanism.

    Attributes:
        bound: public name of the bound or the audit.
        what: mechanism and design.
        truth: the true ε.
        play: what is proved in one play.
        plays: by default.
    """

    bound: str
    what: str
    truth: float
    play: Play
    plays: int = 400

    def __str__(self) -> str:
        return f"{self.bound}: {self.what}"


def gaussian_epsilon(separation: float, delta: float) -> float:
    return float(accounting.epsilon(mechanisms.FullBatch(1 / separation, 1), delta=delta).value)


Pair = Callable[[Rng, int], np.ndarray]


def _normal(shift: float) -> Pair:
    return lambda rng, n: rng.normal(shift, 1, n)


def _rounded(shift: float) -> Pair:
    return lambda rng, n: np.round(rng.normal(shift, 1, n))


def _laplace(shift: float) -> Pair:
    return lambda rng, n: rng.laplace(shift, 1, n)


def _response(epsilon: float, delta: float, inside: bool) -> Pair:
    """(ε, δ)-privacy and no better: with probability δ the side is revealed, else randomised response answers."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))

    def draw(rng: Rng, n: int) -> np.ndarray:
        said = (rng.random(n) < (right if inside else 1 - right)).astype(float)
        revealed = rng.random(n) < delta
        return np.where(revealed, math.inf if inside else -math.inf, said)

    return draw


def _pairs() -> dict[str, tuple[float, float, Pair, Pair]]:
    """Mechanism → (ε, δ, scores with the row, scores without)."""
    return {
        "null": (0.0, 0.0, _normal(0), _normal(0)),
        "null, few distinct scores": (0.0, 0.0, _rounded(0), _rounded(0)),
        "null, counts": (0.0, 0.0, lambda r, n: r.poisson(0.3, n) * 1.0, lambda r, n: r.poisson(0.3, n) * 1.0),
        "Gaussian": (gaussian_epsilon(1.0, 1e-2), 1e-2, _normal(1), _normal(0)),
        "Gaussian, rounded": (gaussian_epsilon(1.0, 1e-2), 1e-2, _rounded(1), _rounded(0)),
        "Laplace": (1.0, 0.0, _laplace(1), _laplace(0)),
        "randomised response": (1.0, 0.0, _response(1.0, 0.0, True), _response(1.0, 0.0, False)),
        "worst (ε, δ)": (1.0, 0.05, _response(1.0, 0.05, True), _response(1.0, 0.05, False)),
        "δ alone": (0.0, 0.05, _response(0.0, 0.05, True), _response(0.0, 0.05, False)),
    }


def _of_scores(
    select: str, family: str, direction: str, delta: float, inside: Pair, outside: Pair, n: int = 60
) -> Play:
    tested = bounds.Hypothesis(family, direction)  # type: ignore[arg-type]

    def play(rng: Rng) -> float:
        seed = int(rng.integers(2**31))
        way = bounds.SplitThreshold(seed=seed) if select == "split" else bounds.SimultaneousThreshold(seed=seed)
        scores = inside(rng, n), outside(rng, n)
        return float(
            bounds.epsilon_lower_bound_from_scores(
                *scores, adjacency="replace", threshold=way, confidence=LEVEL, delta=delta, hypothesis=tested
            ).value
        )

    return play


def _counts(p_in: float, p_out: float, delta: float, direction: str) -> Play:
    n = 80

    @functools.cache
    def bound(a: int, b: int) -> float:
        how: dict[str, Any] = {"adjacency": "replace", "confidence": LEVEL, "delta": delta}
        return float(
            bounds.epsilon_lower_bound(a, b, n, hypothesis=bounds.Hypothesis(direction=direction), **how).value  # type: ignore[arg-type]
        )

    return lambda rng: bound(int(rng.binomial(n, p_in)), int(rng.binomial(n, p_out)))


def _best(select: str, delta: float, inside: Pair, outside: Pair) -> Play:
    def play(rng: Rng) -> float:
        way = bounds.SplitThreshold() if select == "split" else bounds.SimultaneousThreshold()
        audits = {f"{i}": (inside(rng, 40), outside(rng, 40), 1) for i in range(4)}
        return float(
            bounds.epsilon_lower_bound_best(
                audits, adjacency="replace", threshold=way, confidence=LEVEL, delta=delta
            ).value
        )

    return play


def _sequential(delta: float, inside: Pair, outside: Pair) -> Play:
    """The largest of what is proved at ten looks: nobody who stops at a better moment proves more."""

    def play(rng: Rng) -> float:
        test = bounds.SequentialTest(1.0, adjacency="replace", confidence=LEVEL, delta=delta)
        proved = 0.0
        for _ in range(6):
            test.add({"k = 1": (inside(rng, 25), outside(rng, 25), 1)})
            proved = max(proved, float(test.proof().value))
        return proved

    return play


@functools.cache
def _one_run(correct: int, guesses: int, coins: int, delta: float, family: str, chosen: str) -> float:
    # The commit at which this suite began had no `chosen`, and allowed a rule by the scores.
    how = {"chosen": chosen} if chosen != "before" else {}
    return float(
        bounds.epsilon_lower_bound_one_run(
            correct, guesses, coins, delta=delta, confidence=LEVEL, family=family, **how
        ).value  # type: ignore[arg-type]
    )


def revealing(coins: int, epsilon: float, delta: float, revealed: int) -> Callable[[Rng], tuple[int, int]]:
    """(correct, guesses) of the worst rule that chooses the number of guesses by the release.

    With probability mδ/k the mechanism tells k of the m coins, drawn at random, and the rule guesses these; otherwise
    every coin is answered by randomised response, and all are guessed. Each coin is revealed with probability δ: the
    mechanism is (ε, δ)-private.
    """
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    chance = coins * delta / revealed
    assert chance <= 1

    def play(rng: Rng) -> tuple[int, int]:
        if rng.random() < chance:
            return revealed, revealed
        return int(rng.binomial(coins, right)), coins

    return play


def _guesses(
    coins: int, epsilon: float, delta: float, revealed: int, chosen: str, fixed: bool = False, family: str = "dp"
) -> Play:
    plays = revealing(coins, epsilon, delta, revealed)

    def play(rng: Rng) -> float:
        correct, guesses = plays(rng)
        if fixed and guesses < coins:  # all coins are guessed, the others blindly
            correct, guesses = correct + int(rng.binomial(coins - guesses, 0.5)), coins
        return _one_run(correct, guesses, coins, delta, family, chosen)

    return play


def _gaussian_canaries(separation: float, family: str, chosen: str) -> Play:
    """A threshold on the scores chooses the guesses."""
    coins = 100

    def play(rng: Rng) -> float:
        there = rng.random(coins) < 0.5
        scores = rng.normal(0, 1, coins) + separation * (there - 0.5)
        sure = np.flatnonzero(np.abs(scores) > 0.8) if chosen != "before" else np.argsort(-np.abs(scores))[:40]
        correct = int(((scores[sure] > 0) == there[sure]).sum())
        return _one_run(correct, len(sure), coins, 1e-2, family, chosen)

    return play


def _membership(design: str, epsilon: float, delta: float) -> Play:
    right = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))

    @functools.cache
    def bound(correct: int) -> float:
        return float(
            bounds.epsilon_from_membership(
                correct, 60, coins=design, rows=60 if design == "rows" else None, confidence=LEVEL, delta=delta
            ).value
        )

    return lambda rng: bound(int(rng.binomial(60, right)))


def _from_scores(
    inside: Pair, outside: Pair, delta: float, claimed: str | None = None, n: int = 40, **design: Any
) -> Play:
    """The quoted bound; with a relation of a claim what is proved under that one."""

    def play(rng: Rng) -> float:
        claim = {} if claimed is None else {"claimed_epsilon": 1.0, "claimed_adjacency": claimed}
        how = {"delta": delta, "confidence": LEVEL, "adjacency": "replace", **design, **claim}
        there = rng.random(2 * n) < 0.5 if how.get("coins") else np.arange(2 * n) < n
        scores = np.where(there, inside(rng, 2 * n), outside(rng, 2 * n))
        report = audit.from_scores(scores=scores, members=there, **how)
        return float(report.epsilon.value if report.converted is None else report.converted.value)

    return play


def _canaries(mechanism: mechanisms.Poisson, delta: float) -> Play:
    def play(rng: Rng) -> float:
        trace = simulated(mechanism, 40, int(rng.integers(2**31)))
        return float(audit.from_canaries(trace, delta=delta, confidence=LEVEL).proved.value)

    return play


def cases() -> list[Case]:
    """Every case of the default tier."""
    out = []
    for name, (epsilon, delta, inside, outside) in _pairs().items():
        for select in ("split", "simultaneous"):
            for direction in ("in", "both"):
                what = f"{name}, {select}, {direction}"
                play = _of_scores(select, "dp", direction, delta, inside, outside)
                out.append(Case("epsilon_lower_bound_from_scores", what, epsilon, play, 200))
        if name in ("null, few distinct scores", "worst (ε, δ)"):
            out.append(Case("SequentialTest", name, epsilon, _sequential(delta, inside, outside), 12))
        if name in ("null, counts", "Laplace", "worst (ε, δ)"):
            for how, design in (("coins", {"coins": True}), ("retrained", {"retrained": True})):
                play = _from_scores(inside, outside, delta, **design)
                out.append(Case("from_scores", f"{name}, {how}", epsilon, play, 25))
    for name in ("null, few distinct scores", "worst (ε, δ)"):
        epsilon, delta, inside, outside = _pairs()[name]
        for select in ("split", "simultaneous"):
            out.append(
                Case(
                    "epsilon_lower_bound_best", f"{name}, {select}", epsilon, _best(select, delta, inside, outside), 150
                )
            )
    gaussian = _pairs()["Gaussian"]
    for select in ("split", "simultaneous"):
        play = _of_scores(select, "gdp", "in", gaussian[1], *gaussian[2:])
        out.append(Case("epsilon_lower_bound_from_scores", f"Gaussian family, {select}", gaussian[0], play, 200))
    for epsilon, delta in ((0.0, 0.0), (1.0, 0.0), (1.0, 0.05), (0.0, 0.05)):
        right = math.exp(epsilon) / (1 + math.exp(epsilon))
        p_in, p_out = delta + (1 - delta) * right, (1 - delta) * (1 - right)
        for direction in ("in", "both"):
            play = _counts(p_in, p_out, delta, direction)
            out.append(Case("epsilon_lower_bound", f"worst ({epsilon:g}, {delta:g}), {direction}", epsilon, play, 2000))
        for design in ("models", "rows"):
            play = _membership(design, epsilon, delta)
            out.append(
                Case("epsilon_from_membership", f"worst ({epsilon:g}, {delta:g}), {design}", epsilon, play, 2000)
            )
    for revealed in (10, 12, 14):
        fixed = _guesses(200, 1.0, 5e-3, revealed, "before", fixed=True)
        out.append(Case("epsilon_lower_bound_one_run", f"tells {revealed} of 200 coins, all guessed", 1.0, fixed, 2000))
        chosen = _guesses(200, 1.0, 5e-3, revealed, "by-scores")
        out.append(Case("epsilon_lower_bound_one_run", f"tells {revealed} of 200, the rule knows", 1.0, chosen, 4000))
    free = _guesses(200, 1.0, 0.0, 10, "by-scores")
    out.append(Case("epsilon_lower_bound_one_run", "randomised response, by scores", 1.0, free, 2000))
    for family in ("dp", "gdp"):
        for chosen in ("before", "by-scores"):
            play, truth = _gaussian_canaries(2.0, family, chosen), gaussian_epsilon(2.0, 1e-2)
            out.append(Case("epsilon_lower_bound_one_run", f"Gaussian, {family}, {chosen}", truth, play, 400))
    for family in ("dp", "gdp"):
        for how, design in (("coins", {"coins": True}), ("retrained", {"retrained": True})):
            # A replacement moves the mean by 2: the ε of one row added is that of 1.
            truth = gaussian_epsilon(1.0, 1e-2)
            play = _from_scores(_normal(2), _normal(0), 1e-2, "add-remove", family=family, **design)
            out.append(Case("from_scores", f"claim under add-remove, {family}, {how}", truth, play, 6))
    full = mechanisms.Poisson(1.0, 1.0, 1)
    truth = float(accounting.epsilon(full, delta=1e-2).value)
    out.append(Case("from_canaries", "full batches", truth, _canaries(full, 1e-2), 5))
    return out
