"""A gradient that no labels could have made proves none, and honest ones never look like that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

from leakcore.attacks import attributes, labels  # noqa: E402
from leakcore.attacks.labels.known_probabilities import noise_radius  # noqa: E402
from tests.attacks.labels.systems import attacked  # noqa: E402

bce = torch.nn.functional.binary_cross_entropy_with_logits


def _refused(recovery: labels.LabelRecovery, word: str = "no residuals of hard labels fit") -> None:
    assert recovery.kind == "estimate"
    assert recovery.confidence is None
    assert any(word in note for note in recovery.assumptions.notes)


def _batch(*middle: torch.nn.Module) -> tuple[torch.nn.Sequential, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 64), *middle, torch.nn.Tanh(), torch.nn.Linear(64, 1))
    x, y = torch.randn(20, 30) * 2 + 1, torch.randint(0, 2, (20,)).float()
    (gradient,) = torch.autograd.grad(bce(model(x)[:, 0], y), model[-1].weight)
    return model, x, y, gradient


@pytest.mark.parametrize("noise", [labels.Noise(0), labels.Noise(1e-3, 0.9)])
def test_random_gradient(noise: labels.Noise) -> None:
    rng = np.random.default_rng(0)
    recovery = labels.last_layer(rng.normal(size=(20, 64)), rng.normal(size=64), noise=noise)
    _refused(recovery)
    assert not recovery.determined.any()


def test_residuals_above_one() -> None:
    """As many rows as weights: any gradient has a solution, though not any has one within [-1, 1]."""
    rng = np.random.default_rng(0)
    _refused(labels.last_layer(rng.normal(size=(8, 8)), rng.normal(size=8), noise=labels.Noise(0)))


def test_stale_model_mode_and_reduction() -> None:
    model, x, y, gradient = _batch()
    assert attacked(labels.last_layer, model, x, gradient).value == 1.0
    _refused(attacked(labels.last_layer, model, (x - 1) / 2, gradient))
    _refused(attacked(labels.last_layer, model, x, 20 * gradient))
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    _refused(attacked(labels.last_layer, model, x, gradient))
    model, x, y, gradient = _batch(torch.nn.BatchNorm1d(64))
    assert attacked(labels.last_layer, model, x, gradient).labels.tolist() == y.tolist()
    _refused(attacked(labels.last_layer, model.eval(), x, gradient))


def test_residual_sums() -> None:
    e = np.array([[0.2, 0.3, -0.5], [0.2, 0.3, 0.1]])
    _refused(labels.last_layer(np.eye(2), e.T / 2, noise=labels.Noise(0)))


def test_random_hidden_gradients() -> None:
    rng = np.random.default_rng(0)
    recovery = labels.second_last_layer(
        labels.KnownHiddenLayer(rng.normal(size=(10, 40)), np.ones((10, 2))),
        rng.normal(size=(2, 40)),
        positive_ratio=0.2,
        noise=labels.Noise(0),
    )
    _refused(recovery)
    assert not recovery.determined.any()


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [1, 3])
def test_honest_gradients(dtype: torch.dtype, classes: int) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        n, d = 2 + seed, 8 + 5 * seed
        model = torch.nn.Sequential(torch.nn.Linear(6, d), torch.nn.ReLU(), torch.nn.Linear(d, classes)).to(dtype)
        x = (10.0 ** (seed % 5 - 2) * torch.randn(n, 6)).to(dtype)
        x[1] = x[0]
        z = model(x)
        if classes == 1:
            y = torch.randint(0, 2, (n,))
            loss = bce(z[:, 0], y.to(dtype))
        else:
            y = torch.randint(0, classes, (n,))
            loss = torch.nn.functional.cross_entropy(z, y)
        loss.backward()
        gradient = model[2].weight.grad
        std = 0.01 * float(gradient.float().std())
        noisy = gradient.float() + std * torch.randn(gradient.shape)
        exact = attacked(labels.last_layer, model, x, gradient)
        released = labels.last_layer(labels.KnownModel(model, x), noisy, noise=labels.Noise(std, 0.9))
        assert exact.kind == released.kind == "lower"
        assert (exact.labels == y.numpy())[exact.determined].all()


def test_contradicting_proofs() -> None:
    one = labels.last_layer(np.eye(4), np.array([0.1, -0.1, 0.1, -0.1]), noise=labels.Noise(0))
    other = labels.last_layer(np.eye(4), -np.full(4, 0.1), noise=labels.Noise(0))
    assert one.kind == other.kind == "lower"
    joined = labels.combine([one, other])
    _refused(joined, "name different labels")
    assert joined.labels.tolist() == [-1, 1, -1, 1]


def test_unusable_neuron() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    with torch.no_grad():
        model[2].weight[0, 2] = 0.0
    crafted = labels.malicious_input(model, batch_size=6, seed=0)
    assert crafted.usable.tolist() == [True, True, False, True]
    with pytest.raises(ValueError, match=r"`neurons` must be usable ones, \[0, 1, 3\], got 2"):
        crafted.recover(np.ones((4, 30)), positive_ratio=0.2, neurons=[0, 2], noise=labels.Noise(0))


def test_repeated_parameter() -> None:
    model = torch.nn.Linear(6, 1, bias=False)
    with pytest.raises(ValueError, match="`parameters` must name each parameter once, got 'weight' twice"):
        labels.general(labels.KnownModel(model, torch.ones(1, 6)), [torch.ones(1, 6)] * 2, parameters=["weight"] * 2)


def _net() -> tuple[torch.nn.Sequential, torch.Tensor]:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)), torch.ones(4, 6)


def test_mismatched_inputs_and_gradients() -> None:
    model, x = _net()
    with pytest.raises(ValueError, match=r"`inputs` must be ones that the model runs on \(mat1 and mat2"):
        labels.general(labels.KnownModel(model, torch.ones(4, 5)), torch.ones(65))
    with pytest.raises(ValueError, match=r"`gradient` must have shape \(1, 8\) for parameter.*, got \(1, 2\)"):
        labels.general(labels.KnownModel(model, x), [[[1, 2]], [3]], parameters=["2.weight", "2.bias"])
    with pytest.raises(TypeError, match="`gradient` must be an array of real numbers, got <U1"):
        labels.general(labels.KnownModel(model, x), [["a", "b"]], parameters="2.weight")


@pytest.mark.parametrize("probs", [np.full((1, 4), 0.5), np.full((5, 4), 0.5), 0.5])
def test_probabilities_of_several_models(probs: object) -> None:
    model, x = _net()
    with pytest.raises(ValueError, match=r"`known_probs` must hold one array for each of 2 models, got"):
        labels.last_layer(labels.KnownModel([model, model], x), np.zeros((2, 8)), known_probs=probs)


def test_bad_neurons_and_activations() -> None:
    model, x = _net()
    with pytest.raises(TypeError, match=r"`neurons` must be an integer, several of them, or None, got 1\.5"):
        labels.second_last_layer(labels.KnownModel(model, x), torch.zeros(8, 6), positive_ratio=0.2, neurons=1.5)
    with pytest.raises(ValueError, match="`activation` must be a function of a torch tensor, with a"):
        labels.malicious_input(weights=np.eye(3, 20), batch_size=4, seed=0, activation=np.tanh)


def test_bad_layer_names() -> None:
    model, x = _net()
    targets = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"`layers` must name at least one layer, got \[\]"):
        attributes.layer_gradients(model, x, targets, layers=[])
    with pytest.raises(TypeError, match=r"`layers` must be a sequence of names, as \['02'\], got '02'"):
        attributes.layer_gradients(model, x, targets, layers="02")


@pytest.mark.parametrize("activation", [torch.nn.ReLU(), torch.nn.GELU()])
def test_float32_in_float64(activation: torch.nn.Module) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 64), activation, torch.nn.Linear(64, 1))
    x, y = torch.randn(24, 30), torch.randint(0, 2, (24,))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())
    gradient = torch.autograd.grad(loss, model[2].weight)[0][0]
    recovery = labels.last_layer(model[:2](x).detach().double(), gradient.double(), noise=labels.Noise(0))
    assert (recovery.kind, recovery.value) == ("lower", 1.0)
    np.testing.assert_array_equal(recovery.labels, y.numpy())
    # Its tolerance is that of float32, not of the type it came in.
    said = labels.last_layer(model[:2](x).detach(), gradient, noise=labels.Noise(0))
    np.testing.assert_allclose(recovery.tolerance, said.tolerance, rtol=0.5)
    # What float32 does not explain either is still refused.
    off = gradient.double() * (1 + 1e-3 * torch.randn(64, dtype=torch.float64))
    assert labels.last_layer(model[:2](x).detach().double(), off, noise=labels.Noise(0)).kind == "estimate"


def test_failures_of_joined_results() -> None:
    """Union bound: each noisy part may be wrong with 1 − confidence; an exact one never is."""
    model, x, _, gradient = _batch()
    exact = attacked(labels.last_layer, model, x, gradient)
    assert (exact.kind, exact.confidence) == ("lower", None)

    def sure(confidence: float | None, kind: str = "lower") -> labels.LabelRecovery:
        return dataclasses.replace(exact, confidence=confidence, kind=kind)

    for parts, wanted in (
        ((0.9, 0.95), ("lower", pytest.approx(0.85))),
        ((0.9, None), ("lower", pytest.approx(0.9))),
        ((None, None), ("lower", None)),
        ((0.4, 0.4), ("estimate", None)),
        ((0.5, 0.5), ("estimate", None)),
    ):
        joined = labels.combine([sure(c) for c in parts])
        assert (joined.kind, joined.confidence) == wanted
    assert labels.combine([exact, sure(None, "estimate")]).kind == "estimate"


@pytest.mark.parametrize(("columns", "level"), [(1, 0.9), (12, 0.9), (300, 0.99)])
def test_radius_of_known_noise(columns: int, level: float) -> None:
    radius = noise_radius(0.3, columns, level)
    assert radius == pytest.approx(0.3 * stats.chi.ppf(level, columns), rel=1e-10)
