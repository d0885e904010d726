"""Bounds and exact success to compare with: the older Rényi bound, least squared error, orthogonal candidates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, special

from leakcore import bounds
from leakcore.numerics.loss import PrivacyLoss


def test_rdp_of_full_batches() -> None:
    for kappa, steps, sigma in [(0.1, 1, 1.0), (0.01, 100, 20.0), (1e-6, 10, 2.0)]:
        # γ = min over α of (κ e^{αT/(2σ²)})^{(α−1)/α}
        alpha = 1.0 + np.geomspace(1e-6, 1e6, 400_001)
        direct = math.exp(((alpha - 1.0) / alpha * (math.log(kappa) + alpha * steps / (2.0 * sigma**2))).min())
        bound = bounds.reconstruction_rdp(sigma, 1.0, steps, kappa=kappa)
        assert bound.value == pytest.approx(max(min(direct, 1.0), kappa), rel=1e-6)
        assert bound.kind == "upper"


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.1, 100), (0.6, 0.01, 100), (5.5, 0.5, 100)])
def test_rdp_against_dp_accounting(sigma: float, rate: float, steps: int) -> None:
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


def test_rdp_against_exact() -> None:
    for arguments in [(1.0, 0.1, 100), (1.0, 1.0, 1), (0.7, 0.02, 1000)]:
        kappa = np.array([1e-9, 1e-4, 0.1, 0.5])
        loose = bounds.reconstruction_rdp(*arguments, kappa=kappa).value
        assert (loose >= bounds.reconstruction(*arguments, kappa=kappa).value).all()


def test_rdp_limits() -> None:
    assert bounds.reconstruction_rdp(0.0, 0.5, 1, kappa=0.1).value == 1.0
    assert bounds.reconstruction_rdp(1.0, 0.5, 0, kappa=0.1).value == pytest.approx(0.1, rel=1e-12)
    assert bounds.reconstruction_rdp(1.0, 0.5, 3, kappa=1.0).value == 1.0


def test_squared_error() -> None:
    bound = bounds.mse_lower_bound(2.0, 1.0, 3, diameters=[1.0, 2.0], adjacency="replace")
    epsilon = 3 * 4.0 / 4.0
    assert bound.epsilon == pytest.approx(epsilon)
    assert bound.value == pytest.approx(5.0 / (4 * 2 * math.expm1(epsilon)), rel=1e-12)
    assert not bound.warnings
    # D₂ of the pair N(±1/σ, 1), α·Δ²/2 with Δ = 2/σ, by quadrature.
    x = np.linspace(-30, 30, 60_001)
    first, second = (np.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi) for m in (0.5, -0.5))
    assert math.log((first**2 / second).sum() * (x[1] - x[0])) * 3 == pytest.approx(epsilon, rel=1e-9)
    # Subsampled, replacement: above the pair that moves both ways, itself found by quadrature.
    q, sigma = 0.2, 1.0
    base, up, down = (np.exp(-0.5 * (x - m) ** 2) / math.sqrt(2 * math.pi) for m in (0.0, 1 / sigma, -1 / sigma))
    p, r = (1 - q) * base + q * up, (1 - q) * base + q * down
    direct = math.log((p**2 / r).sum() * (x[1] - x[0]))
    assert bounds.mse_lower_bound(sigma, q, 1, diameters=[1.0], adjacency="replace").epsilon >= direct
    quiet = bounds.mse_lower_bound(50.0, 1.0, 1, diameters=np.ones(4), adjacency="replace")
    assert quiet.value > quiet.constant_guess == 0.25
    assert "constant guess" in quiet.warnings[0]
    assert bounds.mse_lower_bound(0.0, 0.5, 1, diameters=[1.0], adjacency="replace").value == 0.0
    assert bounds.mse_lower_bound(1.0, 0.0, 1, diameters=[1.0], adjacency="replace").value == math.inf


def test_mse_under_add_remove() -> None:
    """z in {0, 1}, clipped gradients −C and C: (r − 1)/(e⁴ − 1), r = dN(1, 1)/dN(−1, 1), errs less without a bias."""
    x = np.linspace(-12.0, 14.0, 400_001)
    density = np.exp(-0.5 * (x + 1.0) ** 2) / math.sqrt(2 * math.pi)
    guess = np.expm1(2.0 * x) / math.expm1(4.0)
    width = x[1] - x[0]
    error = float((density * guess**2).sum() * width)
    assert float((density * guess).sum() * width) == pytest.approx(0.0, abs=1e-12)
    proved = bounds.mse_lower_bound(1.0, 1.0, 1, diameters=[1.0], adjacency="replace")
    assert proved.kind == "lower"
    assert proved.value <= error
    plugged = bounds.mse_lower_bound(1.0, 1.0, 1, diameters=[1.0], adjacency="add-remove")
    assert plugged.value > error
    assert plugged.kind == "estimate"
    assert any("no lower bound" in note for note in plugged.assumptions.notes)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_mse_at_tiny_sampling_rates(adjacency: str) -> None:
    """The divergence is q²·T·(e^{1/σ²} − 1) at first order (replacement: at most 4.5 as much, (K₃ + K₄)/2)."""
    at = [bounds.mse_lower_bound(1.0, q, 100, diameters=[2.0], adjacency=adjacency) for q in (1e-5, 1e-6, 1e-8, 1e-20)]
    scaled = [b.value * q * q for b, q in zip(at, (1e-5, 1e-6, 1e-8, 1e-20), strict=True)]
    if adjacency == "add-remove":
        np.testing.assert_allclose(scaled, 1.0 / (100 * math.expm1(1.0)), rtol=1e-4)
    else:
        # Where rounding would tell, the bound is a looser one, and still a bound.
        assert scaled[1] <= scaled[0] * (1 + 1e-4)
        np.testing.assert_allclose(scaled[2:], 1.0 / (100 * 4.5 * math.expm1(1.0)), rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=[0.0], adjacency="replace"),
            r"`diameters\[0\]` must be in \(0, 1e150\), got 0.0",
        ),
        (
            lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=1.0, adjacency="replace"),
            r"`diameters` must be one-dimensional and not empty, got shape \(\)",
        ),
        (
            lambda: bounds.mse_lower_bound(1.0, 0.5, 2, diameters=[1.0], adjacency="swap"),
            "`adjacency` must be 'add-remove' or 'replace', got 'swap'",
        ),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_missing_adjacency() -> None:
    with pytest.raises(TypeError, match="`adjacency` must be given to mse_lower_bound"):
        bounds.mse_lower_bound(1.0, 0.5, 2, diameters=[1.0])  # type: ignore[call-arg]


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("separation", [0.1, 1.0, 4.0])
def test_orthogonal_integral(n: int, separation: float) -> None:
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
    bound = bounds.orthogonal_success(5.0, 100, n)
    assert abs(bound.value - share) < 5.0 * math.sqrt(0.25 / trials)
    assert bound.kind == "estimate"


def test_antipodal_pair() -> None:
    bound = bounds.orthogonal_success(3.0, 7, 2, geometry="simplex").value
    assert bound == pytest.approx(special.ndtr(math.sqrt(7.0) / 3.0), rel=1e-12)
    assert bound == pytest.approx(bounds.reconstruction(3.0, 1.0, 7, kappa=0.5).value, rel=1e-12)


def test_orthogonal_limits_and_errors() -> None:
    assert bounds.orthogonal_success(1.0, 0, 4).value == 0.25
    assert bounds.orthogonal_success(0.0, 3, 4).value == 1.0
    assert bounds.orthogonal_success(1.0, 3, 1).value == 1.0
    assert bounds.orthogonal_success(math.inf, 3, 4).value == 0.25
    for changes, message in [
        ({"noise_multiplier": -1.0}, r"`noise_multiplier` must be at least 0, got -1.0"),
        ({"num_candidates": 0}, "`num_candidates` must be at least 1, got 0"),
        ({"geometry": "cube"}, "`geometry` must be 'orthogonal' or 'simplex', got 'cube'"),
        ({"steps": -2}, "`steps` must be at least 0, got -2"),
    ]:
        with pytest.raises(ValueError, match=message):
            bounds.orthogonal_success(**({"noise_multiplier": 1.0, "steps": 1, "num_candidates": 3} | changes))
