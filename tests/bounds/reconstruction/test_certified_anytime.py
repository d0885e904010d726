"""Certified runs that stop at a wanted width and go on later: valid whenever they are looked at."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds
from leakcore.bounds.reconstruction.certified import MixturePair, certify, samples_needed

CURVE: dict[str, Any] = {"kappa": [0.001, 0.1], "method": "certified"}


def test_stops_at_the_wanted_width() -> None:
    found = bounds.reconstruction(1.0, 0.1, 10, width=0.02, num_samples=2_000_000, **CURVE)
    low, high = found.interval
    assert (high - low <= 0.02).all()
    assert found.num_samples < 1_000_000
    truth = bounds.reconstruction(1.0, 0.1, 10, kappa=CURVE["kappa"]).value
    assert (low <= truth).all()
    assert (truth <= high).all()
    # A width out of reach ends at num_samples.
    last = bounds.reconstruction(1.0, 0.1, 10, width=1e-9, num_samples=250_000, **CURVE)
    assert last.num_samples == 250_000


def test_going_on_is_going_at_once() -> None:
    first = bounds.reconstruction(1.0, 0.1, 10, width=1e-9, num_samples=210_000, **CURVE)
    state = json.loads(json.dumps(first.state))
    later = bounds.reconstruction(1.0, 0.1, 10, resume=state, num_samples=900_000, **CURVE)
    at_once = bounds.reconstruction(1.0, 0.1, 10, width=1e-9, num_samples=900_000, **CURVE)
    np.testing.assert_array_equal(later.log_interval, at_once.log_interval)
    assert later.num_samples == 900_000
    assert (later.value < first.value).all()
    # The state of a longer run is no larger than its cells.
    assert len(json.dumps(later.state)) < 1_000_000
    # Looking again costs nothing and changes nothing.
    again = bounds.reconstruction(1.0, 0.1, 10, resume=later.state, num_samples=900_000, **CURVE)
    np.testing.assert_array_equal(again.log_interval, later.log_interval)


def test_a_state_belongs_to_its_run() -> None:
    state = bounds.reconstruction(1.0, 0.1, 10, width=0.5, num_samples=20_000, **CURVE).state
    for changes in (
        {"noise_multiplier": 1.1},
        {"kappa": [0.001, 0.2]},
        {"seed": 1},
        {"confidence": 0.9},
    ):
        arguments: dict[str, Any] = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10} | CURVE | changes
        with pytest.raises(ValueError, match="resume: belongs to another mechanism, kappa, seed or confidence"):
            bounds.reconstruction(**arguments, resume=state, num_samples=40_000)
    with pytest.raises(ValueError, match="state"):
        bounds.reconstruction(1.0, 0.1, 10, resume={"schema": "other"}, **CURVE)
    damaged = dict(state or {})
    del damaged["counts"]
    with pytest.raises(ValueError, match="damaged"):
        bounds.reconstruction(1.0, 0.1, 10, resume=damaged, **CURVE)
    for change in (
        {"counts": [[[0, -5]] for _ in state["counts"]]},
        {"counts": [[[-1, 5]] for _ in state["counts"]]},
        {"counts": state["counts"][:-1]},
        {"num_pilot": -1},
        {"next_sample": 10},
        {"pilot_counts": []},
        {"thresholds": [math.nan for _ in state["thresholds"]]},
    ):
        with pytest.raises(ValueError, match="state: damaged"):
            bounds.reconstruction(1.0, 0.1, 10, resume={**state, **change}, **CURVE)
    with pytest.raises(ValueError, match="only method='certified'"):
        bounds.reconstruction(1.0, 0.1, 10, kappa=0.1, method="exact", width=0.1)
    with pytest.raises(ValueError, match="width=0"):
        bounds.reconstruction(1.0, 0.1, 10, width=0.0, **CURVE)


class _Shift:
    def __init__(self, by: float) -> None:
        self.by = by

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        z = np.random.default_rng([seed, first_sample]).standard_normal(num_samples)
        return self.by * (z + self.by) - self.by**2 / 2


class _Named(_Shift):
    def fingerprint(self) -> str:
        return f"shift by {self.by!r}"


def test_a_pair_without_a_fingerprint_is_not_continued() -> None:
    how: dict[str, Any] = {"kappa": 0.1, "num_samples": 20_000, "width": 1e-6}
    state = bounds.reconstruction_of(_Shift(0.1), **how).state
    with pytest.raises(ValueError, match=r"resume: the pair has no fingerprint\(\)"):
        bounds.reconstruction_of(_Shift(3.0), resume=state, **{**how, "num_samples": 20_001})
    state = bounds.reconstruction_of(_Named(0.1), **how).state
    with pytest.raises(ValueError, match="resume: belongs to another mechanism"):
        bounds.reconstruction_of(_Named(3.0), resume=state, **{**how, "num_samples": 20_001})
    assert bounds.reconstruction_of(_Named(0.1), resume=state, **{**how, "num_samples": 40_000}).value < 0.2


def _ever_missed(repeats: int, sigma: float, rate: float, steps: int, kappa: float) -> int:
    """How often any of several looks at a growing sample misses the truth."""
    truth = bounds.reconstruction(sigma, rate, steps, kappa=kappa).log_value
    pair = MixturePair(sigma, rate, steps)
    missed = 0
    for seed in range(repeats):
        state, miss = None, False
        for count in (500, 1000, 2000, 4000, 8000):
            found = certify(
                pair,
                np.log([kappa]),
                num_samples=count,
                confidence=0.9,
                seed=seed,
                width=None if state else 1e-12,
                resume=state,
            )
            state = found.state
            miss |= bool(found.log_low[0] > truth or found.log_high[0] < truth)
        missed += miss
    return missed


def test_limits_hold_at_every_look() -> None:
    repeats = 12
    assert _ever_missed(repeats, 1.0, 0.1, 10, 0.1) <= stats.binom.ppf(0.999, repeats, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [(1.0, 0.1, 10, 0.1), (0.8, 0.3, 5, 0.01)])
def test_limits_hold_at_every_look_over_many_repetitions(setting: tuple[float, float, int, float]) -> None:
    repeats = 150
    assert _ever_missed(repeats, *setting) <= stats.binom.ppf(0.999, repeats, 0.1)


@pytest.mark.parametrize("confidence", [0.9, 0.999, 1.0 - 1e-9])
def test_too_few_samples_says_how_many_are_needed(confidence: float) -> None:
    needed = samples_needed(confidence)
    with pytest.raises(ValueError, match=rf"num_samples={needed - 1}: too few for confidence=.*, {needed} are needed"):
        bounds.reconstruction(
            1.0, 0.1, 10, kappa=0.1, method="certified", num_samples=needed - 1, confidence=confidence
        )
    # With that many a limit is better than none where every outcome is alike.
    found = bounds.reconstruction(
        1000.0, 1.0, 1, kappa=1e-9, method="certified", num_samples=4 * needed, confidence=confidence
    )
    assert found.value < 1.0


def test_measured_norms_are_an_estimate() -> None:
    norms = np.array([1.0, 0.5, 0.0, 0.8])
    pair = bounds.measured_pair(1.0, 0.3, norms)
    assert bounds.reconstruction_of(pair, kappa=0.1, num_samples=20_000).adjacency == "add-remove"
    with pytest.raises(ValueError, match="adjacency='replace': this pair stands for 'add-remove'"):
        bounds.reconstruction_of(pair, kappa=0.1, num_samples=20_000, adjacency="replace")
    found = bounds.reconstruction_of(pair, kappa=0.1, num_samples=100_000)
    assert found.kind == "estimate"
    assert any("not claimed" in note for note in found.assumptions.notes)
    sigma = np.array([1.0, 2.0, math.inf, 1.25])
    truth = bounds.reconstruction(sigma, 0.3, 4, kappa=0.1).value
    low, high = found.interval
    assert low <= truth <= high
    assert bounds.reconstruction_of(pair, kappa=0.1, num_samples=1000, dominates=True).kind == "upper"
    with pytest.raises(ValueError, match=r"norms\[1\]=1\.5"):
        bounds.measured_pair(1.0, 0.3, [1.0, 1.5])
