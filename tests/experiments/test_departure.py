"""What a run does otherwise than the paper is in its result, without a second list of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from leakcore import experiments
from leakcore._base.run_folder.partial_results import PartialResults
from leakcore.experiments.context import Context
from leakcore.experiments.departure import in_words


def _context(scale: str) -> Context:
    return Context(scale=scale, seed=0, data=None, pieces=PartialResults(None, ""), progress=lambda *_: None)


def test_what_is_picked_otherwise_than_the_paper_is_a_departure() -> None:
    quick, paper = _context("quick"), _context("paper")
    for context in (quick, paper):
        context.pick("runs", tiny=1, quick=512, paper=10_000)
        context.pick("steps", quick=100, paper=100)
        context.pick(quick=3, paper=30)  # no departure: how finely a curve is drawn
        context.departs("classes", "10", "2")
    assert [(d.what, d.paper, d.here) for d in quick.departures.values()] == [
        ("runs", "10,000", "512"),
        ("classes", "10", "2"),
    ]
    assert list(paper.departures) == ["classes: 10: 2"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (10_000, "10,000"),
        (np.int64(3), "3"),
        (0.05, "0.05"),
        (math.inf, "∞"),
        ((), "none"),
        ((1.0, 40.0), "1, 40"),
        ({10: 256, 100: 48}, "10: 256; 100: 48"),
        (np.arange(50), "50 values from 0 to 49"),
        ({"LR": (), "FNN": (32,)}, "LR: none; FNN: 32"),
        ("none", "none"),
    ],
)
def test_in_words(value: Any, words: str) -> None:
    assert in_words(value) == words


def test_a_result_shows_its_departures() -> None:
    result = experiments.run("reconstruction-table2", scale="tiny")
    assert ("Monte-Carlo samples", "1,000,000", "2,000") in [(d.what, d.paper, d.here) for d in result.departures]
    assert "What differs from the paper" in result.to_text()
    assert experiments.ExperimentResult.from_dict(result.to_dict()).departures == result.departures
