"""Where a run does otherwise than the paper: more or fewer of something, other data, another network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from leakcore._base.results import Record

_MOST = 12
"""Values that are named one by one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Departure(Record):
    """One thing that a run does otherwise than the paper.

    Attributes:
        what: differs.
        paper: how the paper has it, in words.
        here: how the run has it, in words.
    """

    what: str
    paper: str
    here: str


def in_words(value: Any) -> str:
    """A number, several, or numbers by name, as a table prints them."""
    if isinstance(value, Mapping):
        return "; ".join(f"{in_words(key)}: {in_words(one)}" for key, one in value.items())
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        if len(value) > _MOST:
            return f"{len(value)} values from {in_words(value[0])} to {in_words(value[-1])}"
        return ", ".join(map(in_words, value)) or "none"
    if isinstance(value, float) and math.isinf(value):
        return "∞"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
