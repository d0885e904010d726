"""Inversion of several local steps, of the steps of DP-SGD, and what a gradient cannot tell."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import attacks, dpsgd, models
from leakcore.attacks import inversion
from leakcore.attacks.inversion.problem import read
from leakcore.gradients.flat_module import FlatModule
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
def test_distance_of_the_true_rows(rows, steps, size):
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


@pytest.mark.full
def test_five_local_steps():
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


def test_all_restarts_of_adam():
    model = smooth()
    x, y = torch.rand(2, 12), torch.tensor([0, 3])
    change = _client(model, x, y, rate=0.1, steps=2, size=1)
    result = inversion.invert(
        model, change, (12,), labels=y, objective=inversion.LocalSteps(0.1, steps=2, batch_size=1, box=(0, 1)),
        optimizer=inversion.Adam(iterations=40, restarts=2),
    )  # fmt: skip
    assert result.every.shape == (2, 2, 12)
    assert np.isfinite(result.distances).all()


def test_local_steps_refusals():
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


def _trained(runs=2):
    rng = np.random.default_rng(0)
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((7, 6, 4), "elu", dtype="float64"),
        noise_multiplier=0.02,
        max_grad_norm=0.3,
        learning_rate=1,
        steps=6,
        seed=1,
    )
    known = rng.random((9, 7)), rng.integers(0, 4, 9)
    points, labels = rng.random((runs, 1, 7)), rng.integers(0, 4, (runs, 1))
    run = ensemble.run(
        *known, runs=runs, per_run=dpsgd.PerRun(dpsgd.Rows(points, labels)), observer=dpsgd.Observer(record=True)
    )
    return run, known, points[:, 0], labels[:, 0]


def test_loss_of_dp_sgd():
    run, _, _, labels = _trained()
    model = models.mlp(run.layers, run.activation).double()
    guess = np.random.default_rng(3).random((1, 7))
    for i in range(2):
        release = inversion.ReleasedGradient(run.observed[i], states=run.thetas[i])
        objective = inversion.DPSGDSteps(run.max_grad_norm)
        problem = read(model, release, (7,), labels=labels[i : i + 1], objective=objective)
        ours = problem.distance(torch.from_numpy(guess), torch.zeros(1, 4).double())
        theirs = attacks.gradient_loss(run, guess, [int(labels[i])])[i, 0]
        assert float(ours) == pytest.approx(float(theirs), rel=1e-9)


def test_known_rows_subtracted():
    run, known, points, labels = _trained()
    model = models.mlp(run.layers, run.activation).double()

    def inverted(released, known=None):
        return inversion.invert(
            model,
            inversion.ReleasedGradient(released, states=run.thetas[0]),
            (7,),
            labels=labels[:1],
            objective=inversion.DPSGDSteps(run.max_grad_norm, known=known, box=(0, 1)),
            optimizer=inversion.Adam(iterations=150, restarts=2),
        ).compared_with(points[:1])

    # What is released is the sum over all rows; the ensemble's record holds it with the known ones subtracted.
    flat = FlatModule(model)
    sums = []
    for theta in run.thetas[0]:
        rows = flat.per_sample(torch.from_numpy(theta.copy()), *(torch.from_numpy(a) for a in known))
        sums.append((rows * (run.max_grad_norm / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0).numpy())
    whole = run.observed[0] + np.stack(sums)
    attack = inverted(whole, known)
    assert attack.quality is not None
    assert attack.quality[attack.best].mse[0] < 2e-2
    direct = inverted(run.observed[0])
    np.testing.assert_allclose(attack.reconstructions, direct.reconstructions, atol=1e-6)


def test_linear_network():
    # Lecture 13, Section 4.4: the gradient is Σ r_i x_i times known vectors; other batches have the very same one.
    torch.manual_seed(0)
    m, d = 30, 5
    model = nn.Sequential(nn.Linear(d, m, bias=False), nn.Linear(m, 1, bias=False)).double()

    def square(outputs, targets):
        return (outputs - targets).square().sum()

    x, y = torch.randn(3, d).double(), torch.randn(3, 1).double()
    g = inversion.gradient(model, x, y, loss=square)
    attack = inversion.invert(
        model,
        inversion.ReleasedGradient(g, batch_size=3, loss=square),
        (d,),
        labels=None,
        objective=inversion.L2(tolerance=1e-12),
        optimizer=inversion.LBFGS(iterations=400, restarts=3, start="normal"),
    ).compared_with(x)
    assert attack.quality is not None
    # A guess that explains the gradient to 1e-8 holds no row of the batch.
    for end, quality in zip(attack.ends, attack.quality, strict=True):
        assert end != "converged" or quality.mse.min() > 1e-2
    assert attack.ends.count("converged") >= 2
    residual = (model(x) - y).detach()
    combination = (residual * x).sum(0)
    first = g[: m * d].reshape(m, d)
    np.testing.assert_allclose(first, 2 * torch.outer(model[1].weight.detach()[0], combination), atol=1e-10)
