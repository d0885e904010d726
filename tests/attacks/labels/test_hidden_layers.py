"""The attacks whose sign the gradient does not tell: the layer before the last, and features made by the attacker."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakcore.attacks import labels
from leakcore.attacks.labels.hidden_layers import align
from tests.attacks.labels.systems import attacked

ACTIVATIONS = [torch.nn.Tanh, torch.nn.Sigmoid, torch.nn.ELU]


def _net(d: int, h: int, activation: type[torch.nn.Module], dtype: torch.dtype, seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    linear = torch.nn.Linear
    layers = [linear(d, h), activation(), linear(h, h), activation(), linear(h, 1)]
    return torch.nn.Sequential(*layers).to(dtype)


def _batch(n: int, d: int, dtype: torch.dtype, share: float, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.zeros(n, int)
    truth[: round(share * n)] = 1
    return torch.tensor(rng.normal(size=(n, d)), dtype=dtype), rng.permutation(truth)


def _backward(model: torch.nn.Module, x: torch.Tensor, y: np.ndarray) -> None:
    model.zero_grad()
    torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], torch.tensor(y, dtype=x.dtype)).backward()


# Second last layer


@pytest.mark.full(keep=7)
@pytest.mark.parametrize("share", [0.2, 0.8])
@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.GELU, *ACTIVATIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations_and_priors(dtype: torch.dtype, activation: type[torch.nn.Module], share: float) -> None:
    model = _net(30, 60, activation, dtype)
    x, y = _batch(20, 30, dtype, share)
    _backward(model, x, y)
    recovery = attacked(labels.second_last_layer, model, x, model[2].weight.grad, positive_ratio=share)
    np.testing.assert_array_equal(recovery.labels, y)
    assert recovery.kind == "lower"
    side = "fewer" if share < 0.5 else "more"
    joined = labels.combine([recovery, recovery]).assumptions.notes
    assert any(note.startswith(f"assumed: {side} than half of the batch's labels are 1") for note in joined)
    # The wrong prior gives the other sign: the gradient alone does not tell.
    other = attacked(labels.second_last_layer, model, x, model[2].weight.grad, positive_ratio=1 - share)
    np.testing.assert_array_equal(other.labels, 1 - y)


def test_arrays_and_one_neuron() -> None:
    rng = np.random.default_rng(1)
    rows, slope, e = rng.normal(size=(12, 20)), rng.random((12, 3)), rng.random(12)
    truth = (np.arange(12) < 4).astype(int)
    e = np.where(truth, -e, e)
    observed = np.stack([w * (rows * slope[:, [j]]).T @ e / 12 for j, w in enumerate((0.3, -0.1, 2.0))])
    several = labels.second_last_layer(
        labels.KnownHiddenLayer(rows, slope), observed, positive_ratio=0.3, noise=labels.Noise(0)
    )
    np.testing.assert_array_equal(several.labels, truth)
    one = labels.second_last_layer(
        labels.KnownHiddenLayer(rows, slope[:, 1]), observed[1], positive_ratio=0.3, noise=labels.Noise(0)
    )
    np.testing.assert_array_equal(one.labels, truth)
    np.testing.assert_allclose(one.residuals, 0.1 * e, atol=1e-12)
    picked = labels.second_last_layer(
        labels.KnownHiddenLayer(rows, slope), observed, neurons=1, positive_ratio=0.3, noise=labels.Noise(0)
    )
    np.testing.assert_array_equal(picked.labels, truth)


def test_tied_classes() -> None:
    model = _net(30, 60, torch.nn.Tanh, torch.float64)
    x, y = _batch(20, 30, torch.float64, 0.5)
    _backward(model, x, y)
    recovery = attacked(labels.second_last_layer, model, x, model[2].weight.grad, positive_ratio=0.2)
    np.testing.assert_array_equal(recovery.labels, np.full(20, -1))
    assert (recovery.value, recovery.kind) == (0.0, "estimate")


def test_neuron_alignment() -> None:
    signs = np.array([[1, -1, 0, 0, 0, 0], [0, 1, -1, 0, 0, 0], [0, 0, -1, 1, 0, 0], [0, 0, 0, 0, 1, 1]])
    turn = align(signs)
    assert turn[3] == 0  # shares no row with the others
    votes = turn @ signs
    np.testing.assert_array_equal(votes * votes[0] > 0, [True, False, True, False, False, False])
    np.testing.assert_array_equal(votes != 0, [True, True, True, True, False, False])
    assert (align(np.zeros((2, 3), dtype=np.int64)) @ np.zeros((2, 3)) == 0).all()


def test_proof_of_the_sign() -> None:
    # 16 of 40 rows are seen: either sign leaves both classes possible below half of the batch.
    rng = np.random.default_rng(2)
    rows, slope = rng.normal(size=(40, 50)), np.zeros((40, 1))
    slope[:16] = 1
    for positives, resolved in ((1, True), (5, False), (8, False)):
        truth = (np.arange(40) < positives).astype(int)
        observed = ((rows * slope).T @ (0.5 - truth))[None]
        recovery = labels.second_last_layer(
            labels.KnownHiddenLayer(rows, slope), observed, positive_ratio=0.1, noise=labels.Noise(0)
        )
        assert recovery.kind == "estimate"
        np.testing.assert_array_equal(recovery.labels[:16], truth[:16] if resolved else np.full(16, -1))
        assert (recovery.labels[16:] == -1).all()
        assert any(("does not prove" if resolved else "leaves the sign open") in n for n in recovery.assumptions.notes)


def test_rank_deficient_batches() -> None:
    model = _net(12, 30, torch.nn.ReLU, torch.float32)
    x, y = _batch(20, 12, torch.float32, 0.2)
    x[5] = x[4]
    _backward(model, x, y)
    recovery = attacked(labels.second_last_layer, model, x, model[2].weight.grad, positive_ratio=0.2)
    assert (recovery.labels == y)[recovery.determined].all()
    np.testing.assert_array_equal(recovery.labels[4:6], [-1, -1])
    assert np.isfinite(recovery.residuals).all()
    for n in (1, 2, 60):
        x, y = _batch(n, 12, torch.float32, 0.2, seed=n)
        _backward(model, x, y)
        recovery = attacked(labels.second_last_layer, model, x, model[2].weight.grad, positive_ratio=0.2)
        assert (recovery.labels == y)[recovery.determined].all()
        assert not np.isnan(recovery.tolerance).any()


@pytest.mark.full
def test_known_noise() -> None:
    model = _net(30, 60, torch.nn.Tanh, torch.float64)
    x, y = _batch(20, 30, torch.float64, 0.2)
    _backward(model, x, y)
    gradient = model[2].weight.grad.numpy()
    level = float(np.abs(gradient).max()) * 0.05
    rng = np.random.default_rng(3)
    wrong = determined = 0
    for _ in range(200):
        recovery = labels.second_last_layer(
            labels.KnownModel(model, x),
            gradient + level * rng.normal(size=gradient.shape),
            neurons=range(5),
            positive_ratio=0.2,
            noise=labels.Noise(level, 0.9),
        )
        if recovery.kind == "lower":
            assert recovery.confidence == 0.9
            wrong += bool((recovery.labels != y)[recovery.determined].any())
        determined += int(recovery.determined.sum())
    assert wrong <= 36  # Binomial(200, 0.1) is above 36 with probability below 1e-3
    assert determined > 0


def test_layers_that_are_not_elementwise() -> None:
    linear = torch.nn.Linear
    x = torch.randn(4, 6)
    normed = torch.nn.Sequential(linear(6, 8), torch.nn.LayerNorm(8), linear(8, 1))
    with pytest.raises(ValueError, match="not elementwise"):
        labels.second_last_layer(labels.KnownModel(normed, x), np.ones((8, 6)), positive_ratio=0.2)
    with pytest.raises(ValueError, match=r"only one torch\.nn\.Linear"):
        labels.second_last_layer(labels.KnownModel(linear(6, 1), x), np.ones((1, 6)), positive_ratio=0.2)


def test_bad_input() -> None:
    a, u, g = np.ones((3, 4)), np.ones((3, 2)), np.ones((2, 4))
    layer = labels.KnownHiddenLayer(a, u)
    ok = {"knowledge": layer, "observation": g, "positive_ratio": 0.2}
    for change, message in [
        ({"positive_ratio": 0.5}, "`positive_ratio` must differ from 0.5"),
        ({"positive_ratio": 1.5}, r"`positive_ratio` must be in \(0, 1\), got 1.5"),
        ({"observation": np.ones((3, 4))}, r"`gradient` must be of the layer's 2 neurons, got 3"),
        ({"neurons": 2}, r"`neurons` must be in \[0, 1\], got 2"),
        ({"neurons": []}, "`neurons` must name"),
        ({"knowledge": labels.KnownModel([torch.nn.Linear(4, 2)], a)}, "`model` must be one module, got a list"),
    ]:
        with pytest.raises(ValueError, match=message):
            labels.second_last_layer(**{**ok, **change})
    with pytest.raises(
        ValueError, match=r"`derivatives` must have shape \(3, p\), one row for each row of activations, got \(4, 2\)"
    ):
        labels.KnownHiddenLayer(a, np.ones((4, 2)))
    for change, message in [
        ({"observation": None}, "`observation` must be a gradient.*got None"),
        ({"knowledge": None}, r"`knowledge` must be a labels\.KnownModel or labels\.KnownHiddenLayer, got a NoneType"),
        ({"knowledge": a}, r"`knowledge` must be a labels\.KnownModel or labels\.KnownHiddenLayer, got a ndarray"),
    ]:
        with pytest.raises(TypeError, match=message):
            labels.second_last_layer(**{**ok, **change})


def test_sum_against_mean() -> None:
    """Both hidden attacks read the divisor from the observation; before, a sum's residuals were N times as large."""
    rng = np.random.default_rng(4)
    rows, slope = rng.normal(size=(6, 9)), rng.random((6, 2)) + 0.5
    e = rng.random(6) * np.array([1, 1, -1, 1, 1, 1])
    total = (rows[None] * slope.T[:, :, None] * e[None, :, None]).sum(axis=1)
    layer = labels.KnownHiddenLayer(rows, slope)
    how = {"positive_ratio": 0.2, "noise": labels.Noise(1e-12, 0.9)}
    of_sum = labels.second_last_layer(layer, labels.GradientObservation(total, reduction="sum"), **how)
    of_mean = labels.second_last_layer(layer, total / 6, positive_ratio=0.2, noise=labels.Noise(1e-12 / 6, 0.9))
    np.testing.assert_allclose(of_sum.residuals, of_mean.residuals, rtol=1e-12)
    np.testing.assert_allclose(of_sum.tolerance, of_mean.tolerance, rtol=1e-9)
    np.testing.assert_array_equal(of_sum.labels, e < 0)
    expected = labels.second_last_layer(layer, labels.GradientObservation(total / 8, batch_size=8), **how)
    np.testing.assert_allclose(expected.residuals, of_sum.residuals, rtol=1e-12)
    features = labels.malicious_input(weights=np.eye(2, 9), activation=torch.tanh, batch_size=6, seed=0)
    observed = np.stack([0.3 * features.features.T @ e, -0.2 * features.features.T @ e])
    parts = [
        features.recover(observation, positive_ratio=0.2, noise=labels.Noise(0))
        for observation in (observed / 6, labels.GradientObservation(observed, reduction="sum"))
    ]
    np.testing.assert_allclose(parts[0].residuals, parts[1].residuals, rtol=1e-12)
    for name, field in (("bias_gradient", np.ones(2)), ("bias_difference", np.ones(2)), ("weights", np.eye(2, 9))):
        kind = labels.GradientObservation if name == "bias_gradient" else labels.WeightDifference
        rest = () if name == "bias_gradient" else (labels.SGD(1),)
        with pytest.raises(ValueError, match=f"{name}: not read by this attack"):
            features.recover(kind(observed, *rest, **{name: field}), positive_ratio=0.2)


# Malicious input


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_malicious_features(dtype: torch.dtype, activation: type[torch.nn.Module]) -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(120, 20), activation(), linear(20, 10), activation(), linear(10, 1)).to(dtype)
    crafted = labels.malicious_input(model, batch_size=100, seed=3)
    assert crafted.features.dtype == dtype
    assert crafted.condition == pytest.approx(2**0.5, rel=1e-4)
    assert crafted.deviation < (1e-5 if dtype == torch.float32 else 1e-11)
    assert crafted.verified
    assert np.linalg.norm(crafted.target) > 0
    rows = crafted.features.double().numpy()
    assert min(np.abs(rows[i] - rows[j]).max() for i in range(100) for j in range(i)) > 1e-3
    for share in (0.1, 0.4, 0.7):
        _, y = _batch(100, 1, dtype, share)
        _backward(model, crafted.features, y)
        recovery = crafted.recover(model[0].weight.grad, positive_ratio=share, noise=labels.Noise(0))
        np.testing.assert_array_equal(recovery.labels, y)
        assert recovery.kind == "lower"
        for neuron in range(3):
            alone = crafted.recover(model[0].weight.grad, positive_ratio=share, neurons=neuron, noise=labels.Noise(0))
            assert (alone.labels == y)[alone.determined].all()


def test_malicious_inputs_in_other_forms() -> None:
    model = _net(60, 8, torch.nn.Tanh, torch.float64)
    crafted = labels.malicious_input(
        weights=model[0].weight.detach(), bias=model[0].bias.detach(), activation=torch.tanh, batch_size=52, seed=0
    )
    assert not crafted.verified
    assert isinstance(crafted.features, np.ndarray)
    _, y = _batch(52, 1, torch.float64, 0.3)
    before = model[0].weight.detach().clone()
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    _backward(model, torch.tensor(crafted.features), y)
    update.step()
    recovery = crafted.recover(
        labels.WeightDifference((model[0].weight - before).detach(), labels.SGD(0.1)),
        positive_ratio=0.3,
        noise=labels.Noise(0),
    )
    np.testing.assert_array_equal(recovery.labels, y)
    assert recovery.kind == "estimate"
    again = labels.malicious_input(
        weights=before, bias=model[0].bias.detach(), activation=torch.tanh, batch_size=52, seed=0
    )
    np.testing.assert_array_equal(again.features, crafted.features)


def test_malicious_refusals() -> None:
    linear = torch.nn.Linear
    tanh = _net(30, 8, torch.nn.Tanh, torch.float64)
    still = torch.nn.Sequential(linear(20, 4), torch.nn.Tanh(), linear(4, 1))
    torch.nn.init.zeros_(still[2].weight)
    for arguments, message in [
        ({"model": tanh, "batch_size": 23}, r"`batch_size` must be at most p1 - p2 = 30 - 8 = 22, got 23"),
        ({"model": _net(30, 8, torch.nn.ReLU, torch.float32), "batch_size": 5}, "derivative .* is 0 on an interval"),
        (
            {"weights": np.ones((2, 9)), "activation": torch.relu, "batch_size": 5},
            "`activation` must be strictly monotone, as tanh,",
        ),
        ({"weights": np.ones((2, 9)), "batch_size": 5}, "`activation` must be given"),
        ({"batch_size": 5}, "exactly one of `model` and `weights` must be given"),
        ({"model": tanh, "batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        (
            {"model": tanh, "batch_size": 5, "bias": np.ones(8)},
            "`bias` and `activation` are allowed only with weights=",
        ),
        ({"model": torch.nn.Identity(), "batch_size": 5}, r"no torch\.nn\.Linear"),
        (
            {"model": torch.nn.Sequential(torch.nn.Tanh(), linear(9, 2)), "batch_size": 5},
            "must receive the features unchanged",
        ),
        ({"model": still, "batch_size": 5}, "none of the 4 neurons of its first layer moves the logit"),
    ]:
        with pytest.raises(ValueError, match=message):
            labels.malicious_input(**{"seed": 0, **arguments})
    crafted = labels.malicious_input(tanh, batch_size=22, seed=0)
    with pytest.raises(ValueError, match=r"`gradient` must be of the first layer's 8 neurons, got 7"):
        crafted.recover(np.ones((7, 30)), positive_ratio=0.2)
    with pytest.raises(ValueError, match=r"`positive_ratio` must differ from 0\.5"):
        crafted.recover(np.ones((8, 30)), positive_ratio=0.5)


def test_undetermined_pair() -> None:
    """Two equal rows, one of each label, cancel in the solution but not in the gradient's rounding."""
    torch.manual_seed(0)
    n, d = 20, 40
    model = torch.nn.Sequential(torch.nn.Linear(d, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    x = torch.randn(n, d)
    x[1] = x[0]
    y = np.zeros(n, int)
    y[1:6] = 1
    wanted = torch.where(torch.tensor(y) > 0, 17.0, -17.0).double()
    wanted[:2] = 0.0
    hidden = model[1](model[0](x)).detach().double()
    fitted = torch.linalg.lstsq(hidden, wanted[:, None], driver="gelsd").solution[:, 0]
    with torch.no_grad():
        model[2].weight.copy_(fitted[None])
        model[2].bias.zero_()
    _backward(model, x, y)
    gradient = model[0].weight.grad
    recovery = attacked(labels.second_last_layer, model, x, gradient, positive_ratio=0.25)
    assert not recovery.identifiable[:2].any()
    assert recovery.kind == "estimate"
    assert not (recovery.determined & (recovery.labels != y)).any(), "the misfit tells of the rounding"
    assert any("nothing is proved" in note for note in recovery.assumptions.notes)
    assert any("undetermined rows are larger" in note for note in recovery.assumptions.notes)


@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.GELU, torch.nn.ELU, torch.nn.Sigmoid])
def test_smooth_activations_in_bfloat16(activation: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 5), activation(), torch.nn.Linear(5, 1)).bfloat16()
    x, y = torch.randn(6, 30).bfloat16(), torch.tensor([1.0, 0, 0, 0, 1, 0])
    torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.bfloat16()).backward()
    recovery = attacked(labels.second_last_layer, model, x, model[0].weight.grad, positive_ratio=0.3)
    assert (recovery.labels[recovery.determined] == y.numpy()[recovery.determined]).all()


def test_in_place_layers() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 20), torch.tensor([1.0, 0, 0, 0, 1, 0])
    relu = torch.nn.ReLU(inplace=True)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), relu, torch.nn.Linear(30, 8), relu, torch.nn.Linear(8, 1))
    torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
    hidden = attacked(labels.second_last_layer, model, x, model[2].weight.grad, positive_ratio=0.3)
    last = attacked(labels.last_layer, model, x, model[4].weight.grad)
    for recovery in (hidden, last):
        assert recovery.kind == "lower"
        assert recovery.labels.tolist() == y.tolist()
