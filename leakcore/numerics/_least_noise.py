"""The least σ for a wanted ε, at a price that does not grow with how hard ε is to compute."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from leakcore.numerics import _search
from leakcore.numerics._loss import AccuracyError
from leakcore.numerics._profile import Effort

_ROUGH, _FINER, _FINEST, _SHARP = Effort(bits=14), Effort(bits=17), Effort(bits=19), Effort(sharp=True)
"""0.05 s, 0.2 s, 0.5 s, and what answers to 1e-6 or not at all."""
NEGLIGIBLE = 1e-6
"""ε below which its relative error is no matter."""
_TINY = 1e-9
"""ε for which a coarse lattice is enough."""


def least_noise(
    limits: Callable[..., tuple[float, float]], wanted: float, guess: float, split_at: Callable[[float], float] | None
) -> tuple[float, bool]:
    """(σ, whether it is the least to 1e-9): found on coarse lattices, whose ε is proved but not tight, then on finer
    ones, and closed in on where Fourier inversion serves."""
    # Removing a record is nearly always the direction that decides, and the cheaper one; an even split of δ is not far
    # from the best.
    hows: list[dict[str, Any]] = [{"split": 0.0}, {}] if split_at else [{"directions": ("remove",)}, {}]
    sigma = guess
    for how in hows:

        def upper(at: float, effort: Effort, how: dict[str, Any] = how) -> float:
            return limits(at, effort=effort, **how)[1]

        near = 0.0 if how is hows[0] else 2e-3
        sigma, _ = _search.least_sigma(functools.partial(upper, effort=_ROUGH), wanted, sigma, 1e-3, near=near)
        if split_at and how is hows[0]:
            hows[1]["split"] = split_at(sigma)
            continue
        value, tight = sigma, False
        efforts = ((_SHARP, 1e-9), (_FINER, 1e-6), (_FINEST, 1e-8), (_SHARP, 1e-9)) if wanted >= _TINY else ()
        for effort, tolerance in efforts:
            if effort is _SHARP and wanted < NEGLIGIBLE:
                continue
            with contextlib.suppress(AccuracyError):
                closer = _search.close_in(functools.partial(upper, effort=effort), wanted, value, tolerance)
                value, tight = closer or value, effort is _SHARP and closer is not None
            if tight:
                break
        if "directions" not in how or limits(value, effort=_ROUGH, directions=("add",))[1] <= wanted:
            return value, tight
    raise AssertionError
