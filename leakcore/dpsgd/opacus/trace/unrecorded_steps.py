"""Steps of a run that a trace does not hold: where they lie, their settings, and how a trace's file says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_MOST = 2**53


class Stretch(NamedTuple):
    """`steps` steps that were not recorded, after so many recorded ones; σ or q is None where it is not known."""

    after: int
    noise_multiplier: float | None
    sample_rate: float | None
    steps: int


def between(positions: np.ndarray, total: int) -> list[tuple[int, int, int]]:
    """(after, first, end) of every stretch of 0 … total − 1 that `positions`, which grow, leave out."""
    starts, ends = np.append(0, positions + 1), np.append(positions, total)
    return [(int(k), int(starts[k]), int(ends[k])) for k in np.flatnonzero(ends > starts)]


def settings_of(
    history: Sequence[tuple[float, float | None, int]], stretches: Sequence[tuple[int, int, int]]
) -> tuple[Stretch, ...]:
    """The stretches with the settings that an accountant's history has for them, cut where these change."""
    ends = np.cumsum([count for *_, count in history])
    out = []
    for after, first, end in stretches:
        entry = int(np.searchsorted(ends, first, side="right"))
        while first < end:
            sigma, rate, _ = history[entry]
            stop = min(end, int(ends[entry]))
            out.append(Stretch(after, sigma, rate, stop - first))
            first, entry = stop, entry + 1
    return tuple(out)


def read_unrecorded(where: str, stretches: Any, steps: int) -> tuple[Stretch, ...]:
    """What a trace's file says of the steps outside it. ValueError where that is damaged."""
    out, before, total = [], 0, steps
    items: list[Any] = stretches if isinstance(stretches, list) else [None]
    for item in items:
        if not _is_stretch(item, before, steps) or (total := total + item[3]) > _MOST:
            raise ValueError(
                f"{where}: unrecorded: must be a list of [recorded steps before, noise_multiplier, sample_rate, "
                "steps]: damaged"
            )
        before = item[0]
        sigma, rate = (None if value is None else float(value) for value in item[1:3])
        out.append(Stretch(before, sigma, rate, item[3]))
    return tuple(out)


def _is_stretch(item: Any, before: int, steps: int) -> bool:
    return (
        isinstance(item, list) and len(item) == 4 and _is_count(item[0], before, steps)
        and _is_number(item[1], math.inf) and _is_number(item[2], 1) and _is_count(item[3], 1, _MOST)
    )  # fmt: skip


def _is_count(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any, high: float) -> bool:
    if value is None:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= min(high, 2**1000)
