"""The bound from Rényi differential privacy, by a second route."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakcore import bounds
from leakcore.numerics.loss import PrivacyLoss


def test_rdp_full_batch_is_its_closed_form() -> None:
    for kappa, steps, sigma in [(0.1, 1, 1.0), (0.01, 100, 20.0), (1e-6, 10, 2.0)]:
        # γ = min over α of (κ e^{αT/(2σ²)})^{(α−1)/α}
        alpha = 1.0 + np.geomspace(1e-6, 1e6, 400_001)
        direct = math.exp(((alpha - 1.0) / alpha * (math.log(kappa) + alpha * steps / (2.0 * sigma**2))).min())
        bound = bounds.reconstruction_rdp(sigma, 1.0, steps, kappa=kappa)
        assert bound.value == pytest.approx(max(min(direct, 1.0), kappa), rel=1e-6)
        assert bound.kind == "upper"


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.1, 100), (0.6, 0.01, 100), (5.5, 0.5, 100)])
def test_rdp_subsampled_is_that_of_dp_accounting(sigma: float, rate: float, steps: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    orders = np.arange(2, 257)
    accountant = dp.rdp.RdpAccountant(orders=list(map(float, orders)))
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), steps)
    epsilons = np.asarray(accountant._rdp)
    for kappa in (0.1, 1e-3, 1e-9):
        over_integers = min(1.0, math.exp(((orders - 1.0) / orders * (math.log(kappa) + epsilons)).min()))
        bound = bounds.reconstruction_rdp(sigma, rate, steps, kappa=kappa).value
        # Real orders can only do better.
        assert bound <= over_integers * (1.0 + 1e-9)
        # It equals the optimum over a fine grid of the same curve, whose values at integers are dp-accounting's.
        loss = PrivacyLoss.of_steps(np.asarray(sigma), np.asarray(rate), steps)
        ours = [loss.cumulants(float(a)).value / (a - 1.0) for a in orders[:40]]
        np.testing.assert_allclose(ours, epsilons[:40], rtol=1e-9)
        fine = 1.0 + np.geomspace(1e-3, 200.0, 2000)
        exponents = [((a - 1.0) * math.log(kappa) + loss.cumulants(a).value) / a for a in fine]
        on_grid = max(kappa, math.exp(min(0.0, *exponents)))
        assert on_grid * (1.0 - 1e-3) <= bound <= on_grid * (1.0 + 1e-9)


def test_rdp_is_never_tighter_than_exact() -> None:
    for arguments in [(1.0, 0.1, 100), (1.0, 1.0, 1), (0.7, 0.02, 1000)]:
        kappa = np.array([1e-9, 1e-4, 0.1, 0.5])
        loose = bounds.reconstruction_rdp(*arguments, kappa=kappa).value
        assert (loose >= bounds.reconstruction(*arguments, kappa=kappa).value).all()


def test_rdp_limits() -> None:
    assert bounds.reconstruction_rdp(0.0, 0.5, 1, kappa=0.1).value == 1.0
    assert bounds.reconstruction_rdp(1.0, 0.5, 0, kappa=0.1).value == pytest.approx(0.1, rel=1e-12)
    assert bounds.reconstruction_rdp(1.0, 0.5, 3, kappa=1.0).value == 1.0
