"""Known probabilities: labels beyond the rank where the box proves them, −1 where it does not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from leakcore.attacks import labels
from tests.attacks.labels.systems import attacked


def _gaussian(n: int, d: int, seed: int, low: float = 0.35) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows, probs = rng.normal(size=(n, d)), rng.uniform(low, 1 - low, n)
    truth = (rng.random(n) < probs).astype(int)
    return rows, probs, truth, rows.T @ (probs - truth) / n


MEASURED = {
    0.5: (1.0, 1.0, 1.0, 1.0),
    1.0: (1.0, 1.0, 1.0, 1.0),
    1.25: (0.955, 0.965, 1.0, 1.0),
    1.5: (0.911, 0.924, 1.0, 1.0),
    2.0: (0.838, 0.857, 0.958, 0.667),
    # Above 2 random rows leave no pattern of labels unique (Cover, 1965), and the box says so.
    3.0: (0.761, 0.771, 0.689, 0.0),
}
"""Shares right by N/d for d = 100, p in [.35, .65]: the pseudo-inverse's sign, its residual rounded to the nearer of p
and p − 1, the box's nearest label, and the share that the box calls determined (all right)."""


def test_accuracy_by_batch_size() -> None:
    for ratio in MEASURED:
        shares = []
        for seed in range(3):
            rows, probs, truth, gradient = _gaussian(int(100 * ratio), 100, seed)
            recovery = labels.last_layer(rows, gradient, known_probs=probs, noise=labels.Noise(0))
            plain = labels.last_layer(rows, gradient, noise=labels.Noise(0)).residuals
            assert (recovery.labels == truth)[recovery.determined].all()
            nearest = (probs - recovery.residuals > 0.5) == truth
            shares.append(
                [((plain < 0) == truth).mean(), ((probs - plain > 0.5) == truth).mean(), nearest.mean(), recovery.value]
            )
        sign, rounded, nearest, determined = np.mean(shares, axis=0)
        np.testing.assert_allclose([sign, rounded, nearest, determined], MEASURED[ratio], atol=0.02)
        if ratio <= 1.5:
            assert determined == 1.0


@given(n=st.integers(1, 9), d=st.integers(1, 6), levels=st.sampled_from([1, 2, 1000]), seed=st.integers(0, 2**32))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_certified_labels_by_enumeration(n: int, d: int, levels: int, seed: int) -> None:
    # Few levels make many dependencies; every label vector that gives the same gradient agrees on certified labels.
    rng = np.random.default_rng(seed)
    rows = rng.integers(-levels, levels + 1, (n, d)).astype(float)
    probs = rng.random(n)
    truth = rng.integers(0, 2, n)
    recovery = labels.last_layer(
        rows,
        labels.GradientObservation(rows.T @ (probs - truth), reduction="sum"),
        known_probs=probs,
        noise=labels.Noise(0),
    )
    others = np.array(list(itertools.product([0, 1], repeat=n)))
    same = others[np.abs((others - truth) @ rows).max(axis=1) < 1e-9]
    for r in np.flatnonzero(recovery.determined):
        assert recovery.labels[r] == truth[r]
        assert (same[:, r] == truth[r]).all()
    assert np.isfinite(recovery.residuals).all()
    assert not np.isnan(recovery.tolerance).any()


def test_duplicated_rows() -> None:
    rows, probs, truth, _ = _gaussian(6, 20, 1)
    rows[3] = rows[2]
    truth[:4] = [0, 1, 1, 1]
    agree = labels.last_layer(rows, rows.T @ (probs - truth) / 6, known_probs=probs, noise=labels.Noise(0))
    np.testing.assert_array_equal(agree.labels, truth)
    truth[3] = 0
    differ = labels.last_layer(rows, rows.T @ (probs - truth) / 6, known_probs=probs, noise=labels.Noise(0))
    np.testing.assert_array_equal(np.flatnonzero(~differ.determined), [2, 3])
    np.testing.assert_array_equal(differ.labels[[0, 1, 4, 5]], truth[[0, 1, 4, 5]])


def test_zero_rows_and_one_sample() -> None:
    rows, probs, truth, _ = _gaussian(5, 10, 2)
    rows[1] = 0
    recovery = labels.last_layer(rows, rows.T @ (probs - truth) / 5, known_probs=probs, noise=labels.Noise(0))
    np.testing.assert_array_equal(np.flatnonzero(~recovery.determined), [1])
    nothing = labels.last_layer(np.zeros((3, 2)), np.zeros(2), known_probs=[0.1, 0.2, 0.3], noise=labels.Noise(0))
    np.testing.assert_array_equal(nothing.labels, [-1, -1, -1])
    one = labels.last_layer([[2.0]], [2 * (0.4 - 1)], known_probs=[0.4], noise=labels.Noise(0))
    np.testing.assert_array_equal(one.labels, [1])


def test_saturated_float32_rows() -> None:
    # p rounds to y: the sign of p − y is lost, but the two values p and p − 1 are far apart.
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(30, 60)).astype(np.float32)
    logits = (rng.normal(size=30) * 40).astype(np.float32)
    probs = special.expit(logits)
    truth = (rng.random(30) < 0.5).astype(int)
    gradient = rows.T @ (probs - truth.astype(np.float32)) / np.float32(30)
    signs = labels.last_layer(rows, gradient, noise=labels.Noise(0))
    box = labels.last_layer(rows, gradient, known_probs=probs, noise=labels.Noise(0))
    assert signs.value < 0.9
    np.testing.assert_array_equal(box.labels, truth)


def test_several_steps() -> None:
    # 3 steps of 20 weights see the same 60 labels.
    rng = np.random.default_rng(5)
    rows, probs = rng.normal(size=(3, 60, 20)), rng.uniform(0.35, 0.65, (3, 60))
    truth = rng.integers(0, 2, 60)
    gradient = np.einsum("snd,sn->sd", rows, probs - truth) / 60
    together = labels.last_layer(rows, gradient, known_probs=probs, noise=labels.Noise(0))
    np.testing.assert_array_equal(together.labels, truth)
    assert together.rank == 60
    alone = labels.last_layer(rows[0], gradient[0], known_probs=probs[0], noise=labels.Noise(0))
    assert alone.value == 0
    same = labels.general(rows, gradient, known_probs=probs, noise=labels.Noise(0))
    np.testing.assert_array_equal(same.labels, truth)


def test_classes() -> None:
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(40, 30))
    probs = special.softmax(rng.normal(size=(40, 5)) / 3, axis=1)
    truth = rng.integers(0, 5, 40)
    gradient = (probs - np.eye(5)[truth]).T @ rows / 40
    recovery = labels.last_layer(rows, gradient, known_probs=probs, noise=labels.Noise(0))
    np.testing.assert_array_equal(recovery.labels, truth)
    assert recovery.residuals.shape == (40, 5)


@pytest.mark.full
def test_noise() -> None:
    rows, probs, truth, gradient = _gaussian(15, 12, 7)
    rng = np.random.default_rng(8)
    wrong = determined = 0
    for _ in range(300):
        noisy = gradient + 0.01 * rng.normal(size=12)
        recovery = labels.last_layer(rows, noisy, known_probs=probs, noise=labels.Noise(0.01, 0.9))
        assert (recovery.kind, recovery.confidence) == ("lower", 0.9)
        wrong += bool((recovery.labels != truth)[recovery.determined].any())
        determined += int(recovery.determined.sum())
    assert wrong <= 49  # Binomial(300, 0.1) is above 49 with probability below 1e-4
    assert determined > 300
    # Unknown noise: the nearer of the two values, an estimate.
    blind = labels.last_layer(rows[:8], rows[:8].T @ (probs - truth)[:8] / 8 + 1e-3, known_probs=probs[:8])
    assert (blind.kind, blind.value) == ("estimate", 1.0)
    np.testing.assert_array_equal(blind.labels, truth[:8])
    # A gradient that no labels explain is not explained: said to be exact, it determines nothing.
    false = labels.last_layer(rows, gradient + 0.5, known_probs=probs, noise=labels.Noise(0))
    assert false.value == 0


def test_bad_probabilities() -> None:
    rows, probs, _, gradient = _gaussian(4, 6, 9)
    for value, message in [
        (probs + 1, r"`known_probs\[0\]` must be in \[0, 1\], got 1.6148"),
        (probs[:3], r"`known_probs` must have shape \(4,\) or \(4, 'K'\) to match activations, got \(3,\)"),
        (np.full((4, 2), 0.5), r"`known_probs` must have as many classes as the gradient has weight vectors, 1, got 2"),
        (True, "`known_probs=True` is allowed only with labels.KnownModel"),
        (probs * np.nan, r"`known_probs\[0\]` must be finite, got nan"),
    ]:
        with pytest.raises(ValueError, match=message):
            labels.last_layer(rows, gradient, known_probs=value)


def _clipped(rows: np.ndarray, e: np.ndarray, clip: float, reach: np.ndarray, slack: float = 0.0) -> np.ndarray:
    """Mean of the clipped gradients, as DP-SGD makes it, one sample at a time."""
    total = np.zeros(rows.shape[1])
    for row, r, j in zip(rows, e, reach, strict=True):
        total += row * r * min(1.0, clip / (abs(r) * j + slack))
    return total / len(rows)


@pytest.mark.parametrize("slack", [0.0, 1e-2])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("clip", [0.5, 4.0, 1e3])
def test_clipped_gradients(clip: float, joint: bool, slack: float) -> None:
    rows, probs, truth, _ = _gaussian(60, 50, 10)
    reach = np.linalg.norm(rows, axis=1) * (1.5 if joint else 1.0)
    e = probs - truth
    gradient = _clipped(rows, e, clip, reach, slack)
    norms = np.stack([np.abs(e) * reach, (1 - np.abs(e)) * reach]) if joint else None
    clipping = labels.Clipping(clip, grad_norms=norms, clip_slack=slack)
    known: dict[str, Any] = {"known_probs": probs, "clipping": clipping, "noise": labels.Noise(0.0)}
    recovery = labels.last_layer(rows, gradient, **known)
    np.testing.assert_array_equal(recovery.labels, truth)
    assert recovery.kind == "lower"
    same = labels.general(rows, gradient, **known)
    np.testing.assert_array_equal(same.labels, truth)
    if clip < 1:
        # Read as unclipped residuals the same gradient fits no labels, and nothing is named.
        assert labels.last_layer(rows, gradient, known_probs=probs, noise=labels.Noise(0)).value == 0
        factor = np.minimum(1, clip / (np.abs(e) * reach + slack))
        np.testing.assert_allclose(recovery.residuals, e * factor, atol=1e-9)
    assert any("clipped to" in note for note in recovery.assumptions.notes)


def test_clipped_step_in_float32() -> None:
    # A model's last layer with its bias, clipped by the joint norm of all parameters with Opacus's 1e-6; N/d = 1.4.
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))
    x, rng = torch.randn(56, 12), np.random.default_rng(3)
    truth = rng.integers(0, 2, 56)
    total, norms = torch.zeros(41), []
    for i in range(56):
        pair = []
        for y in (truth[i], 1 - truth[i]):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                model(x[i : i + 1])[0], torch.tensor([float(y)])
            )
            grads = torch.autograd.grad(loss, list(model.parameters()))
            pair.append((torch.sqrt(sum((g**2).sum() for g in grads)), torch.cat([grads[2].flatten(), grads[3]])))
        total += pair[0][1] * min(1.0, 0.5 / (float(pair[0][0]) + 1e-6))
        norms.append([float(pair[0][0]), float(pair[1][0])])
    recovery = attacked(
        labels.last_layer,
        model,
        x,
        labels.GradientObservation(total[:40] / 56, bias_gradient=total[40] / 56),
        known_probs=True,
        clipping=labels.Clipping(0.5, grad_norms=np.array(norms, dtype=np.float32).T, clip_slack=1e-6),
    )
    assert (recovery.labels == truth)[recovery.determined].all()
    assert recovery.value > 0.9


def test_clipped_gradients_with_noise() -> None:
    rows, probs, truth, _ = _gaussian(15, 12, 7)
    gradient = _clipped(rows, probs - truth, 1.0, np.linalg.norm(rows, axis=1))
    rng = np.random.default_rng(8)
    wrong = determined = 0
    for _ in range(100):
        recovery = labels.last_layer(
            rows,
            gradient + 0.003 * rng.normal(size=12),
            known_probs=probs,
            clipping=labels.Clipping(1.0),
            noise=labels.Noise(0.003, 0.9),
        )
        wrong += bool((recovery.labels != truth)[recovery.determined].any())
        determined += int(recovery.determined.sum())
    assert wrong <= 22  # Binomial(100, 0.1) is above 22 with probability below 1e-4
    assert determined > 100


def test_bad_clipping() -> None:
    rows, probs, _, gradient = _gaussian(4, 6, 9)
    with pytest.raises(ValueError, match="`clipping` is allowed only with known_probs="):
        labels.last_layer(rows, gradient, clipping=labels.Clipping(1.0))
    with pytest.raises(TypeError, match="`clipping` must be of type Clipping, got float"):
        labels.last_layer(rows, gradient, known_probs=probs, clipping=1.0)  # type: ignore[arg-type]
    for arguments, message in [
        ({"max_grad_norm": 0.0}, r"`max_grad_norm` must be above 0, got 0.0"),
        ({"max_grad_norm": 1.0, "clip_slack": -1.0}, r"`clip_slack` must be at least 0, got -1.0"),
        (
            {"max_grad_norm": 1.0, "grad_norms": np.ones(4)},
            r"`grad_norms` must have shape \(2, 4\), joint norms under both labels, got \(4,\)",
        ),
        ({"max_grad_norm": 1.0, "grad_norms": -np.ones((2, 4))}, "grad_norms"),
        ({"max_grad_norm": 1.0, "grad_norms": np.zeros((2, 4))}, r"`grad_norms` must be at least ‖dZ/dW‖ .*got 0\.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            labels.last_layer(rows, gradient, known_probs=probs, clipping=labels.Clipping(**arguments))
    classes = np.full((4, 3), 1 / 3)
    with pytest.raises(ValueError, match="`clipping` is allowed only with one logit"):
        labels.last_layer(rows, np.ones((3, 6)), known_probs=classes, clipping=labels.Clipping(1.0))


def test_unexplained_gradient() -> None:
    """A sum taken for a mean: where no y fits the box, the nearest one is not named."""
    rng = np.random.default_rng(12)
    contradicted = 0
    for _ in range(50):
        rows = rng.normal(size=(8, 5))
        probs, y = special.expit(rng.normal(size=8)), rng.integers(0, 2, 8)
        total = rows.T @ (probs - y)
        recovery = labels.last_layer(rows, total, known_probs=probs, noise=labels.Noise(0))
        if recovery.kind == "estimate":
            contradicted += 1
            assert not recovery.determined.any()
            assert any("no labels fit this gradient" in note for note in recovery.assumptions.notes)
        right = labels.last_layer(
            rows, labels.GradientObservation(total, reduction="sum"), known_probs=probs, noise=labels.Noise(0)
        )
        assert right.kind == "lower"
        assert (right.labels[right.determined] == y[right.determined]).all()
    assert contradicted > 25


def test_understated_noise() -> None:
    """Noise of 0.3 called 1e-4: no labels fit to within it, and none is named."""
    rng = np.random.default_rng(13)
    for _ in range(20):
        rows = rng.normal(size=(20, 12))
        probs, y = special.expit(rng.normal(size=20)), rng.integers(0, 2, 20)
        observed = rows.T @ (probs - y) / 20 + 0.3 * rng.normal(size=12)
        recovery = labels.last_layer(rows, observed, known_probs=probs, noise=labels.Noise(1e-4, 0.95))
        assert not recovery.determined.any()
