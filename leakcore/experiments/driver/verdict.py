"""Whether our numbers show what a paper says: by counts, and by one rule for all experiments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from scipy import special

from leakcore._base import validate
from leakcore._base.results import Record, Result

VERDICTS = ("reproduced", "direction only", "not reproduced", "not comparable")
ABOUT = ("direction", "size")
_BY_CHANCE = 0.05 * (1 + 1e-9)
"""Rounding must not refuse a chance of exactly one in twenty."""
APART = 0.05
"""Chance that two 95% intervals of equal truths do not touch, at most."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check(Record):
    """One statement of a paper, asked of every case that a run has.

    Attributes:
        says: the statement, as a clause.
        holds: cases in which our numbers say so.
        cases: how many cases there are.
        chance: probability that one case says so by chance; 0 for exact numbers, and for margins far beyond the noise.
        about: "direction" (which is larger, where the peak is) or "size" (how much).

    Raises:
        ValueError: for counts, a probability or an `about` that cannot be.
    """

    says: str
    holds: int
    cases: int
    chance: float = 0.0
    about: Literal["direction", "size"] = "direction"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", validate.integer(0, 2**53, cases=int(self.cases)))
        object.__setattr__(self, "holds", validate.integer(0, self.cases, holds=int(self.holds)))
        if not 0 <= self.chance < 1:
            raise ValueError(f"`chance` must be in [0, 1), got {self.chance!r}")
        validate.one_of(*ABOUT, about=self.about)

    @classmethod
    def of(
        cls,
        says: str,
        outcomes: Iterable[bool],
        *,
        chance: float = 0.0,
        about: Literal["direction", "size"] = "direction",
    ) -> Check:
        """The statement, and whether it holds in each case."""
        cases = [bool(one) for one in outcomes]
        return cls(says=says, holds=sum(cases), cases=len(cases), chance=chance, about=about)

    @classmethod
    def size(cls, says: str, outcomes: Iterable[bool]) -> Check:
        """The same of a statement that says how much."""
        return cls.of(says, outcomes, about="size")

    @property
    def p_value(self) -> float:
        """Probability that chance holds in as many cases."""
        if self.holds == 0:
            return 1.0
        return float(special.bdtrc(self.holds - 1, self.cases, self.chance)) if self.chance > 0 else 0.0

    def __str__(self) -> str:
        chance = f" (chance: {self.chance * self.cases:.2g})" if self.chance > 0 else ""
        return f"{self.says}: {self.holds} of {self.cases}{chance}"


def verdict(checks: Sequence[Check]) -> str:
    """One of `VERDICTS`.

    "reproduced": every statement holds in all of its cases, and chance would do as much in one of twenty at most.
    "direction only": every statement about a direction (all statements, where none is) holds in more than half of its
    cases, and beyond chance. "not comparable": there is nothing to count. Anything else is "not reproduced".
    """
    asked = [c for c in checks if c.cases]
    if not asked:
        return "not comparable"
    beyond = {id(c): c.p_value <= _BY_CHANCE for c in asked}
    if all(c.holds == c.cases and beyond[id(c)] for c in asked):
        return "reproduced"
    directions = [c for c in asked if c.about == "direction"] or asked
    if all(2 * c.holds > c.cases and beyond[id(c)] for c in directions):
        return "direction only"
    return "not reproduced"


def counted(checks: Sequence[Check]) -> str:
    """The statements with their counts, as a sentence."""
    said = "; ".join(map(str, checks))
    first = said[:1].upper() if said[:1].isascii() else said[:1]  # a Greek letter is a symbol
    return f"{first}{said[1:]}." if said else ""


def together(runs: Sequence[Sequence[Check]]) -> tuple[Check, ...]:
    """The same statements asked of runs at several seeds, counted together; the largest chance of a case counts.

    Raises:
        ValueError: for runs that ask other statements than the first does.
    """
    first, *others = [[(c.says, c.about) for c in checks] for checks in runs]
    if odd := next((asked for asked in others if asked != first), None):
        raise ValueError(f"`runs` must all ask the same statements, got {first} and {odd}")
    return tuple(
        Check(
            says=of_seeds[0].says,
            holds=sum(c.holds for c in of_seeds),
            cases=sum(c.cases for c in of_seeds),
            chance=max(c.chance for c in of_seeds),
            about=of_seeds[0].about,
        )
        for of_seeds in zip(*runs, strict=True)
    )


def lies_below(first: Result, second: Result) -> bool:
    """Whether the first result's interval ends below the second's; `APART` is its chance."""
    ends = [r.interval if r.interval is not None else (r.value, r.value) for r in (first, second)]
    return float(ends[0][1]) < float(ends[1][0])
