"""Labels from one aggregated gradient: determined ones right and the others −1, whatever the model, rank and dtype."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcore.attacks import labels
from tests.attacks.labels.systems import DTYPES, attacked, breast_cancer, check, mlp, system

# All labels


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_batch(dtype: type) -> None:
    for seed in range(20):
        activations, truth, gradient = system(50, 200, dtype, seed)
        result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
        check(result, truth)
        np.testing.assert_array_equal(result.labels, truth)
        assert result.rank == 50
        assert result.condition < 4
        assert (result.kind, result.confidence) == ("lower", None)


def test_residuals() -> None:
    rng = np.random.default_rng(1)
    activations, probs, truth = rng.normal(size=(10, 30)), rng.random(10), rng.integers(0, 2, 10)
    e = probs - truth
    mean = labels.last_layer(activations, activations.T @ e / 10)
    np.testing.assert_allclose(mean.residuals, e, atol=1e-13)
    total = labels.last_layer(activations, labels.GradientObservation(activations.T @ e, reduction="sum"))
    np.testing.assert_allclose(total.residuals, e, atol=1e-13)
    expected = labels.last_layer(activations, labels.GradientObservation(activations.T @ e / 12.5, batch_size=12.5))
    np.testing.assert_allclose(expected.residuals, e, atol=1e-13)
    # A wrong divisor scales every residual and changes no label.
    wrong = labels.last_layer(activations, labels.GradientObservation(activations.T @ e / 10, batch_size=5))
    np.testing.assert_allclose(wrong.residuals, e / 2, atol=1e-13)
    np.testing.assert_array_equal(wrong.labels, mean.labels)


def _train(model: torch.nn.Module, x: np.ndarray, y: np.ndarray, steps: int, optimizer: str, lr: float) -> None:
    inputs, target = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=lr)
    for _ in range(steps):
        update.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], target).backward()
        update.step()


def _gradients(model: torch.nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
    weight, bias = torch.autograd.grad(loss, [model[-1].weight, model[-1].bias])
    return weight, bias


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("steps", "optimizer", "lr", "least"),
    # Trained models have p within rounding of y for many rows: those are undetermined, and fewer of them in float64.
    [(0, "SGD", 0.0, (1.0, 1.0)), (60, "SGD", 0.3, (0.9, 1.0)), (300, "Adam", 0.01, (0.2, 0.65))],
)
def test_breast_cancer(
    steps: int, optimizer: str, lr: float, least: tuple[float, float], dtype: torch.dtype, bias: bool
) -> None:
    x, y = breast_cancer()
    model = mlp()
    _train(model, x, y, steps, optimizer, lr)
    model = model.to(dtype)
    inputs, target = torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)
    order = np.random.default_rng(0).permutation(len(x))
    determined = 0
    batches = [order[i : i + 32] for i in range(0, 32 * 17, 32)]
    for rows in batches:
        weight, constant = _gradients(model, inputs[rows], target[rows])
        result = attacked(
            labels.last_layer,
            model,
            inputs[rows],
            labels.GradientObservation(weight, bias_gradient=constant if bias else None),
        )
        check(result, y[rows])
        determined += int(result.determined.sum())
    assert determined / (32 * len(batches)) >= least[dtype == torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@given(n=st.integers(1, 20), d=st.integers(1, 24), scale=st.floats(0.0, 40.0), seed=st.integers(0, 2**32))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_certainty(dtype: type, n: int, d: int, scale: float, seed: int) -> None:
    # Any shape, from uninformative to saturated models, ill-conditioned square systems included.
    activations, truth, gradient = system(n, d, dtype, seed, scale)
    result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
    check(result, truth)
    if n > d:
        assert not result.identifiable.all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_ill_conditioned_systems(dtype: type) -> None:
    rng = np.random.default_rng(5)
    shares = []
    for decades in range(0, 17, 2):
        for _ in range(20):
            left, _ = np.linalg.qr(rng.normal(size=(10, 10)))
            right, _ = np.linalg.qr(rng.normal(size=(30, 10)))
            activations = ((left * np.geomspace(1, 10.0**-decades, 10)) @ right.T).astype(dtype)
            truth = rng.integers(0, 2, 10)
            e = (rng.random(10).astype(dtype) - truth.astype(dtype)).astype(dtype)
            result = labels.last_layer(activations, activations.T @ e / dtype(10), noise=labels.Noise(0))
            check(result, truth)
            if decades == 0:
                shares.append(result.value)
    assert np.mean(shares) > 0.999


# Undetermined labels


@pytest.mark.parametrize("dtype", DTYPES)
def test_duplicated_and_zero_rows(dtype: type) -> None:
    activations, truth, _ = system(12, 40, dtype)
    activations[7] = activations[2]
    activations[9] = 0
    e = np.random.default_rng(2).random(12).astype(dtype) - truth.astype(dtype)
    result = labels.last_layer(activations, activations.T @ e / dtype(12), noise=labels.Noise(0))
    check(result, truth)
    np.testing.assert_array_equal(np.flatnonzero(~result.determined), [2, 7, 9])
    assert result.rank == 10
    assert result.value == 0.75
    assert np.isinf(result.tolerance[[2, 7, 9]]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_rows_than_columns(dtype: type) -> None:
    activations, truth, gradient = system(30, 10, dtype)
    result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
    check(result, truth)
    assert not result.determined.any()
    assert result.rank == 10
    # One row that no other overlaps stays determined.
    activations = np.concatenate([activations, np.zeros((30, 1), dtype)], axis=1)
    activations[4] = 0
    activations[4, 10] = 1
    e = np.random.default_rng(3).random(30).astype(dtype) - truth.astype(dtype)
    result = labels.last_layer(activations, activations.T @ e / dtype(30), noise=labels.Noise(0))
    check(result, truth)
    np.testing.assert_array_equal(np.flatnonzero(result.determined), [4])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("label", [0, 1])
def test_one_sample(dtype: type, label: int) -> None:
    activations = np.array([[0.5, -2.0, 0.0]], dtype)
    result = labels.last_layer(activations, activations[0] * dtype(0.3 - label), noise=labels.Noise(0))
    np.testing.assert_array_equal(result.labels, [label])
    assert result.condition == pytest.approx(1.0)


def test_zero_activations() -> None:
    result = labels.last_layer(np.zeros((3, 4)), np.zeros(4), noise=labels.Noise(0))
    np.testing.assert_array_equal(result.labels, [-1, -1, -1])
    assert result.rank == 0
    assert result.condition == math.inf
    assert json.loads(result.to_json())["condition"] == "inf"


def test_saturated_float32_model() -> None:
    activations, truth, _ = system(50, 200, np.float32)
    logits = torch.tensor(np.random.default_rng(4).normal(size=50) * 40, dtype=torch.float32)
    e = (torch.sigmoid(logits) - torch.tensor(truth, dtype=torch.float32)).numpy()
    gradient = (torch.tensor(activations).T @ torch.tensor(e) / 50).numpy()
    result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
    check(result, truth)
    assert 0 < result.determined.sum() < 50
    saturated = np.abs(e) < 1e-9
    assert saturated.sum() >= 5
    assert not result.determined[saturated].any()
    # Without the tolerance some of their signs are wrong: the guard is not idle.
    assert ((result.residuals < 0) != truth)[saturated].any()


def test_clipped_gradients() -> None:
    for dtype in DTYPES:
        activations, truth, _ = system(30, 100, dtype)
        e = np.random.default_rng(6).random(30).astype(dtype) - truth.astype(dtype)
        per_sample = activations * e[:, None]
        clipped = per_sample / np.maximum(1, np.linalg.norm(per_sample, axis=1, keepdims=True) / dtype(0.1))
        result = labels.last_layer(
            activations, labels.GradientObservation(clipped.sum(axis=0), reduction="sum"), noise=labels.Noise(0)
        )
        np.testing.assert_array_equal(result.labels, truth)


def test_rounding_tolerance() -> None:
    # Float32 gradients of the same e, summed in 400 different orders: no residual is further from e than its tolerance.
    rng = np.random.default_rng(9)
    activations, truth, _ = system(40, 80, np.float32)
    e = (rng.random(40) - truth).astype(np.float32)
    for _ in range(400):
        order = rng.permutation(40)
        gradient = np.zeros(80, np.float32)
        for r in order:
            gradient += activations[r] * e[r]
        result = labels.last_layer(activations, gradient / np.float32(40))
        assert (np.abs(result.residuals - e.astype(float)) <= result.tolerance).all()
    assert result.tolerance.max() < 1e-3


def test_coarser_arithmetic() -> None:
    activations, _, gradient = system(10, 20, np.float64)
    fine = labels.last_layer(activations, gradient)
    coarse = labels.last_layer(activations, gradient, precision=labels.Precision(unit_roundoff=2.0**-11))
    assert (coarse.tolerance > 1e8 * fine.tolerance).all()
    half = labels.last_layer(activations, gradient.astype(np.float16))
    assert (half.tolerance > 1e8 * fine.tolerance).all()
    bfloat = labels.last_layer(torch.tensor(activations), torch.tensor(gradient).to(torch.bfloat16))
    assert (bfloat.tolerance > half.tolerance).all()


def _classifier(classes: int, dtype: torch.dtype, scale: float = 1.0, seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(10, 40), torch.nn.Tanh(), linear(40, 30), torch.nn.ReLU(), linear(30, classes))
    with torch.no_grad():
        model[4].weight *= scale
    return model.to(dtype)


def _seen(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 5])
def test_layers_of_a_classifier(dtype: torch.dtype, classes: int) -> None:
    for scale in (1.0, 10.0, 300.0):  # up to saturation
        model = _classifier(classes, dtype, scale)
        x, y = torch.randn(24, 10, dtype=dtype), torch.randint(0, classes, (24,))
        observed = _seen(model, x, y)
        for names in ("2.weight", ["0.weight", "0.bias"], None):
            picked = (
                observed if names is None else [observed[n] for n in ([names] if isinstance(names, str) else names)]
            )
            recovery = attacked(labels.general, model, x, picked, parameters=names)
            assert (recovery.labels == y.numpy())[recovery.determined].all()
            assert recovery.residuals.shape == recovery.tolerance.shape == (24, classes)
            assert recovery.kind == "lower"
            assert not np.isnan(recovery.tolerance).any()
            if scale == 1.0:
                assert recovery.value == 1.0
                probs = model(x).softmax(1).detach().double().numpy()
                np.testing.assert_allclose(
                    recovery.residuals, probs - np.eye(classes)[y], atol=1e-3 if dtype == torch.float32 else 1e-11
                )


def test_residual_tolerance() -> None:
    for seed in range(5):
        model = _classifier(4, torch.float32, 3.0, seed)
        x, y = torch.randn(20, 10), torch.randint(0, 4, (20,))
        recovery = attacked(labels.general, model, x, _seen(model, x, y)["2.weight"], parameters="2.weight")
        truth = model.double()(x.double()).softmax(1).detach().numpy() - np.eye(4)[y]
        known = recovery.identifiable
        assert (np.abs(recovery.residuals - truth)[known] <= recovery.tolerance[known]).all()


def test_few_weights_for_the_classes() -> None:
    # 20 rows of 4 classes are 60 unknowns; one neuron's 41 weights cannot hold them.
    model = _classifier(4, torch.float64)
    x, y = torch.randn(20, 10, dtype=torch.float64), torch.randint(0, 4, (20,))
    gradient = _seen(model, x, y)["2.bias"]
    blind = attacked(labels.general, model, x, gradient, parameters="2.bias")
    np.testing.assert_array_equal(blind.labels, np.full(20, -1))
    assert blind.rank <= 30
    few = attacked(
        labels.general, model, x[:10], _seen(model, x[:10], y[:10])["2.bias"], parameters="2.bias", known_probs=True
    )
    assert (few.labels == y[:10].numpy())[few.determined].all()
    whole = attacked(labels.general, model, x, _seen(model, x, y)["2.weight"], parameters="2.weight", known_probs=True)
    np.testing.assert_array_equal(whole.labels, y)
    assert whole.residuals.shape == (20, 4)


def test_classifier_noise_and_differences() -> None:
    model = _classifier(3, torch.float64)
    x, y = torch.randn(12, 10, dtype=torch.float64), torch.randint(0, 3, (12,))
    gradient = _seen(model, x, y)["2.weight"]
    before = model[2].weight.detach().clone()
    torch.optim.SGD([model[2].weight], lr=0.1).step()
    difference = model[2].weight.detach() - before
    with torch.no_grad():
        model[2].weight.copy_(before)
    recovery = attacked(
        labels.general, model, x, labels.WeightDifference(difference, labels.SGD(0.1)), parameters="2.weight"
    )
    np.testing.assert_array_equal(recovery.labels, y)
    rng = np.random.default_rng(1)
    wrong = determined = 0
    for _ in range(100):
        noisy = gradient.numpy() + 1e-4 * rng.normal(size=gradient.shape)
        recovery = labels.general(
            labels.KnownModel(model, x), noisy, parameters="2.weight", noise=labels.Noise(1e-4, 0.9)
        )
        wrong += bool((recovery.labels != y.numpy())[recovery.determined].any())
        determined += int(recovery.determined.sum())
    assert wrong <= 22  # Binomial(100, 0.1) is above 22 with probability below 1e-4
    assert determined > 100


def test_several_weight_vectors() -> None:
    rng = np.random.default_rng(2)
    rows, truth = rng.normal(size=(12, 20)), rng.integers(0, 3, 12)
    e = rng.dirichlet(np.ones(3), 12) - np.eye(3)[truth]
    recovery = labels.general(rows, e.T @ rows / 12, noise=labels.Noise(0))
    np.testing.assert_array_equal(recovery.labels, truth)
    np.testing.assert_allclose(recovery.residuals, e, atol=1e-12)
