"""Label-ε: closed form against the literal algorithm, against simulation, and in its order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from leakcore import bounds
from leakcore.kernels import solve_labels
from leakcore.reference.kernels import label_lower_bounds
from tests.bounds.labels.label_batches import DELTA, TESTS, batch, bound


@given(
    n=st.integers(1, 12),
    extra=st.integers(0, 20),
    sigma=st.floats(0.05, 5.0),
    clip=st.floats(0.05, 50.0),
    delta=st.sampled_from([0.0, 1e-9, 1e-5, 0.1, 0.6]),
    joint=st.one_of(st.none(), st.floats(0.0, 5.0)),
    seed=st.integers(0, 2**32),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_agrees_with_the_literal_algorithm(
    n: int, extra: int, sigma: float, clip: float, delta: float, joint: float | None, seed: int
) -> None:
    # The literal algorithm inverts CᵀC, which squares the condition number: d ≥ n + 4 keeps its own error below 1e-10.
    jacobian, probs, labels = batch(n, n + 4 + extra, seed)
    if joint is None:
        grad_norms = None
    else:
        e = np.abs(probs - labels)
        grad_norms = np.stack([e, 1 - e]) * np.hypot(np.linalg.norm(jacobian, axis=1), joint)
    arguments = {"noise_multiplier": sigma, "max_grad_norm": clip, "delta": delta, "grad_norms": grad_norms}
    literal = label_lower_bounds(jacobian, probs, labels, **arguments)
    result = bounds.label_epsilon(jacobian, probs, labels, **arguments)
    hoisted = label_lower_bounds(jacobian, probs, labels, inverse_per_row=False, **arguments)
    np.testing.assert_array_equal(hoisted, literal)
    # Relative where the bound itself is large: it then is the logarithm of a tail probability, about z²/2.
    np.testing.assert_allclose(result.per_row, literal, rtol=1e-10, atol=1e-10)
    assert result.value == pytest.approx(max(0.0, literal.max()), rel=1e-10, abs=1e-10)


def test_agrees_with_the_literal_algorithm_at_the_papers_size() -> None:
    jacobian, probs, labels = batch()
    for sigma in (0.3, 0.5, 1.0, 2.0, 4.0):
        literal = label_lower_bounds(jacobian, probs, labels, noise_multiplier=sigma, max_grad_norm=1.0, delta=DELTA)
        result = bound(jacobian, probs, labels, noise_multiplier=sigma)
        np.testing.assert_allclose(result.per_row, literal, rtol=0, atol=1e-10)


def test_success_of_the_projection_test_by_simulation() -> None:
    # 20,000 noisy gradients on D₀. Per row, the share with the right sign must hold Φ(|u_r|/w_r) in its exact 99%
    # interval, Bonferroni-corrected over the rows: it fails by chance with probability at most 1% (and did for 2 of
    # 200 other seeds; over all of those draws together no row is off by more than 2.2 standard errors).
    jacobian, probs, labels = batch(20, 60, seed=3)
    sigma, clip, n, draws = 0.7, 2.0, 20, 20_000
    e = probs - labels
    norms = np.abs(e) * np.linalg.norm(jacobian, axis=1)
    mean = (jacobian * (e / np.maximum(1, norms / clip))[:, None]).mean(axis=0)
    noise = np.random.default_rng(100).normal(size=(60, draws)) * sigma * clip / n
    residuals = solve_labels(jacobian, mean[:, None] + noise).residual
    right = ((residuals < 0) == (labels == 1)[:, None]).sum(axis=1)

    leverage = np.diag(np.linalg.inv(jacobian @ jacobian.T))
    clipped = np.abs(e) / np.maximum(1, norms / clip)
    closed_form = special.ndtr(clipped / (sigma * clip * np.sqrt(leverage)))
    result = bound(jacobian, probs, labels, noise_multiplier=sigma, max_grad_norm=clip, delta=0.0)
    for r in range(n):
        low, high = stats.binomtest(int(right[r]), draws).proportion_ci(1 - 0.01 / n)
        assert low <= closed_form[r] <= high
        # What the bound used is this probability: LB_r + log P₁ = log P₀.
        flipped = (1 - abs(e[r])) / max(1, (1 - abs(e[r])) * np.linalg.norm(jacobian[r]) / clip)
        log_p1 = special.log_ndtr(-flipped / (sigma * clip * math.sqrt(leverage[r])))
        assert math.exp(result.per_row[r] + log_p1) == pytest.approx(closed_form[r], rel=1e-10)


def test_the_bound_holds_for_the_simulated_attack() -> None:
    # The event of the worst row, counted under D₀ and D₁, must give the printed ratio: a second route, by sampling.
    jacobian, probs, labels = batch(20, 60, seed=3)
    result = bound(jacobian, probs, labels, max_grad_norm=2.0)
    r = int(np.argmax(result.per_row))
    draws, n = 400_000, 20
    rng = np.random.default_rng(5)
    shares = []
    for label in (labels[r], 1 - labels[r]):
        changed = labels.copy()
        changed[r] = label
        e = probs - changed
        e = e / np.maximum(1, np.abs(e) * np.linalg.norm(jacobian, axis=1) / 2.0)
        mean = (jacobian * e[:, None]).mean(axis=0)
        row = np.linalg.pinv(jacobian.T)[r]
        residual = n * (row @ mean + rng.normal(size=draws) * np.linalg.norm(row) * 2.0 / n)
        shares.append(((residual < 0) == (labels[r] == 1)).mean())
    # Standard error of the log ratio below .01; four of them.
    assert math.log((shares[0] - DELTA) / shares[1]) == pytest.approx(result.value, abs=0.03)


def test_optimal_is_the_best_threshold_by_brute_force() -> None:
    jacobian, probs, labels = batch(10, 30, seed=1)
    result = bound(jacobian, probs, labels, test="optimal", noise_multiplier=3.0)
    t = np.linspace(-12, 16, 2_000_001)
    for m, epsilon in zip(result.separation, result.per_row, strict=True):
        p0, log_p1 = special.ndtr(m - t), special.log_ndtr(-t)
        keep = p0 > DELTA
        brute = (np.log(p0[keep] - DELTA) - log_p1[keep]).max()
        assert epsilon == pytest.approx(max(brute, 0.0), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(("n", "d"), [(10, 30), (30, 10)])
def test_likelihood_ratio_separation_is_the_distance_of_the_two_gradients(n: int, d: int) -> None:
    jacobian, probs, labels = batch(n, d, seed=2)
    sigma, clip = 0.8, 3.0
    result = bound(jacobian, probs, labels, test="likelihood-ratio", noise_multiplier=sigma, max_grad_norm=clip)

    def clipped(e: np.ndarray) -> np.ndarray:
        gradients = jacobian * e[:, None]
        return gradients / np.maximum(1, np.linalg.norm(gradients, axis=1) / clip)[:, None]

    distance = np.linalg.norm(clipped(probs - labels) - clipped(probs - (1 - labels)), axis=1)
    np.testing.assert_allclose(result.separation, distance / (sigma * clip), rtol=1e-12)


def test_order_at_the_papers_size() -> None:
    jacobian, probs, labels = batch()
    values = [bound(jacobian, probs, labels, test=t).value for t in TESTS]
    assert 1.0 < values[0] < 1.6
    assert 7.0 < values[1] < 9.0
    # Every gradient is clipped under both labels, so the flip moves the sum by 2C: the mechanism's own replacement ε.
    assert values[2] == pytest.approx(9.997, abs=5e-4)
    replacement = bound(jacobian, probs, labels).replacement
    assert replacement.value == pytest.approx(values[2], rel=1e-12)
    assert (replacement.kind, replacement.adjacency) == ("upper", "replace")


@given(
    n=st.integers(1, 10),
    d=st.integers(1, 24),
    sigma=st.floats(0.02, 20.0),
    clip=st.floats(1e-3, 1e3),
    delta=st.floats(1e-12, 0.9),
    joint=st.floats(0.0, 5.0),
    seed=st.integers(0, 2**32),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_paper_optimal_likelihood_ratio_replacement_are_in_order(
    n: int, d: int, sigma: float, clip: float, delta: float, joint: float, seed: int
) -> None:
    jacobian, probs, labels = batch(n, d, seed)
    e = np.abs(probs - labels)
    arguments = {
        "noise_multiplier": sigma,
        "max_grad_norm": clip,
        "delta": delta,
        "grad_norms": np.stack([e, 1 - e]) * np.hypot(np.linalg.norm(jacobian, axis=1), joint),
    }
    results = [bound(jacobian, probs, labels, test=t, **arguments) for t in TESTS]
    both = bound(jacobian, probs, labels, test=bounds.SignTest(complement=True), **arguments)
    slack = 1e-9
    assert (results[0].per_row <= both.per_row).all()
    assert (np.maximum(both.per_row, 0) <= np.maximum(results[1].per_row, 0) * (1 + slack) + slack).all()
    assert (results[1].per_row <= results[2].per_row * (1 + slack) + slack).all()
    assert results[2].value <= results[2].replacement.value * (1 + slack) + slack


def test_bounds_do_not_grow_with_noise_or_clipping_norm() -> None:
    jacobian, probs, labels = batch()
    norms = np.linalg.norm(jacobian, axis=1)
    for test in TESTS:
        by_sigma = [
            bound(jacobian, probs, labels, test=test, noise_multiplier=s).value for s in (0.1, 0.3, 0.5, 1, 2, 4, 9)
        ]
        assert (np.diff(by_sigma) <= 1e-12).all()
        clips = np.geomspace(0.01, 100, 30)
        by_clip = np.array([bound(jacobian, probs, labels, test=test, max_grad_norm=c).value for c in clips])
        assert (np.diff(by_clip) <= 1e-9).all()
        e = np.abs(probs - labels)
        all_clipped = clips < (np.minimum(e, 1 - e) * norms).min()
        assert all_clipped.sum() > 3
        np.testing.assert_allclose(by_clip[all_clipped], by_clip[0], rtol=1e-9)
        assert by_clip[-1] < by_clip[0]
