"""Label-ε over several steps, and extrapolated over more batches."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakcore import bounds
from leakcore.bounds.labels import label_epsilon
from tests.bounds.labels.label_batches import batch, bound

COMPOSED = {"optimal": bounds.ThresholdTest(compose=True), "likelihood-ratio": bounds.LikelihoodRatioTest(compose=True)}


@pytest.mark.parametrize("test", ["optimal", "likelihood-ratio"])
def test_steps_compose_like_one_wider_gradient(test: str) -> None:
    # Independent steps seen side by side are one Gaussian vector. Steps of orthogonal rows and equal residuals are also
    # one step with the rows side by side, when each step is clipped by a norm of its own.
    jacobian, probs, labels = batch(5, 30, seed=7)
    result = bound(np.stack([jacobian] * 3), probs, labels, test=COMPOSED[test])
    one = bound(jacobian, probs, labels, test=test)
    np.testing.assert_allclose(result.separation, math.sqrt(3) * one.separation, rtol=1e-12)
    # σ/√3 is what three observations average to.
    np.testing.assert_allclose(
        result.per_row, bound(jacobian, probs, labels, test=test, noise_multiplier=1 / math.sqrt(3)).per_row, rtol=1e-9
    )
    assert (result.steps, result.kind) == (3, "estimate")
    assert any("3 steps" in note for note in result.assumptions.notes)
    assert result.value <= result.replacement.value
    assert result.replacement.value == pytest.approx(
        bound(jacobian, probs, labels, noise_multiplier=1 / math.sqrt(3)).replacement.value, rel=1e-12
    )


def test_composed_separation_is_the_sum_of_squares_by_simulation() -> None:
    # Two steps with other weights: the log-likelihood ratio of both, on 100,000 draws, is Gaussian with mean m²/2 and
    # standard deviation m. Mean and deviation within 4 standard errors (p = 1e-4 per assertion).
    (a, p, labels), (b, q, _) = batch(6, 20, seed=1), batch(6, 20, seed=2)
    sigma, draws, r = 0.8, 100_000, 2
    result = bound(np.stack([a, b]), np.stack([p, q]), labels, test=COMPOSED["likelihood-ratio"],
                    noise_multiplier=sigma)  # fmt: skip
    rng = np.random.default_rng(0)
    total = np.zeros(draws)
    for jacobian, probs in ((a, p), (b, q)):
        norm = np.linalg.norm(jacobian[r])
        means = [jacobian[r] * e / max(1, abs(e) * norm) for e in (probs[r] - labels[r], probs[r] - 1 + labels[r])]
        shift = means[0] - means[1]
        total += shift @ (shift[:, None] / 2 + sigma * rng.normal(size=(20, draws))) / sigma**2
    m = result.separation[r]
    assert total.mean() == pytest.approx(m * m / 2, abs=4 * m / math.sqrt(draws))
    assert total.std() == pytest.approx(m, rel=4 / math.sqrt(2 * draws))


def test_a_sample_outside_a_steps_batch_adds_nothing() -> None:
    jacobian, probs, labels = batch(5, 30)
    absent = jacobian.copy()
    absent[2] = 0.0
    for test in ("optimal", "likelihood-ratio"):
        both = bound(np.stack([jacobian, absent]), probs, labels, test=COMPOSED[test])
        assert both.separation[2] == bound(jacobian, probs, labels, test=test).separation[2]
        assert both.identifiable.all()
        once = bound(jacobian[None], probs, labels, test=COMPOSED[test])
        assert (once.kind, once.steps) == ("lower", 1)


def test_steps_are_refused_where_they_mean_nothing() -> None:
    jacobian, probs, labels = batch(5, 30)
    with pytest.raises(TypeError, match="`compose` must be True or False, got 1"):
        bounds.ThresholdTest(compose=1)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"`jacobian` must have shape \(steps, ..., N, d\).* to compose, got \(5, 30\)"
    ):
        bound(jacobian, probs, labels, test=COMPOSED["optimal"])


def test_extrapolation_factors() -> None:
    for m, harmonic, log in ((15, 1.600, 1.69), (80, 1.972, 2.12)):
        exact = bounds.extrapolate_label_epsilon(1.0, m, 50)
        assert exact.value == pytest.approx(harmonic, abs=5e-4)
        sums = [sum(1 / i for i in range(1, n + 1)) for n in (50, 50 * m)]
        assert exact.factor == pytest.approx(sums[1] / sums[0], rel=1e-13)
        assert bounds.extrapolate_label_epsilon(1.0, m, 50, rule="log").value == pytest.approx(log, abs=5e-3)
    assert bounds.extrapolate_label_epsilon(0.4, 1, 50).value == pytest.approx(0.4, rel=1e-15)
    np.testing.assert_allclose(bounds.extrapolate_label_epsilon([0.1, 0.2], 15, 50).value, [0.16, 0.32], rtol=1e-3)


def test_harmonic_rule_is_the_mean_of_the_largest_exponential() -> None:
    # 20,000 draws of max over 5 and over 5·4 rows; five standard errors of the ratio.
    draws = np.random.default_rng(3).exponential(size=(20_000, 20))
    one, all_rows = draws[:, :5].max(axis=1), draws.max(axis=1)
    ratio = all_rows.mean() / one.mean()
    error = ratio * math.hypot(all_rows.std() / all_rows.mean(), one.std() / one.mean()) / math.sqrt(20_000)
    assert bounds.extrapolate_label_epsilon(1.0, 4, 5).factor == pytest.approx(ratio, abs=5 * error)
    # The printed rule is visibly off at this size.
    assert abs(bounds.extrapolate_label_epsilon(1.0, 4, 5, rule="log").factor - ratio) > 10 * error


def test_extrapolation_is_an_estimate_and_checks_its_input() -> None:
    result = bounds.extrapolate_label_epsilon(0.3, 15, 50)
    assert (result.kind, result.adjacency, result.rule) == ("estimate", "replace", "harmonic")
    assert "E4" in result.provenance
    with pytest.raises(ValueError, match="`num_batches` must be at least 1, got 0"):
        bounds.extrapolate_label_epsilon(0.3, 0, 50)
    with pytest.raises(ValueError, match="`batch_size` must be at least 2, got 1"):
        bounds.extrapolate_label_epsilon(0.3, 5, 1, rule="log")
    with pytest.raises(ValueError, match=r"`lb_one_batch` must be at least 0 and finite, got -0.3"):
        bounds.extrapolate_label_epsilon(-0.3, 5, 10)
    with pytest.raises(ValueError, match="`rule` must be 'harmonic' or 'log', got 'sqrt'"):
        bounds.extrapolate_label_epsilon(0.3, 5, 10, rule="sqrt")


@pytest.mark.parametrize(("steps", "kind", "separation"), [(1, "lower", "2/σ"), (4, "estimate", "2√4/σ")])
def test_one_step_is_proved_and_composed_steps_are_an_estimate(steps: int, kind: str, separation: str) -> None:
    jacobian, probs, labels = batch(6, 12)
    result = bound(np.stack([jacobian] * steps), np.stack([probs] * steps), labels, test=COMPOSED["optimal"])
    assert result.kind == kind
    assert label_epsilon._replacement(1.0, 1e-5, steps).method.endswith(separation)
