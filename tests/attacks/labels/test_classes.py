"""K logits behind one weight vector: `general` on any layer of a classifier, with and without known probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakcore.attacks import labels


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
def test_any_layer_of_a_classifier(dtype: torch.dtype, classes: int) -> None:
    for scale in (1.0, 10.0, 300.0):  # up to saturation
        model = _classifier(classes, dtype, scale)
        x, y = torch.randn(24, 10, dtype=dtype), torch.randint(0, classes, (24,))
        observed = _seen(model, x, y)
        for names in ("2.weight", ["0.weight", "0.bias"], None):
            picked = (
                observed if names is None else [observed[n] for n in ([names] if isinstance(names, str) else names)]
            )
            recovery = labels.general(labels.KnownModel(model, x), picked, parameters=names, noise=labels.Noise(0))
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


def test_residuals_stay_within_their_tolerance() -> None:
    for seed in range(5):
        model = _classifier(4, torch.float32, 3.0, seed)
        x, y = torch.randn(20, 10), torch.randint(0, 4, (20,))
        recovery = labels.general(
            labels.KnownModel(model, x), _seen(model, x, y)["2.weight"], parameters="2.weight", noise=labels.Noise(0)
        )
        truth = model.double()(x.double()).softmax(1).detach().numpy() - np.eye(4)[y]
        known = recovery.identifiable
        assert (np.abs(recovery.residuals - truth)[known] <= recovery.tolerance[known]).all()


def test_too_few_weights_for_the_classes_leave_all_open_but_known_probabilities_do_not() -> None:
    # 20 rows of 4 classes are 60 unknowns; one neuron's 41 weights cannot hold them.
    model = _classifier(4, torch.float64)
    x, y = torch.randn(20, 10, dtype=torch.float64), torch.randint(0, 4, (20,))
    gradient = _seen(model, x, y)["2.bias"]
    blind = labels.general(labels.KnownModel(model, x), gradient, parameters="2.bias", noise=labels.Noise(0))
    np.testing.assert_array_equal(blind.labels, np.full(20, -1))
    assert blind.rank <= 30
    few = labels.general(
        labels.KnownModel(model, x[:10]),
        _seen(model, x[:10], y[:10])["2.bias"],
        parameters="2.bias",
        known_probs=True,
        noise=labels.Noise(0),
    )
    assert (few.labels == y[:10].numpy())[few.determined].all()
    whole = labels.general(
        labels.KnownModel(model, x),
        _seen(model, x, y)["2.weight"],
        parameters="2.weight",
        known_probs=True,
        noise=labels.Noise(0),
    )
    np.testing.assert_array_equal(whole.labels, y)
    assert whole.residuals.shape == (20, 4)


def test_noise_and_weight_differences_of_a_classifier() -> None:
    model = _classifier(3, torch.float64)
    x, y = torch.randn(12, 10, dtype=torch.float64), torch.randint(0, 3, (12,))
    gradient = _seen(model, x, y)["2.weight"]
    before = model[2].weight.detach().clone()
    torch.optim.SGD([model[2].weight], lr=0.1).step()
    difference = model[2].weight.detach() - before
    with torch.no_grad():
        model[2].weight.copy_(before)
    recovery = labels.general(
        labels.KnownModel(model, x),
        labels.WeightDifference(difference, labels.SGD(0.1)),
        parameters="2.weight",
        noise=labels.Noise(0),
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


def test_one_jacobian_serves_several_weight_vectors() -> None:
    rng = np.random.default_rng(2)
    rows, truth = rng.normal(size=(12, 20)), rng.integers(0, 3, 12)
    e = rng.dirichlet(np.ones(3), 12) - np.eye(3)[truth]
    recovery = labels.general(rows, e.T @ rows / 12, noise=labels.Noise(0))
    np.testing.assert_array_equal(recovery.labels, truth)
    np.testing.assert_allclose(recovery.residuals, e, atol=1e-12)
