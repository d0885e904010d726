"""ε and σ: known answers, agreement with dp-accounting, limits, little noise, rare losses."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import numpy as np
import pytest

from leakcore import accounting
from leakcore.numerics import AccuracyError

# T, q, ε, σ by PLD, σ by RDP; δ = 1e-5. From dp-accounting at discretisation 1e-4 (1e-3 at ε = 100).
CALIBRATION = [
    (100, 0.01, 4, 0.5905018365, 0.64203),
    (100, 0.02, 4, 0.6876962848, 0.74209),
    (100, 0.1, 4, 1.385994732, 1.48153),
    (100, 0.5, 4, 5.511152653, 5.90577),
    (100, 0.99, 4, 10.70541515, 11.46211),
    (100, 0.01, 32, 0.2806531318, 0.30027),
    (100, 0.99, 32, 2.03079757, 2.11897),
    (1000, 0.02, 1, 2.512014082, 2.71351),
    (1000, 0.02, 10, 0.675776633, 0.70630),
    (100, 1.0, 1, 37.30635919, 40.45385),
    (100, 1.0, 10, 4.998886302, 5.29598),
    (100, 1.0, 100, 0.9466991403, 0.97507),
]


def test_one_step_both_relations() -> None:
    result = accounting.epsilon(1.0, 1.0, 1, delta=1e-5)
    replaced = accounting.epsilon(1.0, 1.0, 1, delta=1e-5, adjacency="replace")
    assert result.value == pytest.approx(4.38, abs=5e-3)
    assert replaced.value == pytest.approx(9.997, abs=5e-4)
    assert (result.adjacency, replaced.adjacency) == ("add-remove", "replace")
    assert result.kind == "upper"


@pytest.mark.parametrize(("steps", "rate", "epsilon", "sigma", "sigma_rdp"), CALIBRATION)
def test_calibration_by_rdp(steps: int, rate: float, epsilon: float, sigma: float, sigma_rdp: float) -> None:
    pytest.importorskip("dp_accounting")
    assert accounting.epsilon(sigma_rdp, rate, steps, delta=1e-5, method="rdp").value == pytest.approx(
        epsilon, rel=2e-4
    )


def test_rdp_orders() -> None:
    pytest.importorskip("dp_accounting")
    result = accounting.epsilon(2.0, 1.0, 100, delta=1e-5, method="rdp", orders="authors")
    assert result.value == pytest.approx(35.08, abs=5e-3)
    # Three orders cannot beat a hundred and fifty.
    assert accounting.epsilon(2.0, 1.0, 100, delta=1e-5, method="rdp", orders=[2.0, 3.0, 4.0]).value >= result.value


def _random_settings(count: int) -> list[tuple[float, float, int, float]]:
    rng = np.random.default_rng(2024)
    out = []
    for i in range(count):
        rate = 1.0 if i % 3 == 0 else float(np.exp(rng.uniform(math.log(0.005), 0.0)))
        steps = int(np.exp(rng.uniform(0.0, math.log(2000))))
        sigma = float(np.exp(rng.uniform(math.log(0.7), math.log(3.0)))) * max(1.0, rate * math.sqrt(steps) / 2.0)
        out.append((sigma, rate, steps, float(10.0 ** -rng.integers(3, 9))))
    return out


def _agrees_with_pld(setting: tuple[float, float, int, float]) -> None:
    sigma, rate, steps, delta = setting
    exact = accounting.epsilon(sigma, rate, steps, delta=delta)
    discrete = accounting.epsilon(sigma, rate, steps, delta=delta, method="pld")
    assert abs(exact.value - discrete.value) < 1e-4, setting
    # PLD is pessimistic: never below the truth.
    assert discrete.value >= exact.interval[0] - 1e-9, setting


@pytest.mark.full
@pytest.mark.parametrize("steps", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_pld_rounding(steps: int) -> None:
    pytest.importorskip("dp_accounting")
    exact = accounting.epsilon(1.0, 0.01, steps, delta=1e-11)
    discrete = accounting.epsilon(1.0, 0.01, steps, delta=1e-11, method="pld")
    assert exact.interval[0] <= discrete.value < math.inf
    # Without an allowance: 2.4e-15 at the ε of 1e-14.
    far = accounting.epsilon(1.0, 0.01, steps, delta=1e-14)
    assert accounting.delta(1.0, 0.01, steps, epsilon=far.interval[0], method="pld").value >= 1e-14
    assert accounting.epsilon(1.0, 0.01, steps, delta=1e-14, method="pld").value == math.inf
    with pytest.raises(ValueError, match="`delta` must be above 2e-13 with method='pld', got 1e-13"):
        accounting.noise_multiplier(epsilon=4.0, delta=1e-13, sample_rate=0.1, steps=100, method="pld")


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("sigma", [1e-8, 1e-10, 1e-11, 1e-12, 1e-20, 1e-30, 1e-100])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_hardly_any_noise(sigma: float, adjacency: str) -> None:
    """Full batches are a Gaussian pair of separation s, whose ε is s²/2 + sz; fewer steps and samples leak no more."""
    s = math.sqrt(3.0) / sigma * (2.0 if adjacency == "replace" else 1.0)
    full = accounting.epsilon(sigma, 1.0, 3, delta=1e-5, adjacency=adjacency)
    assert full.interval[0] <= full.value == pytest.approx(0.5 * s * s + 4.2648907939228246 * s, rel=1e-12)
    sampled = accounting.epsilon(sigma, 0.5, 3, delta=1e-5, adjacency=adjacency)
    assert sampled.interval[0] <= sampled.value <= full.value * (1 + 1e-9)
    # With probability 1/8 all three steps sample the record; then the outputs are 1/σ per step away from those without
    # either record, which the other data set has as likely.
    assert sampled.value >= 0.999 * 1.5 / sigma**2


def test_very_little_noise() -> None:
    # σ and q swapped, say: an answer, at most that of full batches.
    swapped = accounting.epsilon(0.01, 0.8, 1000, delta=1e-5)
    assert 0 < swapped.interval[0] <= swapped.value <= accounting.epsilon(0.01, 1.0, 1000, delta=1e-5).value < math.inf
    # The loss is beyond a float: ∞ is an upper bound.
    assert accounting.epsilon(5e-324, 0.1, 10, delta=1e-5).interval == (0.0, math.inf)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("setting", [s for s in _random_settings(40) if s[2] < 150][:5])
def test_dp_accounting(setting: tuple[float, float, int, float]) -> None:
    pytest.importorskip("dp_accounting")
    _agrees_with_pld(setting)


@pytest.mark.slow
@pytest.mark.parametrize("setting", _random_settings(40))
def test_dp_accounting_more(setting: tuple[float, float, int, float]) -> None:
    pytest.importorskip("dp_accounting")
    _agrees_with_pld(setting)


def test_subsampled_replacement() -> None:
    result = accounting.epsilon(1.0, 0.1, 50, delta=1e-5, adjacency="replace")
    assert "REPLACE_ONE" in result.provenance
    assert result.interval[1] - result.interval[0] < 1e-5 * result.value
    once = accounting.epsilon(1.0, 0.1, 50, delta=1e-5).value
    assert once < result.value < 2.5 * once
    # q → 1 tends to full batches.
    nearly = accounting.epsilon(3.0, 1.0 - 1e-9, 4, delta=1e-5, adjacency="replace").value
    exact = accounting.epsilon(3.0, 1.0, 4, delta=1e-5, adjacency="replace").value
    assert nearly == pytest.approx(exact, rel=1e-5)


def test_schedules() -> None:
    scalar = accounting.epsilon(1.3, 0.2, 10, delta=1e-5).value
    assert accounting.epsilon(np.full(10, 1.3), np.full(10, 0.2), 10, delta=1e-5).value == pytest.approx(
        scalar, rel=1e-12
    )
    mixed = accounting.epsilon([1.3] * 5 + [2.6] * 5, 0.2, 10, delta=1e-5).value
    assert accounting.epsilon(2.6, 0.2, 10, delta=1e-5).value < mixed < scalar


@pytest.mark.parametrize(("sigma", "full"), [(1.0, 20.0), (0.7, 50.0), (2.0, 2.0)])
def test_sampled_and_full_steps(sigma: float, full: float) -> None:
    """The loss has no minimum then, in either direction."""
    schedule = np.array([sigma] * 500 + [full] * 10)
    rates = np.array([0.01] * 500 + [1.0] * 10)
    both = accounting.epsilon(schedule, rates, 510, delta=1e-5)
    assert both.interval[1] - both.interval[0] < 1e-6 * (1.0 + both.value)
    apart = [accounting.epsilon(sigma, 0.01, 500, delta=5e-6), accounting.epsilon(full, 1.0, 10, delta=5e-6)]
    assert max(part.value for part in apart) * 0.9 < both.value < sum(part.value for part in apart)


def test_limits() -> None:
    for method in ("exact", "pld", "rdp"):
        if method != "exact":
            pytest.importorskip("dp_accounting")
        for adjacency in ("add-remove", "replace"):
            same: dict[str, Any] = {"adjacency": adjacency, "method": method}
            assert accounting.epsilon(1.0, 0.0, 10, delta=1e-5, **same).value == 0.0
            assert accounting.epsilon(1.0, 1.0, 0, delta=0.0, **same).value == 0.0
            assert accounting.epsilon(math.inf, 1.0, 3, delta=0.0, **same).value == 0.0
            assert accounting.epsilon(1.0, 1.0, 3, delta=0.0, **same).value == math.inf
            assert accounting.epsilon(0.0, 1.0, 3, delta=1e-5, **same).value == math.inf
            assert accounting.delta(0.0, 1.0, 3, epsilon=1.0, **same).value == 1.0
            assert accounting.delta(1.0, 0.0, 3, epsilon=1.0, **same).value == 0.0
            assert accounting.noise_multiplier(epsilon=1.0, delta=1e-5, sample_rate=0.0, steps=3, **same).value == 0.0
            assert accounting.noise_multiplier(epsilon=1.0, delta=1e-5, sample_rate=1.0, steps=0, **same).value == 0.0
            assert (
                accounting.noise_multiplier(epsilon=1.0, delta=0.0, sample_rate=1.0, steps=1, **same).value == math.inf
            )


NOTHING = [
    (1.0, 0.1, 10, 0.9),
    (0.5, 0.01, 3, 0.03),  # 1 − (1−q)^T = 0.0297: most likely the record is never sampled
    (1e6, 0.1, 10, 1e-5),
    (1e8, 0.1, 10, 1e-5),
    (1.0, 1e-7, 10, 1e-5),
]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), NOTHING)
def test_large_delta(sigma: float, rate: float, steps: int, delta: float) -> None:
    result = accounting.epsilon(sigma, rate, steps, delta=delta)
    assert (result.value, result.interval) == (0.0, (0.0, 0.0))
    if "dp_accounting" in sys.modules or sigma < 1e3:  # its grid is coarser than the loss beyond
        pytest.importorskip("dp_accounting")
        assert accounting.epsilon(sigma, rate, steps, delta=delta, method="pld").value < 1e-3


def test_large_noise() -> None:
    result = accounting.epsilon(1e8, 0.1, 10, delta=1e-12)
    assert 0.0 <= result.value < 1e-6
    # Full batches leak at least as much.
    assert result.value <= accounting.epsilon(1e8, 1.0, 10, delta=1e-12).value + 1e-15
    assert accounting.delta(1e8, 0.1, 10, epsilon=1.0).log_value < -1e6


@pytest.mark.full
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [(0.15, 0.1, 10), *(pytest.param(0.1, q, 10, marks=pytest.mark.slow) for q in (0.01, 0.1))],
)
def test_little_noise(sigma: float, rate: float, steps: int) -> None:
    pytest.importorskip("dp_accounting")
    result = accounting.epsilon(sigma, rate, steps, delta=1e-5)
    pessimistic = accounting.epsilon(sigma, rate, steps, delta=1e-5, method="pld").value
    assert result.value <= pessimistic == pytest.approx(result.value, rel=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": -1.0}, r"`noise_multiplier` must be at least 0, got -1.0"),
        ({"sample_rate": 2.0}, r"`sample_rate` must be in \[0, 1\], got 2.0"),
        ({"steps": -1}, "`steps` must be at least 0, got -1"),
        ({"delta": 1.0}, r"`delta` must be in \[0, 1\), got 1.0"),
        ({"delta": -0.1}, r"`delta` must be in \[0, 1\), got -0.1"),
        ({"adjacency": "neighbours"}, "`adjacency` must be .*, got 'neighbours'"),
        ({"method": "prv"}, "`method` must be .*, got 'prv'"),
        ({"orders": [2.0]}, "`orders` must be None with method='exact'.*only method='rdp'"),
        ({"method": "rdp", "orders": "default"}, "`orders` must be 'authors', got 'default'"),
        ({"method": "rdp", "orders": [0.5]}, r"`orders\[0\]` must be above 1, got 0.5"),
        (
            {"method": "rdp", "adjacency": "replace", "sample_rate": 0.5},
            "`method` must be 'exact' or 'pld' for adjacency='replace'",
        ),
        ({"noise_multiplier": [1.0, 2.0, 3.0]}, r"`noise_multiplier` must be .* of length steps=2, got shape \(3,\)"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 2, "delta": 1e-5} | changes
    with pytest.raises(ValueError, match=message):
        accounting.epsilon(**arguments)


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_missing_dp_accounting(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install leakcore\[accounting\]"):
        accounting.epsilon(1.0, 0.5, 2, delta=1e-5, method=method)


# σ, q, T, δ where δ is the chance of one rare large loss among many small ones: no single tilt shows both.
RARE = [
    (1.5, 0.00017081316881212738, 222, 2.9196582573253805e-11),
    (1.7, 0.00017081316881212738, 222, 2.9196582573253805e-11),
    (1.0830810670977729, 3.277979535958547e-05, 747, 3.086511172910394e-09),
]


@pytest.mark.full
@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), RARE)
def test_rare_large_losses(sigma: float, rate: float, steps: int, delta: float) -> None:
    result = accounting.epsilon(sigma, rate, steps, delta=delta)
    assert result.interval[1] - result.interval[0] < 1e-6
    # Smaller at a larger σ, and close to what PLD computes.
    assert accounting.epsilon(1.2 * sigma, rate, steps, delta=delta).value < result.value
    pytest.importorskip("dp_accounting")
    discrete = accounting.epsilon(sigma, rate, steps, delta=delta, method="pld").value
    assert result.interval[0] <= discrete < result.value * 1.02


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"),
    [
        (0.5, 0.9, 2, 1e-12),
        (0.15, 0.001, 10**4, 0.01),
        pytest.param(0.5, 0.001, 10, 1e-9, marks=pytest.mark.slow),
        pytest.param(0.2, 0.01, 1000, 0.01, marks=pytest.mark.slow),
    ],
)
def test_replacement_beyond_the_end_of_adding(sigma: float, rate: float, steps: int, delta: float) -> None:
    """Each ended in "math domain error": no loss of adding reaches so far."""
    result = accounting.epsilon(sigma, rate, steps, delta=delta, adjacency="replace")
    added = accounting.epsilon(sigma, rate, steps, delta=delta)
    full = accounting.epsilon(sigma, 1.0, steps, delta=delta, adjacency="replace")
    assert added.interval[0] <= result.value <= full.value * (1 + 1e-9)


def test_noise_too_small_for_pld() -> None:
    refusal = r"`noise_multiplier` must be large .* got privacy losses of 2e\+32; use method='exact', of Poisson\("
    with pytest.raises(AccuracyError, match=refusal):
        accounting.epsilon(1e-16, 1.0, 2, delta=1e-5, method="pld")


def test_known_noise() -> None:
    sigma = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=1.0, steps=1).value
    assert accounting.epsilon(sigma, 1.0, 1, delta=1e-5, adjacency="replace").value == pytest.approx(9.08, abs=5e-3)


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(("steps", "rate", "epsilon", "sigma", "sigma_rdp"), CALIBRATION)
def test_calibration(steps: int, rate: float, epsilon: float, sigma: float, sigma_rdp: float) -> None:
    # A relative 1e-4 in σ; PLD's own discretisation makes its σ a little larger than the exact one.
    assert accounting.epsilon(sigma, rate, steps, delta=1e-5).value == pytest.approx(epsilon, abs=1e-4)
    if rate < 0.02 and epsilon > 10:
        return  # some seconds; the slow test below has it
    result = accounting.noise_multiplier(epsilon=epsilon, delta=1e-5, sample_rate=rate, steps=steps)
    assert result.value == pytest.approx(sigma, rel=1e-4)
    assert accounting.epsilon(result.value, rate, steps, delta=1e-5).value <= epsilon * (1.0 + 1e-12)
    assert accounting.epsilon(result.value * (1.0 - 1e-6), rate, steps, delta=1e-5).value > epsilon


@pytest.mark.slow
def test_roughest_calibration() -> None:
    result = accounting.noise_multiplier(epsilon=32.0, delta=1e-5, sample_rate=0.01, steps=100)
    assert result.value == pytest.approx(0.2806531318, rel=1e-4)


def test_noise_by_rdp_and_pld() -> None:
    pytest.importorskip("dp_accounting")
    result = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=0.1, steps=100, method="rdp")
    assert result.value == pytest.approx(1.48153, abs=2e-5)
    assert result.method == "rdp"


@pytest.mark.slow
def test_noise_by_pld() -> None:
    pytest.importorskip("dp_accounting")
    result = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=0.1, steps=100, method="pld")
    assert result.value == pytest.approx(1.385994732, rel=1e-5)


def test_delta_of_every_sample() -> None:
    for adjacency, factor in (("add-remove", 1.0), ("replace", 2.0)):
        same: dict[str, Any] = {"epsilon": 1e-9, "sample_rate": 0.01, "steps": 3, "adjacency": adjacency}
        assert accounting.noise_multiplier(delta=factor * 0.0298, **same).value == 0.0
    assert accounting.noise_multiplier(epsilon=1e-9, delta=0.0296, sample_rate=0.01, steps=3).value > 0.01


@pytest.mark.slow
def test_noise_next_to_gaps() -> None:
    result = accounting.noise_multiplier(epsilon=300.0, delta=1e-5, sample_rate=0.1, steps=10).value
    assert accounting.epsilon(result, 0.1, 10, delta=1e-5).value <= 300.0
    assert accounting.epsilon(result * (1 - 1e-6), 0.1, 10, delta=1e-5).value > 300.0


def test_bad_targets() -> None:
    with pytest.raises(ValueError, match=r"`epsilon` must be at least 0, got -1.0"):
        accounting.delta(1.0, 1.0, 1, epsilon=-1.0)
    with pytest.raises(ValueError, match=r"`epsilon` must be at least 0, got -1.0"):
        accounting.noise_multiplier(epsilon=-1.0, delta=1e-5, sample_rate=0.1, steps=1)
    with pytest.raises(ValueError, match=r"`sample_rate` must be in \[0, 1\], got 1.5"):
        accounting.noise_multiplier(epsilon=1.0, delta=1e-5, sample_rate=1.5, steps=1)


@pytest.mark.full
def test_noise_rare_losses() -> None:
    result = accounting.noise_multiplier(epsilon=0.01, delta=1e-10, sample_rate=1e-4, steps=500)
    assert accounting.epsilon(result.value, 1e-4, 500, delta=1e-10).value <= 0.01
    # Fourier inversion does not serve here, so the search ends a little above the least noise, and says so.
    assert any("a little less noise may do" in note for note in result.assumptions.notes)
    assert accounting.epsilon(result.value * (1 - 2e-4), 1e-4, 500, delta=1e-10).value > 0.01


def test_to_replacement() -> None:
    claim = accounting.epsilon(1.0, 1.0, 1, delta=1e-5)
    converted = accounting.to_replacement(claim)
    assert converted.value == pytest.approx(2.0 * claim.value)
    assert converted.delta == pytest.approx(1e-5 * (1.0 + math.exp(claim.value)))
    assert converted.adjacency == "replace"
    # It is a bound on the exact answer at the delta that it claims.
    assert accounting.epsilon(1.0, 1.0, 1, delta=converted.delta, adjacency="replace").value <= converted.value
    with pytest.raises(ValueError, match="replace adjacency"):
        accounting.to_replacement(converted)
    with pytest.raises(TypeError, match="claim"):
        accounting.to_replacement(4.0)  # type: ignore[arg-type]


def test_to_replacement_large_epsilon() -> None:
    claim = accounting.epsilon(0.0262, 1.0, 1, delta=5e-324)
    assert claim.value > 2000.0
    assert accounting.to_replacement(claim).delta == 1.0
    small = dataclasses.replace(claim, value=720.0)
    mpmath = pytest.importorskip("mpmath")
    truth = mpmath.mpf(5e-324) * (1 + mpmath.exp(mpmath.mpf(720)))
    assert truth <= accounting.to_replacement(small).delta <= truth * (1 + mpmath.mpf("1e-11"))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("steps", [2, 3])
def test_step_without_noise(adjacency: str, steps: int) -> None:
    """With probability q the row is seen for certain: δ(ε) = q + (1 − q)·δ of the other steps at ε, or at
    ε − log(1 − q) where no row in place of it could have been seen."""
    rate, delta = 0.1, 0.15
    both = accounting.epsilon(
        [0.0] + [1.0] * (steps - 1), [rate] + [0.5] * (steps - 1), steps, delta=delta, adjacency=adjacency
    )
    rest = accounting.epsilon(1.0, 0.5, steps - 1, delta=(delta - rate) / (1 - rate), adjacency=adjacency)
    assert both.interval is not None
    truth = float(rest.value) + (math.log1p(-rate) if adjacency == "add-remove" else 0.0)
    assert both.interval[0] - 1e-5 <= truth <= both.interval[1] + 1e-5
    if adjacency == "add-remove":
        assert float(both.value) == pytest.approx(truth, abs=1e-5)
    assert accounting.epsilon([0.0, 1.0], [rate, 0.5], 2, delta=rate / 2, adjacency=adjacency).value == math.inf
