"""Digests of candidates and parameters, by which traces of one run are recognised."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """candidates: digest of inputs and targets. shapes: of the parameters. before, after: digests of the parameters
    before the first recorded step and after the last; None where they were not seen then.
    """

    candidates: str
    shapes: tuple[tuple[int, ...], ...]
    before: str | None
    after: str | None
