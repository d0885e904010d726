"""RDP bound, membership and the orthogonal reference curve, each by a second route."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, special

from leakcore import accounting, bounds
from leakcore.numerics.privacy_loss.loss import PrivacyLoss


def test_rdp_full_batch_is_its_closed_form() -> None:
    for kappa, steps, sigma in [(0.1, 1, 1.0), (0.01, 100, 20.0), (1e-6, 10, 2.0)]:
        # γ = min over α of (κ e^{αT/(2σ²)})^{(α−1)/α}
        alpha = 1.0 + np.geomspace(1e-6, 1e6, 400_001)
        direct = math.exp(((alpha - 1.0) / alpha * (math.log(kappa) + alpha * steps / (2.0 * sigma**2))).min())
        found = bounds.reconstruction_rdp(sigma, 1.0, steps, kappa=kappa)
        assert found.value == pytest.approx(max(min(direct, 1.0), kappa), rel=1e-6)
        assert found.kind == "upper"


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.1, 100), (0.6, 0.01, 100), (5.5, 0.5, 100)])
def test_rdp_subsampled_is_that_of_dp_accounting(sigma: float, rate: float, steps: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    orders = np.arange(2, 257)
    accountant = dp.rdp.RdpAccountant(orders=list(map(float, orders)))
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), steps)
    epsilons = np.asarray(accountant._rdp)
    for kappa in (0.1, 1e-3, 1e-9):
        over_integers = min(1.0, math.exp(((orders - 1.0) / orders * (math.log(kappa) + epsilons)).min()))
        found = bounds.reconstruction_rdp(sigma, rate, steps, kappa=kappa).value
        # Real orders can only do better.
        assert found <= over_integers * (1.0 + 1e-9)
        # They are those of a fine grid of the same curve, whose values at integers are dp-accounting's.
        loss = PrivacyLoss.of_steps(np.asarray(sigma), np.asarray(rate), steps)
        ours = [loss.cumulants(float(a)).value / (a - 1.0) for a in orders[:40]]
        np.testing.assert_allclose(ours, epsilons[:40], rtol=1e-9)
        fine = 1.0 + np.geomspace(1e-3, 200.0, 2000)
        exponents = [((a - 1.0) * math.log(kappa) + loss.cumulants(a).value) / a for a in fine]
        on_grid = max(kappa, math.exp(min(0.0, *exponents)))
        assert on_grid * (1.0 - 1e-3) <= found <= on_grid * (1.0 + 1e-9)


def test_rdp_is_never_tighter_than_exact() -> None:
    for arguments in [(1.0, 0.1, 100), (1.0, 1.0, 1), (0.7, 0.02, 1000)]:
        kappa = np.array([1e-9, 1e-4, 0.1, 0.5])
        loose = bounds.reconstruction_rdp(*arguments, kappa=kappa).value
        assert (loose >= bounds.reconstruction(*arguments, kappa=kappa).value).all()


def test_rdp_limits() -> None:
    assert bounds.reconstruction_rdp(0.0, 0.5, 1, kappa=0.1).value == 1.0
    assert bounds.reconstruction_rdp(1.0, 0.5, 0, kappa=0.1).value == pytest.approx(0.1, rel=1e-12)
    assert bounds.reconstruction_rdp(1.0, 0.5, 3, kappa=1.0).value == 1.0


def test_membership() -> None:
    fpr = np.array([0.001, 0.1, 0.5])
    found = bounds.membership(1.0, 0.1, 50, fpr=fpr)
    curve = bounds.reconstruction(1.0, 0.1, 50, kappa=fpr)
    np.testing.assert_array_equal(found.value, curve.value)
    np.testing.assert_allclose(found.advantage, curve.value - fpr)
    # max over α of B_α − α is the total variation distance δ(0), found here on a grid of the curve.
    grid = np.linspace(0.01, 0.99, 981)
    largest = (bounds.reconstruction(1.0, 0.1, 50, kappa=grid).value - grid).max()
    assert found.max_advantage == pytest.approx(largest, abs=1e-6)
    assert found.max_advantage == pytest.approx(accounting.delta(1.0, 0.1, 50, epsilon=0.0).value, rel=1e-9)
    full = bounds.membership(2.0, 1.0, 4, fpr=0.1)
    assert full.max_advantage == pytest.approx(2.0 * special.ndtr(0.5) - 1.0, rel=1e-12)
    with pytest.raises(ValueError, match=r"fpr=0\.0"):
        bounds.membership(1.0, 0.1, 50, fpr=0.0)
    # Where the profile cannot be computed: full batches, which leak more.
    assert 0.9 < bounds.membership(1.0, 0.5, 10_000, fpr=0.01).max_advantage <= 1.0


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("separation", [0.1, 1.0, 4.0])
def test_orthogonal_is_its_integral(n: int, separation: float) -> None:
    def density(z: float) -> float:
        return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * float(special.ndtr(z + separation)) ** (n - 1)

    expected = integrate.quad(density, -12.0, 12.0, epsabs=1e-13, limit=300)[0]
    assert bounds.orthogonal_success(1.0 / separation, 1, n).value == pytest.approx(expected, abs=1e-11)


def test_orthogonal_attack_simulated() -> None:
    # The maximum-likelihood choice among n orthogonal signals of length √T/σ in unit noise; 5 standard errors.
    rng = np.random.default_rng(11)
    n, separation, trials = 10, 2.0, 200_000
    noise = rng.standard_normal((trials, n))
    noise[:, 0] += separation
    share = (noise.argmax(axis=1) == 0).mean()
    found = bounds.orthogonal_success(5.0, 100, n)
    assert abs(found.value - share) < 5.0 * math.sqrt(0.25 / trials)
    assert found.kind == "estimate"


def test_figures_of_the_trial() -> None:
    # ε = 1, 4, 10 at T = 100, δ = 1e-5, n = 10.
    for sigma, orthogonal, bound in [(37.30635919, 0.148, 0.155), (10.8, 0.318, 0.361), (4.998886302, 0.674, 0.764)]:
        assert bounds.orthogonal_success(sigma, 100, 10).value == pytest.approx(orthogonal, abs=2e-3)
        assert bounds.reconstruction(sigma, 1.0, 100, kappa=0.1).value == pytest.approx(bound, abs=2e-3)


def test_antipodal_pair_meets_the_bound() -> None:
    found = bounds.orthogonal_success(3.0, 7, 2, geometry="simplex").value
    assert found == pytest.approx(special.ndtr(math.sqrt(7.0) / 3.0), rel=1e-12)
    assert found == pytest.approx(bounds.reconstruction(3.0, 1.0, 7, kappa=0.5).value, rel=1e-12)


def test_orthogonal_limits_and_errors() -> None:
    assert bounds.orthogonal_success(1.0, 0, 4).value == 0.25
    assert bounds.orthogonal_success(0.0, 3, 4).value == 1.0
    assert bounds.orthogonal_success(1.0, 3, 1).value == 1.0
    assert bounds.orthogonal_success(math.inf, 3, 4).value == 0.25
    for changes, message in [
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        ({"prior_size": 0}, "prior_size=0"),
        ({"geometry": "cube"}, "geometry='cube'"),
        ({"steps": -2}, "steps=-2"),
    ]:
        with pytest.raises(ValueError, match=message):
            bounds.orthogonal_success(**({"noise_multiplier": 1.0, "steps": 1, "prior_size": 3} | changes))
