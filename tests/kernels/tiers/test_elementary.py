"""The core's own exp, log and trigonometry against 60-digit arithmetic, in units of the last place."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from leakcore import _C, kernels
from tests import tolerances

RNG = np.random.default_rng(5)
NEAR_ZERO = np.concatenate([s * 10.0 ** RNG.uniform(-18, 0, 150) for s in (-1, 1)])
CORNERS = [0, 1, 2**29 - 1, 2**29, 2**30, 2**31, 2**32 - 1]
TURNS = np.concatenate([RNG.integers(0, 2**32, 200), CORNERS]).astype(np.float64)
CASES = {
    "exp": (np.concatenate([RNG.uniform(-700, 700, 300), NEAR_ZERO]), mpmath.exp),
    "expm1": (np.concatenate([RNG.uniform(-700, 700, 300), NEAR_ZERO, RNG.uniform(-1, 1, 300)]), mpmath.expm1),
    "log": (np.concatenate([10.0 ** RNG.uniform(-300, 300, 300), 1 + NEAR_ZERO / 2, [1.0]]), mpmath.log),
    "log1p": (np.concatenate([10.0 ** RNG.uniform(-20, 300, 300), 0.93 * NEAR_ZERO, [0.0]]), mpmath.log1p),
    "cos_turn": (TURNS, lambda t: mpmath.cos(2 * mpmath.pi * (t + 0.5) / 2**32)),
    "sin_turn": (TURNS, lambda t: mpmath.sin(2 * mpmath.pi * (t + 0.5) / 2**32)),
    "radius": (TURNS, lambda t: mpmath.sqrt(-2 * mpmath.log((t + 0.5) / 2**32))),
}
SINGLE = {"cos_turn_float": (2**0.5, 2.5e-7), "sin_turn_float": (2**0.5, 2.5e-7), "radius_float": (0.5**0.5, 3e-7)}
"""The float32 twin is this multiple of the float64 function; its largest absolute error: two ulps of a result up to
1.41 and a polynomial's 5e-8, and one ulp of a result up to 4.8."""


@pytest.mark.parametrize("name", CASES)
def test_error_in_ulps(name):
    x, exact = CASES[name]
    x = np.ascontiguousarray(x)
    got = np.empty_like(x)
    _C.elementary(name, x.ctypes.data, got.ctypes.data, x.size)
    with mpmath.workdps(60):
        wanted = [exact(mpmath.mpf(float(v))) for v in x]
        units = [np.spacing(abs(float(w)) or 1e-300) for w in wanted]
        errors = [abs(mpmath.mpf(float(g)) - w) / u for g, w, u in zip(got, wanted, units, strict=True)]
    limit = tolerances.elementary_ulps(kernels.build_info()["simd"])
    assert max(errors) <= limit, f"{float(max(errors)):.2f} at {x[int(np.argmax(errors))]!r}"


def test_exp2m1_table():
    """Where the entry of the table is 1 (|y| < 1/16) a few units of the result; elsewhere of 2^y, too: the entry is
    rounded (half a unit), and what the entry and its q make together (one more, q = 1 here: none)."""
    grid = np.arange(-80, 81) / 16  # where one entry gives way to the next
    x = np.concatenate([RNG.uniform(-1010, 1010, 300), RNG.uniform(-2, 2, 300), NEAR_ZERO, grid, np.nextafter(grid, 9)])
    got = np.empty_like(x)
    _C.elementary("exp2m1", x.ctypes.data, got.ctypes.data, x.size)
    limit = tolerances.elementary_ulps(kernels.build_info()["simd"])
    with mpmath.workdps(400):
        for y, g in zip(x, got, strict=True):
            power = mpmath.mpf(2) ** mpmath.mpf(float(y))
            unit = np.spacing(abs(float(power - 1)) or 1e-300) + (np.spacing(float(power)) if abs(y) >= 1 / 16 else 0.0)
            assert abs(mpmath.mpf(float(g)) - (power - 1)) <= limit * mpmath.mpf(unit), y


@pytest.mark.parametrize("name", SINGLE)
def test_float32_twins(name):
    got, wide = np.empty_like(TURNS), np.empty_like(TURNS)
    _C.elementary(name, TURNS.ctypes.data, got.ctypes.data, TURNS.size)
    _C.elementary(name.removesuffix("_float"), TURNS.ctypes.data, wide.ctypes.data, TURNS.size)
    assert (got == got.astype(np.float32)).all()
    factor, limit = SINGLE[name]
    assert 0 < np.abs(got - factor * wide).max() <= limit
