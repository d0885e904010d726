"""Certified runs that stop at a wanted width and go on later: valid whenever they are looked at."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds
from leakcore.bounds.methods import Certified
from leakcore.bounds.methods.certified import certify, samples_needed
from leakcore.bounds.methods.pairs import MixturePair

KAPPA = [0.001, 0.1]


def test_wanted_width() -> None:
    bound = bounds.reconstruction(1.0, 0.1, 10, kappa=KAPPA, method=Certified(2_000_000, width=0.02))
    low, high = bound.interval
    assert (high - low <= 0.02).all()
    assert bound.num_samples < 1_000_000
    truth = bounds.reconstruction(1.0, 0.1, 10, kappa=KAPPA).value
    assert (low <= truth).all()
    assert (truth <= high).all()
    # A width out of reach ends at num_samples.
    last = bounds.reconstruction(1.0, 0.1, 10, kappa=KAPPA, method=Certified(250_000, width=1e-9))
    assert last.num_samples == 250_000


def test_resumed_run() -> None:
    first = bounds.reconstruction(1.0, 0.1, 10, kappa=KAPPA, method=Certified(210_000, width=1e-9))
    state = json.loads(json.dumps(first.state))
    later = bounds.reconstruction(1.0, 0.1, 10, kappa=KAPPA, method=Certified(900_000, resume=state))
    at_once = bounds.reconstruction(1.0, 0.1, 10, kappa=KAPPA, method=Certified(900_000, width=1e-9))
    np.testing.assert_array_equal(later.log_interval, at_once.log_interval)
    assert later.num_samples == 900_000
    assert (later.value < first.value).all()
    # The state of a longer run is no larger than its cells.
    assert len(json.dumps(later.state)) < 1_000_000
    # Looking again costs nothing and changes nothing.
    again = bounds.reconstruction(1.0, 0.1, 10, kappa=KAPPA, method=Certified(900_000, resume=later.state))
    np.testing.assert_array_equal(again.log_interval, later.log_interval)


def test_state_of_another_run() -> None:
    state = bounds.reconstruction(1.0, 0.1, 10, kappa=KAPPA, method=Certified(20_000, width=0.5)).state
    again = Certified(40_000, resume=state)
    for sigma, kappa, method in (
        (1.1, KAPPA, again),
        (1.0, [0.001, 0.2], again),
        (1.0, KAPPA, dataclasses.replace(again, seed=1)),
        (1.0, KAPPA, dataclasses.replace(again, confidence=0.9)),
    ):
        with pytest.raises(ValueError, match="`resume` must be of this mechanism, kappa, seed and confidence"):
            bounds.reconstruction(sigma, 0.1, 10, kappa=kappa, method=method)
    with pytest.raises(ValueError, match="state"):
        Certified(resume={"schema": "other"})
    assert state is not None
    counts = state["counts"]
    damaged = dict(state)
    del damaged["counts"]
    with pytest.raises(ValueError, match="damaged"):
        Certified(resume=damaged)
    for change in (
        {"counts": {**counts, "cells": [[0, -5]]}},
        {"counts": {**counts, "cells": [[-1, 5]]}},
        {"counts": {**counts, "cells": counts["cells"][:-1]}},
        {"counts": {**counts, "shape": [counts["shape"][0] - 1, counts["shape"][1]]}},
        {"num_pilot": -1},
        {"next_sample": 10},
        {"pilot_counts": []},
        {"thresholds": [math.nan for _ in state["thresholds"]]},
    ):
        with pytest.raises(ValueError, match=r"`resume` must be the `state` of an earlier result, but .* is damaged"):
            Certified(resume={**state, **change})
    with pytest.raises(ValueError, match=r"`width` must be above 0, got 0.0"):
        Certified(width=0.0)


class _Shift:
    def __init__(self, by: float) -> None:
        self.by = by

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        z = np.random.default_rng([seed, first_sample]).standard_normal(num_samples)
        return self.by * (z + self.by) - self.by**2 / 2


class _Named(_Shift):
    def fingerprint(self) -> str:
        return f"shift by {self.by!r}"


def test_fingerprint_for_resuming() -> None:
    def of(pair: _Shift, method: Certified) -> bounds.ReconstructionBound:
        return bounds.reconstruction_of(pair, kappa=0.1, method=method)

    first = Certified(20_000, width=1e-6)
    state = of(_Shift(0.1), first).state
    with pytest.raises(ValueError, match=r"`resume` must be None, since the pair has no fingerprint\(\)"):
        of(_Shift(3.0), Certified(20_001, width=1e-6, resume=state))
    state = of(_Named(0.1), first).state
    with pytest.raises(ValueError, match="`resume` must be of this mechanism"):
        of(_Named(3.0), Certified(20_001, width=1e-6, resume=state))
    assert of(_Named(0.1), Certified(40_000, width=1e-6, resume=state)).value < 0.2


def _ever_missed(repeats: int, sigma: float, rate: float, steps: int, kappa: float) -> int:
    """How often any of several looks at a growing sample misses the truth."""
    truth = bounds.reconstruction(sigma, rate, steps, kappa=kappa).log_value
    pair = MixturePair(sigma, rate, steps)
    missed = 0
    for seed in range(repeats):
        state, miss = None, False
        for count in (500, 1000, 2000, 4000, 8000):
            result = certify(
                pair,
                np.log([kappa]),
                num_samples=count,
                confidence=0.9,
                seed=seed,
                width=None if state else 1e-12,
                resume=state,
            )
            state = result.state
            miss |= bool(result.log_low[0] > truth or result.log_high[0] < truth)
        missed += miss
    return missed


@pytest.mark.full
@pytest.mark.parametrize(
    ("repeats", "setting"),
    [
        (12, (1.0, 0.1, 10, 0.1)),
        pytest.param(150, (1.0, 0.1, 10, 0.1), marks=pytest.mark.slow),
        pytest.param(150, (0.8, 0.3, 5, 0.01), marks=pytest.mark.slow),
    ],
)
def test_limits_at_every_look(repeats: int, setting: tuple[float, float, int, float]) -> None:
    assert _ever_missed(repeats, *setting) <= stats.binom.ppf(0.999, repeats, 0.1)


@pytest.mark.parametrize("confidence", [0.9, 0.999, 1.0 - 1e-9])
def test_too_few_samples(confidence: float) -> None:
    needed = samples_needed(confidence)
    with pytest.raises(ValueError, match=rf"`num_samples` must be at least {needed} for .*, got {needed - 1}"):
        bounds.reconstruction(
            1.0, 0.1, 10, kappa=0.1, method="certified", num_samples=needed - 1, confidence=confidence
        )
    # With that many a limit is better than none where every outcome is alike.
    bound = bounds.reconstruction(
        1000.0, 1.0, 1, kappa=1e-9, method="certified", num_samples=4 * needed, confidence=confidence
    )
    assert bound.value < 1.0


def test_measured_norms() -> None:
    norms = np.array([1.0, 0.5, 0.0, 0.8])
    pair = bounds.measured_pair(1.0, 0.3, norms)
    assert bounds.reconstruction_of(pair, kappa=0.1, num_samples=20_000).adjacency == "add-remove"
    with pytest.raises(ValueError, match=r"`adjacency` must be None or 'add-remove'.*, got 'replace'"):
        bounds.StatedPair(pair, adjacency="replace")
    bound = bounds.reconstruction_of(pair, kappa=0.1, num_samples=100_000)
    assert bound.kind == "estimate"
    assert any("not claimed" in note for note in bound.assumptions.notes)
    sigma = np.array([1.0, 2.0, math.inf, 1.25])
    truth = bounds.reconstruction(sigma, 0.3, 4, kappa=0.1).value
    low, high = bound.interval
    assert low <= truth <= high
    claimed = bounds.StatedPair(pair, dominates=True)
    assert bounds.reconstruction_of(claimed, kappa=0.1, num_samples=1000).kind == "upper"
    with pytest.raises(ValueError, match=r"`clipped_norms\[1\]` must be in \[0, 1\], got 1.5"):
        bounds.measured_pair(1.0, 0.3, [1.0, 1.5])
