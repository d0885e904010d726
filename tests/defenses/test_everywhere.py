"""Every defence in every attack, in Opacus's training and in plain torch's, each doing there what it does alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import defenses
from leakcore.attacks import inversion, labels, tensor
from leakcore.defenses import DPSGD, Clip, ClipSamples, Dropout, GaussianNoise, Laplace, LocalSteps, Prune

ALL: dict[str, defenses.Defense] = {
    "local steps": LocalSteps(3, 0.5),
    "dropout": Dropout(0.3),
    "dropout, shared": Dropout(0.3, per_sample=False),
    "clip samples": ClipSamples(0.05),
    "dp-sgd": DPSGD(0.05, 2.0),
    "clip": Clip(0.05),
    "gaussian noise": GaussianNoise(0.05),
    "laplace": Laplace(0.05),
    "prune": Prune(0.05),
}
LOUD: dict[str, defenses.Defense] = {"gaussian noise": GaussianNoise(5.0), "laplace": Laplace(5.0)}
"""Noise of many times the residuals, which are 0.3 to 0.7."""
SCALING = ("clip", "clip samples")
"""They keep the direction of a single row, which does not hide it from an attacker who ignores the length."""


def _given() -> tuple[nn.Module, torch.Tensor, list[int]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Softplus(), nn.Linear(20, 3)).double()
    return model, torch.rand(1, 6).double(), [1]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("name", ALL)
def test_in_gradient_inversion(name: str) -> None:
    model, x, y = _given()
    plain, under = (defenses.release(model, x, y, defense=d, seed=3) for d in (None, ALL[name]))

    def error(released: Any, objective: Any = inversion.L2) -> float:
        attack = inversion.invert(
            model,
            released,
            (6,),
            labels=y,
            objective=objective(box=(0, 1)),
            optimizer=inversion.LBFGS(iterations=200, restarts=2),
        ).compared_with(x)
        assert attack.quality is not None
        return float(attack.quality[attack.best].mse[0])

    def closed(released: Any) -> float:
        if not released.parts["0.bias"].any():  # pruned away: refused
            with pytest.raises(ValueError, match="`gradient` must not be 0 for the first layer's bias, or"):
                inversion.closed_form(model, released, (6,))
            return np.inf
        return float(np.square(inversion.closed_form(model, released, (6,)) - x[0].numpy()).mean())

    assert error(plain, inversion.Cosine) < 1e-8
    assert closed(plain) < 1e-20
    hidden = (error(under, inversion.Cosine), closed(under))
    if name in SCALING:
        assert max(hidden) < 1e-8
        # Who believes in the length is misled.
        assert error(under) > 1e-4
    else:
        assert hidden[0] > 1e-6
        # Masks, and several steps, leave each unit's gradient a multiple of its input: exact, or nearly.
        assert hidden[1] > 1e-3 or isinstance(ALL[name], (Dropout, LocalSteps))
    # Equation 1's loss takes the sum of clipped gradients; of one row, what was released.
    equation = inversion.invert(
        model,
        under,
        (6,),
        labels=y,
        objective=inversion.DPSGDSteps(0.05, box=(0, 1)),
        optimizer=inversion.Adam(iterations=60, restarts=1),
    )
    assert np.isfinite(equation.reconstructions).all()


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("name", ALL)
def test_in_label_attacks(name: str) -> None:
    """One row's label is the sign of one residual: only noise of its size hides it."""
    model, x, y = _given()
    plain = defenses.release(model, x, y, defense=None, seed=0).parts

    def share_right(defense: defenses.Defense) -> float:
        weights, biases = [], []
        for seed in range(60):
            parts = defenses.release(model, x, y, defense=defense, seed=seed).parts
            assert not all(torch.equal(parts[key], plain[key]) for key in plain), "the defence does nothing"
            weights.append(parts["2.weight"].numpy())
            biases.append(parts["2.bias"].numpy())
        recovered = labels.idlg(np.stack(weights), bias_gradients=np.stack(biases)).labels
        return float((recovered == y[0]).mean())

    if name == "dp-sgd":
        assert share_right(ALL[name]) < 0.5  # its noise is 0.1, its clipped residuals are below 0.02
    else:
        assert share_right(ALL[name]) == 1.0
    if name in LOUD:
        assert share_right(LOUD[name]) < 0.8


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("name", ALL)
def test_in_the_tensor_method(name: str) -> None:
    """Two rows and a network of 20,000: what bends or hides the gradient costs, what scales it does not."""
    weights = tensor.GaussianWeights(20_000, 8, 0)
    model = nn.Sequential(nn.Linear(8, 20_000, bias=False), nn.ELU(), nn.Linear(20_000, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(weights.rows(0, 20_000).copy()))  # type: ignore[operator]
        model[2].weight.fill_(1 / 20_000)  # type: ignore[operator]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8))
    x /= np.linalg.norm(x, axis=1, keepdims=True)

    def square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0.5 * (outputs - targets).square().mean()

    def error(defense: defenses.Defense | None) -> float:
        batch = (torch.from_numpy(x), torch.tensor([[1.0], [-0.8]]).double())
        release = defenses.release(model, *batch, defense=defense, loss=square, seed=1).parts["2.weight"][0].numpy()
        attack = tensor.reconstruct(release, weights, num_examples=2, activation="elu", certify=False)
        errors = tensor.match(attack.inputs, x).errors if len(attack.inputs) else np.empty(0)
        return float(np.sqrt((np.square(errors).sum() + 2 - len(errors)) / 2))

    scale = {"local steps": LocalSteps(2, 1e-3), "gaussian noise": GaussianNoise(1.0), "laplace": Laplace(1.0)}
    plain, under = error(None), error(scale.get(name, ALL[name]))
    assert plain < 0.06
    if name in (*SCALING, "local steps"):
        assert under == pytest.approx(plain, rel=0.35)
    else:
        assert under > 1.2 * plain


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ALL)
def test_in_opacus_training(name: str) -> None:
    opacus = pytest.importorskip("opacus")
    defense = ALL[name]
    torch.manual_seed(0)
    x, y = torch.randn(12, 6), torch.arange(12) % 3
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    if defense.stage in ("samples", "sum"):
        # Per-sample gradients are Opacus's, the optimizer is torch's: the defence is the mechanism.
        sampled = opacus.GradSampleModule(model)
        optimizer: Any = plain
        forward: Any = sampled
    else:
        private, optimizer, _ = opacus.PrivacyEngine().make_private(
            module=model, optimizer=plain, noise_multiplier=0.5, max_grad_norm=1.0, poisson_sampling=False,
            data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=12),
        )  # fmt: skip
        forward = private
    if defense.stage == "training":
        with pytest.raises(ValueError, match="which the loop itself does"):
            defenses.attach(optimizer, defense, seed=5)
        return
    calls = []
    if optimizer is not plain:
        optimizer.attach_step_hook(lambda o: calls.append(torch.cat([p.grad.flatten() for p in model.parameters()])))
        before = optimizer.step_hook
        handle = defenses.attach(optimizer, defense, seed=5)
        # What came out of Opacus, before the defence: its own hook sees what is released, after it.
        inner = handle._defend
        raw = []

        def spied() -> None:
            raw.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())  # type: ignore[union-attr]
            inner()

        handle._defend = spied  # type: ignore[method-assign]
        assert before is not None
    else:
        handle = defenses.attach(optimizer, defense, seed=5)
    for step in range(2):
        optimizer.zero_grad()
        if optimizer is plain and step == 1:  # gradients of two halves add up
            for half in (slice(0, 6), slice(6, 12)):
                nn.functional.cross_entropy(forward(x[half]), y[half]).backward()
            halves = [torch.cat([p.grad_sample[i].flatten(1) for p in model.parameters()], 1) for i in (0, 1)]  # type: ignore[index]
            rows = torch.cat(halves)
        else:
            nn.functional.cross_entropy(forward(x), y).backward()
        if optimizer is plain and step == 0:
            rows = torch.cat([p.grad_sample.flatten(1) for p in model.parameters()], 1)  # type: ignore[union-attr]
        start = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer.step()
        moved = (start - torch.cat([p.detach().flatten() for p in model.parameters()])) / 0.1
        if optimizer is plain:
            out = defense.apply(rows, seed=5, step=step)
            expected = out.mean(0) if out.ndim == 2 else out
        else:
            expected = defense.apply(raw[step], seed=5, step=step)
            torch.testing.assert_close(calls[step], expected)
        torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-5)
    assert handle.step == 2


def test_attached_to_parameters_of_two_precisions_and_to_sparse_gradients() -> None:
    mixed = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).double())
    optimizer = torch.optim.SGD(mixed.parameters(), lr=0.1)
    defenses.attach(optimizer, Clip(1.0))
    for p in mixed.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    size = sum(p.numel() for p in mixed.parameters())
    for p in mixed.parameters():
        assert p.grad is not None
        assert p.grad.dtype == p.dtype
        torch.testing.assert_close(p.grad, torch.full_like(p, size**-0.5))
    rows = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(rows.parameters(), lr=0.1)
    defenses.attach(optimizer, Clip(1.0))
    rows(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"shape \(5, 3\) is torch\.sparse_coo, and the rows that it holds leak"):
        optimizer.step()


def test_a_class_that_the_model_does_not_have_is_named() -> None:
    model, x, _ = _given()
    with pytest.raises(ValueError, match=r"`targets\[0\]` must be a class of the model, in \[0, 2\], got 3"):
        defenses.release(model, x, [3])
