"""The four numbers at the head of every report, each with its kind, confidence and adjacency, or why there is none."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from leakcore.audit.report.format import ADJACENCY, confidence_words, number, power

if TYPE_CHECKING:
    from leakcore._base.results import Adjacency, Result

BEATS = "What no attacker can beat"
REACHED = "What the best attack reached"
PROVED = "What is proved"
EPSILON = "The privacy parameter ε"
QUESTIONS = (BEATS, REACHED, PROVED, EPSILON)
"""The questions that the cards answer, in the order in which they stand."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """One of the four numbers.

    Attributes:
        question: that it answers.
        value: as it is printed; empty if the report has no such number.
        absent: what is printed instead.
        kind: upper, lower, estimate, or parameter for a number that was only stated.
        interval: as it is printed; empty without one.
        confidence: in words.
        adjacency: in words.
        detail: what the number measures, or why it is missing.
        number: the number itself, where it is one.
    """

    question: str
    value: str = ""
    kind: str = ""
    interval: str = ""
    confidence: str = ""
    adjacency: str = ""
    absent: str = "not audited"
    detail: str
    number: float | None = None

    @property
    def guarantee(self) -> str:
        """Interval, confidence and adjacency in one line; empty without a number."""
        interval = f"interval {self.interval}" if self.interval else ""
        return ", ".join(filter(None, (interval, self.confidence, self.adjacency)))

    @property
    def shown(self) -> str:
        """The number, or that there is none."""
        return self.value or self.absent


def adjacency_words(adjacency: Adjacency | None) -> str:
    """`add/remove adjacency`; of a number that no privacy parameter is part of, that it has none."""
    return "adjacency does not apply" if adjacency is None else f"{ADJACENCY[adjacency]} adjacency"


def card(question: str, result: Result, value: str, detail: str, *, interval: str = "") -> Card:
    """A card with the kind, confidence and adjacency of `result`. value, interval: as they are printed."""
    return Card(
        question=question,
        value=value,
        kind=result.kind,
        interval=interval,
        confidence=confidence_words(result),
        adjacency=adjacency_words(result.adjacency),
        detail=detail,
        number=float(result.value) if isinstance(result.value, int | float) else None,
    )


def epsilon_card(result: Result, delta: float, detail: str) -> Card:
    """The accountant's ε. detail: of what."""
    return card(EPSILON, result, f"ε = {number(result)}", f"At δ = {power(delta)}: {detail}")


def proof_card(result: Result, delta: float, detail: str) -> Card:
    """A lower bound on ε; a bound of 0 proves nothing, and is shown so. detail: what proves it."""
    if float(result.value) <= 0:
        sure = ", ".join(filter(None, (confidence_words(result), adjacency_words(result.adjacency))))
        return Card(
            question=PROVED,
            absent="nothing",
            detail=f"At δ = {power(delta)} no ε above 0 is proved ({sure}), {detail} That does not prove privacy.",
        )
    return card(PROVED, result, f"ε ≥ {number(result)}", f"At δ = {power(delta)}: {detail}")
