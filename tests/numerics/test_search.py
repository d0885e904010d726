"""The least σ where ε cannot be computed everywhere: proved, and tight unless the answer lies in the gap."""

from __future__ import annotations

import pytest

from leakcore.numerics import search
from leakcore.numerics.arithmetic import AccuracyError


def _least(answer: float, *gaps: tuple[float, float], guess: float = 10.0) -> tuple[float, float]:
    def proved(sigma: float) -> float:
        if any(a <= sigma <= b for a, b in gaps):
            raise AccuracyError("no")
        return answer / sigma

    result = search.least_sigma(proved, 1.0, guess, 1e-9)
    assert proved(result[0]) <= 1.0
    assert proved(result[1]) > 1.0
    return result


@pytest.mark.parametrize("gap", [(1.3, 2.0), (0.5, 0.8), (4.9, 7.01), (9.0, 11.0), (1.0000001, 1.001)])
def test_gap_next_to_the_answer(gap: tuple[float, float]) -> None:
    value, below = _least(1.0, gap)
    assert value == pytest.approx(1.0, rel=2e-9)
    assert below == pytest.approx(1.0, rel=2e-9)


def test_two_gaps() -> None:
    assert _least(1.0, (0.8, 0.95), (1.1, 1.5))[0] == pytest.approx(1.0, rel=2e-9)


def test_answer_in_the_gap() -> None:
    value, below = _least(1.0, (0.9, 1.2))
    assert 1.2 < value < 1.21
    assert 0.89 < below < 0.9


def test_nothing_below() -> None:
    with pytest.raises(AccuracyError):
        _least(1.0, (0.0, 3.0))
    with pytest.raises(AccuracyError):
        _least(1.0, (0.0, 1e9))
