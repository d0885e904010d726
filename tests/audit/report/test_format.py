"""Numbers as they are written: what is proved stays proved after rounding."""

from __future__ import annotations

import numpy as np
import pytest

from leakcore import bounds
from leakcore.audit.shared.format import above, counted, ends, fixed, interval, number, percent


def test_bounds_are_rounded_to_the_side_on_which_they_hold() -> None:
    rng = np.random.default_rng(0)
    for value in [*10 ** rng.uniform(-9, 9, 500), *rng.random(500), 0.1, 4.0, 0.70382, 60.0, 123456.0]:
        for digits in (2, 3, 4, 6):
            low, high = (float(number(value, digits, kind)) for kind in ("lower", "upper"))
            assert low <= value <= high
            assert high - low <= 1.1 * 10 ** (1 - digits) * value
    for p in [*rng.random(500), *10 ** rng.uniform(-7, 0, 300), *(1 - 10 ** rng.uniform(-7, 0, 300))]:
        low, high = (percent(p, kind) for kind in ("lower", "upper"))
        assert float(low.strip("> %")) <= 100 * p + 1e-12
        assert float(high.strip("%")) >= 100 * p - 1e-12


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [(0.70382, "lower", "0.703"), (0.70382, "upper", "0.704"), (0.1, "upper", "0.1"), (4.0, "lower", "4"),
     (np.inf, "upper", "∞")],
)  # fmt: skip
def test_short_decimals_stay_what_they_are(value: float, kind: str, text: str) -> None:
    assert number(value, 3, kind) == text


def test_results_go_by_their_kind() -> None:
    bound = bounds.reconstruction(7.0, 1.0, 100, kappa=0.1)
    assert bound.kind == "upper"
    assert float(percent(bound).strip("%")) >= 100 * float(bound.value)
    proved = bounds.epsilon_lower_bound(700, 300, 1000, confidence=0.95, adjacency="replace")
    assert proved.kind == "lower"
    assert float(number(proved)) <= float(proved.value) < float(number(proved)) + 1e-3
    low, high = (float(side.strip("%")) for side in interval(_with(bound, (0.12345, 0.67891))).split("–"))
    assert (low, high) == (12.3, 67.9)


def test_the_ends_of_an_interval_are_rounded_outwards() -> None:
    bound = bounds.reconstruction(7.0, 1.0, 100, kappa=0.1)
    assert ends(_with(bound, (0.45999, 0.67811)), 3) == "0.459–0.679"
    assert ends(_with(bound, (0.0, 1.0)), 2) == "0.00–1.00"
    assert (fixed(0.1234, 3, "lower"), fixed(0.1234, 3, "upper"), fixed(0.1234, 3)) == ("0.123", "0.124", "0.123")


def test_one_is_not_many() -> None:
    assert (counted(1, "step"), counted(2, "step"), counted(1000, "batch", "batches")) == (
        "1 step", "2 steps", "1,000 batches"
    )  # fmt: skip


def _with(result: bounds.ReconstructionBound, ends: tuple[float, float]) -> bounds.ReconstructionBound:
    import dataclasses

    return dataclasses.replace(result, interval=ends)


def test_what_is_above_is_seen_to_be() -> None:
    assert above(4.0003, 4.0) == ("4.0003", "4")
    assert above(5.12345, 4.0) == ("5.123", "4")
    assert above(2.00000001, 2.0, "upper")[0] > "2"
    assert above(np.inf, 4.0, "upper") == ("∞", "4")
    assert above(0.0, 0.0) == ("0", "0")
