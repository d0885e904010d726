"""ε, δ and σ: known answers, dp-accounting as the second route, conversions and errors."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import numpy as np
import pytest

from leakcore import accounting
from leakcore.numerics.privacy_loss.loss import PrivacyLoss

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


def test_one_step_under_both_relations() -> None:
    kept = accounting.epsilon(1.0, 1.0, 1, delta=1e-5)
    replaced = accounting.epsilon(1.0, 1.0, 1, delta=1e-5, adjacency="replace")
    assert kept.value == pytest.approx(4.38, abs=5e-3)
    assert replaced.value == pytest.approx(9.997, abs=5e-4)
    assert (kept.adjacency, replaced.adjacency) == ("add-remove", "replace")
    assert kept.kind == "upper"


def test_four_under_add_remove_is_nine_under_replacement() -> None:
    sigma = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=1.0, steps=1).value
    assert accounting.epsilon(sigma, 1.0, 1, delta=1e-5, adjacency="replace").value == pytest.approx(9.08, abs=5e-3)


@pytest.mark.parametrize(("steps", "rate", "epsilon", "sigma", "sigma_rdp"), CALIBRATION)
def test_calibration(steps: int, rate: float, epsilon: float, sigma: float, sigma_rdp: float) -> None:
    # A relative 1e-4 in σ; PLD's own discretisation makes its σ a little larger than the exact one.
    assert accounting.epsilon(sigma, rate, steps, delta=1e-5).value == pytest.approx(epsilon, abs=1e-4)
    if rate < 0.02 and epsilon > 10:
        return  # some seconds; the slow test below has it
    found = accounting.noise_multiplier(epsilon=epsilon, delta=1e-5, sample_rate=rate, steps=steps)
    assert found.value == pytest.approx(sigma, rel=1e-4)
    assert accounting.epsilon(found.value, rate, steps, delta=1e-5).value <= epsilon * (1.0 + 1e-12)
    assert accounting.epsilon(found.value * (1.0 - 1e-6), rate, steps, delta=1e-5).value > epsilon


@pytest.mark.slow
def test_calibration_of_the_roughest_setting() -> None:
    found = accounting.noise_multiplier(epsilon=32.0, delta=1e-5, sample_rate=0.01, steps=100)
    assert found.value == pytest.approx(0.2806531318, rel=1e-4)


@pytest.mark.parametrize(("steps", "rate", "epsilon", "sigma", "sigma_rdp"), CALIBRATION)
def test_calibration_by_rdp(steps: int, rate: float, epsilon: float, sigma: float, sigma_rdp: float) -> None:
    pytest.importorskip("dp_accounting")
    assert accounting.epsilon(sigma_rdp, rate, steps, delta=1e-5, method="rdp").value == pytest.approx(
        epsilon, rel=2e-4
    )


def test_noise_by_rdp_and_pld() -> None:
    pytest.importorskip("dp_accounting")
    found = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=0.1, steps=100, method="rdp")
    assert found.value == pytest.approx(1.48153, abs=2e-5)
    assert found.method == "rdp"


@pytest.mark.slow
def test_noise_by_pld() -> None:
    pytest.importorskip("dp_accounting")
    found = accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=0.1, steps=100, method="pld")
    assert found.value == pytest.approx(1.385994732, rel=1e-5)


def test_orders_of_the_released_code() -> None:
    pytest.importorskip("dp_accounting")
    found = accounting.epsilon(2.0, 1.0, 100, delta=1e-5, method="rdp", orders="authors")
    assert found.value == pytest.approx(35.08, abs=5e-3)
    # Three orders cannot beat a hundred and fifty.
    assert accounting.epsilon(2.0, 1.0, 100, delta=1e-5, method="rdp", orders=[2.0, 3.0, 4.0]).value >= found.value


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


@pytest.mark.parametrize("steps", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_convolutions_do_not_round_a_small_delta_away(steps: int) -> None:
    pytest.importorskip("dp_accounting")
    exact = accounting.epsilon(1.0, 0.01, steps, delta=1e-11)
    discrete = accounting.epsilon(1.0, 0.01, steps, delta=1e-11, method="pld")
    assert exact.interval[0] <= discrete.value < math.inf
    # Without an allowance: 2.4e-15 at the ε of 1e-14.
    far = accounting.epsilon(1.0, 0.01, steps, delta=1e-14)
    assert accounting.delta(1.0, 0.01, steps, epsilon=far.interval[0], method="pld").value >= 1e-14
    assert accounting.epsilon(1.0, 0.01, steps, delta=1e-14, method="pld").value == math.inf
    with pytest.raises(ValueError, match="delta=1e-13: must be above 2e-13 with method='pld'"):
        accounting.noise_multiplier(epsilon=4.0, delta=1e-13, sample_rate=0.1, steps=100, method="pld")


def test_very_little_noise_has_an_upper_bound() -> None:
    # σ and q swapped, say: an answer, at most that of full batches.
    swapped = accounting.epsilon(0.01, 0.8, 1000, delta=1e-5)
    assert 0 < swapped.interval[0] <= swapped.value <= accounting.epsilon(0.01, 1.0, 1000, delta=1e-5).value < math.inf
    # The loss is beyond a float: ∞ is an upper bound.
    assert accounting.epsilon(5e-324, 0.1, 10, delta=1e-5).interval == (0.0, math.inf)


@pytest.mark.parametrize("setting", [s for s in _random_settings(40) if s[2] < 150][:5])
def test_agreement_with_dp_accounting(setting: tuple[float, float, int, float]) -> None:
    pytest.importorskip("dp_accounting")
    _agrees_with_pld(setting)


@pytest.mark.slow
@pytest.mark.parametrize("setting", _random_settings(40))
def test_agreement_with_dp_accounting_over_more(setting: tuple[float, float, int, float]) -> None:
    pytest.importorskip("dp_accounting")
    _agrees_with_pld(setting)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 1.0, 3), (1.2, 0.1, 50)])
def test_delta_and_epsilon_are_inverse(sigma: float, rate: float, steps: int, adjacency: str) -> None:
    for delta in (1e-3, 1e-6):
        epsilon = accounting.epsilon(sigma, rate, steps, delta=delta, adjacency=adjacency).value
        back = accounting.delta(sigma, rate, steps, epsilon=epsilon, adjacency=adjacency)
        # Under replacement each is the minimum of a search that stops near its optimum.
        assert back.value == pytest.approx(delta, rel=1e-6 if adjacency == "add-remove" or rate == 1.0 else 2e-2)


def test_subsampled_replacement_is_composed_and_says_so() -> None:
    found = accounting.epsilon(1.0, 0.1, 50, delta=1e-5, adjacency="replace")
    assert any("k=2" in note for note in found.assumptions.notes)
    once = accounting.epsilon(1.0, 0.1, 50, delta=1e-5).value
    assert once < found.value < 2.5 * once
    # q → 1 tends to the composition for full batches, which is no tighter than their exact answer.
    nearly = accounting.epsilon(3.0, 1.0 - 1e-9, 4, delta=1e-5, adjacency="replace").value
    exact = accounting.epsilon(3.0, 1.0, 4, delta=1e-5, adjacency="replace").value
    assert exact <= nearly


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"), [(2.0, 0.5, 1000, 1e-3), (1.0, 0.1, 5000, 1e-2), (0.5, 0.1, 10, 0.3)]
)
def test_delta_and_epsilon_of_replacement_are_inverse(sigma: float, rate: float, steps: int, delta: float) -> None:
    """Where much leaks the split that bounds δ lies far from where both its halves are 1, or outside [0, ε]."""
    epsilon = accounting.epsilon(sigma, rate, steps, delta=delta, adjacency="replace").value
    found = accounting.delta(sigma, rate, steps, epsilon=epsilon, adjacency="replace").value
    assert found == pytest.approx(delta, rel=1e-3)


def test_replacement_bound_holds_against_a_direct_composition() -> None:
    # One step, D with z and D' with z' whose gradients are opposite: P = (1−q)N(0) + qN(1), Q = (1−q)N(0) + qN(−1). The
    # true profile of that pair, by quadrature, must not exceed the bound.
    sigma, rate = 0.8, 0.3
    x = np.linspace(-12.0, 12.0, 200_001)

    def normal(mean: float) -> np.ndarray:
        return np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * math.sqrt(2.0 * math.pi))

    p = (1.0 - rate) * normal(0.0) + rate * normal(1.0)
    q = (1.0 - rate) * normal(0.0) + rate * normal(-1.0)
    for epsilon in (0.2, 1.0, 2.0):
        direct = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * (x[1] - x[0]))
        assert direct <= accounting.delta(sigma, rate, 1, epsilon=epsilon, adjacency="replace").value


def test_schedules() -> None:
    scalar = accounting.epsilon(1.3, 0.2, 10, delta=1e-5).value
    assert accounting.epsilon(np.full(10, 1.3), np.full(10, 0.2), 10, delta=1e-5).value == pytest.approx(
        scalar, rel=1e-12
    )
    mixed = accounting.epsilon([1.3] * 5 + [2.6] * 5, 0.2, 10, delta=1e-5).value
    assert accounting.epsilon(2.6, 0.2, 10, delta=1e-5).value < mixed < scalar


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


def test_no_noise_reveals_sampled_records_only() -> None:
    # δ ≥ 1 − (1−q)^T is the chance of being sampled at all; nothing else leaks.
    assert accounting.epsilon(0.0, 0.1, 2, delta=1e-5).value == math.inf
    assert accounting.epsilon(0.0, 0.1, 2, delta=0.2).value == pytest.approx(0.0, abs=1e-12)
    assert accounting.delta(0.0, 0.1, 2, epsilon=3.0).value == pytest.approx(0.19, rel=1e-12)


NOTHING = [
    (1.0, 0.1, 10, 0.9),
    (0.5, 0.01, 3, 0.03),  # 1 − (1−q)^T = 0.0297: most likely the record is never sampled
    (1e6, 0.1, 10, 1e-5),
    (1e8, 0.1, 10, 1e-5),
    (1.0, 1e-7, 10, 1e-5),
]


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), NOTHING)
def test_a_large_delta_leaves_nothing(sigma: float, rate: float, steps: int, delta: float) -> None:
    found = accounting.epsilon(sigma, rate, steps, delta=delta)
    assert (found.value, found.interval) == (0.0, (0.0, 0.0))
    if "dp_accounting" in sys.modules or sigma < 1e3:  # its grid is coarser than the loss beyond
        pytest.importorskip("dp_accounting")
        assert accounting.epsilon(sigma, rate, steps, delta=delta, method="pld").value < 1e-3


def test_noise_too_large_for_the_profile() -> None:
    found = accounting.epsilon(1e8, 0.1, 10, delta=1e-12)
    assert 0.0 <= found.value < 1e-6
    # Full batches leak at least as much.
    assert found.value <= accounting.epsilon(1e8, 1.0, 10, delta=1e-12).value + 1e-15
    assert accounting.delta(1e8, 0.1, 10, epsilon=1.0).log_value < -1e6


def test_no_noise_is_enough_where_delta_allows_every_sample() -> None:
    for adjacency, factor in (("add-remove", 1.0), ("replace", 2.0)):
        same: dict[str, Any] = {"epsilon": 1e-9, "sample_rate": 0.01, "steps": 3, "adjacency": adjacency}
        assert accounting.noise_multiplier(delta=factor * 0.0298, **same).value == 0.0
    assert accounting.noise_multiplier(epsilon=1e-9, delta=0.0296, sample_rate=0.01, steps=3).value > 0.01


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [(0.15, 0.1, 10), *(pytest.param(0.1, q, 10, marks=pytest.mark.slow) for q in (0.01, 0.1))],
)
def test_little_noise(sigma: float, rate: float, steps: int) -> None:
    pytest.importorskip("dp_accounting")
    found = accounting.epsilon(sigma, rate, steps, delta=1e-5)
    pessimistic = accounting.epsilon(sigma, rate, steps, delta=1e-5, method="pld").value
    assert found.value <= pessimistic == pytest.approx(found.value, rel=1e-7)


@pytest.mark.slow
def test_little_noise_is_found_beside_what_cannot_be_told() -> None:
    found = accounting.noise_multiplier(epsilon=300.0, delta=1e-5, sample_rate=0.1, steps=10).value
    assert accounting.epsilon(found, 0.1, 10, delta=1e-5).value <= 300.0
    assert accounting.epsilon(found * (1 - 1e-6), 0.1, 10, delta=1e-5).value > 300.0


@pytest.mark.parametrize("setting", [(0.7, 0.3, 1), (1.0, 0.1, 10), (2.0, 0.05, 200), (1.5, 1.0, 3), (0.0, 0.1, 4)])
def test_total_variation_is_above_the_profile_at_zero(setting: tuple[float, float, int]) -> None:
    loss = PrivacyLoss.of_steps(np.asarray(setting[0]), np.asarray(setting[1]), setting[2])
    exact = accounting.delta(*setting, epsilon=0.0).value
    assert loss.total_variation() >= exact * (1 - 1e-9)
    if setting[2] == 1 or setting[1] == 1.0 or setting[0] == 0.0:
        assert loss.total_variation() == pytest.approx(exact, rel=1e-9)


def test_tiny_deltas() -> None:
    found = accounting.delta(40.0, 0.01, 100, epsilon=4.0)
    assert found.value == 5e-324
    assert -1e9 < found.log_value < -1000.0
    assert accounting.epsilon(1.0, 0.1, 100, delta=1e-200).value > 30.0


def test_group_privacy_conversion() -> None:
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        ({"sample_rate": 2.0}, "sample_rate=2"),
        ({"steps": -1}, "steps=-1"),
        ({"delta": 1.0}, "delta=1"),
        ({"delta": -0.1}, "delta=-0.1"),
        ({"adjacency": "zero-out"}, "adjacency='zero-out'"),
        ({"method": "prv"}, "method='prv'"),
        ({"orders": [2.0]}, "orders=.*only method='rdp'"),
        ({"method": "rdp", "orders": "default"}, "orders='default'"),
        ({"method": "rdp", "orders": [0.5]}, r"orders\[0\]=0\.5"),
        ({"method": "rdp", "adjacency": "replace", "sample_rate": 0.5}, "does not cover adjacency='replace'"),
        ({"noise_multiplier": [1.0, 2.0, 3.0]}, r"noise_multiplier of shape \(3,\)"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 2, "delta": 1e-5} | changes
    with pytest.raises(ValueError, match=message):
        accounting.epsilon(**arguments)


def test_bad_targets() -> None:
    with pytest.raises(ValueError, match="epsilon=-1"):
        accounting.delta(1.0, 1.0, 1, epsilon=-1.0)
    with pytest.raises(ValueError, match="epsilon=-1"):
        accounting.noise_multiplier(epsilon=-1.0, delta=1e-5, sample_rate=0.1, steps=1)
    with pytest.raises(ValueError, match=r"sample_rate=1\.5"):
        accounting.noise_multiplier(epsilon=1.0, delta=1e-5, sample_rate=1.5, steps=1)


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_without_dp_accounting_says_what_to_install(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install leakcore\[accounting\]"):
        accounting.epsilon(1.0, 0.5, 2, delta=1e-5, method=method)


# σ, q, T, δ where δ is the chance of one rare large loss beside many small ones: no single tilt shows both.
RARE = [
    (1.5, 0.00017081316881212738, 222, 2.9196582573253805e-11),
    (1.7, 0.00017081316881212738, 222, 2.9196582573253805e-11),
    (1.0830810670977729, 3.277979535958547e-05, 747, 3.086511172910394e-09),
]


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), RARE)
def test_rare_large_losses(sigma: float, rate: float, steps: int, delta: float) -> None:
    found = accounting.epsilon(sigma, rate, steps, delta=delta)
    assert found.interval[1] - found.interval[0] < 1e-6
    # Below, beside and above by neighbours in σ; to a relative 1e-3 what PLD says where it can be asked.
    assert accounting.epsilon(1.2 * sigma, rate, steps, delta=delta).value < found.value
    pytest.importorskip("dp_accounting")
    discrete = accounting.epsilon(sigma, rate, steps, delta=delta, method="pld").value
    assert found.interval[0] <= discrete < found.value * 1.02


def test_noise_beside_rare_large_losses() -> None:
    found = accounting.noise_multiplier(epsilon=0.01, delta=1e-10, sample_rate=1e-4, steps=500)
    assert accounting.epsilon(found.value, 1e-4, 500, delta=1e-10).value <= 0.01
    # Fourier inversion does not serve here, so the search ends a little above the least noise, and says so.
    assert any("a little less noise may do" in note for note in found.assumptions.notes)
    assert accounting.epsilon(found.value * (1 - 2e-4), 1e-4, 500, delta=1e-10).value > 0.01


def test_group_privacy_of_a_large_epsilon() -> None:
    claim = accounting.epsilon(0.0262, 1.0, 1, delta=5e-324)
    assert claim.value > 2000.0
    assert accounting.to_replacement(claim).delta == 1.0
    small = dataclasses.replace(claim, value=720.0)
    mpmath = pytest.importorskip("mpmath")
    truth = mpmath.mpf(5e-324) * (1 + mpmath.exp(mpmath.mpf(720)))
    assert truth <= accounting.to_replacement(small).delta <= truth * (1 + mpmath.mpf("1e-11"))


def test_a_positive_delta_is_never_zero() -> None:
    for steps, rate in ((1, 1.0), (100, 0.01)):
        found = accounting.delta(1e3, rate, steps, epsilon=30.0)
        assert found.value == 5e-324
        assert found.interval == (0.0, 5e-324)
        assert -math.inf < found.log_value < -1000.0


@pytest.mark.parametrize(
    ("sigma", "epsilon"),
    [
        (516.7248090415748, 6.332388232169973e-05),
        (615.977, 0.0),
        (1e8, 1.0),
        (1e7, 1e-3),
        (1e-3, 5e5),
        (3.0, 60.0),
    ],
)
def test_interval_of_full_batches_holds_the_truth(sigma: float, epsilon: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        s, e = 1 / mpmath.mpf(sigma), mpmath.mpf(epsilon)
        truth = mpmath.erfc((e / s - s / 2) / mpmath.sqrt(2)) / 2
        truth = truth - mpmath.exp(e) * mpmath.erfc((e / s + s / 2) / mpmath.sqrt(2)) / 2
        log_truth = mpmath.log(truth)
        found = accounting.delta(sigma, 1.0, 1, epsilon=epsilon)
        assert log_truth <= found.log_value <= log_truth + mpmath.mpf("4e-12") + mpmath.mpf("4e-15") * abs(log_truth)
        assert found.interval[0] <= truth <= found.interval[1]


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"),
    [
        (0.5, 0.9, 2, 1e-12),
        (0.15, 0.001, 10**4, 0.01),
        pytest.param(0.5, 0.001, 10, 1e-9, marks=pytest.mark.slow),
        pytest.param(0.2, 0.01, 1000, 0.01, marks=pytest.mark.slow),
    ],
)
def test_replacement_where_adding_ends_before_the_place_in_question(
    sigma: float, rate: float, steps: int, delta: float
) -> None:
    """Each ended in "math domain error": no loss of adding reaches so far."""
    found = accounting.epsilon(sigma, rate, steps, delta=delta, adjacency="replace")
    added = accounting.epsilon(sigma, rate, steps, delta=delta)
    full = accounting.epsilon(sigma, 1.0, steps, delta=delta, adjacency="replace")
    assert added.interval[0] <= found.value <= full.value * (1 + 1e-9)
