"""The least σ for a wanted ε, at a price that does not grow with how hard ε is to compute."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from leakcore.numerics import search
from leakcore.numerics.privacy_loss.loss import AccuracyError
from leakcore.numerics.profile.profile import BEST, Effort

_ROUGH, _FINER, _FINEST, _SHARP = Effort(bits=14), Effort(bits=17), Effort(bits=19), Effort(sharp=True)
"""Efforts of 0.05 s, 0.2 s and 0.5 s, and the one that gives ε to 1e-6 or not at all."""
NEGLIGIBLE = 1e-6
"""ε below which its relative error does not matter."""
_TINY = 1e-9
"""ε for which a coarse lattice is enough."""


def least_noise(limits: Callable[..., tuple[float, float]], wanted: float, guess: float) -> tuple[float, bool]:
    """(σ, whether it is the least to 1e-9): found on coarse lattices, whose ε is proved but not tight, then on finer
    ones, and closed in on where Fourier inversion serves."""
    # Removing a record is nearly always the direction that decides, and the cheaper one.
    hows: list[dict[str, Any]] = [{"directions": ("remove",)}, {}]
    sigma = guess
    for how in hows:

        def upper(at: float, effort: Effort, how: dict[str, Any] = how) -> float:
            return limits(at, effort=effort, **how)[1]

        near = 0.0 if how is hows[0] else 2e-3
        sigma, _ = search.least_sigma(functools.partial(upper, effort=_ROUGH), wanted, sigma, 1e-2, near=near)
        value, tight, closed_in = sigma, False, False
        # The last one takes seconds a look: only where finer lattices do not close in on what the coarse one found.
        for effort, tolerance in ((_SHARP, 1e-9), (_FINER, 1e-6), (_FINEST, 1e-8), (BEST, 2e-2)):
            if wanted < (NEGLIGIBLE if effort is _SHARP else _TINY) or (effort is BEST and closed_in):
                continue
            with contextlib.suppress(AccuracyError):
                closer = search.close_in(functools.partial(upper, effort=effort), wanted, value, tolerance)
                value, closed_in = closer or value, closer is not None
                tight = effort is _SHARP and closed_in
            if tight:
                break
        if "directions" not in how or limits(value, effort=_ROUGH, directions=("add",))[1] <= wanted:
            return value, tight
    raise AssertionError
