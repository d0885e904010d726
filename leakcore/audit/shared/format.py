"""How numbers and their guarantees are written, in the terminal, in the page and in sentences alike.

What is proved is rounded to the side on which it stays proved: lower bounds down, upper bounds up.
"""

from __future__ import annotations

import decimal
import math
from typing import Any

from leakcore._base.results import Number, Result

ADJACENCY = {"add-remove": "add/remove", "zero-out": "zero-out", "replace": "replacement", None: "—"}


_ROUNDING = {"lower": decimal.ROUND_FLOOR, "upper": decimal.ROUND_CEILING, "estimate": decimal.ROUND_HALF_EVEN}


def percent(value: Number | Result, kind: str = "estimate") -> str:
    """A probability as a percentage: one decimal, more near the ends so that nothing rounds to 0% or 100%.

    A result goes by its own kind; kind: of a plain number.
    """
    value, kind = _read(value, kind)
    if not math.isfinite(value):
        return "—"
    percents = 100 * decimal.Decimal(repr(value))
    if percents in (0, 100):
        return f"{percents:.0f}%"
    if percents > decimal.Decimal("99.99"):
        return "100%" if kind == "upper" else "> 99.99%"
    if 0 < percents < decimal.Decimal("0.1"):
        return f"{_significant(float(percents), 2, kind)}%"
    return f"{_fixed(percents, 2 if 99.9 < percents < 100 else 1, kind)}%"


def number(value: Number | Result, digits: int = 4, kind: str = "estimate") -> str:
    """A number in `digits` significant digits; ∞ as such. A result goes by its own kind; kind: of a plain number."""
    value, kind = _read(value, kind)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return _significant(value, digits, kind)


def fixed(value: Number | Result, places: int, kind: str = "estimate") -> str:
    """A number with this many digits after the point. A result goes by its own kind; kind: of a plain number."""
    value, kind = _read(value, kind)
    return _fixed(decimal.Decimal(repr(value)), places, kind)


ROWS_PUBLIC = "the number of rows is public"
NUMBERS_FIXED = "the divisor, q and the number of steps do not change with the number of rows"
UNSAID = "taken as fixed, because the trace does not say"
"""Premises of a recorded run's numbers: under zero-out, under add/remove, and there if nobody said so."""


def above(proved: Number | Result, claimed: Number, kind: str = "lower") -> tuple[str, str]:
    """Both numbers, with as many digits as show that the first is above the second."""
    digits = 4
    texts = number(proved, digits, kind), number(claimed, digits)
    while digits < 17 and math.isfinite(_read(proved, kind)[0]) and float(texts[0]) <= float(texts[1]):
        digits += 1
        texts = number(proved, digits, kind), number(claimed, digits)
    return texts


def above_claim(spent: Result, claimed: Number, *, bracketed: bool) -> tuple[str, str]:
    """An ε that a schedule has, and the claim below it; of a bracket both ends."""
    if not bracketed or spent.interval is None:
        return above(spent, claimed, "upper")
    low, claim = above(float(spent.interval[0]), claimed)
    return f"{low} at least, and at most {number(spent)}", claim


def _read(value: Number | Result, kind: str) -> tuple[float, str]:
    return (float(value.value), value.kind) if isinstance(value, Result) else (float(value), kind)


def _fixed(value: decimal.Decimal, places: int, kind: str) -> str:
    return f"{value.quantize(decimal.Decimal(1).scaleb(-places), _ROUNDING[kind])}"


def _significant(value: float, digits: int, kind: str) -> str:
    if not math.isfinite(value):
        return f"{value:g}"
    # From the shortest decimal that means this number: 0.1 stays 0.1.
    rounded = decimal.Context(digits, _ROUNDING[kind]).create_decimal(repr(value))
    return f"{float(rounded):.{digits}g}"


def power(value: float) -> str:
    """A small parameter such as δ, as people write it: 1e-5."""
    return f"{value:g}".replace("e-0", "e-")


def chance(value: float) -> str:
    """A small probability, rounded up to one digit: 7e-5."""
    if not 0.0 < value < 1.0:
        return power(value)
    unit = 10.0 ** math.floor(math.log10(value))
    return power(float(f"{math.ceil(value / unit - 1e-9) * unit:.0e}"))


def interval(result: Result) -> str:
    """`low–high` in percent, rounded outwards, or a dash."""
    if result.interval is None:
        return "—"
    low, high = (float(v) for v in result.interval)
    return f"{percent(low, 'lower')}–{percent(high, 'upper')}"


def ends(result: Result, places: int) -> str:
    """`low–high` of a number in [0, 1] that is not a share, with this many digits after the point, rounded outwards."""
    low, high = (float(v) for v in result.interval or (0.0, 1.0))
    return f"{fixed(low, places, 'lower')}–{fixed(high, places, 'upper')}"


def sentence(note: str) -> str:
    """A note as a sentence."""
    return f"{note[0].upper()}{note[1:]}."


def counted(n: int, one: str, more: str = "") -> str:
    """`1 step`, `2 steps`."""
    return f"{n:,} {one if n == 1 else more or f'{one}s'}"


def confidence_words(result: Result) -> str:
    """`99% confidence`, `deterministic`, or `no guarantee`."""
    if result.confidence is not None:
        return f"{100 * result.confidence:g}% confidence"
    return "no guarantee" if result.kind == "estimate" else "deterministic"


def guarantee(result: Result) -> str:
    """Kind, confidence and adjacency: the words that must follow a number."""
    return f"{result.kind}, {confidence_words(result)}, {ADJACENCY[result.adjacency]} adjacency"


def proved(result: Result, delta: float) -> str:
    """What follows "prove": `ε ≥ 1.2 at δ = 1e-5 (lower, 95% confidence, …)`, or that it is nothing about ε."""
    if float(result.value) > 0:
        return f"ε ≥ {number(float(result.value), kind='lower')} at δ = {power(delta)} ({guarantee(result)})"
    words = f"{confidence_words(result)}, {ADJACENCY[result.adjacency]} adjacency"
    return f"nothing about ε at δ = {power(delta)} ({words})"


def no_smaller(result: Result) -> str:
    """What a positive lower bound rules out, with its level and relation."""
    sure = "" if result.confidence is None else f"At {100 * result.confidence:g}% confidence: "
    no = "no" if sure else "No"
    return f"{sure}{no} ε below {number(result)} holds under {ADJACENCY[result.adjacency]} adjacency."


def ends_proved(result: Result) -> str:
    """Of whom the two ends of a bracket are proved, as its mechanism says; empty where it says nothing."""
    said = next((note for note in result.assumptions.notes if note.startswith("interval: ")), "")
    return said.removeprefix("interval: ")


def least(result: Result, digits: int = 4) -> str:
    """A lower bound in a table; one of 0 proves nothing, and is written so."""
    return number(result, digits) if float(result.value) > 0 else "nothing"


def claim_of(result: Result) -> float | None:
    """The number that accounting for a mechanism's batches as Poisson sampling claims, where they are not drawn so."""
    claimed = getattr(result, "poisson_claim", None)
    return None if claimed is None else float(claimed)


def poisson_claim(result: Any) -> str:
    """What accounting for a mechanism's batches as Poisson sampling claims, named so. result: has such a claim."""
    return f"{number(result.poisson_claim)} is what accounting for these batches as Poisson sampling claims"


def understated(result: Any) -> tuple[str, ...]:
    """A warning where what accounting as Poisson sampling claims lies below what is proved from below."""
    if result.poisson_claim is None or result.interval is None:
        return ()
    claimed, low = float(result.poisson_claim), float(result.interval[0])
    if claimed >= low:
        return ()
    proved, smaller = above(low, claimed)
    sentence = (
        f"the {result.quantity} that accounting as Poisson sampling claims, {smaller}, is too small: at least {proved} "
        f"is reached ({ADJACENCY[result.adjacency]} adjacency)"
    )
    return (sentence,)
