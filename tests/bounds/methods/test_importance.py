"""Importance sampling: reference rows in log space, coverage at a stated level, tables that bracket a step, limits."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds, mechanisms
from leakcore.bounds.methods.importance import importance_limits
from leakcore.numerics import AccuracyError

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "rero_reference.json").read_text(encoding="utf-8"))["rows"]
LOGARITHMIC = [r for r in GOLDEN if "log_value" in r]
TINY = math.log(4.0)


def _of(row: dict[str, Any], **more: Any) -> Any:
    prior = {"log_kappa": row["log_kappa"]} if "log_kappa" in row else {"kappa": row["kappa"]}
    return bounds.reconstruction(row["sigma"], row["q"], row["T"], method="importance", **prior, **more)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("row", LOGARITHMIC, ids=lambda r: f"{r['T']}-{r['q']}-{r['sigma']}")
def test_reference_rows_in_log_space(row: dict[str, Any]) -> None:
    result = _of(row, seed=1)
    low, high = result.log_interval
    # At 99.9% per row: a fixed seed, and the number is deterministic.
    assert low <= row["log_value"] <= high
    assert high - row["log_value"] < 0.01
    assert row["log_value"] - low < 0.015
    assert (result.kind, result.confidence, result.method) == ("upper", 0.999, "importance")
    assert result.log_value == high


@pytest.mark.full
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param((0.6877, 0.02, 100, 1e-6), marks=pytest.mark.slow),
        pytest.param((1.0, 0.1, 100, 1e-6), marks=pytest.mark.slow),
        (0.7, 0.05, 50, 1e-9),
        (2.0308, 0.99, 100, 1e-6),
    ],
)
def test_width_of_the_limits(setting: tuple[float, float, int, float]) -> None:
    sigma, rate, steps, kappa = setting
    truth = bounds.reconstruction(sigma, rate, steps, kappa=kappa).value
    low, high = bounds.reconstruction(sigma, rate, steps, kappa=kappa, method="importance", seed=2).interval
    assert low <= truth <= high
    assert high < 1.01 * truth
    assert low > 0.99 * truth


def test_tilt_far_beyond_the_mass() -> None:
    # Small q and one step: e^{θℓ} puts nearly all of the tilted law at z = θ/σ, where neither law has any mass.
    truth = bounds.reconstruction(2.0, 0.01, 1, kappa=1e-6).value
    low, high = bounds.reconstruction(2.0, 0.01, 1, kappa=1e-6, method="importance").interval
    assert low <= truth <= high
    assert high < 1.02 * truth


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [r for r in GOLDEN if r.get("kappa", 1.0) <= 0.5],
    ids=lambda r: f"{r['T']}-{r['q']}-{r['sigma']}-{r['kappa']}",
)
def test_every_reference_row(row: dict[str, Any]) -> None:
    result = _of(row, num_samples=20_000, confidence=1.0 - 1e-6)
    low, high = result.log_interval
    truth = math.log(row["value"])
    # 180 rows at 1e-6: a miss would be no chance.
    assert low <= truth + 1e-9
    assert truth <= high + 1e-9


@pytest.mark.parametrize("index", range(0, 180, 15))
def test_reference_rows(index: int) -> None:
    test_every_reference_row([r for r in GOLDEN if "value" in r][index])


SETTINGS = [(1.0, 0.1, 4, 1e-6), (0.6, 1.0, 9, 1e-30), (0.8, 0.02, 30, 1e-12), (0.9466991403, 1.0, 100, 1e-9)]


def _misses(repeats: int, setting: tuple[float, float, int, float], count: int) -> tuple[int, int]:
    sigma, rate, steps, kappa = setting
    truth = bounds.reconstruction(sigma, rate, steps, kappa=kappa).log_value
    loss = mechanisms.Poisson(sigma, rate, steps).added_loss
    low = high = 0
    for seed in range(repeats):
        result = importance_limits(loss, np.log([kappa]), num_samples=count, confidence=0.9, seed=seed)
        low += result.log_low[0] > truth
        high += result.log_high[0] < truth
    return low, high


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("repeats", "count", "setting"),
    [*((60, 4000, s) for s in SETTINGS[:2]), *(pytest.param(500, 6000, s, marks=pytest.mark.slow) for s in SETTINGS)],
)
def test_limits_cover(repeats: int, count: int, setting: tuple[float, float, int, float]) -> None:
    low, high = _misses(repeats, setting, count)
    # P(more misses) < 0.1% if each repetition misses with 5% on each side.
    assert low + high <= stats.binom.ppf(0.999, repeats, 0.1)
    assert max(low, high) <= stats.binom.ppf(0.999, repeats, 0.05)


def test_very_little_noise() -> None:
    with pytest.raises(AccuracyError, match="one step's loss tilted by 1 is out of reach at"):
        bounds.reconstruction(1e-300, 0.1, 10, kappa=0.1, method="importance", num_samples=1000)


@pytest.mark.full
def test_choice_of_automatic() -> None:
    arguments = {"log_kappa": -784.0 * TINY}
    with pytest.raises(AccuracyError):
        bounds.reconstruction(1.0, 0.001, 100, method="exact", **arguments)
    bound = bounds.reconstruction(1.0, 0.001, 100, num_samples=100_000, **arguments)
    assert (bound.method, bound.confidence) == ("importance", 0.999)
    low, high = bound.log_interval
    assert high - low < 0.2
    # A second route: the same with the steps' order and grouping disturbed.
    other = bounds.reconstruction(
        [1.0] * 50 + [1.0 + 1e-12] * 50, 0.001, 100, method="importance", num_samples=100_000, seed=7, **arguments
    )
    assert max(low, other.log_interval[0]) <= min(high, other.log_interval[1])


def test_colour_images_prior() -> None:
    for setting in [(10.0, 1.0, 100), (0.6, 0.01, 100)]:
        truth = bounds.reconstruction(*setting, log_kappa=-3072.0 * TINY).log_value
        bound = bounds.reconstruction(
            *setting, log_kappa=-3072.0 * TINY, method="importance", num_samples=200_000, seed=2
        )
        low, high = bound.log_interval
        assert low <= truth <= high
        assert high - truth < 0.02


def test_curves() -> None:
    kappa = np.geomspace(1e-10, 1.0, 12)
    bound = bounds.reconstruction(1.0, 0.1, 20, kappa=kappa, method="importance", num_samples=60_000)
    truth = bounds.reconstruction(1.0, 0.1, 20, kappa=kappa).value
    low, high = bound.interval
    assert (low <= truth).all()
    assert (truth <= high).all()
    assert ((high - truth)[:-1] < 0.05 * truth[:-1]).all()
    assert high[-1] == 1.0
    assert int(bound.assumptions.notes[0].split()[0]) < 12


def test_independence_of_workers() -> None:
    arguments: dict[str, Any] = {"kappa": [1e-9, 1e-6], "method": "importance", "num_samples": 400_000}
    alone = bounds.reconstruction(1.0, 0.2, 6, **arguments)
    with ThreadPoolExecutor(2) as pool:
        threads = bounds.reconstruction(1.0, 0.2, 6, executor=pool, **arguments)
    other = bounds.reconstruction(1.0, 0.2, 6, seed=1, **arguments)
    np.testing.assert_array_equal(alone.log_interval, threads.log_interval)
    assert (np.asarray(alone.log_interval) != np.asarray(other.log_interval)).any()


@pytest.mark.parametrize(
    ("setting", "kappa", "truth"),
    [
        ((0.0, 0.1, 10), 1e-9, 1.0 - 0.9**10 * (1.0 - 1e-9)),
        ((math.inf, 0.5, 10), 1e-9, 1e-9),
        ((1.0, 0.0, 10), 1e-9, 1e-9),
        ((1.0, 0.5, 0), 1e-9, 1e-9),
        ((1.0, 0.5, 3), 1.0, 1.0),
    ],
)
def test_limits_of_the_arguments(setting: tuple[float, float, int], kappa: float, truth: float) -> None:
    bound = bounds.reconstruction(*setting, kappa=kappa, method="importance", num_samples=1000)
    assert bound.interval[0] == pytest.approx(truth, rel=1e-12)
    assert bound.interval[1] == pytest.approx(truth, rel=1e-12)


def test_little_noise_and_schedules() -> None:
    for setting in [
        (0.05, 0.1, 3),
        (0.01, 0.1, 3),
        ([0.0, 1.0], [0.1, 0.2], 2),
        ([0.7, 1.4, 3.0], [0.3, 1.0, 0.01], 3),
    ]:
        truth = bounds.reconstruction(*setting, kappa=1e-9).value
        low, high = bounds.reconstruction(*setting, kappa=1e-9, method="importance", num_samples=40_000).interval
        assert low <= truth <= high, setting
        assert high < 1.1 * truth, setting
