"""Every method of `reconstruction` within its interval of every other, on random settings; where others fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from leakcore import bounds

SURE = 1.0 - 1e-7
"""200 settings, two intervals each: a miss at this confidence (P < 4e-5 in all) is an error, no chance."""


def _settings(count: int, seed: int) -> list[tuple[Any, Any, int, float]]:
    """(σ, q, T, log κ); every third a schedule of up to three kinds of steps, some with q = 1 or q = 0."""
    rng = np.random.default_rng(seed)
    out: list[tuple[Any, Any, int, float]] = []
    for index in range(count):
        steps = round(math.exp(rng.uniform(0.0, math.log(200.0))))
        sigma, rate = math.exp(rng.uniform(math.log(0.4), math.log(8.0))), math.exp(rng.uniform(math.log(0.005), 0.0))
        log_kappa = math.log(rng.uniform(0.01, 0.99)) if index % 2 else -rng.uniform(1.0, 40.0)
        if index % 3 == 0:
            kinds = rng.integers(0, 3, steps)
            sigmas = sigma * np.array([1.0, 1.5, 3.0])
            rates = np.array([rate, min(1.0, 2.0 * rate), rng.choice([0.0, 1.0, rate])])
            out.append((sigmas[kinds], rates[kinds], steps, log_kappa))
        else:
            out.append((sigma, rate, steps, log_kappa))
    return out


def _check(setting: tuple[Any, Any, int, float], *, pld: bool) -> None:
    pytest.importorskip("dp_accounting")
    sigma, rate, steps, log_kappa = setting
    arguments: dict[str, Any] = {"log_kappa": log_kappa}
    exact = bounds.reconstruction(sigma, rate, steps, method="exact", **arguments)
    truth = exact.log_value
    assert exact.log_interval[0] <= truth <= exact.log_interval[1]
    slack = 1e-9
    for method in ("certified", "importance"):
        bound = bounds.reconstruction(
            sigma, rate, steps, method=method, num_samples=20_000, confidence=SURE, **arguments
        )
        low, high = bound.log_interval
        assert low <= truth + slack, (method, setting)
        assert truth <= high + slack, (method, setting)
    assert bounds.reconstruction_rdp(sigma, rate, steps, **arguments).log_value >= truth - 1e-6
    if pld and log_kappa > math.log(1e-6):
        low, high = bounds.reconstruction(sigma, rate, steps, method="pld", **arguments).interval
        assert low <= exact.value * (1.0 + 1e-9)
        assert exact.value * (1.0 - 1e-9) <= high
    estimate = bounds.reconstruction(sigma, rate, steps, method="monte-carlo", num_samples=20_000, **arguments)
    if estimate.effective_sample_size > 1000:
        # Six standard errors, and the bias of a threshold taken from the same sample.
        assert abs(estimate.value - exact.value) <= 6.0 * estimate.standard_error + 0.002, setting


@pytest.mark.parametrize("index", range(15))
def test_methods_agree(index: int) -> None:
    _check(_settings(15, 2023)[index], pld=index < 4)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_methods_agree_on_two_hundred_settings(part: int) -> None:
    for index, setting in enumerate(_settings(200, 7)[20 * part : 20 * part + 20]):
        _check(setting, pld=index % 4 == 0)


def test_where_a_published_package_falls_below_the_truth() -> None:
    pytest.importorskip("dp_accounting")
    # Its ν comes from the ADD distribution, whose far tail cancels: .0168 where the truth is .1814.
    arguments = (0.4576, 0.02, 1000)
    exact = bounds.reconstruction(*arguments, kappa=1e-6)
    # The noise multiplier is printed to four digits.
    assert exact.value == pytest.approx(0.1814, abs=3e-4)
    for method in ("pld", "importance"):
        bound = bounds.reconstruction(*arguments, kappa=1e-6, method=method, num_samples=20_000)
        assert bound.interval[0] <= exact.value <= bound.interval[1]
        assert bound.value > 10.0 * 0.0168
    # Curves by the dual of the REMOVE distribution stay above the truth on finer grids, too.
    from leakcore.bounds.reconstruction.arguments import SampledGaussian
    from leakcore.numerics.peers import DiscreteLoss

    pytest.importorskip("dp_accounting")
    loss = SampledGaussian.parse(*arguments).loss()
    for interval in (1e-3, 5e-4):
        upper = DiscreteLoss(loss, pessimistic=True, interval=interval).log_blow_up(np.array([math.log(1e-6)]))[0]
        assert exact.log_value <= upper < exact.log_value + 0.05


def test_the_reported_error_of_exact_is_honest() -> None:
    # Closed forms are the truth; the numerical route must hold them within its reported error.
    kappa = np.concatenate((np.geomspace(1e-12, 0.5, 40), 1.0 - np.geomspace(0.4, 1e-12, 20)))
    for sigma, rate in [(0.5, 0.1), (1.0, 0.01), (2.0, 0.5), (0.8, 0.9)]:
        truth = bounds.reconstruction(sigma, rate, 1, kappa=kappa, method="closed-form").log_value
        bound = bounds.reconstruction(sigma, rate, 1, kappa=kappa, method="exact")
        low, high = bound.log_interval
        slack = 3e-14 * (1.0 + np.abs(truth))
        assert (low <= truth + slack).all(), (sigma, rate)
        assert (truth <= high + slack).all(), (sigma, rate)
        assert (high - low <= 1e-8 * (1.0 + np.abs(truth))).all()
    # Two routes to the same law: steps of one kind, and the same split into two kinds that differ by a hair.
    for steps in (10, 200):
        first = bounds.reconstruction(0.9, 0.05, steps, kappa=kappa[::5])
        second = bounds.reconstruction(
            np.r_[np.full(steps // 2, 0.9), np.full(steps // 2, 0.9 * (1 + 1e-15))], 0.05, steps, kappa=kappa[::5]
        )
        np.testing.assert_allclose(first.log_value, second.log_value, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("method", ["auto", "exact", "certified", "importance", "monte-carlo"])
def test_limits_of_every_method(method: str) -> None:
    def of(*arguments: Any, **prior: Any) -> float:
        return float(bounds.reconstruction(*arguments, method=method, num_samples=20_000, **prior).value)

    loose = {"certified": 0.05, "monte-carlo": 0.05, "importance": 0.01}.get(method, 1e-12)
    assert bounds.reconstruction(1.0, 0.1, 10, kappa=[], method=method, num_samples=20_000).value.shape == (0,)
    assert of(1.0, 0.1, 10, kappa=1.0) == 1.0
    assert of(math.inf, 0.1, 10, kappa=0.1) == pytest.approx(0.1, abs=loose)
    assert of(1e6, 0.1, 10, kappa=0.1) == pytest.approx(0.1, abs=max(loose, 1e-5))
    assert of(1.0, 0.1, 0, kappa=0.1) == pytest.approx(0.1, abs=loose)
    assert of(1.0, 0.0, 10, kappa=0.1) == pytest.approx(0.1, abs=loose)
    assert of(0.0, 0.1, 5, kappa=0.1) == pytest.approx(1 - 0.9**5 * 0.9, abs=loose)
    below = bounds.reconstruction(1.0, 0.1, 10, log_kappa=-2000.0, method=method, num_samples=20_000)
    assert below.kappa == 0.0
    assert below.log_kappa == -2000.0
    assert below.log_value >= -2000.0
