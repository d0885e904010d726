"""One rule says whether a paper's finding is reproduced, and it can say no."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from leakcore import bounds
from leakcore.experiments.verdict import APART, Check, lies_below, together, verdict


def test_every_case_and_beyond_chance_is_reproduced() -> None:
    assert verdict([Check(says="a", holds=3, cases=3)]) == "reproduced"
    assert verdict([Check(says="a", holds=5, cases=5, chance=0.5)]) == "reproduced"
    assert verdict([Check(says="a", holds=4, cases=4, chance=0.5)]) == "not reproduced", "1 in 16 by chance"
    assert verdict([Check(says="a", holds=1, cases=1, chance=APART)]) == "reproduced"


def test_a_direction_without_its_size_is_only_a_direction() -> None:
    direction, size = Check(says="a", holds=3, cases=3), Check(says="b", holds=0, cases=3, about="size")
    assert verdict([direction, size]) == "direction only"
    assert verdict([Check(says="a", holds=2, cases=3)]) == "direction only"
    assert verdict([size, size]) == "not reproduced"
    assert verdict([Check(says="b", holds=2, cases=3, about="size")]) == "direction only"


def test_half_of_the_cases_or_what_chance_gives_is_not_reproduced() -> None:
    assert verdict([Check(says="a", holds=1, cases=2)]) == "not reproduced"
    assert verdict([Check(says="a", holds=2, cases=8, chance=1.7 / 8)]) == "not reproduced"
    assert verdict([Check(says="a", holds=6, cases=8, chance=0.5)]) == "not reproduced"
    good = Check(says="a", holds=3, cases=3)
    assert verdict([good, Check(says="b", holds=0, cases=1)]) == "not reproduced"


def test_without_a_case_nothing_can_be_compared() -> None:
    assert verdict([]) == verdict([Check(says="a", holds=0, cases=0)]) == "not comparable"


def test_chance_is_a_binomial_tail() -> None:
    assert math.isclose(Check(says="a", holds=2, cases=3, chance=0.5).p_value, 0.5)
    assert Check(says="a", holds=0, cases=3, chance=0.5).p_value == 1.0
    assert str(Check(says="a is above b", holds=2, cases=8, chance=0.2)) == "a is above b: 2 of 8 (chance: 1.6)"


@pytest.mark.parametrize("more", [{"holds": 4}, {"holds": -1}, {"chance": 1.0}, {"about": "taste"}])
def test_counts_that_cannot_be_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"`(holds|chance|about)`"):
        Check(**{"says": "a", "holds": 1, "cases": 3, **more})


def test_intervals_that_touch_are_not_apart() -> None:
    few, many = (bounds.epsilon_lower_bound(np.int64(n), 0, 100, adjacency="replace") for n in (10, 90))
    assert lies_below(few, many)
    assert not lies_below(many, few)
    assert not lies_below(few, few)


def test_runs_at_several_seeds_are_counted_together() -> None:
    few = [Check(says="a", holds=3, cases=3, chance=0.5), Check(says="b", holds=0, cases=0, about="size")]
    more = [Check(says="a", holds=2, cases=2, chance=0.4), Check(says="b", holds=1, cases=2, about="size")]
    assert verdict(few) == verdict(more) == "not reproduced"
    whole = together([few, more])
    assert whole == (
        Check(says="a", holds=5, cases=5, chance=0.5), Check(says="b", holds=1, cases=2, about="size")
    )  # fmt: skip
    assert verdict(whole) == "direction only"
    with pytest.raises(ValueError, match="`runs` must all ask the same statements"):
        together([few, few[:1]])
