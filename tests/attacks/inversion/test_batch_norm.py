"""Batch norm statistics: read from running ones, and as a term of gradient inversion."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import datasets
from leakcore.attacks import inversion
from leakcore.attacks.inversion.problem import read
from tests.attacks.inversion.networks import smooth


class _Nested(nn.Module):
    """Batch norms of one and two dimensions, one of them inside another module."""

    def __init__(self, momentum=0.1):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.Softplus())
        self.norm = nn.BatchNorm1d(144, momentum=momentum)
        self.last = nn.Linear(144, 10)

    def forward(self, x):
        return self.last(self.norm(self.block(x).flatten(1)))


def _nested(momentum=0.1, seed=0):
    torch.manual_seed(seed)
    return _Nested(momentum).double()


def _conv(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Softplus(), nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4), nn.Softplus(), nn.Flatten(), nn.Linear(64, 10),
    ).double()  # fmt: skip


def _dense(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Softplus(), nn.Linear(32, 10)).double()


def _images(rows, seed=0, start=0):
    digits = datasets.digits()
    chosen = slice(start + rows * seed, start + rows * (seed + 1))
    return torch.tensor(digits.features[chosen]).double().reshape(rows, 1, 8, 8), torch.tensor(digits.labels[chosen])


def _client(model, x, y):
    """Gradient by torch, and the model after its pass of the batch in training mode."""
    client = copy.deepcopy(model).train()
    loss = nn.functional.cross_entropy(client(x), y)
    return torch.autograd.grad(loss, [p for p in client.parameters() if p.requires_grad]), client


@torch.no_grad()
def _fed(model, x):
    """(rows, channels) at the inputs of both layers of `_nested`, in the model's mode, by torch."""
    model = copy.deepcopy(model)
    return {"block.1": model.block[0](x).transpose(0, 1).flatten(1).T, "norm": model.block(x).flatten(1)}


@pytest.mark.parametrize("momentum", [0.1, 0.3, 1.0, None])
@pytest.mark.parametrize("earlier", [0, 3])
def test_running_statistics(momentum, earlier):
    model = _nested(momentum).train()
    for i in range(earlier):
        model(_images(5, seed=i, start=100)[0])
    x, y = _images(4)
    _, client = _client(model, x, y)
    fed = _fed(model, x)
    for after in (client, client.state_dict()):
        result = inversion.batch_statistics(model, after)
        assert list(result) == ["block.1", "norm"]
        for name, rows in fed.items():
            mean, variance = result[name]
            assert mean.dtype == variance.dtype == torch.float64
            assert float((mean - rows.mean(0)).abs().max()) < 1e-10
            assert float((variance - rows.var(0, correction=1)).abs().max()) < 1e-10


def test_frozen_layers_and_float32():
    model = _nested().float()
    client = copy.deepcopy(model).train()
    client.norm.eval()
    x = _images(4)[0].float()
    client(x)
    result = inversion.batch_statistics(model, client)
    assert list(result) == ["block.1"]
    assert float((result["block.1"][0] - _fed(model, x)["block.1"].mean(0)).abs().max()) < 1e-5
    torch.manual_seed(0)
    single = nn.BatchNorm1d(3)
    client = copy.deepcopy(single).train()
    client(torch.rand(5, 3, 7))
    assert list(inversion.batch_statistics(single, client)) == [""]


def _bent(**changes):
    state = _nested().state_dict()
    return {**state, **{name.replace("__", "."): value for name, value in changes.items()}}


def _counted(state, steps=1):
    return {name: value + steps if name.endswith("tracked") else value for name, value in state.items()}


@pytest.mark.parametrize(
    ("model", "after", "words"),
    [
        (smooth(), {}, "must have a batch norm, or"),
        (nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)), {}, "track_running_stats=True"),
        (_nested(), _bent(), "no layer saw a batch"),
        (_nested(), _counted(_bent(), 2), "saw 2 batches, got 1"),
        (_nested(0.0), _counted(_bent()), "momentum above 0"),
        (_nested(), _counted(_bent(norm__running_mean=torch.zeros(3))), "shape"),
        (_nested(), _counted(_bent(norm__running_mean=torch.full((144,), torch.nan))), "finite"),
        (_nested(), _counted(_bent(norm__running_var=torch.full((144,), 0.1))), "variance at layer norm would be"),
        (_nested(), {}, "must hold 'block.1.running_mean'"),
    ],
)
def test_missing_statistics(model, after, words):
    with pytest.raises(ValueError, match=words):
        inversion.batch_statistics(model, after)


def test_bad_types():
    with pytest.raises(TypeError, match="`model`"):
        inversion.batch_statistics({}, {})
    with pytest.raises(TypeError, match="`after`"):
        inversion.batch_statistics(_nested(), [1])
    with pytest.raises(TypeError, match="`statistics`"):
        _invert(_nested(), [1])


def test_training_mode_gradient():
    model = _nested().train()
    before = copy.deepcopy(model.state_dict())
    x, y = _images(4)
    parts, _ = _client(model, x, y)
    result = inversion.gradient(model, x, y)
    assert float((result - torch.cat([part.flatten() for part in parts])).abs().max()) < 1e-12
    inversion.invert(model, result, (1, 8, 8), labels=y, optimizer=inversion.LBFGS(iterations=3, restarts=1))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.norm.running_mean is not None
    assert model.norm.training
    with pytest.raises(ValueError, match=r"`inputs` must fit.*more than 1 value per channel"):
        inversion.gradient(model, x[:1], y[:1])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("objective", [inversion.L2(), inversion.Cosine(), inversion.LocalSteps(0.1)])
def test_distance_of_the_true_batch(training, objective):
    model = _nested().train()
    model(_images(5, start=100)[0])
    model.train(training)
    x, y = _images(4)
    g = inversion.gradient(model, x, y)
    _, client = _client(model, x, y)
    statistics = inversion.batch_statistics(model, client)
    if not training:  # where the second layer is fed what the running statistics of the first one make of it
        fed = _fed(model, x)["norm"]
        statistics["norm"] = (fed.mean(0), fed.var(0))
    release = inversion.ReleasedGradient(
        -0.1 * g if isinstance(objective, inversion.LocalSteps) else g, statistics=statistics
    )
    problem = read(model, release, (1, 8, 8), labels=y, objective=objective)
    plain = read(model, inversion.ReleasedGradient(release.gradient), (1, 8, 8), labels=y, objective=objective)
    free = torch.zeros(4, 10, dtype=torch.float64)
    assert abs(float(problem.distance(x, free))) < 1e-12
    guess = x + 0.05 * torch.linspace(-1, 1, 64, dtype=torch.float64).reshape(8, 8)
    known = 0.0
    for name, rows in _fed(model, guess).items():
        mean, variance = statistics[name]
        known += float((rows.mean(0) - mean).square().sum() / variance.sum()) / 2
        known += float((rows.var(0) - variance).square().sum() / variance.square().sum()) / 2
    extra = float(problem.distance(guess, free) - plain.distance(guess, free))
    assert extra == pytest.approx(known, rel=1e-6)


def _stepped(model, x, y, steps, size):
    """A client's model after some steps of SGD in training mode, at rate 0.1, and the change of its weights."""
    client = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
    for step in range(steps):
        rows = slice(step * size % len(x), step * size % len(x) + size)
        optimizer.zero_grad()
        nn.functional.cross_entropy(client(x[rows]), y[rows]).backward()
        optimizer.step()
    return client, [a.detach() - b.detach() for a, b in zip(client.parameters(), model.parameters(), strict=True)]


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize(("steps", "size"), [(1, 4), (3, 4), (5, 2)])
def test_distance_over_several_steps(momentum, steps, size):
    model = _nested(momentum).train()
    model(_images(5, start=100)[0])
    x, y = _images(4)
    client, change = _stepped(model, x, y, steps, size)
    release = inversion.ReleasedGradient(
        change, statistics=inversion.batch_statistics(model, client.state_dict(), steps)
    )
    objective = inversion.LocalSteps(0.1, steps=steps, batch_size=size)
    problem = read(model, release, (1, 8, 8), labels=y, objective=objective)
    free = torch.zeros(4, 10, dtype=torch.float64)
    assert float(problem.distance(x, free)) < 1e-18
    assert float(problem.distance(x + 0.05 * x.flip(-1), free)) > 1e-5
    if steps > 1:
        with pytest.raises(ValueError, match=f"saw {steps} batches, got 1"):
            inversion.batch_statistics(model, client)


@pytest.mark.full
@pytest.mark.parametrize("make", [_conv, _dense])
def test_error_with_statistics(make):
    """All of 5 batches: by a sign test p = 1/32 for each network."""
    lower = 0
    for seed in range(5):
        model, (x, y) = make(seed).train(), _images(4, seed)
        x = x if make is _conv else x.flatten(1)
        g, client = _client(model, x, y)
        statistics = inversion.batch_statistics(model, client)
        errors = []
        for known in (None, statistics):
            inverted = inversion.invert(
                model, inversion.ReleasedGradient(g, statistics=known), tuple(x.shape[1:]), labels=y,
                objective=inversion.L2(box=(0, 1)), optimizer=inversion.LBFGS(iterations=60, restarts=1), seed=seed,
            )  # fmt: skip
            errors.append(float(np.mean(inverted.compared_with(x).quality[0].mse)))
            assert ("knows the batch's statistics" in inverted.assumptions.attacker) == (known is not None)
            assert ("batch norm statistics 1" in inverted.method) == (known is not None)
        lower += errors[1] < errors[0]
    assert lower == 5


@pytest.mark.full
def test_all_restarts_of_adam():
    model, (x, y) = _conv(0).train(), _images(2)
    g, client = _client(model, x, y)
    release = inversion.ReleasedGradient(g, statistics=inversion.batch_statistics(model, client))
    both = [
        inversion.invert(
            model, release, (1, 8, 8), labels=y, objective=inversion.Cosine(box=(0, 1), statistics_weight=weight),
            optimizer=inversion.SignedAdam(iterations=20, restarts=2, together=together),
        )
        for weight, together in ((0.5, True), (0.5, False), (0.0, True))
    ]  # fmt: skip
    assert np.allclose(both[0].distances, both[1].distances, rtol=1e-6)
    assert (both[2].distances < both[0].distances).all()


def _invert(model, statistics, objective=None, labels=(0, 1), **more):
    g = torch.ones(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    release = inversion.ReleasedGradient(g, statistics=statistics, **more)
    return inversion.invert(model, release, (1, 8, 8), labels=labels, objective=objective)


_FOUR = (torch.zeros(4), torch.ones(4))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"statistics": {}}, "must name batch norms"),
        ({"statistics": {"last": _FOUR}}, "must name batch norms of the model, block.1, norm"),
        ({"statistics": {"block.1": torch.zeros(3)}}, "pair"),
        ({"statistics": {"block.1": (torch.zeros(3), torch.ones(3))}}, "shape"),
        ({"statistics": {"block.1": (torch.zeros(4), -torch.ones(4))}}, "at least 0"),
        ({"statistics": {"block.1": (torch.full((4,), torch.inf), torch.ones(4))}}, "finite"),
        ({"statistics": {"norm": (torch.zeros(144), torch.ones(144))}, "labels": (0,)}, "two numbers per channel"),
        ({"objective": inversion.DPSGDSteps(1.0)}, "DPSGDSteps"),
        (
            {
                "statistics": {"norm": (torch.zeros(144), torch.ones(144))},
                "objective": inversion.LocalSteps(0.1, steps=2, batch_size=1),
            },
            "two numbers per channel",
        ),
    ],
)
def test_mismatched_statistics(change, words):
    with pytest.raises(ValueError, match=words):
        _invert(**{"model": _nested().eval(), "statistics": {"block.1": _FOUR}, **change})


def test_training_mode_refusals():
    with pytest.raises(ValueError, match="mixes samples"):
        _invert(_nested().train(), None, inversion.DPSGDSteps(1.0))
    with pytest.raises(ValueError, match="recover"):
        _invert(_nested().train(), None, labels="recover")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        _invert(_nested().train(), None, labels=(0,))
    with pytest.raises(ValueError, match="statistics_weight"):
        inversion.L2(statistics_weight=-1.0)
