"""Label-epsilon: the closed form, its arguments, its limits, and composed steps."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from leakcore import bounds
from leakcore.kernels import solve_labels
from leakcore.reference.kernels import label_lower_bounds

DELTA = 1e-5
TESTS = ("paper", "optimal", "likelihood-ratio")


def batch(n: int = 50, d: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of the last layer, probabilities, labels drawn with them."""
    rng = np.random.default_rng(seed)
    jacobian = rng.normal(size=(n, d))
    probs = special.expit(jacobian @ rng.normal(size=d) / math.sqrt(d))
    return jacobian, probs, (rng.random(n) < probs).astype(np.int64)


def bound(jacobian: object, probs: object, labels: object, **changes: object) -> bounds.LabelEpsilon:
    arguments: dict[str, object] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": DELTA} | changes
    return bounds.label_epsilon(jacobian, probs, labels, **arguments)


@pytest.mark.full
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
def test_literal_algorithm(
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


def test_literal_algorithm_at_paper_size() -> None:
    jacobian, probs, labels = batch()
    for sigma in (0.3, 0.5, 1.0, 2.0, 4.0):
        literal = label_lower_bounds(jacobian, probs, labels, noise_multiplier=sigma, max_grad_norm=1.0, delta=DELTA)
        result = bound(jacobian, probs, labels, noise_multiplier=sigma)
        np.testing.assert_allclose(result.per_row, literal, rtol=0, atol=1e-10)


def test_simulated_success() -> None:
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


def test_simulated_attack() -> None:
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


def test_optimal_by_brute_force() -> None:
    jacobian, probs, labels = batch(10, 30, seed=1)
    result = bound(jacobian, probs, labels, test="optimal", noise_multiplier=3.0)
    t = np.linspace(-12, 16, 2_000_001)
    for m, epsilon in zip(result.separation, result.per_row, strict=True):
        p0, log_p1 = special.ndtr(m - t), special.log_ndtr(-t)
        keep = p0 > DELTA
        brute = (np.log(p0[keep] - DELTA) - log_p1[keep]).max()
        assert epsilon == pytest.approx(max(brute, 0.0), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(("n", "d"), [(10, 30), (30, 10)])
def test_likelihood_ratio_separation(n: int, d: int) -> None:
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


@pytest.mark.full
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
def test_order_of_the_tests(n: int, d: int, sigma: float, clip: float, delta: float, joint: float, seed: int) -> None:
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


def test_monotone_in_noise_and_norm() -> None:
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


def test_several_weight_vectors() -> None:
    rng = np.random.default_rng(3)
    jacobian, probs, labels = rng.normal(size=(4, 2, 5, 12)), rng.random((2, 5)), rng.integers(0, 2, (2, 5))
    e = np.abs(probs - labels)
    norms = np.stack([e, 1 - e], axis=-2) * np.linalg.norm(jacobian, axis=-1).max(axis=0)[:, None, :]
    for test in TESTS:
        short = bound(jacobian, probs, labels, test=test, grad_norms=norms)
        full = bound(
            jacobian,
            np.broadcast_to(probs, (4, 2, 5)),
            np.broadcast_to(labels, (4, 2, 5)),
            test=test,
            grad_norms=np.broadcast_to(norms, (4, 2, 2, 5)),
        )
        np.testing.assert_array_equal(short.per_row, full.per_row)
        assert short.value.shape == (4, 2)
        assert short.largest == short.value.max()
    with pytest.raises(ValueError, match=r"`probs` must .* to match jacobian of shape \(4, 2, 5, 12\), got \(4, 5\)"):
        bound(jacobian, rng.random((4, 5)), labels)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_beyond_floats(scale: float) -> None:
    jacobian, probs, labels = batch(4, 9)
    clip = scale
    result = bound(jacobian * scale, probs, labels, test="likelihood-ratio", max_grad_norm=clip)
    expected = bound(jacobian, probs, labels, test="likelihood-ratio")
    np.testing.assert_allclose(result.separation, expected.separation, rtol=1e-12)


def test_leading_dimensions() -> None:
    rng = np.random.default_rng(8)
    jacobian, probs, labels = rng.normal(size=(2, 3, 5, 12)), rng.random((2, 3, 5)), rng.integers(0, 2, (2, 3, 5))
    for test in TESTS:
        result = bound(jacobian, probs, labels, test=test)
        assert result.value.shape == (2, 3)
        assert result.per_row.shape == (2, 3, 5)
        for at in np.ndindex(2, 3):
            one = bound(jacobian[at], probs[at], labels[at], test=test)
            assert result.value[at] == one.value
            np.testing.assert_array_equal(result.per_row[at], one.per_row)
    assert isinstance(bound(jacobian[0, 0], probs[0, 0], labels[0, 0]).value, float)
    assert json.loads(bound(jacobian, probs, labels).to_json())["value"][1][2] > 0


def test_torch_and_float32() -> None:
    jacobian, probs, labels = batch(6, 20)
    reference = bound(jacobian, probs, labels)
    exact = bound(torch.from_numpy(jacobian), torch.from_numpy(probs), torch.from_numpy(labels))
    np.testing.assert_array_equal(exact.per_row, reference.per_row)
    single = bound(jacobian.astype(np.float32), probs.astype(np.float32), labels)
    np.testing.assert_allclose(single.per_row, reference.per_row, rtol=1e-5, atol=1e-6)


def test_bad_input() -> None:
    jacobian, probs, labels = batch(4, 10)
    for bad in (-0.1, 1.1):
        with pytest.raises(ValueError, match=rf"`probs\[2\]` must be in \[0, 1\], got {bad}"):
            bound(jacobian, np.array([0.5, 0.5, bad, 0.5]), labels)
    with pytest.raises(ValueError, match=r"probs.*nan"):
        bound(jacobian, np.array([0.5, 0.5, np.nan, 0.5]), labels)
    with pytest.raises(ValueError, match=r"`labels\[1\]` must be 0 or 1, got 2.0"):
        bound(jacobian, probs, [0, 2, 1, 0])
    with pytest.raises(ValueError, match=r"`probs` must .* to match jacobian of shape \(4, 10\), got \(3,\)"):
        bound(jacobian, probs[:3], labels)
    with pytest.raises(ValueError, match=r"`labels` must .* to match jacobian of shape \(4, 10\), got \(4, 1\)"):
        bound(jacobian, probs, labels[:, None])
    with pytest.raises(ValueError, match=r"`jacobian` must have shape \(\.\.\., N, d\), got \(10,\)"):
        bound(jacobian[0], probs, labels)
    with pytest.raises(ValueError, match="empty batch"):
        bound(jacobian[:0], probs[:0], labels[:0])
    with pytest.raises(ValueError, match=r"`jacobian\[0, 0\]` must be finite, got inf"):
        bound(np.full((4, 10), np.inf), probs, labels)
    with pytest.raises(ValueError, match=r"`jacobian` must not require grad: pass jacobian.detach\(\)"):
        bound(torch.ones(4, 10, requires_grad=True), probs, labels)
    for name, value, allowed in (
        ("noise_multiplier", -1.0, "at least 0"),
        ("max_grad_norm", 0.0, "above 0"),
        ("delta", 1.0, "in [0, 1)"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"`{name}` must be {allowed}, got {value}")):
            bound(jacobian, probs, labels, **{name: value})
    with pytest.raises(ValueError, match="`test` must be 'paper', 'optimal' or 'likelihood-ratio', got 'best'"):
        bound(jacobian, probs, labels, test="best")
    with pytest.raises(TypeError, match="`complement` must be True or False, got 'yes'"):
        bounds.SignTest(complement="yes")  # type: ignore[arg-type]
    objects = (bounds.SignTest(), bounds.ThresholdTest(), bounds.LikelihoodRatioTest())
    for name, test in zip(TESTS, objects, strict=True):
        by_name, by_object = (bound(jacobian, probs, labels, test=which) for which in (name, test))
        assert by_name.to_dict() == by_object.to_dict()


def test_undetermined_rows() -> None:
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


def test_rank_without_right_hand_side() -> None:
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


def test_zero_rows() -> None:
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


def test_no_determined_row() -> None:
    jacobian, probs, labels = batch(30, 10)
    for test in ("paper", "optimal"):
        result = bound(jacobian, probs, labels, test=test)
        assert result.value == 0.0
        assert not result.identifiable.any()
    assert bound(jacobian, probs, labels, test="likelihood-ratio").value > 5
    assert bound(np.zeros((3, 4)), probs[:3], labels[:3], test="likelihood-ratio").value == 0.0


@pytest.mark.parametrize("test", TESTS)
def test_without_noise(test: str) -> None:
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
def test_delta_zero(test: str) -> None:
    jacobian, probs, labels = batch(6, 20)
    result = bound(jacobian, probs, labels, test=test, delta=0.0)
    assert result.value == math.inf
    assert any("delta = 0" in note for note in result.assumptions.notes)
    assert math.isfinite(bound(jacobian, probs, labels, delta=0.0).value)


def test_delta_above_success_probability() -> None:
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


def test_impossible_joint_norms() -> None:
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


def test_rounding_of_the_upper_bound() -> None:
    # Unclipped rows at both labels: the likelihood ratio attains the bound.
    rng = np.random.default_rng(0)
    for _ in range(100):
        jacobian, probs, labels = rng.normal(size=(5, 9)), rng.uniform(size=5), rng.integers(0, 2, 5)
        for test in TESTS:
            result = bound(jacobian, probs, labels, test=test, noise_multiplier=0.5, max_grad_norm=0.1)
            assert result.value <= result.replacement.value


COMPOSED = {"optimal": bounds.ThresholdTest(compose=True), "likelihood-ratio": bounds.LikelihoodRatioTest(compose=True)}


@pytest.mark.parametrize("test", ["optimal", "likelihood-ratio"])
def test_composition(test: str) -> None:
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


def test_composed_separation_by_simulation() -> None:
    # Two steps with other weights: the log-likelihood ratio of both, on 100,000 draws, is Gaussian with mean m²/2 and
    # standard deviation m. Mean and deviation within 4 standard errors (p = 1e-4 per assertion).
    (a, p, labels), (b, q, _) = batch(6, 20, seed=1), batch(6, 20, seed=2)
    sigma, draws, r = 0.8, 100_000, 2
    test = COMPOSED["likelihood-ratio"]
    result = bound(np.stack([a, b]), np.stack([p, q]), labels, test=test, noise_multiplier=sigma)
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


def test_sample_outside_a_batch() -> None:
    jacobian, probs, labels = batch(5, 30)
    absent = jacobian.copy()
    absent[2] = 0.0
    for test in ("optimal", "likelihood-ratio"):
        both = bound(np.stack([jacobian, absent]), probs, labels, test=COMPOSED[test])
        assert both.separation[2] == bound(jacobian, probs, labels, test=test).separation[2]
        assert both.identifiable.all()
        once = bound(jacobian[None], probs, labels, test=COMPOSED[test])
        assert (once.kind, once.steps) == ("lower", 1)


def test_bad_steps() -> None:
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


def test_harmonic_rule_by_simulation() -> None:
    # 20,000 draws of max over 5 and over 5·4 rows; five standard errors of the ratio.
    draws = np.random.default_rng(3).exponential(size=(20_000, 20))
    one, all_rows = draws[:, :5].max(axis=1), draws.max(axis=1)
    ratio = all_rows.mean() / one.mean()
    error = ratio * math.hypot(all_rows.std() / all_rows.mean(), one.std() / one.mean()) / math.sqrt(20_000)
    assert bounds.extrapolate_label_epsilon(1.0, 4, 5).factor == pytest.approx(ratio, abs=5 * error)
    # The printed rule is visibly off at this size.
    assert abs(bounds.extrapolate_label_epsilon(1.0, 4, 5, rule="log").factor - ratio) > 10 * error


def test_extrapolation_kind_and_input() -> None:
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
