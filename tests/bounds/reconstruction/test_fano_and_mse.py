"""Fano's bound (Table 2), the squared-error bound, calibrated noise, discrete priors and labels."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from scipy import special

from leakcore import accounting, bounds, numerics

SIGMAS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
TABLE_2 = {
    ("analytic", 10): (0.976, 0.593, 0.380, 0.274, 0.213, 0.174),
    ("analytic", 100): (0.861, 0.346, 0.195, 0.131, 0.097, 0.076),
    ("monte-carlo", 10): (0.7708, 0.3987, 0.2548, 0.1848, 0.1444, 0.1182),
    ("monte-carlo", 100): (0.5470, 0.2114, 0.1206, 0.0819, 0.0611, 0.0484),
}


@pytest.mark.parametrize("n", [10, 100])
def test_table_2_analytic_to_the_last_digit(n: int) -> None:
    found = [bounds.fano_advantage(s, prior_size=n, information="analytic").value for s in SIGMAS]
    np.testing.assert_allclose(found, TABLE_2["analytic", n], atol=5.01e-4)


@pytest.mark.parametrize("n", [10, 100])
def test_table_2_monte_carlo(n: int) -> None:
    for sigma, printed in zip(SIGMAS, TABLE_2["monte-carlo", n], strict=True):
        found = bounds.fano_advantage(sigma, prior_size=n, information="monte-carlo", num_samples=40_000, seed=3)
        assert found.standard_error is not None
        # dt/dI is about 1/log(n−1)+: four standard errors of I in the advantage, and the printed digits.
        assert found.value == pytest.approx(printed, abs=6.0 * found.standard_error + 2e-3)
        assert found.kind == "estimate"


def test_fano_holds_for_the_optimal_attack_and_lies_above_exact() -> None:
    for sigma in SIGMAS:
        for n in (2, 10, 100):
            exact = bounds.reconstruction(sigma, 1.0, 1, kappa=1.0 / n).advantage
            one_hot = bounds.orthogonal_success(sigma, 1, n).value
            for information in ("rdp", "analytic"):
                found = bounds.fano_advantage(sigma, prior_size=n, information=information)
                assert found.success >= one_hot
                assert found.kind == "upper"
            if n == 10:
                assert bounds.fano_advantage(sigma, prior_size=n).value >= exact


def test_fano_limits() -> None:
    assert bounds.fano_advantage(0.0, prior_size=7).value == 1.0
    assert bounds.fano_advantage(0.0, prior_size=7, information="analytic").value == 1.0
    assert bounds.fano_advantage(1.0, prior_size=1).value == 0.0
    assert bounds.fano_advantage(math.inf, prior_size=7).value == pytest.approx(0.0, abs=1e-6)
    assert bounds.fano_advantage(1.0, 0.1, 0, prior_size=7).value == pytest.approx(0.0, abs=1e-6)
    weighted = bounds.fano_advantage(2.0, 0.1, 5, prior=[0.5, 0.25, 0.25, 0.0])
    assert weighted.prior_size == 3
    assert weighted.success >= bounds.discrete_prior(2.0, 0.1, 5, prior=[0.5, 0.25, 0.25]).value
    # I by the dominating pair is KL = E_μ[log r], T/(2σ²) at q = 1.
    assert bounds.fano_advantage(2.0, 1.0, 3, prior_size=9).mutual_information == pytest.approx(3 / 8, rel=1e-12)


def test_squared_error() -> None:
    found = bounds.mse_lower_bound(2.0, 1.0, 3, diameters=[1.0, 2.0])
    epsilon = 3 * 4.0 / 4.0
    assert found.epsilon == pytest.approx(epsilon)
    assert found.value == pytest.approx(5.0 / (4 * 2 * math.expm1(epsilon)), rel=1e-12)
    assert not found.warnings
    # D₂ of the pair N(±1/σ, 1), α·Δ²/2 with Δ = 2/σ, by quadrature.
    x = np.linspace(-30, 30, 60_001)
    first, second = (np.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi) for m in (0.5, -0.5))
    assert math.log((first**2 / second).sum() * (x[1] - x[0])) * 3 == pytest.approx(epsilon, rel=1e-9)
    # Subsampled, replacement: above the pair that moves both ways, itself found by quadrature.
    q, sigma = 0.2, 1.0
    base, up, down = (np.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi) for m in (0.0, 1 / sigma, -1 / sigma))
    p, r = (1 - q) * base + q * up, (1 - q) * base + q * down
    direct = math.log((p**2 / r).sum() * (x[1] - x[0]))
    assert bounds.mse_lower_bound(sigma, q, 1, diameters=[1.0]).epsilon >= direct
    quiet = bounds.mse_lower_bound(50.0, 1.0, 1, diameters=np.ones(4))
    assert quiet.value > quiet.constant_guess == 0.25
    assert "constant guess" in quiet.warnings[0]
    assert bounds.mse_lower_bound(0.0, 0.5, 1, diameters=[1.0]).value == 0.0
    assert bounds.mse_lower_bound(1.0, 0.0, 1, diameters=[1.0]).value == math.inf


@pytest.mark.parametrize(
    ("rate", "steps", "kappa", "goal"),
    [
        (0.02, 100, 0.1, 0.2),
        (1.0, 100, 0.01, 0.3),
        pytest.param(0.3, 5, 1e-6, 1e-3, marks=pytest.mark.slow),
    ],
)
def test_calibrated_noise_is_the_inverse(rate: float, steps: int, kappa: float, goal: float) -> None:
    found = bounds.calibrate_noise(goal, kappa=kappa, sample_rate=rate, steps=steps)
    sigma = float(found.value)
    assert bounds.reconstruction(sigma, rate, steps, kappa=kappa).value <= goal * (1 + 1e-12)
    assert bounds.reconstruction(sigma * (1 - 1e-7), rate, steps, kappa=kappa).value > goal
    assert found.success <= goal
    # ε-calibration promises the same and needs more noise.
    assert found.epsilon_noise_multiplier > sigma
    epsilon = accounting.epsilon(found.epsilon_noise_multiplier, rate, steps, delta=1e-5).value
    assert min(kappa * math.exp(epsilon) + 1e-5, 1 - math.exp(-epsilon) * (1 - 1e-5 - kappa)) <= goal * (1 + 1e-6)


def test_calibration_in_closed_form_and_limits() -> None:
    # Φ(Φ⁻¹(κ) + √T/σ) = γ
    expected = 10.0 / (special.ndtri(0.5) - special.ndtri(0.1))
    found = bounds.calibrate_noise(0.5, kappa=0.1, sample_rate=1.0, steps=100)
    assert found.value == pytest.approx(expected, rel=1e-8)
    assert found.value >= expected * (1 - 1e-12)
    assert bounds.calibrate_noise(1.0, kappa=0.1, sample_rate=0.5, steps=3).value == 0.0
    assert bounds.calibrate_noise(0.1, kappa=0.1, sample_rate=0.0, steps=3).value == 0.0
    # σ = 0: 1 − .9(1 − .1) = .19 already suffices.
    assert bounds.calibrate_noise(0.2, kappa=0.1, sample_rate=0.1, steps=1).value == 0.0
    weighted = bounds.calibrate_noise(0.5, prior=[0.1] * 10, sample_rate=1.0, steps=100)
    assert weighted.value == pytest.approx(found.value, rel=1e-8)
    tiny = bounds.calibrate_noise(1e-100, log_kappa=-784 * math.log(4), sample_rate=1.0, steps=10)
    assert tiny.success == pytest.approx(1e-100, rel=1e-6)
    with pytest.raises(ValueError, match=r"target_success=0\.05: must be above kappa=0\.1"):
        bounds.calibrate_noise(0.05, kappa=0.1, sample_rate=0.5, steps=3)
    with pytest.raises(ValueError, match="must be a scalar"):
        bounds.calibrate_noise(0.5, kappa=[0.1, 0.2], sample_rate=0.5, steps=3)


def test_the_mean_squared_error_of_add_remove_is_no_bound() -> None:
    """z in {0, 1}, clipped gradients −C and C: (r − 1)/(e⁴ − 1), r = dN(1, 1)/dN(−1, 1), errs less without a bias."""
    x = np.linspace(-12.0, 14.0, 400_001)
    density = np.exp(-0.5 * (x + 1.0) ** 2) / math.sqrt(2 * math.pi)
    guess = np.expm1(2.0 * x) / math.expm1(4.0)
    width = x[1] - x[0]
    error = float((density * guess**2).sum() * width)
    assert float((density * guess).sum() * width) == pytest.approx(0.0, abs=1e-12)
    proved = bounds.mse_lower_bound(1.0, 1.0, 1, diameters=[1.0])
    assert proved.kind == "lower"
    assert proved.value <= error
    plugged = bounds.mse_lower_bound(1.0, 1.0, 1, diameters=[1.0], adjacency="add-remove")
    assert plugged.value > error
    assert plugged.kind == "estimate"
    assert any("no lower bound" in note for note in plugged.assumptions.notes)


def test_discrete_prior() -> None:
    equal = bounds.discrete_prior(1.0, 0.1, 20, prior=[0.25] * 4)
    assert equal.value == pytest.approx(bounds.reconstruction(1.0, 0.1, 20, kappa=0.25).value, rel=1e-9)
    # Two candidates at N(±m, 1): the best test of unequal weights, by maximising over its threshold.
    m = 0.8
    x = np.linspace(-9, 9, 400_001)
    best = (0.8 * special.ndtr(m - x) + 0.2 * special.ndtr(m + x)).max()
    found = bounds.discrete_prior(1.0 / m, 1.0, 1, prior=[0.8, 0.2])
    assert found.value == pytest.approx(best, rel=1e-7)
    assert found.value <= found.blow_up
    assert found.blow_up == pytest.approx(bounds.reconstruction(1.0 / m, 1.0, 1, kappa=0.8).value, rel=1e-9)
    # max Σ p B(a), Σ a = 1 by brute force over allotments of three.
    p = np.array([0.5, 0.3, 0.2])
    a, b = np.meshgrid(np.linspace(0.01, 0.98, 98), np.linspace(0.01, 0.98, 98))
    keep = a + b < 0.995
    shares = np.stack((a[keep], b[keep], 1 - a[keep] - b[keep]))
    grid = np.linspace(0.004, 0.999, 400)
    curve = np.interp(shares, grid, bounds.reconstruction(1.0, 0.1, 50, kappa=grid).value)
    brute = float((p @ curve).max())
    found = bounds.discrete_prior(1.0, 0.1, 50, prior=p)
    assert brute - 1e-5 <= found.value <= brute + 2e-4


def test_many_weights_use_chords_on_the_safe_side(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = np.arange(1.0, 8.0) / 28.0
    fine = bounds.discrete_prior(1.0, 0.1, 10, prior=prior).value
    monkeypatch.setattr(sys.modules["leakcore.bounds.reconstruction.discrete_prior"], "_NODES", 5)
    coarse = bounds.discrete_prior(1.0, 0.1, 10, prior=prior).value
    assert fine * (1 - 1e-9) <= coarse <= 1.05 * fine


@pytest.mark.parametrize("exponent", [1.0, 2.0])
@pytest.mark.parametrize("size", [100, 10_000])
@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_chords_of_heavy_tailed_priors_add_little(exponent: float, size: int, sigma: float) -> None:
    """Against the dual over all weights, with the Gaussian pair's δ in closed form."""
    prior = np.arange(1, size + 1.0) ** -exponent
    prior /= prior.sum()
    m = 1.0 / sigma

    def dual(price: float) -> float:
        epsilon = price - np.log(prior)
        delta = special.ndtr(m / 2 - epsilon / m) - np.exp(epsilon + special.log_ndtr(-m / 2 - epsilon / m))
        return float(np.exp(price) + prior @ delta)

    exact = min(dual(x) for x in np.linspace(-5.0, 1.0, 3001))
    assert exact * (1 - 1e-6) <= bounds.discrete_prior(sigma, 1.0, 1, prior=prior).value <= 1.005 * exact


def test_discrete_prior_where_the_numerics_do_not_reach_every_tail() -> None:
    """Light weights ask for ε far out: Chernoff's bound does, and whole batches where nothing else does."""
    prior = np.random.default_rng(1).dirichlet(np.ones(30))
    found = bounds.discrete_prior(2.0, 0.01, 1000, prior=prior)
    assert found.blind < found.value < found.blow_up
    assert found.blow_up == pytest.approx(bounds.reconstruction(2.0, 0.01, 1000, kappa=prior.max()).value, rel=1e-9)
    two = bounds.discrete_prior(2.0, 0.01, 1000, prior=[prior.max(), 1 - prior.max()]).value
    assert two >= found.value
    assert bounds.discrete_prior(1.0, 0.5, 10_000, prior=[0.5, 0.3, 0.2]).value <= 1.0


def test_discrete_prior_where_next_to_nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """To first order L is N(0, s²), s = q√T/σ: two candidates that share the largest weight p win 2pφ(0)s."""
    for sigma, q, steps in ((1e4, 0.1, 100), (1e5, 0.1, 100), (3e5, 0.01, 10), (1e6, 0.5, 1000)):
        tied = bounds.discrete_prior(sigma, q, steps, prior=[0.4, 0.4, 0.2])
        s = q * math.sqrt(steps) / sigma
        assert tied.value - 0.4 == pytest.approx(0.8 * s / math.sqrt(2 * math.pi), rel=1e-3)
        apart = bounds.discrete_prior(sigma, q, steps, prior=[0.5, 0.3, 0.2])
        assert 0.5 <= apart.value <= 0.5 + 1e-15 < apart.blow_up
    for sigma in (1e10, 1e12, 1e15):
        for prior in ([0.25] * 4, [0.4, 0.4, 0.1, 0.1], [0.5, 0.3, 0.2]):
            found = bounds.discrete_prior(sigma, 0.5, 10, prior=prior)
            assert found.blind <= found.value <= found.blind * (1 + 1e-9)
    short = [bounds.discrete_prior(30.0, 0.1, 100, prior=p).value for p in ([0.5, 0.3, 0.2], [0.4, 0.38, 0.22])]
    monkeypatch.setattr(sys.modules["leakcore.bounds.reconstruction.discrete_prior"], "_NEGLIGIBLE", -math.inf)
    whole = [bounds.discrete_prior(30.0, 0.1, 100, prior=p).value for p in ([0.5, 0.3, 0.2], [0.4, 0.38, 0.22])]
    np.testing.assert_allclose(short, whole, rtol=1e-12)


def test_labels() -> None:
    assert bounds.label_success(10.0, 1.0, 100).value == pytest.approx(special.ndtr(1.0), rel=1e-12)
    found = bounds.label_success(1.0, 0.1, 20, num_classes=10)
    assert found.value == pytest.approx(bounds.reconstruction(1.0, 0.1, 20, kappa=0.1).value, rel=1e-12)
    assert found.adjacency == "replace"
    # Below the replacement profile through two add/remove steps: ½ + ½δ(0) for equal weights.
    through = 0.5 + 0.5 * accounting.delta(1.0, 0.1, 20, epsilon=0.0, adjacency="replace").value
    assert bounds.label_success(1.0, 0.1, 20).value <= through + 1e-9
    assert bounds.label_success(0.0, 1.0, 5).value == 1.0
    assert bounds.label_success(math.inf, 1.0, 5, prior=[0.9, 0.1]).value == pytest.approx(0.9, rel=1e-9)
    assert bounds.label_success(1.0, 0.5, 0, num_classes=3).value == pytest.approx(1 / 3, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.fano_advantage(1.0), "exactly one"),
        (lambda: bounds.fano_advantage(1.0, prior_size=0), "prior_size=0"),
        (lambda: bounds.fano_advantage(1.0, 0.5, 2, prior_size=3, information="analytic"), "sample_rate=1 only"),
        (lambda: bounds.fano_advantage(1.0, prior_size=3, information="guess"), "information='guess'"),
        (lambda: bounds.fano_advantage(1.0, prior_size=3, separation=3.0), r"separation=3\.0"),
        (lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=[0.0]), r"diameters\[0\]=0\.0"),
        (lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=1.0), "diameters of shape"),
        (lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=[1.0], adjacency="swap"), "adjacency='swap'"),
        (lambda: bounds.discrete_prior(1.0, 0.5, 2, prior=[0.5, 0.4]), "prior sums to 0.9"),
        (lambda: bounds.discrete_prior(1.0, 0.5, 2, prior=[1.5, -0.5]), r"prior\[0\]=1\.5"),
        (lambda: bounds.discrete_prior(1.0, 0.5, 2, prior=0.5), "prior of shape"),
        (lambda: bounds.label_success(1.0, 0.5, 2, num_classes=2, prior=[1.0]), "at most one"),
        (lambda: bounds.calibrate_noise(1.5, kappa=0.1, sample_rate=0.5, steps=2), r"target_success=1\.5"),
        (lambda: bounds.calibrate_noise(0.5, kappa=0.1, prior=[1.0], sample_rate=0.5, steps=2), "exactly one"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_mean_squared_error_at_tiny_sampling_rates(adjacency: str) -> None:
    """The divergence is q²·T·(e^{1/σ²} − 1) at first order (replacement: at most 4.5 as much, (K₃ + K₄)/2)."""
    at = [bounds.mse_lower_bound(1.0, q, 100, diameters=[2.0], adjacency=adjacency) for q in (1e-5, 1e-6, 1e-8, 1e-20)]
    scaled = [b.value * q * q for b, q in zip(at, (1e-5, 1e-6, 1e-8, 1e-20), strict=True)]
    if adjacency == "add-remove":
        np.testing.assert_allclose(scaled, 1.0 / (100 * math.expm1(1.0)), rtol=1e-4)
    else:
        # Where rounding would tell, the bound is a looser one, and still a bound.
        assert scaled[1] <= scaled[0] * (1 + 1e-4)
        np.testing.assert_allclose(scaled[2:], 1.0 / (100 * 4.5 * math.expm1(1.0)), rtol=1e-4)


@pytest.mark.parametrize("log_kappa", [-700.0, -746.0, -1086.9])
def test_calibration_compares_with_epsilon_where_kappa_underflows(log_kappa: float) -> None:
    found = bounds.calibrate_noise(0.5, log_kappa=log_kappa, sample_rate=1.0, steps=100)
    assert found.epsilon == pytest.approx(math.log(0.5 - 1e-5) - log_kappa)
    assert found.epsilon_noise_multiplier > found.value
    assert 1 < found.savings < 2


def test_calibration_says_where_less_noise_may_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny κ the exact bound reaches little noise only so far; the answer suffices all the same."""

    def beyond(**_: object) -> None:
        raise numerics.AccuracyError("too wide a range")

    monkeypatch.setattr(accounting, "noise_multiplier", beyond)
    found = bounds.calibrate_noise(0.2, log_kappa=-1086.9, sample_rate=0.1, steps=100)
    assert found.success <= 0.2
    assert math.isnan(found.epsilon_noise_multiplier)
    assert [note.partition(":")[0] for note in found.assumptions.notes] == [
        "this much noise suffices",
        "less noise may do",
        "the noise that calibrating epsilon takes",
    ]
    sure = bounds.calibrate_noise(0.5, kappa=0.1, sample_rate=0.1, steps=100)
    assert sure.assumptions.notes[0] == "this much noise suffices"
    assert not any("less noise" in note for note in sure.assumptions.notes)
