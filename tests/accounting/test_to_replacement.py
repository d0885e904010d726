"""Group privacy: a claim under add/remove as one under replacement."""

from __future__ import annotations

import dataclasses
import math

import pytest

from leakcore import accounting


def test_group_privacy_conversion() -> None:
    claim = accounting.epsilon(1.0, 1.0, 1, delta=1e-5)
    converted = accounting.to_replacement(claim)
    assert converted.value == pytest.approx(2.0 * claim.value)
    assert converted.delta == pytest.approx(1e-5 * (1.0 + math.exp(claim.value)))
    assert converted.adjacency == "replace"
    # It is a bound on the exact answer at the delta that it claims.
    assert accounting.epsilon(1.0, 1.0, 1, delta=converted.delta, adjacency="replace").value <= converted.value
    with pytest.raises(ValueError, match="replace adjacency"):
        accounting.to_replacement(converted)
    with pytest.raises(TypeError, match="claim"):
        accounting.to_replacement(4.0)  # type: ignore[arg-type]


def test_group_privacy_of_a_large_epsilon() -> None:
    claim = accounting.epsilon(0.0262, 1.0, 1, delta=5e-324)
    assert claim.value > 2000.0
    assert accounting.to_replacement(claim).delta == 1.0
    small = dataclasses.replace(claim, value=720.0)
    mpmath = pytest.importorskip("mpmath")
    truth = mpmath.mpf(5e-324) * (1 + mpmath.exp(mpmath.mpf(720)))
    assert truth <= accounting.to_replacement(small).delta <= truth * (1 + mpmath.mpf("1e-11"))
