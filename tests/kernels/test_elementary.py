"""The core's own exp, log and trigonometry against 60-digit arithmetic, in units of the last place."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from leakcore import _C
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
}


@pytest.mark.parametrize("name", CASES)
def test_error_in_units_of_the_last_place(name):
    x, exact = CASES[name]
    x = np.ascontiguousarray(x)
    got = np.empty_like(x)
    _C.elementary(name, x.ctypes.data, got.ctypes.data, x.size)
    with mpmath.workdps(60):
        wanted = [exact(mpmath.mpf(float(v))) for v in x]
        units = [np.spacing(abs(float(w)) or 1e-300) for w in wanted]
        errors = [abs(mpmath.mpf(float(g)) - w) / u for g, w, u in zip(got, wanted, units, strict=True)]
    assert max(errors) <= tolerances.ELEMENTARY_ULPS, f"{float(max(errors)):.2f} at {x[int(np.argmax(errors))]!r}"
