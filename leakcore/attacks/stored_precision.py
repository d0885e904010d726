"""The precision in which numbers were stored before they were passed in a finer type, as their bits show it.

Gradients are computed or sent in half precision, and converted afterwards: the dtype then says nothing about how they
were rounded. Numbers of such an array need few bits each, at many scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_LONGEST = 11
"""Bits of a float16's significand; bfloat16 has 8, and both types of 8 bits fewer."""
_SHORTEST, _ROUND = 3, 4
"""Bits of the coarsest type; and up to how many of them a few round numbers need by themselves."""
_FEW = 16
"""Different magnitudes that may lie on one grid by chance."""
_LEAST_FLOAT16 = -24
"""float16's smallest number is 2 to this power, and every float16 is a whole multiple of it."""
_CHUNK = 1 << 12


def stored_roundoff(values: Any, roundoff: float) -> float:
    """The coarser of `roundoff` and the unit roundoff 2⁻ᵗ, where every number has at most t ≤ 11 significant bits.

    Numbers that also lie on one grid of t bits, as counts do, are taken to be exact, unless they are so few that
    this may be chance, or the grid is float16's last one.
    """
    flat = np.abs(np.asarray(values, dtype=np.float64).ravel())
    if roundoff >= 2.0**-_LONGEST:
        return roundoff
    bits, last, first = 0, 2000, -2000
    magnitudes: set[float] = set()
    for start in range(0, len(flat), _CHUNK):
        some = flat[start : start + _CHUNK]
        some = some[(some > 0) & np.isfinite(some)]
        if not len(some):
            continue
        fraction, exponent = np.frexp(some)
        whole = (fraction * 2.0**53).astype(np.int64)
        zeros = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
        bits = max(bits, 53 - int(zeros.min()))
        if bits > _LONGEST:
            return roundoff
        last, first = min(last, int((exponent - 53 + zeros).min())), max(first, int(exponent.max()))
        if len(magnitudes) < _FEW:
            magnitudes.update(some.tolist())
    many_scales = bits >= _SHORTEST and first - last > bits
    by_chance = bits > _ROUND and len(magnitudes) < _FEW
    if len(magnitudes) > 1 and (many_scales or by_chance or (bits and last == _LEAST_FLOAT16)):
        return max(roundoff, 2.0**-bits)
    return roundoff


def coarsest_roundoff(parts: Sequence[Any], roundoff: float) -> float:
    """The coarsest of `roundoff` and of the parts of a gradient, which mixed precision rounds differently.

    A part that is 2⁻¹¹ of the largest one or less is left out: what would be 0 without rounding, as the bias of
    attention's keys, needs few bits in any type.
    """
    sizes = [float(np.abs(part).max(initial=0.0)) for part in parts]
    least = max(sizes, default=0.0) * 2.0**-_LONGEST
    return max([roundoff, *(stored_roundoff(p, roundoff) for p, n in zip(parts, sizes, strict=True) if n > least)])


def lost_below(roundoff: float) -> float:
    """How far a number may move that a type of this unit roundoff cannot hold: half its smallest one."""
    return 2.0 ** (_LEAST_FLOAT16 - 1) if roundoff >= 2.0**-_LONGEST else 0.0
