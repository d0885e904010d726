"""The two-layer sensitivity bound against random and adversarial examples, where the printed one fails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize

from leakcore.bounds import laplace
from leakcore.numerics.activations import ACTIVATIONS

TORCH = {
    "identity": lambda u: u,
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "elu": torch.nn.functional.elu,
    "selu": torch.nn.functional.selu,
    "softplus": torch.nn.functional.softplus,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
}


def _gradient(w: np.ndarray, a: np.ndarray, x: np.ndarray, y: float, name: str) -> np.ndarray:
    """By automatic differentiation of (4.3): [dL/da, dL/dW], flat."""
    weights, output = torch.tensor(w, requires_grad=True), torch.tensor(a, requires_grad=True)
    loss = (output @ TORCH[name](weights @ torch.tensor(x)) - y) ** 2
    parts = torch.autograd.grad(loss, (output, weights))
    return np.concatenate([p.numpy().ravel() for p in parts])


def test_activations() -> None:
    u = np.concatenate([np.linspace(-12, 12, 200_001), [0.0]])
    for name, sigma in ACTIVATIONS.items():
        values = sigma(u)
        np.testing.assert_allclose(values, TORCH[name](torch.from_numpy(u)).numpy(), atol=1e-12)
        # Neighbouring points: the largest slope is bounded, and attained to 0.1%.
        slope = np.abs(np.diff(values[:-1]) / np.diff(u[:-1])).max()
        assert 0.999 * sigma.lipschitz <= slope <= sigma.lipschitz * (1 + 1e-9), name
        assert sigma.at_zero == pytest.approx(abs(values[-1]), abs=1e-15)
        assert np.abs(values).max() <= sigma.bound


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("name", sorted(TORCH))
@pytest.mark.parametrize("weights", ["mean", "signs"])
def test_adversarial_examples(name: str, weights: str) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    m, d = 12, 5
    w = rng.standard_normal((m, d))
    a = np.full(m, 1 / m) if weights == "mean" else rng.choice([-1.0, 1.0], m)
    query = laplace.GradientQuery(input_norm=1.0, target_bound=1.0)
    bound = laplace.two_layer(w, a, activation=name, query=query, adjacency="replace")
    alone = laplace.two_layer(w, a, activation=name)
    assert (alone.adjacency, alone.value) == ("add-remove", pytest.approx(bound.value / 2))
    inside = laplace.two_layer_random(m, d, output_weight=float(np.abs(a).max()), activation=name).value
    assert inside >= alone.value * (1 - 1e-12)
    examples = [
        (x / np.linalg.norm(x), y)
        for x, y in zip(rng.standard_normal((40, d)), rng.choice([-1.0, 1.0], 40), strict=True)
    ]
    gradients = [_gradient(w, a, x, y, name) for x, y in examples]
    worst = max(np.abs(g - h).sum() for g in gradients for h in gradients)
    assert worst <= bound.value
    assert max(np.linalg.norm(g) for g in gradients) <= bound.gradient_l2
    assert max(np.abs(g).sum() for g in gradients) <= alone.value

    def change(z: np.ndarray, signs: tuple[float, float]) -> float:
        pair = [
            _gradient(w, a, x / max(1.0, float(np.linalg.norm(x))), y, name)
            for x, y in zip(z.reshape(2, d), signs, strict=True)
        ]
        return -float(np.abs(pair[0] - pair[1]).sum())

    # An adversary who climbs from the worst random pair.
    start = max(
        ((g, h) for g in range(40) for h in range(g)), key=lambda p: np.abs(gradients[p[0]] - gradients[p[1]]).sum()
    )
    z = np.concatenate([examples[i][0] for i in start])
    climbed = optimize.minimize(
        change, z, args=((examples[start[0]][1], examples[start[1]][1]),), method="Powell", options={"maxfev": 400}
    )
    assert worst - 1e-9 <= -climbed.fun <= bound.value


def test_gradient_bounds_of_parts() -> None:
    rng = np.random.default_rng(1)
    w, a = rng.standard_normal((6, 3)), rng.standard_normal(6)
    both = laplace.two_layer(w, a, activation="tanh")
    output, hidden = (
        laplace.two_layer(w, a, activation="tanh", query=laplace.GradientQuery(gradients=g))
        for g in ("output", "hidden")
    )
    assert both.value == pytest.approx(output.value + hidden.value)
    assert (output.value, hidden.value) == (both.output_part, both.hidden_part)
    assert (both.num_parameters, output.num_parameters, hidden.num_parameters) == (24, 6, 18)
    for _ in range(20):
        x = rng.standard_normal(3)
        g = _gradient(w, a, x / np.linalg.norm(x), 1.0, "tanh")
        assert 2 * np.abs(g[:6]).sum() <= output.value
        assert 2 * np.abs(g[6:]).sum() <= hidden.value
    assert laplace.two_layer(w, a, activation="tanh", query=laplace.GradientQuery(batch_size=8)).value == pytest.approx(
        both.value / 8
    )


def test_printed_bound_at_zero_residual() -> None:
    rng = np.random.default_rng(2)
    m, d = 50, 8
    w, a = rng.standard_normal((m, d)), np.full(m, 1 / m)
    x, other = (v / np.linalg.norm(v) for v in rng.standard_normal((2, d)))
    fitted = float(a @ np.maximum(w @ x, 0.0))
    result = laplace.printed_change(w, a, (x, fitted), (other, -1.0))
    assert result.residuals[0] == 0.0
    assert result.printed.max() == 0.0
    assert result.change.max() > 0.9
    assert not result.holds
    true = np.abs(_gradient(w, a, x, fitted, "relu") - _gradient(w, a, other, -1.0, "relu")).sum()
    assert result.l1_change == pytest.approx(true, rel=1e-6)
    assert true <= laplace.two_layer(w, a, adjacency="replace").value
    # With the residual unchanged, as the lecture assumes, it does hold.
    y = float(a @ np.maximum(w @ other, 0.0)) - (fitted - 1.0)
    assert laplace.printed_change(w, a, (x, 1.0), (other, y)).holds


@pytest.mark.full
def test_coverage_of_the_random_bound() -> None:
    """200 draws of W at 90%: the spectral norm exceeds in none (the inequality is far from tight here)."""
    rng = np.random.default_rng(3)
    claimed = laplace.two_layer_random(30, 10, confidence=0.9)
    assert claimed.confidence == 0.9
    values = [laplace.two_layer(rng.standard_normal((30, 10)), np.full(30, 1 / 30)).value for _ in range(200)]
    assert (np.array(values) <= claimed.value).mean() >= 0.9
    assert max(values) > 0.6 * claimed.value


def test_orders_in_m_and_d() -> None:
    """a_j = 1/m: linear in m for d ≪ m; the printed O(m√d) is of another network (|a_j| = O(1), |r| = O(1))."""
    at = [laplace.two_layer_random(m, 10).value for m in (10**6, 4 * 10**6)]
    assert at[1] / at[0] == pytest.approx(4.0, rel=0.01)
    wide = [laplace.two_layer_random(10, d).value for d in (10**6, 4 * 10**6)]
    assert wide[1] / wide[0] == pytest.approx(4.0, rel=0.01)
    assert laplace.two_layer_random(100, 16).printed == {"(4.9)": 800.0, "(4.10)": 400.0}


def test_noise_and_signal() -> None:
    bound = laplace.two_layer_random(1000, 20)
    b = bound.noise(2.0)
    assert b.value == bound.value / 2.0
    assert b.confidence == 0.999
    assert bound.signal_to_noise(2.0, gradient_norm=7.0) == pytest.approx(7.0 / (b.value * np.sqrt(2 * 21_000)))
    ceiling = bound.signal_to_noise_ceiling(2.0, num_examples=3)
    assert ceiling == pytest.approx(3 * bound.signal_to_noise(2.0, gradient_norm=bound.gradient_l2))


def test_silent_networks() -> None:
    bound = laplace.two_layer(np.zeros((3, 2)), np.zeros(3))
    assert bound.value == 0.0
    assert bound.signal_to_noise(1.0, gradient_norm=0.0) == float("inf")
    own = laplace.Activation("mine", lipschitz=2.0, at_zero=0.5)
    assert (
        laplace.two_layer(
            np.zeros((3, 2)), np.zeros(3), activation=own, query=laplace.GradientQuery(target_bound=2.0)
        ).value
        == 2 * 2 * 1.5
    )


def test_bad_input() -> None:
    w, a = np.ones((3, 2)), np.ones(3)
    for call, message in (
        (lambda: laplace.two_layer(w[0], a), r"`hidden_weights` must have shape \(m, d\), .*got \(2,\)"),
        (lambda: laplace.two_layer(w, a[:2]), r"`output_weights` must have shape \(3,\), one per neuron, got \(2,\)"),
        (lambda: laplace.two_layer(w, a, activation="cube"), r"`activation` must be 'identity', 'relu',.*, got 'cube'"),
        (lambda: laplace.GradientQuery(input_norm=-1.0), r"`input_norm` must be at least 0, got -1.0"),
        (lambda: laplace.GradientQuery(target_bound=np.inf), "`target_bound` must be finite, got inf"),
        (lambda: laplace.GradientQuery(gradients="all"), "`gradients` must be 'both', 'output' or 'hidden', got 'all'"),
        (lambda: laplace.GradientQuery(batch_size=0), "`batch_size` must be at least 1, got 0"),
        (lambda: laplace.two_layer_random(0, 2), "`num_neurons` must be at least 1, got 0"),
        (lambda: laplace.two_layer_random(2, 2, confidence=1.0), r"`confidence` must be in \(0, 1 - 1e-12\], got 1.0"),
        (
            lambda: laplace.printed_change(w, a, (np.ones(3), 0.0), (np.ones(2), 0.0)),
            r"`first\[0\]` must have shape \(2,\), got \(3,\)",
        ),
        (lambda: laplace.printed_change(w, a, (np.ones(2), 0.0), (np.array([1, np.nan]), 0.0)), r"second\[0\]"),
        (lambda: laplace.Activation("mine", lipschitz=-1.0), r"`lipschitz` must be at least 0, got -1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="`activation` must be a name or an Activation, got 3"):
        laplace.two_layer(w, a, activation=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`query` must be of type GradientQuery, got float"):
        laplace.two_layer_random(2, 2, query=1.0)  # type: ignore[arg-type]
