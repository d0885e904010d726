"""The tensor method: orders, exact moments, recovery, ambiguities, and what it refuses or reports as lost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from leakcore.attacks import tensor
from leakcore.attacks.tensor.decompose import JointFit
from leakcore.attacks.tensor.moments import estimate
from leakcore.attacks.tensor.weights import Weights
from leakcore.bounds.laplace import Activation

ERROR = 0.05


def _batch(count: int, d: int, seed: int, residuals: Any = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, d))
    r = rng.uniform(0.1, 1.0, count) * rng.choice([-1.0, 1.0], count) if residuals is None else np.array(residuals)
    return x / np.linalg.norm(x, axis=1, keepdims=True), r


def _attack(activation: Any, m: int, x: np.ndarray, r: np.ndarray, seed: int = 0, **how: Any) -> Any:
    weights = tensor.GaussianWeights(m, x.shape[1], seed)
    g = tensor.output_gradient(x, r, weights, activation)
    return tensor.reconstruct(g, weights, activation=activation, **{"num_examples": len(x), **how})


def _error(reconstruction: Any, x: np.ndarray) -> float:
    return tensor.match(reconstruction, x).root_mean_square


def test_coefficients() -> None:
    root = 1 / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(tensor.hermite_coefficients("relu"), [root, 0.5, root, 0.0, -root], atol=1e-12)
    c = 1 / math.sqrt(3 * math.pi)  # erf: E[erf′(z)] = 2/√π · E[e^{−z²}] = 2/√(3π)
    np.testing.assert_allclose(tensor.hermite_coefficients("erf"), [0, 2 * c, 0, -4 * c / 3, 0], atol=1e-12)
    np.testing.assert_allclose(tensor.hermite_coefficients("identity"), [0, 1, 0, 0, 0], atol=1e-12)
    # A polynomial of its own, and a kink off the origin: hardtanh has c₁ = P(|z| < 1).
    cubic = tensor.hermite_coefficients(lambda u: u**3 + u**2, max_order=5)
    np.testing.assert_allclose(cubic, [1, 3, 2, 6, 0, 0], atol=1e-10)
    assert tensor.hermite_coefficients(torch.nn.Hardtanh())[1] == pytest.approx(math.erf(math.sqrt(0.5)), abs=1e-12)


@pytest.mark.parametrize(
    ("activation", "orders"),
    [
        ("relu", (2, 4)), ("leaky_relu", (2, 4)), ("softplus", (2, 4)), ("gelu", (2, 4)), ("silu", (2, 4)),
        ("tanh", (3,)), ("sigmoid", (3,)), ("erf", (3,)), ("elu", (2, 3)), ("selu", (2, 3)),
        (torch.nn.ReLU(), (2, 4)), (torch.nn.ELU(), (2, 3)), (torch.nn.ELU(0.5), (2, 4)),
        (torch.tanh, (3,)), (torch.nn.ReLU6(), (2, 4)),
    ],
)  # fmt: skip
def test_orders(activation: Any, orders: tuple[int, ...]) -> None:
    assert tensor.choose(activation).used == orders


@pytest.mark.parametrize(
    ("activation", "forced", "message"),
    [
        ("relu", (2, 3), r"`orders` must be ones that relu has, such as \(2, 4\), got \(2, 3\)"),
        ("softplus", (3,), r"`orders` must be ones that softplus has, such as \(2, 4\), got \(3,\)"),
        ("tanh", (2, 3), r"`orders` must be ones that tanh has, such as \(3,\), got \(2, 3\)"),
        ("sigmoid", (2, 4), r"`orders` must be ones that sigmoid has, such as \(3,\), got \(2, 4\)"),
        ("elu", (2, 5), r"`orders\[1\]` must be in \[1, 4\], got 5"),
        ("elu", (4,), r"must be \(2, 3\), \(2, 4\) or \(3,\)"),
        ("identity", None, "only Σ r_i x_i"),
        (lambda u: u**2 + u, None, "only Σ r_i x_i and Σ r_i x_i x_iᵀ"),
    ],
)
def test_vanishing_order(activation: Any, forced: Any, message: str) -> None:
    x, r = _batch(2, 5, 0)
    g = tensor.output_gradient(x, r, weights := tensor.GaussianWeights(50, 5, 0), activation)
    with pytest.raises(ValueError, match=message):
        tensor.reconstruct(
            g, weights, num_examples=2, activation=activation, decomposition=tensor.Decomposition(orders=forced)
        )


def test_linear_network() -> None:
    """Lecture 13, Section 4.4: batches with the same Σ r_i x_i have the same gradient, which reveals just that."""
    x, r = _batch(3, 6, 1)
    weights = tensor.GaussianWeights(200, 6, 0)
    g = tensor.output_gradient(x, r, weights, "identity")
    other = np.concatenate([x + np.outer(1 / r, np.eye(6)[0]), -np.eye(6)[:1]])
    same = tensor.output_gradient(other, np.append(r, 3.0), weights, "identity")
    np.testing.assert_allclose(g, same, atol=1e-12)
    combination = np.linalg.lstsq(weights.rows(0, 200), g, rcond=None)[0]
    np.testing.assert_allclose(combination, r @ x, atol=1e-12)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("activation", ["elu", "relu", "tanh", torch.nn.GELU()])
def test_batch(activation: Any) -> None:
    x, r = _batch(4, 20, 0)
    attack = _attack(activation, 100_000, x, r)
    assert _error(attack, x) <= ERROR
    assert (attack.value, attack.unrecoverable, attack.failed, attack.reason) == (1.0, 0, False, "")
    matched = tensor.match(attack, x)
    by_hand = tensor.match(attack.inputs, x, signs_known=attack.signs_known)
    assert matched.root_mean_square == by_hand.root_mean_square
    # The gradient itself tells how far off each input is.
    np.testing.assert_allclose(attack.error_estimates, matched.errors, rtol=1e-3)
    size = (lambda v: v) if attack.signs_known else np.abs
    np.testing.assert_allclose(size(attack.residuals), size(r[matched.order]), atol=0.1)
    assert attack.signs_known == (activation != "tanh")


@pytest.mark.full
def test_attack_from_there() -> None:
    x, r = _batch(4, 12, 3)
    attack = _attack("elu", 20_000, x, r, refined=True)
    assert _error(attack, x) < 1e-9
    assert attack.remainder < 1e-9
    assert _error(_attack("elu", 20_000, x, r), x) > 0.01


@pytest.mark.full
def test_mixed_and_single_signs() -> None:
    x, _ = _batch(3, 10, 2)
    for signs in ([1, 1, 1], [-1, -1, -1], [1, -1, 1]):
        r = np.array([0.9, 0.6, 0.7]) * signs
        for how in ("diagonal", "auto"):
            assert _error(_attack("elu", 50_000, x, r, decomposition=tensor.Decomposition(method=how)), x) < 2 * ERROR
        if len(set(signs)) == 1:
            assert _error(_attack("elu", 50_000, x, r, decomposition=tensor.Decomposition(method="power")), x) < 0.15
        else:
            with pytest.raises(ValueError, match="residuals of one sign"):
                _attack("elu", 50_000, x, r, decomposition=tensor.Decomposition(method="power"))


@pytest.mark.full
def test_subtraction_of_lower_orders() -> None:
    x, r = _batch(4, 20, 0)
    plain, subtracted = (
        _error(_attack("elu", 100_000, x, r, decomposition=tensor.Decomposition(subtract=s)), x) for s in (False, True)
    )
    assert plain > 2.5 * subtracted


def test_residual_near_zero() -> None:
    x, r = _batch(4, 20, 0, [1.0, 0.5, -0.6, 0.001])
    attack = _attack("elu", 100_000, x, r)
    assert attack.inputs.shape == (3, 20)
    assert (attack.unrecoverable, attack.failed) == (1, False)
    assert "residuals are near 0" in attack.reason
    assert _error(attack, x) < ERROR
    assert 3 not in tensor.match(attack.inputs, x).order


def test_failures() -> None:
    """Six samples where the attacker believes in four; and a gradient that is noise; and none at all."""
    x, r = _batch(6, 12, 4, [0.9, -0.8, 0.7, 0.9, -0.6, 0.8])
    attack = _attack("elu", 50_000, x, r, num_examples=4)
    assert (attack.failed, attack.value, attack.unrecoverable, len(attack.inputs)) == (True, 0.0, 4, 0)
    assert "at least 6 inputs" in attack.reason
    weights = tensor.GaussianWeights(20_000, 10, 0)
    noise = np.random.default_rng(0).standard_normal(20_000)
    lost = tensor.reconstruct(noise, weights, num_examples=3, activation="elu")
    assert (lost.failed, lost.unrecoverable) == (True, 3)
    silent = tensor.reconstruct(np.zeros(20_000), weights, num_examples=3, activation="relu")
    assert silent.reason == "the gradient is zero"
    assert "schema" in lost.to_dict()


@pytest.mark.full
def test_distance_to_an_input() -> None:
    """42 attacks on networks too small to tell much: nothing that is returned is far from an input. (Of 300 seeds six
    return something that is, whichever stream the weights come from.)"""
    returned, worst = 0, 0.0
    for seed in range(12, 54):
        x, r = _batch(3, 8, seed)
        attack = _attack(("elu", "relu", "tanh")[seed % 3], (400, 1000, 3000)[seed // 3 % 3], x, r, seed)
        assert attack.failed == (len(attack.inputs) == 0) == (attack.value == 0.0)
        assert bool(attack.reason) == (attack.unrecoverable > 0)
        if len(attack.inputs):
            matched = tensor.match(attack.inputs, x, signs_known=attack.signs_known)
            returned, worst = returned + len(matched.errors), max(worst, float(matched.errors.max()))
    assert returned > 60
    assert worst < 0.6


@pytest.mark.full
def test_uncertified_answer() -> None:
    """A gradient that is no longer of this form (its small half set to 0): refused by default, and still
    informative.
    """
    x, r = _batch(2, 8, 3, [0.9, 0.7])
    weights = tensor.GaussianWeights(50_000, 8, 0)
    g = tensor.output_gradient(x, r, weights, "elu")
    pruned = np.where(np.abs(g) > np.median(np.abs(g)), g, 0.0)
    settings: dict[str, Any] = {
        "num_examples": 2, "activation": "elu", "decomposition": tensor.Decomposition(margin=4.0)
    }  # fmt: skip
    assert tensor.reconstruct(pruned, weights, **settings).failed
    attack = tensor.reconstruct(pruned, weights, certify=False, **settings)
    assert not attack.failed
    assert _error(attack, x) < 0.5
    assert np.isnan(attack.error_estimates).all()
    assert math.isnan(attack.remainder)
    # Of a gradient that is of this form it is the certified answer.
    sure, unsure = (tensor.reconstruct(g, weights, certify=c, **settings) for c in (True, False))
    np.testing.assert_array_equal(sure.inputs, unsure.inputs)
    assert (sure.reason, sure.misfit) == (unsure.reason, unsure.misfit)


def test_noise() -> None:
    x, r = _batch(3, 10, 5, [0.9, -0.8, 0.7])
    weights = tensor.GaussianWeights(50_000, 10, 0)
    g = tensor.output_gradient(x, r, weights, "elu")
    noise = np.random.default_rng(1).standard_normal(len(g))
    errors = []
    for sigma in (0.0, 1.0):
        attack = tensor.reconstruct(g + sigma * noise, weights, num_examples=3, activation="elu")
        errors.append(_error(attack, x))
        assert attack.error_estimates.max() == pytest.approx(tensor.match(attack.inputs, x).errors.max(), rel=0.35)
    assert errors[1] > 2 * errors[0]


@pytest.mark.parametrize("activation", ["elu", "relu", "tanh"])
def test_slope_of_the_joint_fit(activation: str) -> None:
    weights, (x, r) = tensor.GaussianWeights(3000, 6, 1), _batch(3, 6, 0, [1.0, -0.7, 0.9])
    orders = tensor.choose(activation)
    g = tensor.output_gradient(x, r, weights, activation)
    joint = JointFit(estimate(g, Weights.read(weights), orders, 3, True, 0.1), orders.coefficients)
    z = np.random.default_rng(0).standard_normal(3 * 6 + 3)
    numeric = [(joint(z + 1e-5 * e, 3)[0] - joint(z - 1e-5 * e, 3)[0]) / 2e-5 for e in np.eye(len(z))]
    np.testing.assert_allclose(joint(z, 3)[1], numeric, atol=1e-8 * np.abs(numeric).max())


def test_lost_span() -> None:
    """Noise of 4 where residuals are about 1 hides an input from order 2, but not from order 1."""
    errors = []
    for seed in (1, 2, 4):
        x, r = _batch(2, 20, seed, [1.1, -0.9])
        weights = tensor.GaussianWeights(20_000, 20, seed)
        g = tensor.output_gradient(x, r, weights, "elu") + 4.0 * np.random.default_rng(seed).standard_normal(20_000)
        attack = tensor.reconstruct(g, weights, num_examples=2, activation="elu", certify=False)
        errors.append(_error(attack, x) if len(attack.inputs) == 2 else math.inf)
    assert np.median(errors) < 0.45


def test_weights_and_factors() -> None:
    x, r = _batch(2, 6, 6, [0.9, -0.8])
    weights = tensor.GaussianWeights(20_000, 6, 3)
    array = weights.rows(0, 20_000)
    assert np.array_equal(weights.rows(7, 9), array[7:9])
    g = tensor.output_gradient(x, r, weights, "elu")
    np.testing.assert_array_equal(g, tensor.output_gradient(x, r, array, "elu"))
    first = tensor.reconstruct(g, weights, num_examples=2, activation="elu")
    second = tensor.reconstruct(torch.from_numpy(-3.0 * g), torch.from_numpy(array), num_examples=2, activation="elu")
    order = tensor.match(second.inputs, first.inputs).order
    np.testing.assert_allclose(second.inputs, first.inputs[order], atol=1e-6)
    np.testing.assert_allclose(second.residuals, -3.0 * first.residuals[order], rtol=1e-6)


def test_one_example() -> None:
    x, r = _batch(1, 8, 7, [0.5])
    for activation in ("relu", "elu", "tanh"):
        assert _error(_attack(activation, 20_000, x, r), x) < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_examples": 7}, r"`num_examples` must be at most d=6, got 7"),
        ({"num_examples": 0}, "`num_examples` must be at least 1, got 0"),
        ({"gradient": np.zeros(99)}, r"`gradient` must have shape \(100,\), one entry per neuron, got \(99,\)"),
        ({"gradient": np.full(100, np.nan)}, r"`gradient\[0\]` must be finite, got nan"),
        ({"weights": np.zeros(100)}, "`weights` must have shape"),
        ({"activation": "cube"}, r"`activation` must be 'identity', 'relu', 'leaky_relu', 'elu',.*, got 'cube'"),
        ({"activation": lambda u: u.sum()}, "tensor of its input's shape"),
        (
            {"activation": Activation("mine", lipschitz=1.0)},
            r"`activation` must have a function to evaluate, and 'mine' has none",
        ),
        ({"activation": torch.log}, "must give finite values"),
        ({"activation": "tanh", "decomposition": tensor.Decomposition(method="power")}, "needs order 2"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {
        "gradient": np.ones(100), "weights": tensor.GaussianWeights(100, 6, 0), "num_examples": 2, "activation": "elu"
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        tensor.reconstruct(**{**settings, **change})


def test_bad_decompositions() -> None:
    for change, message in (
        ({"method": "qr"}, "`method` must be 'auto', 'diagonal' or 'power', got 'qr'"),
        ({"margin": 0.0}, r"`margin` must be above 0, got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            tensor.Decomposition(**change)
    with pytest.raises(TypeError, match="`subtract` must be True or False, got 1"):
        tensor.Decomposition(subtract=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`decomposition` must be of type Decomposition, got str"):
        tensor.reconstruct(np.ones(9), np.ones((9, 2)), num_examples=1, activation="elu", decomposition="power")  # type: ignore[arg-type]


def test_bad_batches() -> None:
    weights = tensor.GaussianWeights(100, 6, 0)
    for x, r, message in (
        (np.zeros((0, 6)), np.zeros(0), "`inputs` must have shape"),
        (np.zeros((2, 5)), np.zeros(2), "`inputs` must have shape"),
        (np.zeros((2, 6)), np.zeros(3), "`residuals` must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            tensor.output_gradient(x, r, weights, "elu")
    with pytest.raises(
        TypeError, match=r"`activation` must be a name, an Activation or callable on torch tensors, got 3"
    ):
        tensor.output_gradient(np.zeros((2, 6)), np.zeros(2), weights, 3)
    with pytest.raises(ValueError, match="num_neurons"):
        tensor.GaussianWeights(0, 6, 0)
    with pytest.raises(ValueError, match="`recovered` and `inputs` must have shapes"):
        tensor.match(np.zeros((3, 6)), np.zeros((2, 6)))


def _median(trials: int, m: int, d: int, count: int, activation: str, **how: Any) -> tuple[float, float]:
    """Medians of the error and of the inputs' distance from the span that was found."""
    errors = []
    for seed in range(trials):
        x, r = _batch(count, d, seed)
        attack = _attack(activation, m, x, r, seed, **how)
        if len(attack.inputs) == count:
            basis = np.linalg.qr(attack.inputs.T)[0]
            span = np.sqrt(np.square(x - x @ basis @ basis.T).sum(axis=1).mean())
            errors.append((_error(attack, x), span))
    assert len(errors) > trials / 2
    first, second = np.median(errors, axis=0)
    return float(first), float(second)


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "m"), [("elu", 10**5), ("relu", 10**5), ("softplus", 10**6)])
def test_median_error(activation: str, m: int) -> None:
    """B = 4, d = 20, |r_i| uniform in [.1, 1] with random signs, over 15 batches (5 at m = 10⁶)."""
    assert _median(15 if m == 10**5 else 5, m, 20, 4, activation)[0] <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["elu", "relu"])
def test_error_by_width(activation: str) -> None:
    m = np.array([20_000, 50_000, 125_000])
    errors = [_median(11, int(size), 20, 4, activation)[0] for size in m]
    assert np.polyfit(np.log(m), np.log(errors), 1)[0] == pytest.approx(-0.5, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["elu", "relu"])
def test_span_distance_by_dimension(activation: str) -> None:
    """Two inputs: the span has d − 2 directions to err in, which tells for B = 4 and d = 10 (slope .58)."""
    d = np.array([10, 20, 40, 80])
    spans = [_median(9, 60_000, int(size), 2, activation)[1] for size in d]
    assert np.polyfit(np.log(d), np.log(spans), 1)[0] == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_error_by_batch_size() -> None:
    """Residuals of one sign, medians of 7 networks, m = 200,000. At B = 2, 4, 8: slope .85 of raw moments, their
    noise is the whole gradient (its constant grows with B, the rest with √B, so the slope rises to 1 with B), and .37
    with the lower orders subtracted and all orders fitted jointly, errors 4 to 7 times smaller."""
    sizes, d, m = np.array([2, 4, 8]), 20, 200_000
    errors: dict[bool, list[list[float]]] = {False: [], True: []}
    for seed in range(7):
        weights = tensor.GaussianWeights(m, d, seed).rows(0, m)
        for subtract, rows in errors.items():
            row = []
            for count in sizes:
                x, r = _batch(int(count), d, seed, np.random.default_rng(seed).uniform(0.7, 1.0, int(count)))
                g = tensor.output_gradient(x, r, weights, "elu")
                attack = tensor.reconstruct(
                    g,
                    weights,
                    num_examples=int(count),
                    activation="elu",
                    decomposition=tensor.Decomposition(subtract=subtract),
                    certify=False,
                )
                row.append(_error(attack, x) if len(attack.inputs) == count else math.nan)
            rows.append(row)
    raw, subtracted = (np.nanmedian(np.array(rows), axis=0) for rows in errors.values())
    slopes = [float(np.polyfit(np.log(sizes), np.log(e), 1)[0]) for e in (raw, subtracted)]
    message = f"slopes in B: raw {slopes[0]:.2f} ({raw}), subtracted {slopes[1]:.2f} ({subtracted})"
    assert 0.55 <= slopes[0] <= 1.1, message
    assert 0.25 <= slopes[1] <= 0.6, message
    assert slopes[1] < slopes[0], message
    assert (3 * subtracted < raw).all(), message


@pytest.mark.full
@pytest.mark.parametrize("refined", [pytest.param(False, marks=pytest.mark.slow), True])
def test_error_estimates(refined: bool) -> None:
    """Noise on the gradient, some samples below it: 10 batches, every error at most 2.5 times its estimate."""
    ratios = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((4, 10))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        r = rng.uniform(0.4, 1, 4) * rng.choice([-1, 1], 4)
        if seed % 2:
            r[3] = rng.uniform(0.005, 0.05)
        w = tensor.GaussianWeights(30_000, 10, seed)
        g = tensor.output_gradient(x, r, w, "elu") + 0.3 * rng.standard_normal(30_000)
        attack = tensor.reconstruct(g, w, num_examples=4, activation="elu", refined=refined)
        if len(attack.inputs):
            errors = tensor.match(attack.inputs, x, signs_known=attack.signs_known).errors
            ratios += list(errors / attack.error_estimates)
    assert len(ratios) > 15
    assert max(ratios) < 2.5
    assert np.median(ratios) > 0.2


@pytest.mark.parametrize("exponent", [-1000, -600, 900])
def test_factor_of_the_gradient(exponent: int) -> None:
    """Squares of 1e-200 vanish, and of 1e200 overflow."""
    x, r = _batch(3, 6, 1)
    weights = tensor.GaussianWeights(4000, 6, 1)
    g = tensor.output_gradient(x, r, weights, "relu")
    plain, scaled = (
        tensor.reconstruct(v, weights, num_examples=3, activation="relu") for v in (g, np.ldexp(g, exponent))
    )
    assert len(plain.inputs) > 0
    for name in ("inputs", "error_estimates", "misfit", "remainder"):
        np.testing.assert_array_equal(getattr(scaled, name), getattr(plain, name))
    for name in ("residuals", "spectrum", "edge"):
        np.testing.assert_array_equal(getattr(scaled, name), np.ldexp(getattr(plain, name), exponent))
