"""The least σ for a wanted ε, at a price that does not grow with how hard ε is to compute."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from leakcore.numerics import _search
from leakcore.numerics._loss import AccuracyError
from leakcore.numerics._profile import Effort

_ROUGH, _FINER, _SMOOTH = Effort(bits=14), Effort(bits=17), Effort(smooth=True)
"""0.05 s, 0.2 s, and Fourier inversion."""
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
        if wanted < _TINY:
            return sigma, False
        finer, tight = functools.partial(_search.least_sigma, epsilon=wanted, near=2e-3, most=3), False
        try:
            if wanted < NEGLIGIBLE:
                raise AccuracyError("too little leaks for inversion to be sharper")
            value, below = finer(functools.partial(upper, effort=_SMOOTH), guess=sigma, tolerance=1e-9)
            tight = math.log(value / below) < 1e-8
        except AccuracyError:
            value, _ = finer(functools.partial(upper, effort=_FINER), guess=sigma, tolerance=1e-5)
        if not how.get("directions") or limits(value, effort=_ROUGH, directions=("add",))[1] <= wanted:
            return value, tight
    raise AssertionError
