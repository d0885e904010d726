from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from leakcore._base import validate as check


@pytest.mark.parametrize(
    ("validator", "value", "message"),
    [
        (check.positive, 0.0, r"`sigma` must be above 0, got 0.0"),
        (check.positive, math.inf, "`sigma` must be finite, got inf"),
        (check.non_negative, -1, "`sigma` must be at least 0, got -1"),
        (check.non_negative, math.nan, "`sigma` must be a number, got nan"),
        (check.probability, 1.5, r"`sigma` must be in \[0, 1\], got 1.5"),
        (check.open_probability, 1, r"`sigma` must be in \(0, 1\), got 1"),
        (check.confidence, 1 - 2**-53, r"`sigma` must be in \(0, 1 - 1e-12\], got 0.9999999999999999"),
        (check.seed, -1, r"`sigma` must be in \[0, 18446744073709551615\], got -1"),
    ],
)
def test_ranges(validator: Callable[..., Any], value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validator(sigma=value)


@pytest.mark.parametrize("value", ["1", None, True, 1 + 2j])
def test_real_numbers(value: object) -> None:
    with pytest.raises(TypeError, match=r"`sigma` must be a real number, got ('1'|None|True|.1.2j.)"):
        check.positive(sigma=value)


@pytest.mark.parametrize("value", [1.0, "3", True])
def test_integers(value: object) -> None:
    with pytest.raises(TypeError, match=r"`steps` must be an integer, got (1.0|'3'|True)"):
        check.integer(steps=value)


def test_accepted_values() -> None:
    assert type(check.positive(sigma=np.float32(2))) is float
    assert type(check.integer(steps=np.int64(3))) is int
    assert check.one_of("a", "b", mode="a") == "a"


def test_choices() -> None:
    with pytest.raises(ValueError, match="`mode` must be 'a' or 'b', got 'c'"):
        check.one_of("a", "b", mode="c")


def test_arrays() -> None:
    with pytest.raises(ValueError, match=r"`kappa\[1, 0\]` must be in \(0, 1\], got 2.0"):
        check.real_array("in (0, 1]", lambda v: (v > 0) & (v <= 1), kappa=[[0.5, 1.0], [2.0, 3.0]])
    with pytest.raises(ValueError, match=r"`kappa` must be in \(0, 1\], got nan"):
        check.real_array("in (0, 1]", lambda v: (v > 0) & (v <= 1), kappa=math.nan)
