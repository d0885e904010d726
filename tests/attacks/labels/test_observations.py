"""What the attacker of labels holds and sees: noise, biases, steps, models, and input that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore.attacks import labels
from tests.attacks.labels.systems import breast_cancer, check, mlp, system

# Noise


def test_known_noise_leaves_no_wrong_label_at_its_confidence() -> None:
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


def test_unknown_noise_is_an_estimate_and_names_every_sign() -> None:
    activations, _, gradient = system(12, 40)
    result = labels.last_layer(activations, gradient + 0.05)
    assert (result.kind, result.confidence) == ("estimate", None)
    assert result.determined.all()
    assert any("not known" in note for note in result.assumptions.notes)


# What the attacker holds and sees


def test_bias_gradient_adds_a_column_of_ones() -> None:
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
def test_weight_difference_of_one_sgd_step(dtype: torch.dtype, bias: bool) -> None:
    x, y = breast_cancer()
    model = mlp().to(dtype)
    inputs, target = torch.tensor(x[:32], dtype=dtype), torch.tensor(y[:32], dtype=dtype)
    before = mlp().to(dtype)
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


def test_a_small_step_is_lost_in_the_rounding_of_the_weights() -> None:
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
        (lambda: labels.KnownModel(torch.nn.Linear(4, 1)), "inputs"),  # type: ignore[call-arg]
        (lambda: labels.last_layer(a, None), "`observation` must be a gradient.*got None"),
        (lambda: labels.WeightDifference(g), "optimizer"),  # type: ignore[call-arg]
        (lambda: labels.WeightDifference(g, 0.1), r"`optimizer` must be torch\.optim\.SGD .*got float"),
        (lambda: observed(g, weights=g), "weights"),  # type: ignore[call-arg]
        (lambda: observed(g, bias_difference=0.1), "bias_difference"),  # type: ignore[call-arg]
        (lambda: step(bias_gradient=1.0), "bias_gradient"),
        (lambda: step(momentum=0.9), "momentum"),
        (lambda: labels.last_layer(a, g, noise=0.1), "`noise` must be of type Noise, got float"),  # type: ignore[arg-type]
        (lambda: labels.last_layer(a, g, precision=1e-3), "`precision` must be of type Precision, got float"),  # type: ignore[arg-type]
    ]
    for call, message in wrong:
        with pytest.raises(TypeError, match=message):
            call()


def test_the_result_says_what_it_is() -> None:
    activations, _, gradient = system(5, 9)
    result = labels.last_layer(activations, gradient, noise=labels.Noise(0))
    assert result.adjacency is None
    assert "Algorithm 3" in result.provenance
    assert "inputs of the last layer" in result.assumptions.attacker
    assert json.loads(result.to_json())["labels"] == result.labels.tolist()
