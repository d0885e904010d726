"""Labels from one aggregated gradient: determined ones right and the others −1, whatever the model, rank and dtype."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from sklearn.datasets import load_breast_cancer

from leakcore.attacks import labels

DTYPES = [np.float32, np.float64]


def _system(
    n: int, d: int, dtype: type = np.float64, seed: int = 0, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activations, labels and the averaged gradient, all computed in `dtype`."""
    rng = np.random.default_rng(seed)
    activations = rng.normal(size=(n, d)).astype(dtype)
    probs = special.expit(scale * rng.normal(size=n)).astype(dtype)
    truth = rng.integers(0, 2, n)
    gradient = activations.T @ (probs - truth.astype(dtype)) / dtype(n)
    return activations, truth, gradient


def _check(result: labels.LabelRecovery, truth: np.ndarray) -> None:
    """What must hold for every result: determined labels right, undetermined −1, nothing NaN."""
    np.testing.assert_array_equal(result.labels[result.determined], truth[result.determined])
    assert (result.labels[~result.determined] == -1).all()
    assert not (result.determined & ~result.identifiable).any()
    assert np.isfinite(result.residuals).all()
    assert not np.isnan(result.tolerance).any()
    assert result.labels.dtype == np.int64
    assert result.value == result.determined.mean()


# All labels


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_labels_of_a_random_batch(dtype: type) -> None:
    for seed in range(20):
        activations, truth, gradient = _system(50, 200, dtype, seed)
        result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
        _check(result, truth)
        np.testing.assert_array_equal(result.labels, truth)
        assert result.rank == 50
        assert result.condition < 4
        assert (result.kind, result.confidence) == ("lower", None)


def test_residuals_are_p_minus_y() -> None:
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


def _breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    data = load_breast_cancer()
    return (data.data - data.data.mean(axis=0)) / data.data.std(axis=0), data.target


def _mlp(seed: int = 0, sizes: tuple[int, int] = (30, 64)) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(*sizes), torch.nn.ReLU(), torch.nn.Linear(sizes[1], 1))


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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("steps", "optimizer", "lr", "least"),
    # Trained models have p within rounding of y for many rows: those are undetermined, and fewer of them in float64.
    [(0, "SGD", 0.0, (1.0, 1.0)), (60, "SGD", 0.3, (0.9, 1.0)), (300, "Adam", 0.01, (0.2, 0.65))],
)
def test_breast_cancer_at_initialisation_and_trained(
    steps: int, optimizer: str, lr: float, least: tuple[float, float], dtype: torch.dtype, bias: bool
) -> None:
    x, y = _breast_cancer()
    model = _mlp()
    _train(model, x, y, steps, optimizer, lr)
    model = model.to(dtype)
    inputs, target = torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)
    order = np.random.default_rng(0).permutation(len(x))
    determined = 0
    batches = [order[i : i + 32] for i in range(0, 32 * 17, 32)]
    for rows in batches:
        weight, constant = _gradients(model, inputs[rows], target[rows])
        result = labels.last_layer(
            labels.KnownModel(model, inputs[rows]),
            labels.GradientObservation(weight, bias_gradient=constant if bias else None),
            noise=labels.Noise(0),
        )
        _check(result, y[rows])
        determined += int(result.determined.sum())
    assert determined / (32 * len(batches)) >= least[dtype == torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@given(n=st.integers(1, 20), d=st.integers(1, 24), scale=st.floats(0.0, 40.0), seed=st.integers(0, 2**32))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_no_determined_label_is_ever_wrong(dtype: type, n: int, d: int, scale: float, seed: int) -> None:
    # Any shape, from uninformative to saturated models, ill-conditioned square systems included.
    activations, truth, gradient = _system(n, d, dtype, seed, scale)
    result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
    _check(result, truth)
    if n > d:
        assert not result.identifiable.all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_ill_conditioned_systems_are_right_or_undetermined(dtype: type) -> None:
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
            _check(result, truth)
            if decades == 0:
                shares.append(result.value)
    assert np.mean(shares) > 0.999


# Undetermined labels


@pytest.mark.parametrize("dtype", DTYPES)
def test_duplicated_and_zero_rows_are_undetermined_and_the_rest_right(dtype: type) -> None:
    activations, truth, _ = _system(12, 40, dtype)
    activations[7] = activations[2]
    activations[9] = 0
    e = np.random.default_rng(2).random(12).astype(dtype) - truth.astype(dtype)
    result = labels.last_layer(activations, activations.T @ e / dtype(12), noise=labels.Noise(0))
    _check(result, truth)
    np.testing.assert_array_equal(np.flatnonzero(~result.determined), [2, 7, 9])
    assert result.rank == 10
    assert result.value == 0.75
    assert np.isinf(result.tolerance[[2, 7, 9]]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_rows_than_columns(dtype: type) -> None:
    activations, truth, gradient = _system(30, 10, dtype)
    result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
    _check(result, truth)
    assert not result.determined.any()
    assert result.rank == 10
    # One row that no other overlaps stays determined.
    activations = np.concatenate([activations, np.zeros((30, 1), dtype)], axis=1)
    activations[4] = 0
    activations[4, 10] = 1
    e = np.random.default_rng(3).random(30).astype(dtype) - truth.astype(dtype)
    result = labels.last_layer(activations, activations.T @ e / dtype(30), noise=labels.Noise(0))
    _check(result, truth)
    np.testing.assert_array_equal(np.flatnonzero(result.determined), [4])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("label", [0, 1])
def test_one_sample(dtype: type, label: int) -> None:
    activations = np.array([[0.5, -2.0, 0.0]], dtype)
    result = labels.last_layer(activations, activations[0] * dtype(0.3 - label), noise=labels.Noise(0))
    np.testing.assert_array_equal(result.labels, [label])
    assert result.condition == pytest.approx(1.0)


def test_all_zero_activations() -> None:
    result = labels.last_layer(np.zeros((3, 4)), np.zeros(4), noise=labels.Noise(0))
    np.testing.assert_array_equal(result.labels, [-1, -1, -1])
    assert result.rank == 0
    assert result.condition == math.inf
    assert json.loads(result.to_json())["condition"] == "inf"


def test_saturated_float32_model_is_undetermined_not_wrong() -> None:
    activations, truth, _ = _system(50, 200, np.float32)
    logits = torch.tensor(np.random.default_rng(4).normal(size=50) * 40, dtype=torch.float32)
    e = (torch.sigmoid(logits) - torch.tensor(truth, dtype=torch.float32)).numpy()
    gradient = (torch.tensor(activations).T @ torch.tensor(e) / 50).numpy()
    result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
    _check(result, truth)
    assert 0 < result.determined.sum() < 50
    saturated = np.abs(e) < 1e-9
    assert saturated.sum() >= 5
    assert not result.determined[saturated].any()
    # Without the tolerance some of their signs are wrong: the guard is not idle.
    assert ((result.residuals < 0) != truth)[saturated].any()


def test_clipped_gradients_keep_signs() -> None:
    for dtype in DTYPES:
        activations, truth, _ = _system(30, 100, dtype)
        e = np.random.default_rng(6).random(30).astype(dtype) - truth.astype(dtype)
        per_sample = activations * e[:, None]
        clipped = per_sample / np.maximum(1, np.linalg.norm(per_sample, axis=1, keepdims=True) / dtype(0.1))
        result = labels.last_layer(
            activations, labels.GradientObservation(clipped.sum(axis=0), reduction="sum"), noise=labels.Noise(0)
        )
        np.testing.assert_array_equal(result.labels, truth)


def test_rounding_stays_within_the_tolerance() -> None:
    # Float32 gradients of the same e, summed in 400 different orders: no residual is further from e than its tolerance.
    rng = np.random.default_rng(9)
    activations, truth, _ = _system(40, 80, np.float32)
    e = (rng.random(40) - truth).astype(np.float32)
    for _ in range(400):
        order = rng.permutation(40)
        gradient = np.zeros(80, np.float32)
        for r in order:
            gradient += activations[r] * e[r]
        result = labels.last_layer(activations, gradient / np.float32(40))
        assert (np.abs(result.residuals - e.astype(float)) <= result.tolerance).all()
    assert result.tolerance.max() < 1e-3


def test_coarser_arithmetic_than_the_dtype_must_be_declared() -> None:
    activations, _, gradient = _system(10, 20, np.float64)
    fine = labels.last_layer(activations, gradient)
    coarse = labels.last_layer(activations, gradient, precision=labels.Precision(unit_roundoff=2.0**-11))
    assert (coarse.tolerance > 1e8 * fine.tolerance).all()
    half = labels.last_layer(activations, gradient.astype(np.float16))
    assert (half.tolerance > 1e8 * fine.tolerance).all()
    bfloat = labels.last_layer(torch.tensor(activations), torch.tensor(gradient).to(torch.bfloat16))
    assert (bfloat.tolerance > half.tolerance).all()


# Noise


def test_known_noise_leaves_no_wrong_label_at_its_confidence() -> None:
    # 2,000 noisy gradients at 90%: batches with any wrong determined label are at most a tenth of them (binomial,
    # 1e-4).
    activations, truth, gradient = _system(12, 40)
    rng = np.random.default_rng(11)
    wrong = determined = guesses = 0
    for _ in range(2000):
        noisy = gradient + rng.normal(size=40) * 0.15
        result = labels.last_layer(activations, noisy, noise=labels.Noise(0.15, 0.9))
        assert (result.kind, result.confidence) == ("lower", 0.9)
        decided = result.determined
        wrong += bool((result.labels[decided] != truth[decided]).any())
        determined += int(decided.sum())
        guesses += int(((result.residuals < 0) != truth).sum())
    assert wrong <= stats.binom.ppf(1 - 1e-4, 2000, 0.1)
    assert 0 < determined < 2000 * 12
    # The bare signs are wrong far more often than that.
    assert guesses / 2000 > 0.5


def test_unknown_noise_is_an_estimate_and_names_every_sign() -> None:
    activations, _, gradient = _system(12, 40)
    result = labels.last_layer(activations, gradient + 0.05)
    assert (result.kind, result.confidence) == ("estimate", None)
    assert result.determined.all()
    assert any("not known" in note for note in result.assumptions.notes)


# What the attacker holds and sees


def test_bias_gradient_adds_a_column_of_ones() -> None:
    activations, truth, _ = _system(11, 10)
    e = np.random.default_rng(1).random(11) - truth
    without = labels.last_layer(activations, activations.T @ e / 11, noise=labels.Noise(0))
    assert not without.determined.any()
    with_bias = labels.last_layer(
        activations, labels.GradientObservation(activations.T @ e / 11, bias_gradient=e.mean()), noise=labels.Noise(0)
    )
    np.testing.assert_array_equal(with_bias.labels, truth)
    assert with_bias.rank == 11


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_weight_difference_of_one_sgd_step(dtype: torch.dtype, bias: bool) -> None:
    x, y = _breast_cancer()
    model = _mlp().to(dtype)
    inputs, target = torch.tensor(x[:32], dtype=dtype), torch.tensor(y[:32], dtype=dtype)
    before = _mlp().to(dtype)
    update = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], target).backward()
    update.step()
    difference = (model[-1].weight - before[-1].weight).detach()
    bias_difference = (model[-1].bias - before[-1].bias).detach()
    result = labels.last_layer(
        labels.KnownModel(before, inputs),
        labels.WeightDifference(difference, labels.SGD(0.5), bias_difference=bias_difference if bias else None),
        noise=labels.Noise(0),
    )
    _check(result, y[:32])
    assert result.value == 1.0
    assert result.kind == "lower"
    activations = before[:2](inputs).detach()
    blind = labels.last_layer(activations, labels.WeightDifference(difference, labels.SGD(0.5)), noise=labels.Noise(0))
    assert blind.kind == "estimate"
    assert any("weights were not given" in note for note in blind.assumptions.notes)
    weights = before[-1].weight.detach()
    informed = labels.last_layer(
        activations, labels.WeightDifference(difference, labels.SGD(0.5), weights=weights), noise=labels.Noise(0)
    )
    assert informed.kind == "lower"
    assert (informed.tolerance > blind.tolerance).all()


def test_a_small_step_is_lost_in_the_rounding_of_the_weights() -> None:
    # lr·g far below the spacing of the stored float32 weights: signs are wrong, and the tolerance knows.
    rng = np.random.default_rng(0)
    activations, truth, gradient = _system(40, 60, np.float32)
    before = rng.normal(size=60).astype(np.float32)
    difference = (before - np.float32(3e-7) * gradient) - before
    result = labels.last_layer(
        activations, labels.WeightDifference(difference, labels.SGD(3e-7), weights=before), noise=labels.Noise(0)
    )
    _check(result, truth)
    assert ((result.residuals < 0) != truth).any()
    assert not result.determined.any()


def test_the_model_is_left_as_it_was_and_batch_norm_is_followed() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 24), torch.nn.BatchNorm1d(24), torch.nn.Tanh(), torch.nn.Linear(24, 1), torch.nn.Sigmoid()
    ).double()
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(0, 2, (8,))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    loss = torch.nn.functional.binary_cross_entropy(
        torch.func.functional_call(model, {k: v.clone() for k, v in model.named_buffers()}, (x,))[:, 0], y.double()
    )
    gradient = torch.autograd.grad(loss, model[3].weight)[0]
    result = labels.last_layer(labels.KnownModel(model, x), gradient, noise=labels.Noise(0))
    np.testing.assert_array_equal(result.labels, y.numpy())
    assert model.training
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_models_whose_last_layer_cannot_be_read_are_refused() -> None:
    x = torch.randn(4, 6)
    gradient = np.zeros(6)
    with pytest.raises(ValueError, match=r"no torch\.nn\.Linear"):
        labels.last_layer(labels.KnownModel(torch.nn.Identity(), x), gradient)
    with pytest.raises(
        ValueError, match=r"`gradient` must have one weight vector for each of the model's 2 logits, got 1"
    ):
        labels.last_layer(labels.KnownModel(torch.nn.Linear(6, 2), x), gradient)
    with pytest.raises(ValueError, match="random in training mode"):
        labels.last_layer(
            labels.KnownModel(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(6, 1)), x), gradient
        )
    with pytest.raises(ValueError, match="neither the output of its last linear layer nor the sigmoid or softmax"):
        labels.last_layer(labels.KnownModel(torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.Tanh()), x), gradient)
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module, got str"):
        labels.last_layer(labels.KnownModel("model", x), gradient)  # type: ignore[arg-type]
    # In evaluation mode dropout does nothing.
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(6, 1)).eval()
    assert labels.last_layer(labels.KnownModel(model, x), gradient).identifiable.all()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"`inputs` must hold at least one row, got shape \(0, 4\)"):
        labels.general(labels.KnownModel(torch.nn.Linear(4, 3), torch.zeros(0, 4)), np.zeros(15))
    a, g = np.ones((3, 4)), np.ones(4)

    def step(**change: object) -> labels.WeightDifference:
        return labels.WeightDifference(g, labels.SGD(1), **change)  # type: ignore[arg-type]

    observed = labels.GradientObservation
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: labels.last_layer(a, np.ones(5)),
            r"`gradient` must have shape \(4,\) or \(K, 4\) to match the activations, got \(5,\)",
        ),
        (
            lambda: labels.last_layer(a, np.ones((4, 2))),
            r"`gradient` must have shape \(4,\) or \(K, 4\) to match the activations, got \(4, 2\)",
        ),
        (lambda: labels.last_layer(a[0], g), r"`activations` must have shape \(N, .*got \(4,\)"),
        (lambda: labels.last_layer(a[:0], g), r"`activations` must have shape \(N, .*got \(0, 4\)"),
        (lambda: labels.last_layer(a * np.nan, g), r"activations\[0, 0\]=nan: must be finite"),
        (lambda: labels.last_layer(a, g * np.inf), r"gradient\[0\]=inf"),
        (lambda: labels.last_layer(torch.ones(3, 4, requires_grad=True), g), r"activations.*detach"),
        (lambda: labels.last_layer(labels.KnownModel([], a), g), "`model` must hold at least one module"),
        (lambda: labels.last_layer(a, labels.WeightDifference(g, labels.SGD(0))), "lr=0"),
        (lambda: labels.last_layer(a, step(weights=g[:2])), r"`weights` must have the difference's .*got \(2,\)"),
        (lambda: labels.last_layer(a, observed(g, reduction="none")), "reduction='none'"),  # type: ignore[arg-type]
        (
            lambda: labels.last_layer(a, observed(g, reduction="sum", batch_size=3)),
            r"`batch_size=3` is allowed only with reduction='mean'; a sum is not divided",
        ),
        (lambda: labels.last_layer(a, observed(g, batch_size=0)), "batch_size=0"),
        (lambda: step(batch_size=0), "batch_size=0"),
        (lambda: labels.Noise(-1), "std=-1"),
        (lambda: labels.Noise(1), "`confidence` must be given"),
        (lambda: labels.Noise(0, confidence=0.9), "`confidence` is allowed only with std > 0"),
        (lambda: labels.Noise(1, confidence=1), "confidence=1"),
        (lambda: labels.Precision(unit_roundoff=0), "unit_roundoff=0"),
        (lambda: labels.Precision(rcond=1), "rcond=1"),
        (
            lambda: labels.last_layer(a, observed(g, bias_gradient=np.ones(2))),
            r"`bias_gradient` must hold one value per weight vector, 1 in all, got shape \(2,\)",
        ),
        (lambda: labels.general(a, observed(g, bias_gradient=1.0)), "bias_gradient: only for one layer"),
        (lambda: labels.general(a, step(bias_difference=1.0)), "bias_difference: only for one layer"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: labels.last_layer(None, g), r"`knowledge` must be activations, .*got a NoneType"),
        (lambda: labels.last_layer(torch.nn.Linear(4, 1), g), r"`knowledge` must be activations, .*got a Linear"),
        (lambda: labels.general(torch.nn.Linear(4, 1), g), r"`knowledge` must be jacobian, an .*got a Linear"),
        (lambda: labels.KnownModel(torch.nn.Linear(4, 1)), "inputs"),  # type: ignore[call-arg]
        (lambda: labels.last_layer(a, None), "`observation` must be a gradient.*got None"),
        (lambda: labels.WeightDifference(g), "optimizer"),  # type: ignore[call-arg]
        (lambda: labels.WeightDifference(g, 0.1), r"`optimizer` must be torch\.optim\.SGD .*got float"),
        (lambda: observed(g, weights=g), "weights"),  # type: ignore[call-arg]
        (lambda: observed(g, bias_difference=0.1), "bias_difference"),  # type: ignore[call-arg]
        (lambda: step(bias_gradient=1.0), "bias_gradient"),
        (lambda: step(momentum=0.9), "momentum"),
        (lambda: labels.last_layer(a, g, noise=0.1), "noise is a float: must be a Noise"),  # type: ignore[arg-type]
        (lambda: labels.last_layer(a, g, precision=1e-3), "precision is a float"),  # type: ignore[arg-type]
    ]
    for call, message in wrong:
        with pytest.raises(TypeError, match=message):
            call()


def test_the_result_says_what_it_is() -> None:
    activations, _, gradient = _system(5, 9)
    result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
    assert result.adjacency is None
    assert "Algorithm 3" in result.provenance
    assert "inputs of the last layer" in result.assumptions.attacker
    assert json.loads(result.to_json())["labels"] == result.labels.tolist()
