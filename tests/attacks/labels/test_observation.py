"""What attackers see: aggregated gradients with and without a bias, and the differences that steps of SGD leave."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import special, stats

from leakcore.attacks import labels
from leakcore.kernels import solve_labels
from tests.attacks.labels.systems import attacked, breast_cancer, check, mlp, system

# Noise


@pytest.mark.full
def test_known_noise() -> None:
    # 2,000 noisy gradients at 90%: batches with any wrong determined label are at most a tenth of them (binomial,
    # 1e-4).
    activations, truth, gradient = system(12, 40)
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


def test_unknown_noise() -> None:
    activations, _, gradient = system(12, 40)
    result = labels.last_layer(activations, gradient + 0.05)
    assert (result.kind, result.confidence) == ("estimate", None)
    assert result.determined.all()
    assert any("not known" in note for note in result.assumptions.notes)


# What the attacker holds and sees


def test_bias_gradient() -> None:
    activations, truth, _ = system(11, 10)
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
def test_weight_difference(dtype: torch.dtype, bias: bool) -> None:
    x, y = breast_cancer()
    model = mlp().to(dtype)
    inputs, target = torch.tensor(x[:32], dtype=dtype), torch.tensor(y[:32], dtype=dtype)
    before = mlp().to(dtype)
    update = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], target).backward()
    update.step()
    difference = (model[-1].weight - before[-1].weight).detach()
    bias_difference = (model[-1].bias - before[-1].bias).detach()
    result = attacked(
        labels.last_layer,
        before,
        inputs,
        labels.WeightDifference(difference, labels.SGD(0.5), bias_difference=bias_difference if bias else None),
    )
    check(result, y[:32])
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


def test_small_step_in_rounded_weights() -> None:
    # lr·g far below the spacing of the stored float32 weights: signs are wrong, and the tolerance knows.
    rng = np.random.default_rng(0)
    activations, truth, gradient = system(40, 60, np.float32)
    before = rng.normal(size=60).astype(np.float32)
    difference = (before - np.float32(3e-7) * gradient) - before
    result = labels.last_layer(
        activations, labels.WeightDifference(difference, labels.SGD(3e-7), weights=before), noise=labels.Noise(0)
    )
    check(result, truth)
    assert ((result.residuals < 0) != truth).any()
    assert not result.determined.any()


def test_model_state_and_batch_norm() -> None:
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
    result = attacked(labels.last_layer, model, x, gradient)
    np.testing.assert_array_equal(result.labels, y.numpy())
    assert model.training
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_bad_input() -> None:
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
        (lambda: labels.last_layer(a * np.nan, g), r"`activations\[0, 0\]` must be finite, got nan"),
        (lambda: labels.last_layer(a, g * np.inf), r"`gradient\[0\]` must be finite, got inf"),
        (lambda: labels.last_layer(torch.ones(3, 4, requires_grad=True), g), r"activations.*detach"),
        (lambda: labels.last_layer(labels.KnownModel([], a), g), "`model` must hold at least one module"),
        (lambda: labels.last_layer(a, labels.WeightDifference(g, labels.SGD(0))), "`lr` must be above 0, got 0"),
        (lambda: labels.last_layer(a, step(weights=g[:2])), r"`weights` must have the difference's .*got \(2,\)"),
        (
            lambda: labels.last_layer(a, observed(g, reduction="none")),
            "`reduction` must be 'mean' or 'sum', got 'none'",
        ),  # type: ignore[arg-type]
        (
            lambda: labels.last_layer(a, observed(g, reduction="sum", batch_size=3)),
            r"`batch_size=3` is allowed only with reduction='mean'; a sum is not divided",
        ),
        (lambda: labels.last_layer(a, observed(g, batch_size=0)), "`batch_size` must be above 0, got 0"),
        (lambda: step(batch_size=0), "`batch_size` must be above 0, got 0"),
        (lambda: labels.Noise(-1), "`std` must be at least 0, got -1"),
        (lambda: labels.Noise(1), "`confidence` must be given"),
        (lambda: labels.Noise(0, confidence=0.9), "`confidence` is allowed only with std > 0"),
        (lambda: labels.Noise(1, confidence=1), r"`confidence` must be in \(0, 1 - 1e-12\], got 1"),
        (lambda: labels.Precision(unit_roundoff=0), r"`unit_roundoff` must be in \(0, 1\), got 0"),
        (lambda: labels.Precision(rcond=1), r"`rcond` must be in \[0, 1\), got 1"),
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
        (lambda: labels.last_layer(a, None), "`observation` must be a gradient.*got None"),
        (lambda: labels.WeightDifference(g, 0.1), r"`optimizer` must be torch\.optim\.SGD .*got float"),
        (lambda: labels.last_layer(a, g, noise=0.1), "`noise` must be of type Noise, got float"),  # type: ignore[arg-type]
        (lambda: labels.last_layer(a, g, precision=1e-3), "`precision` must be of type Precision, got float"),  # type: ignore[arg-type]
    ]
    for call, message in wrong:
        with pytest.raises(TypeError, match=message):
            call()


CONFIGURATIONS = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01},
    {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1},
]


def _binary(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[torch.nn.Sequential, torch.Tensor, np.ndarray]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(10, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1)).to(dtype)
    return model, torch.randn(20, 10, dtype=dtype), np.random.default_rng(seed).integers(0, 2, 20)


def _backward_step(model: torch.nn.Module, x: torch.Tensor, y: np.ndarray) -> None:
    model.zero_grad()
    torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], torch.tensor(y, dtype=x.dtype)).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", CONFIGURATIONS)
def test_sgd_differences(settings: dict[str, float], dtype: torch.dtype) -> None:
    model, x, y = _binary(dtype=dtype)
    update = torch.optim.SGD(model.parameters(), lr=0.5, **settings)
    for step in range(3):
        before = copy.deepcopy(model)
        buffer = update.state[model[2].weight].get("momentum_buffer")
        momentum = settings.get("momentum", 0) > 0
        momentum_buffer = None if not momentum else "first" if buffer is None else buffer.clone()
        _backward_step(model, x, y)
        true = model[2].weight.grad.clone().double().numpy()[0]
        update.step()
        recovery = attacked(
            labels.last_layer,
            before,
            x,
            labels.WeightDifference(
                (model[2].weight - before[2].weight).detach(), labels.SGD.of(update, momentum_buffer=momentum_buffer)
            ),
        )
        assert recovery.kind == "lower"
        assert (recovery.labels == y)[recovery.determined].all(), step
        assert recovery.value >= (1.0 if dtype == torch.float64 else 0.8)
        # The residuals are the same as from the gradient itself.
        direct = attacked(labels.last_layer, before, x, true)
        assert (np.abs(direct.residuals - recovery.residuals) <= recovery.tolerance).all()
        if momentum and step == 1:  # a momentum that is not accounted for does not pass unnoticed in the residuals
            plain = labels.last_layer(
                labels.KnownModel(before, x),
                labels.WeightDifference((model[2].weight - before[2].weight).detach(), labels.SGD(0.5)),
            )
            assert np.abs(plain.residuals - direct.residuals).max() > 100 * recovery.tolerance.max()


def test_other_optimisers() -> None:
    model, x, _ = _binary()
    parameters = list(model.parameters())
    known = labels.KnownModel(model, x)
    for optimizer in (torch.optim.Adam(parameters), torch.optim.AdamW(parameters), torch.optim.RMSprop(parameters)):
        with pytest.raises(TypeError, match=r"must be torch\.optim\.SGD or labels\.SGD"):
            labels.last_layer(known, labels.WeightDifference(np.ones(40), optimizer))
    for optimizer, message in [
        (torch.optim.SGD(parameters, lr=0.1, momentum=0.9), "`momentum_buffer` must be given"),
        (torch.optim.SGD(parameters, lr=0.1, maximize=True), "`optimizer` must have maximize=False, got True"),
        (
            torch.optim.SGD([{"params": parameters[:1], "lr": 1.0}, {"params": parameters[1:]}], lr=0.1),
            "`optimizer` must have the same lr, momentum,",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            labels.last_layer(known, labels.WeightDifference(np.ones(40), optimizer))
    for settings, message in [
        ({"lr": 0}, "`lr` must be above 0, got 0"),
        ({"lr": 1, "momentum": -1}, "`momentum` must be at least 0, got -1"),
        ({"lr": 1, "dampening": 1}, r"`dampening` must be in \[0, 1\), got 1"),
        ({"lr": 1, "weight_decay": -0.1}, r"`weight_decay` must be at least 0, got -0.1"),
        ({"lr": 1, "nesterov": True}, "`nesterov=True` needs momentum > 0 and dampening=0"),
        ({"lr": 1, "momentum_buffer": np.ones(4)}, "`momentum_buffer` is allowed only with momentum"),
        ({"lr": 1, "momentum": 0.9, "momentum_buffer": "zero"}, "must be an array or 'first'"),
    ]:
        with pytest.raises(ValueError, match=message):
            labels.SGD(**settings)
    rows = np.ones((3, 4))
    with pytest.raises(ValueError, match=r"`weights` must be given with weight_decay > 0"):
        labels.last_layer(rows, labels.WeightDifference(np.ones(4), labels.SGD(lr=1, weight_decay=0.1)))
    rule = labels.SGD(lr=1, momentum=0.9, momentum_buffer=np.ones(3))
    with pytest.raises(ValueError, match=r"`momentum_buffer` must have the difference's shape .*got \(3,\)"):
        labels.last_layer(rows, labels.WeightDifference(np.ones(4), rule))


def test_joined_steps() -> None:
    # Step 1 cannot tell rows 0 and 1 apart, step 2 not rows 2 and 3.
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2, 8, 12))
    rows[0, 1], rows[1, 3] = rows[0, 0], rows[1, 2]
    truth = rng.integers(0, 2, 8)
    e = rng.uniform(0.1, 0.9, (2, 8)) - truth
    gradient = np.einsum("snd,sn->sd", rows, e) / 8
    both = labels.last_layer(rows, gradient, noise=labels.Noise(0))
    np.testing.assert_array_equal(both.labels, truth)
    assert (both.value, both.kind, both.rank) == (1.0, "lower", 7)
    each = [labels.last_layer(rows[s], gradient[s], noise=labels.Noise(0)) for s in range(2)]
    assert [part.value for part in each] == [0.75, 0.75]
    np.testing.assert_array_equal(labels.combine(each).labels, truth)
    noisy = labels.last_layer(rows, gradient, noise=labels.Noise(1e-9, 0.99))
    assert noisy.confidence == pytest.approx(0.99)
    # Contradictions are not decided.
    other = labels.last_layer(rows[0], -gradient[0], noise=labels.Noise(0))
    assert (labels.combine([each[0], other]).labels == -1).all()
    with pytest.raises(ValueError, match="at least one"):
        labels.combine([])
    with pytest.raises(ValueError, match="same batch"):
        labels.combine([each[0], labels.last_layer(rows[0, :5], gradient[0])])
    with pytest.raises(TypeError, match=r"`recoveries\[0\]` must be a LabelRecovery, got int"):
        labels.combine([3])  # type: ignore[list-item]


def test_steps_of_models() -> None:
    model, x, y = _binary()
    models, gradients = [], []
    update = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        _backward_step(model, x, y)
        models.append(copy.deepcopy(model))
        gradients.append(model[2].weight.grad.numpy()[0].copy())
        update.step()
    for probs in (None, True):
        recovery = attacked(labels.last_layer, models, x, np.stack(gradients), known_probs=probs)
        np.testing.assert_array_equal(recovery.labels, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classes(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(10, 40), torch.nn.ReLU(), torch.nn.Linear(40, 6)).to(dtype)
    x, y = torch.randn(30, 10, dtype=dtype), torch.randint(0, 6, (30,))
    for scale, least in ((1.0, 1.0), (10.0, 1.0), (300.0, 0.7)):  # up to saturation
        with torch.no_grad():
            model[2].weight *= scale
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        for bias in (None, model[2].bias.grad):
            recovery = attacked(
                labels.last_layer, model, x, labels.GradientObservation(model[2].weight.grad, bias_gradient=bias)
            )
            assert (recovery.labels == y.numpy())[recovery.determined].all()
            assert recovery.residuals.shape == (30, 6)
            assert recovery.value >= least


def test_general_with_batch_norm() -> None:
    rng = np.random.default_rng(3)
    jacobian, e = rng.normal(size=(9, 20)), rng.random(9)
    truth = rng.integers(0, 2, 9)
    observed = jacobian.T @ (e - truth) / 9
    np.testing.assert_array_equal(labels.general(jacobian, observed, noise=labels.Noise(0)).labels, truth)
    by_difference = labels.general(
        jacobian, labels.WeightDifference(-0.1 * observed, labels.SGD(0.1), weights=np.zeros(20)), noise=labels.Noise(0)
    )
    np.testing.assert_array_equal(by_difference.labels, truth)
    assert by_difference.kind == "lower"
    # In training mode batch normalisation couples the rows; dZ_r/dW holds all the same.
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 30), torch.nn.BatchNorm1d(30), torch.nn.Tanh(), torch.nn.Linear(30, 1), torch.nn.Sigmoid()
    ).double()
    x, y = torch.randn(12, 6, dtype=torch.float64), rng.integers(0, 2, 12)
    loss = torch.nn.functional.binary_cross_entropy(model(x)[:, 0], torch.tensor(y).double())
    seen_layer = torch.autograd.grad(loss, [model[0].weight, model[0].bias])
    recovery = attacked(labels.general, model, x, list(seen_layer), parameters=["0.weight", "0.bias"])
    assert (recovery.labels == y)[recovery.determined].all()
    assert recovery.value > 0.9


def test_bad_general_input() -> None:
    model, x, _ = _binary()
    deep = torch.nn.Sequential(model[0], torch.nn.Unflatten(1, (8, 5)), torch.nn.Tanh())
    known, rows = labels.KnownModel(model, x), np.ones((3, 4))
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: labels.general(rows, np.ones(5)),
            r"`gradient` must have shape \(4,\) or \(K, 4\) to match the activations, got \(5,\)",
        ),
        (
            lambda: labels.general(rows, np.ones((2, 4)), known_probs=np.ones(3)),
            "`known_probs` must have as many classes as the gradient.*got 1",
        ),
        (
            lambda: labels.general(rows, np.ones(4), parameters="w"),
            "`parameters` is allowed only with labels.KnownModel",
        ),
        (
            lambda: labels.general(known, np.ones(4), parameters="w"),
            r"`parameters` must be some of the model's,.*, got 'w'",
        ),
        (
            lambda: labels.general(known, np.ones(4), parameters="0.weight"),
            r"`gradient` must have shape \(40, 10\) for.*, got \(4,\)",
        ),
        (lambda: labels.general(known, {"0.weight": np.ones(4)}), r"`gradient` must hold the parameter '0.bias'"),
        (lambda: labels.general(labels.KnownModel([model], x), np.ones(4)), "`model` must be one module, got a list"),
        (
            lambda: labels.general(labels.KnownModel(deep, x), np.ones(4)),
            r"`model` must return one or K logits per row, got shape \(20, 8, 5\) for 20 rows",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_accuracy_under_noise() -> None:
    """10,000 releases: each label's accuracy within the 99% interval around Φ(|u_r|/(N s √v_r)), Bonferroni over 50.

    u_r = e_r·min(1, C/‖g_r‖), s = σC/N (Yuan et al., Algorithm 2).
    """
    rng = np.random.default_rng(2024)
    n, d, draws, sigma, clip = 50, 200, 10_000, 0.5, 1.0
    rows = np.maximum(rng.normal(size=(n, d)), 0) / math.sqrt(d)
    truth = rng.integers(0, 2, n)
    e = special.expit(rng.normal(size=n)) - truth
    per_sample = e[:, None] * rows
    factor = np.minimum(1, clip / np.linalg.norm(per_sample, axis=1))
    clean = (per_sample * factor[:, None]).mean(axis=0)
    noise_std = sigma * clip / n
    released = clean[:, None] + noise_std * rng.normal(size=(d, draws))
    solved = solve_labels(rows, released)
    assert solved.identifiable.all()
    right = ((solved.residual < 0) == truth[:, None]).sum(axis=1)
    expected = special.ndtr(np.abs(e * factor) / (n * noise_std * np.sqrt(solved.leverage)))
    low = stats.binom.ppf(0.005 / n, draws, expected)
    high = stats.binom.ppf(1 - 0.005 / n, draws, expected)
    assert ((low <= right) & (right <= high)).all()
    assert 0.55 < expected.mean() < 0.99
    # The attack itself names the same labels: releases of unknown noise, labels by sign.
    for m in range(20):
        recovery = labels.last_layer(rows, released[:, m])
        np.testing.assert_array_equal(recovery.labels, solved.residual[:, m] < 0)


# Baselines


def test_idlg_and_gradient_norm() -> None:
    rng = np.random.default_rng(5)
    x = np.maximum(rng.normal(size=(40, 12)), 0) + 0.01
    truth = rng.integers(0, 4, 40)
    e = special.softmax(rng.normal(size=(40, 4)), axis=1) - np.eye(4)[truth]
    gradients = e[:, :, None] * x[:, None, :]
    np.testing.assert_array_equal(labels.idlg(gradients).labels, truth)
    np.testing.assert_array_equal(labels.idlg(gradients, bias_gradients=e).labels, truth)
    # With three or more classes the rule does not need non-negative inputs.
    signed = e[:, :, None] * rng.normal(size=(40, 1, 12))
    np.testing.assert_array_equal(labels.idlg(signed).labels, truth)
    gradients[3] = 0
    assert labels.idlg(gradients).labels[3] == -1
    binary = (truth == 0).astype(int)
    p = special.expit(-1.5 + 0.3 * rng.normal(size=40))
    single = (p - binary)[:, None] * x
    np.testing.assert_array_equal(labels.idlg(single).labels, binary)
    two = np.stack([-(p - binary), p - binary], axis=1)[:, :, None] * x[:, None, :]
    np.testing.assert_array_equal(labels.idlg(two).labels, binary)
    flat = (p - binary)[:, None] * np.ones((1, 12))
    by_norm = labels.gradient_norm(flat, positive_ratio=float(binary.mean()))
    np.testing.assert_array_equal(by_norm.labels, binary)
    np.testing.assert_array_equal(
        labels.gradient_norm(flat, positive_ratio=1 - float(binary.mean())).labels, 1 - binary
    )
    assert by_norm.kind == "estimate"
    for call, message in [
        (lambda: labels.idlg(np.ones(3)), r"`gradients` must have shape \(N, d\) or \(N, K, d\).*got \(3,\)"),
        (
            lambda: labels.idlg(gradients, bias_gradients=np.ones(3)),
            r"`bias_gradients` must have shape \(40, 4\) to match gradients, got \(3,\)",
        ),
        (lambda: labels.gradient_norm(np.ones(3), positive_ratio=0.1), r"`gradients` must have shape \(N, \.\.\.\)"),
        (lambda: labels.gradient_norm(flat, positive_ratio=0), r"`positive_ratio` must be in \(0, 1\), got 0"),
        (lambda: labels.idlg(gradients * np.nan), "must be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_float64_difference_of_float32_weights() -> None:
    """Without that, 34 of the 638 labels that these differences would determine are wrong."""
    determined = 0
    for seed in range(12):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(20, 100), torch.nn.Tanh(), torch.nn.Linear(100, 1))
        model[2].weight.data *= 10
        x, y = torch.randn(32, 20), (torch.rand(32) < 0.5).float()
        before = copy.deepcopy(model)
        torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
        torch.optim.SGD(model.parameters(), lr=1e-5).step()
        wide = model[2].weight.detach().double() - before[2].weight.detach().double()
        rows, weights = torch.tanh(before[0](x)).detach().double(), before[2].weight.detach()
        step = labels.WeightDifference(wide, labels.SGD(1e-5))
        of_float32 = labels.Precision(unit_roundoff=2**-24)
        for knowledge, observation, precision in (
            (labels.KnownModel(before, x), step, None),
            (rows, dataclasses.replace(step, weights=weights), None),
            (rows, dataclasses.replace(step, weights=weights.double()), of_float32),
        ):
            recovery = labels.last_layer(knowledge, observation, noise=labels.Noise(0), precision=precision)
            assert recovery.kind == "lower"
            assert (recovery.labels[recovery.determined] == y.numpy()[recovery.determined]).all()
            determined += int(recovery.determined.sum())
    assert determined > 0
