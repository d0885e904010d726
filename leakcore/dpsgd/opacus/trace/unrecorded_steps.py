"""Steps of a run that a trace does not hold: their places and settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Stretch(NamedTuple):
    """`steps` steps that were not recorded, after `after` recorded ones; σ or q is None where it is not known."""

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
