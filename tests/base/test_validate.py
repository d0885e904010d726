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
        (check.positive, 0.0, r"sigma=0.0: must be in \(0, inf\)"),
        (check.positive, math.inf, r"sigma=inf: must be in \(0, inf\)"),
        (check.non_negative, -1, r"sigma=-1: must be in \[0, inf\)"),
        (check.non_negative, math.nan, r"sigma=nan: must be a number"),
        (check.probability, 1.5, r"sigma=1.5: must be in \[0, 1\]"),
        (check.open_probability, 1, r"sigma=1: must be in \(0, 1\)"),
        (check.confidence, 1 - 2**-53, r"sigma=0.99.*: must be in \(0, 1 - 1e-12\]"),
        (check.seed, -1, r"sigma=-1: must be an integer in \[0, 18446744073709551615\]"),
    ],
)
def test_values_outside_the_range_are_named(validator: Callable[..., Any], value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validator(sigma=value)


@pytest.mark.parametrize("value", ["1", None, True, 1 + 2j])
def test_what_is_not_a_real_number_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"sigma=.*: must be a real number"):
        check.positive(sigma=value)


@pytest.mark.parametrize("value", [1.0, "3", True])
def test_what_is_not_an_integer_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"steps=.*: must be an integer"):
        check.integer(steps=value)


def test_accepted_values_come_back_plain() -> None:
    assert type(check.positive(sigma=np.float32(2))) is float
    assert type(check.integer(steps=np.int64(3))) is int
    assert check.one_of("a", "b", mode="a") == "a"


def test_one_of_names_the_choices() -> None:
    with pytest.raises(ValueError, match=r"mode='c': must be one of 'a', 'b'"):
        check.one_of("a", "b", mode="c")


def test_arrays_name_the_first_bad_entry() -> None:
    with pytest.raises(ValueError, match=r"kappa\[1, 0\]=2.0: must be in \(0, 1\]"):
        check.real_array("in (0, 1]", lambda v: (v > 0) & (v <= 1), kappa=[[0.5, 1.0], [2.0, 3.0]])
    with pytest.raises(ValueError, match=r"kappa=nan: must be in \(0, 1\]"):
        check.real_array("in (0, 1]", lambda v: (v > 0) & (v <= 1), kappa=math.nan)
