"""Label-ε where rows are undetermined, noise or δ are none, probabilities saturate, and under joint norms."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import special

from leakcore import bounds
from leakcore.kernels import solve_labels
from leakcore.reference.kernels import label_lower_bounds
from tests.bounds.labels.label_batches import DELTA, TESTS, batch, bound


def test_undetermined_rows_get_no_bound_from_the_projection() -> None:
    jacobian, probs, labels = batch(6, 20)
    jacobian[3] = jacobian[1]
    jacobian[5] = 0.0
    for test in ("paper", "optimal"):
        result = bound(jacobian, probs, labels, test=test)
        np.testing.assert_array_equal(result.identifiable, [True, False, True, False, True, False])
        np.testing.assert_array_equal(np.isneginf(result.per_row), ~result.identifiable)
        assert result.value == result.per_row[[0, 2, 4]].max()
    ratio = bound(jacobian, probs, labels, test="likelihood-ratio")
    assert (ratio.per_row[:5] > 0).all()
    assert ratio.per_row[5] == -np.inf
    # The determined rows keep the bound they have in the system without the others.
    alone = bound(jacobian[[0, 1, 2, 4]], probs[[0, 1, 2, 4]], labels[[0, 1, 2, 4]])
    np.testing.assert_allclose(bound(jacobian, probs, labels).per_row[[0, 2, 4]], alone.per_row[[0, 2, 3]], rtol=1e-9)


def test_a_full_rank_needs_no_right_hand_side_to_be_judged() -> None:
    # The bound asks the solver for leverages alone. Hard systems, about a third of them of full rank: the decision is
    # that of a zero gradient, whose error says what the null space can move.
    full = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        n, d = rng.integers(1, 12), rng.integers(1, 14)
        rows = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-14, 3, (n, 1))
        if seed % 3 == 0:
            rows = rows * 10.0 ** rng.uniform(-13, 0, d)
        if seed % 4 == 0 and n > 2:
            rows[1] = rows[0] + 10.0 ** rng.uniform(-16, -2) * rng.standard_normal(d)
        solved = solve_labels(rows, np.zeros(d))
        wanted = solved.identifiable & (solved.error <= 1e-8)
        limit = bounds.label_epsilon(
            rows, np.full(n, 0.4), np.zeros(n), noise_multiplier=1, max_grad_norm=1, delta=1e-5
        )
        np.testing.assert_array_equal(limit.identifiable, wanted)
        full += int(solved.rank == n)
    assert 100 < full < 300


def test_zero_rows_change_nothing_for_the_others() -> None:
    # As a ReLU that is off makes them; each batch has another number of them, one has none, one nothing else.
    rng = np.random.default_rng(9)
    jacobian, probs, labels = rng.normal(size=(6, 8, 20)), rng.random((6, 8)), rng.integers(0, 2, (6, 8))
    off = rng.random((6, 8)) < 0.5
    off[0], off[1] = False, True
    jacobian[off] = 0.0
    for test in TESTS:
        result = bound(jacobian, probs, labels, test=test)
        assert (np.isneginf(result.per_row) == off).all()
        assert (result.identifiable == ~off).all()
        for b in range(6):
            keep = ~off[b]
            if keep.any():
                alone = bound(jacobian[b, keep], probs[b, keep], labels[b, keep], test=test)
                np.testing.assert_allclose(result.per_row[b, keep], alone.per_row, rtol=1e-9)
            else:
                assert result.value[b] == 0.0


def test_no_determined_row_gives_zero_not_minus_infinity() -> None:
    jacobian, probs, labels = batch(30, 10)
    for test in ("paper", "optimal"):
        result = bound(jacobian, probs, labels, test=test)
        assert result.value == 0.0
        assert not result.identifiable.any()
    assert bound(jacobian, probs, labels, test="likelihood-ratio").value > 5
    assert bound(np.zeros((3, 4)), probs[:3], labels[:3], test="likelihood-ratio").value == 0.0


@pytest.mark.parametrize("test", TESTS)
def test_without_noise_the_bound_is_infinite_and_says_so(test: str) -> None:
    jacobian, probs, labels = batch(6, 20)
    jacobian[3] = jacobian[1]
    result = bound(jacobian, probs, labels, test=test, noise_multiplier=0.0)
    assert result.value == math.inf
    assert result.replacement.value == math.inf
    assert any("infinite" in note for note in result.assumptions.notes)
    identifiable = np.ones(6, bool) if test == "likelihood-ratio" else result.identifiable
    np.testing.assert_array_equal(result.per_row, np.where(identifiable, math.inf, -math.inf))
    assert json.loads(result.to_json())["value"] == "inf"


def test_saturated_probabilities() -> None:
    # p equal to the label (e = 0) or to the other label (e′ = 0): one side of the test is a coin toss, nothing is NaN.
    jacobian = np.eye(2, 5)
    for sigma in (0.0, 0.5):
        result = bound(jacobian, [1.0, 1.0], [1, 0], noise_multiplier=sigma, max_grad_norm=10.0)
        reach = math.inf if sigma == 0 else 0.2
        own, flipped = [0.0, reach], [reach, 0.0]
        expected = [math.log(special.ndtr(a) - DELTA) - special.log_ndtr(-b) for a, b in zip(own, flipped, strict=True)]
        np.testing.assert_allclose(result.per_row, expected, rtol=1e-12)


@pytest.mark.parametrize("test", ["optimal", "likelihood-ratio"])
def test_delta_zero_is_infinite_and_says_so(test: str) -> None:
    jacobian, probs, labels = batch(6, 20)
    result = bound(jacobian, probs, labels, test=test, delta=0.0)
    assert result.value == math.inf
    assert any("delta = 0" in note for note in result.assumptions.notes)
    assert math.isfinite(bound(jacobian, probs, labels, delta=0.0).value)


def test_delta_of_the_success_probability_or_more_leaves_nothing() -> None:
    jacobian, probs, labels = batch(6, 20)
    result = bound(jacobian, probs, labels, delta=0.999999, noise_multiplier=4.0)
    np.testing.assert_array_equal(result.per_row, np.full(6, -np.inf))
    assert result.value == 0.0


def test_complement_is_the_reverse_direction() -> None:
    # Its LB is the bound of the flipped batch's own event: log((Φ(b) − δ)/Φ(−a)).
    jacobian, probs, labels = batch(8, 30, seed=4)
    own = bound(jacobian, probs, labels, max_grad_norm=4.0)
    both = bound(jacobian, probs, labels, max_grad_norm=4.0, test=bounds.SignTest(complement=True))
    for r in range(8):
        flipped = labels.copy()
        flipped[r] = 1 - flipped[r]
        reverse = bound(jacobian, probs, flipped, max_grad_norm=4.0).per_row[r]
        assert both.per_row[r] == pytest.approx(max(own.per_row[r], reverse), rel=1e-12)
    assert (both.per_row > own.per_row).any()


def test_joint_norms_in_either_order() -> None:
    jacobian, probs, labels = batch(8, 30)
    e = np.abs(probs - labels)
    own = np.linalg.norm(jacobian, axis=1)
    pair = np.stack([e, 1 - e]) * own
    plain = bound(jacobian, probs, labels)
    np.testing.assert_allclose(bound(jacobian, probs, labels, grad_norms=pair).per_row, plain.per_row, rtol=1e-12)
    joint = bound(jacobian, probs, labels, grad_norms=3 * pair)
    np.testing.assert_allclose(
        bound(jacobian, probs, labels, grad_norms=3 * pair[::-1]).per_row, joint.per_row, rtol=1e-12
    )
    assert joint.value < plain.value
    assert any("joint norm" in note for note in joint.assumptions.notes)


def test_joint_norms_of_a_real_model() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    x, labels = torch.randn(8, 5), torch.randint(0, 2, (8,))
    with torch.no_grad():
        activations = model[:2](x)
        probs = torch.sigmoid(model(x)[:, 0])
    norms = np.empty((2, 8))
    for j, y in enumerate((labels, 1 - labels)):
        for r in range(8):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x[r : r + 1])[:, 0], y[r : r + 1].float())
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            norms[j, r] = torch.cat([g.flatten() for g in gradient]).norm()
    result = bound(activations, probs, labels, grad_norms=norms)
    literal = label_lower_bounds(
        activations.numpy().astype(float),
        probs,
        labels,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        delta=DELTA,
        grad_norms=norms,
    )
    keep = result.identifiable
    np.testing.assert_allclose(result.per_row[keep], literal[keep], rtol=1e-5, atol=1e-6)


def test_joint_norms_that_no_logistic_model_has_are_refused() -> None:
    jacobian, probs, labels = batch(4, 10)
    e = np.abs(probs - labels)
    pair = np.stack([e, 1 - e]) * np.linalg.norm(jacobian, axis=1)
    with pytest.raises(ValueError, match=r"`grad_norms` must have a sum over both labels of at least .* for sample .0"):
        bound(jacobian, probs, labels, grad_norms=0.5 * pair)
    with pytest.raises(ValueError, match=r"`grad_norms` must be .* own and the flipped label"):
        bound(jacobian, probs, labels, grad_norms=np.stack([pair[0], 20 * pair[1]]))
    with pytest.raises(
        ValueError, match=r"`grad_norms` must have shape \(2, 4\).* match probs of shape \(4,\), got \(4,\)"
    ):
        bound(jacobian, probs, labels, grad_norms=pair[0])


def test_no_test_is_above_the_upper_bound_not_even_by_rounding() -> None:
    # Unclipped rows at both labels: the likelihood ratio attains the bound.
    rng = np.random.default_rng(0)
    for _ in range(100):
        jacobian, probs, labels = rng.normal(size=(5, 9)), rng.uniform(size=5), rng.integers(0, 2, 5)
        for test in TESTS:
            result = bound(jacobian, probs, labels, test=test, noise_multiplier=0.5, max_grad_norm=0.1)
            assert result.value <= result.replacement.value
