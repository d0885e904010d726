"""Inversion of what a client of federated averaging sends after several steps of its own."""

import numpy as np
import pytest
import torch
from torch import nn

from leakcore.attacks import inversion
from leakcore.attacks.inversion.problem import read
from tests.attacks.inversion.networks import smooth


def _client(model, x, y, *, rate, steps, size):
    """The change of the weights by plain torch."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    starts = list(range(0, len(x), size))
    for step in range(steps):
        first = starts[step % len(starts)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[first : first + size]), y[first : first + size]).backward()
        optimizer.step()
    change = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    model.load_state_dict(before)
    return change


@pytest.mark.parametrize(("rows", "steps", "size"), [(1, 1, 1), (1, 5, 1), (2, 4, 1), (5, 7, 2), (4, 3, 4)])
def test_the_true_rows_have_distance_zero(rows, steps, size):
    model = smooth().double()
    x, y = torch.rand(rows, 12, dtype=torch.float64), torch.arange(rows) % 4
    change = _client(model, x, y, rate=0.3, steps=steps, size=size)
    objective = inversion.LocalSteps(0.3, steps=steps, batch_size=size)
    problem = read(model, inversion.ReleasedGradient(change), (12,), labels=y, objective=objective)
    free = torch.zeros(rows, 4, dtype=torch.float64)
    assert float(problem.distance(x, free)) < 1e-24
    assert float(problem.distance(x + 0.01, free)) > 1e-8
    one = inversion.LocalSteps(0.3, steps=1, batch_size=size)
    if steps > 1:
        other = read(model, inversion.ReleasedGradient(change), (12,), labels=y, objective=one)
        assert float(other.distance(x, free)) > 1e-3


def test_a_row_is_recovered_from_five_steps():
    model = smooth().double()
    generator = torch.Generator().manual_seed(5)
    x, y = torch.rand(1, 12, generator=generator, dtype=torch.float64), torch.tensor([2])
    change = _client(model, x, y, rate=0.3, steps=5, size=1)
    objective = inversion.LocalSteps(0.3, steps=5, tolerance=1e-16)
    result = inversion.invert(
        model, change, (12,), labels=y, objective=objective, optimizer=inversion.LBFGS(iterations=300, restarts=2)
    )
    assert np.abs(result.reconstructions - x.numpy()).max() < 1e-4
    assert "local steps" in result.method
    # As a single gradient the same change gives another row.
    single = inversion.invert(
        model, {name: -part / (5 * 0.3) for name, part in change.items()}, (12,), labels=y,
        optimizer=inversion.LBFGS(iterations=300, restarts=2),
    )  # fmt: skip
    assert np.abs(single.reconstructions - x.numpy()).max() > 1e-3


def test_adam_searches_all_restarts_at_once():
    model = smooth()
    x, y = torch.rand(2, 12), torch.tensor([0, 3])
    change = _client(model, x, y, rate=0.1, steps=2, size=1)
    result = inversion.invert(
        model, change, (12,), labels=y, objective=inversion.LocalSteps(0.1, steps=2, batch_size=1, box=(0, 1)),
        optimizer=inversion.Adam(iterations=40, restarts=2),
    )  # fmt: skip
    assert result.every.shape == (2, 2, 12)
    assert np.isfinite(result.distances).all()


def test_refusals():
    model = smooth()
    change = torch.ones(sum(p.numel() for p in model.parameters()))
    steps = inversion.LocalSteps(0.1, steps=2)
    for call, words in (
        (lambda: inversion.LocalSteps(0.0), "learning_rate"),
        (lambda: inversion.LocalSteps(0.1, steps=0), "steps"),
        (lambda: inversion.LocalSteps(0.1, batch_size=0), "batch_size"),
        (lambda: inversion.invert(model, change, (12,), labels="recover", objective=steps), "recover"),
        (lambda: inversion.invert(model, 0 * change, (12,), labels=[1], objective=steps), "zero throughout"),
        (
            lambda: inversion.invert(
                model,
                inversion.ReleasedGradient(torch.stack([change, change]), states=torch.stack([change, change])),
                (12,),
                labels=[1],
                objective=steps,
            ),
            "states",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
