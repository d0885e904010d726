"""One digest: other values never look alike, equal values always do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from leakcore._base.digest import digest

APART = [
    (), (None,), (True,), (1,), (1.0,), ("1",), (b"1",), ([1],), ([[1]],), ({"1": 1},), ({1: 1},), (1, 1), ([1, 1],),
    ("ab", "c"), ("a", "bc"), ([], []), ([[]],), (np.array([1]),), (np.array([[1]]),), (np.array([1.0]),),
    (np.array([1], np.int32),), (np.array(["1"]),), (np.zeros((0, 3)),), (np.zeros((3, 0)),), (torch.tensor([1]),),
    (torch.tensor([1.0], dtype=torch.bfloat16),), (float("nan"),), (0.0,), (-0.0,), ("",), (2**70,), (False,),
]  # fmt: skip


def test_different_values() -> None:
    digests = [digest(*parts) for parts in APART]
    alike = [(a, b) for a, b in itertools.combinations(range(len(APART)), 2) if digests[a] == digests[b]]
    assert alike == []
    assert all(len(d) == 64 and set(d) <= set("0123456789abcdef") for d in digests)


def test_equal_values() -> None:
    assert digest((1, [2.5, "x"])) == digest([1, (2.5, "x")])
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    grid = np.arange(12.0).reshape(3, 4)
    assert digest(grid[:, ::2]) == digest(grid[:, ::2].copy()) == digest(np.asfortranarray(grid[:, ::2]))
    weights = torch.arange(12.0).reshape(3, 4)
    assert digest(weights.t()) == digest(weights.t().contiguous()) == digest(torch.nn.Parameter(weights.t()))
    # Written into run folders and traces: a change makes all of them another's.
    assert digest("leakcore", 1, np.arange(3)) == "6fb1c17cc979d935e7511375f4229b54a658174d62915728c40d5d03711b2678"


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), 1j, range(3)])
def test_unhashable_values(value: object) -> None:
    with pytest.raises(
        TypeError, match=r"a digest is of (arrays of )?numbers.*, got (an array of )?(object|set|complex|range)"
    ):
        digest(value)
