"""The intervals of V-information hold what they name: V-information itself, and the gain of the fitted members."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binomtest, norm

from leakcore import leakage
from leakcore.leakage.gain_limits import gain_limits
from leakcore.leakage.held_out_gains import Problem, tempered
from leakcore.leakage.units import Units

FAMILIES = {
    "logistic": leakage.Logistic,
    "random-forest": lambda: leakage.RandomForest(20),
    "mlp": lambda: leakage.MLP(16, steps=60),
}
# (shift of the first column, columns, rows)
SETTINGS = [(0.0, 1, 100), (0.5, 5, 400), (1.0, 50, 200), (2.0, 5, 100), (5.0, 1, 200), (1.0, 200, 200)]


def _rows(shift: float, columns: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(count) % 2
    x = np.random.default_rng(seed).normal(size=(count, columns))
    x[:, 0] += shift * (y - 0.5)
    return x, y


def _v_information_of_gaussians(shift: float) -> float:
    """Which of two unit Gaussians? The best predictor is logistic, so logistic V-information equals this."""
    half = shift / 2

    def term(t: float) -> float:
        p = norm.pdf(t, half)
        return p * math.log(2 * p / (p + norm.pdf(t, -half)))

    return quad(term, -12, 12)[0]


def _covers(misses: int, repetitions: int, p_value: float = 1e-3) -> bool:
    """Whether this many misses are consistent with a rate of 5% (one-sided binomial test)."""
    return bool(binomtest(misses, repetitions, 0.05, alternative="greater").pvalue > p_value)


@pytest.mark.parametrize("setting", SETTINGS[:3], ids=str)
def test_the_interval_covers_v_information(setting: tuple[float, int, int]) -> None:
    # 15 data sets at 95%; p = 1e-3 each, 3 settings. The interval of the held-out gain alone missed 9 to 35 of 40.
    truth, misses = _v_information_of_gaussians(setting[0]), 0
    for seed in range(15):
        low, high = leakage.v_information(*_rows(*setting, seed), permutations=0, seed=seed).interval  # type: ignore[misc]
        assert low < high
        misses += not low <= truth <= high + 1e-12
    assert _covers(misses, 15)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_interval_covers_v_information_200_times(setting: tuple[float, int, int], family: str) -> None:
    # For the richer families log 2 is the upper end, and the truth is at most that of all predictors.
    truth, repetitions = _v_information_of_gaussians(setting[0]), 200 if family == "logistic" else 40
    misses = 0
    for seed in range(repetitions):
        measured = leakage.v_information(*_rows(*setting, seed), family=FAMILIES[family](), permutations=0, seed=seed)
        low, high = measured.interval  # type: ignore[misc]
        misses += not low <= truth <= high + 1e-12
    assert _covers(misses, repetitions, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("setting", [(0.0, 1, 100), (0.5, 5, 400), (1.0, 50, 200), (3.0, 1, 200)], ids=str)
def test_the_held_out_interval_covers_the_gain_of_the_fitted_members(
    setting: tuple[float, int, int], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    members: list[tuple[Any, float, np.ndarray, float]] = []
    calibrate = Problem._beta

    def remembered(
        self: Any, fitted: Any, train: Any, labels: Any, units: Any, rng: Any, prior: Any, share: Any
    ) -> float:
        beta = calibrate(self, fitted, train, labels, units, rng, prior, share)
        members.append((fitted, beta, prior, share))
        return beta

    monkeypatch.setattr(Problem, "_beta", remembered)
    fresh, labels = _rows(setting[0], setting[1], 10_000, seed=10**6)
    at, misses = (np.arange(len(labels)), labels), 0
    for seed in range(40):
        members.clear()
        model = FAMILIES[family]()
        model.rotation_invariant = False  # it is given the columns as they are, and so can predict fresh ones
        measured = leakage.v_information(*_rows(*setting, seed), family=model, permutations=0, seed=seed)
        gains = [
            (tempered(fitted.log_prob(fresh), prior, beta, share)[at] - prior[labels]).mean()
            for fitted, beta, prior, share in members
        ]
        low, high = measured.held_out_interval
        assert low < measured.value < high
        misses += not low <= np.mean(gains) <= high
    assert _covers(misses, 40)


def test_intervals_have_a_width_where_all_gains_are_equal() -> None:
    y = np.arange(80) % 2
    constant = leakage.v_information(np.ones((80, 5)), y, permutations=0)
    clear = leakage.v_information((y[:, None] - 0.5) * 1e3, y, permutations=0)
    assert constant.value == 0
    for measured in (constant, clear):
        for low, high in (measured.interval, measured.held_out_interval):  # type: ignore[misc]
            assert low <= measured.value <= high
            assert high - low > 0.01
    assert clear.interval == pytest.approx((clear.interval[0], math.log(2)))  # type: ignore[index]


def test_a_family_that_cannot_tell_its_best_fit_is_bounded_by_the_number_of_classes() -> None:
    x, y = _rows(1.0, 2, 90, 0)
    assert leakage.v_information(x, y, family=leakage.RandomForest(10), permutations=0).interval[1] == math.log(2)  # type: ignore[index]
    three = leakage.v_information(x, np.arange(90) % 3, family=leakage.MLP(4, steps=5), permutations=0)
    assert three.interval[1] == math.log(3)  # type: ignore[index]
    assert leakage.v_information(x, y, permutations=0).interval[1] < 0.5  # type: ignore[index]


def test_an_estimated_prior_widens_the_upper_end_by_its_own_error() -> None:
    units = Units.of(np.arange(100) % 2, None, None)
    gains = np.full(100, 0.1)
    uniform, empirical = (gain_limits(gains, -1.0, gains, units, 0.95, prior)[2] for prior in (False, True))
    assert empirical - uniform == pytest.approx(5.0239 / 200, rel=1e-4)  # χ² of one degree of freedom at 97.5%
