"""How the batches of the recorded steps came about, and what says so."""

from __future__ import annotations

import dataclasses
from typing import Literal, cast

from leakcore._base import validate

Scheme = Literal["poisson", "full-batch", "shuffled", "fixed-size", "unknown"]
Violation = Literal["", "sampling", "sensitivity"]
Divisor = Literal["rows", "constant"]
"""What the released sum is divided by, and q and the number of steps: numbers that depend on how many rows there are
("rows": Opacus divides by int(n·q) with q = 1/len(loader)), or numbers that somebody fixed ("constant")."""
NO_LOADER = "the trace does not say by which loader its batches were drawn"


def parse_divisor(divisor: str) -> Divisor:
    """ValueError for anything but "rows" and "constant"."""
    return cast(Divisor, validate.one_of("rows", "constant", divisor=divisor))


def joined_divisor(first: Divisor | None, later: Divisor | None) -> Divisor | None:
    """That of two parts of one run: what claims least."""
    if "rows" in (first, later):
        return "rows"
    return first if first == later else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the batches of the recorded steps were drawn.

    Attributes:
        scheme: "poisson": each row by its own coin in each step. "full-batch": all rows in each step. "shuffled": each
            pass over the data puts each row into at most one batch. "fixed-size": a fresh subset in each step.
            "unknown": none of these is known to hold.
        evidence: what says so, such as the sampler; for "unknown" why it is not known.
        sample_rate: q of "poisson".
        batch_size: rows of a batch, the expected number for "poisson"; None where it is not known.
        dataset_size: rows of the data set; likewise.
        batches: batches of one pass, over all processes.
        passes: passes over the data in which there are recorded steps; None where they were not counted.
        all_rows: whether a pass holds all rows.
        fresh: whether each pass shuffles them again.
        left_out: batches that these passes gave to the loop and no step trained on.
        violation: of "unknown": "sampling" if steps are known not to be fresh samples (a batch used again, or in part),
            "sensitivity" if a row can be in a step's sum several times.

    Example:
        >>> from leakcore import dpsgd
        >>> dpsgd.Sampling(scheme="poisson", sample_rate=0.1, evidence="written by hand").scheme
        'poisson'
    """

    scheme: Scheme = "unknown"
    evidence: str = NO_LOADER
    sample_rate: float | None = None
    batch_size: int | None = None
    dataset_size: int | None = None
    batches: int | None = None
    passes: int | None = None
    all_rows: bool = False
    fresh: bool = False
    left_out: int = 0
    violation: Violation = ""

    @property
    def is_known(self) -> bool:
        """Whether the scheme is known."""
        return self.scheme != "unknown"


def unknown(why: str) -> Sampling:
    """No scheme, and why."""
    return Sampling(evidence=why)


def joined_sampling(first: Sampling, later: Sampling) -> Sampling:
    """That of two parts of one run; unknown where they differ."""
    counts = {"passes": None, "left_out": 0}
    alike = dataclasses.replace(first, **counts) == dataclasses.replace(later, **counts)  # type: ignore[arg-type]
    if not alike:
        if not first.is_known or not later.is_known:
            order = ("", "sampling", "sensitivity")
            return max(first, later, key=lambda s: (not s.is_known, order.index(s.violation)))
        return unknown(f"the parts of the run were sampled in different ways: {first.evidence}; {later.evidence}")
    passes = None if first.passes is None or later.passes is None else first.passes + later.passes
    return dataclasses.replace(first, passes=passes, left_out=first.left_out + later.left_out)
