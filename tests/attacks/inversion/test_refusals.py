"""Gradient inversion: what it warns of, what it refuses and names, and restarts that fail."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from leakcore.attacks import inversion
from tests.attacks.inversion.networks import smooth


class _Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return self.inner(torch.nn.functional.relu(x))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), r"ReLU \(layer 1\)"),
        (nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(), nn.Linear(5, 3)), r"LeakyReLU \(layer 1\)"),
        (nn.Sequential(nn.Linear(6, 5), nn.Hardtanh(), nn.Linear(5, 3)), "Hardtanh"),
        (_Functional(), "ReLU not"),
        (nn.Sequential(nn.Unflatten(1, (1, 6)), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(3, 3)), "max-pooling"),
    ],
)
def test_not_twice_differentiable(model, names):
    x, y = torch.rand(1, 6), [1]
    g = inversion.gradient(model, x, y)
    with pytest.warns(UserWarning, match=names):
        attack = inversion.invert(model, g, (6,), labels=y, optimizer=inversion.LBFGS(iterations=20, restarts=1))
    assert attack.kinked


@pytest.mark.parametrize("kind", [nn.Sigmoid, nn.ELU, nn.GELU, nn.Softplus, nn.Tanh, nn.SiLU])
def test_no_warning_for_smooth_activations(kind):
    model = nn.Sequential(nn.Linear(6, 5), kind(), nn.Linear(5, 3))
    g = inversion.gradient(model, torch.rand(1, 6), [1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            inversion.invert(model, g, (6,), labels=[1], optimizer=inversion.LBFGS(iterations=20, restarts=1)).kinked
            == ()
        )


def test_failing_restarts():
    model = smooth()
    x, y = torch.rand(1, 12), [0]
    g = inversion.gradient(model, x, y)
    # A rate that throws the search out of what float32 holds.
    attack = inversion.invert(
        model, g, (12,), labels=y, optimizer=inversion.Adam(iterations=20, learning_rate=1e30)
    ).compared_with(x)
    assert "diverged" in attack.ends
    bad = [i for i, end in enumerate(attack.ends) if end == "diverged"]
    assert set(bad) <= set(attack.failed)
    assert len(attack.every) == 3
    assert "diverged" in attack.summary()
    if len(bad) == 3:
        assert attack.best == -1
        assert np.isnan(attack.reconstructions).all()


def test_bad_input():
    model = smooth()
    g = inversion.gradient(model, torch.rand(1, 12), [0])
    with pytest.raises(ValueError, match="empty batch"):
        inversion.invert(model, g, (12,), labels=[])
    with pytest.raises(ValueError, match="empty batch"):
        inversion.gradient(model, torch.zeros(0, 12), [])
    with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
        inversion.invert(model, inversion.ReleasedGradient(g, batch_size=0), (12,))
    with pytest.raises(TypeError, match="`objective` must be of type L2, Cosine, DPSGDSteps or LocalSteps, got str"):
        inversion.invert(model, g, (12,), labels=[0], objective="l3")
    with pytest.raises(TypeError, match="`optimizer` must be of type LBFGS or Adam, got str"):
        inversion.invert(model, g, (12,), labels=[0], optimizer="lbfgs")
    with pytest.raises(ValueError, match="`gradient` must have shape"):
        inversion.invert(model, g[:-1], (12,), labels=[0])
    with pytest.raises(ValueError, match="zero throughout"):
        inversion.invert(model, torch.zeros_like(g), (12,), labels=[0])
    with pytest.raises(ValueError, match="`gradient` must hold finite numbers"):
        inversion.invert(model, g * math.nan, (12,), labels=[0])
    with pytest.raises(ValueError, match="`labels` must lie in"):
        inversion.invert(model, g, (12,), labels=[4])
    with pytest.raises(ValueError, match="`box` must have low below high"):
        inversion.invert(model, g, (12,), labels=[0], objective=inversion.L2(box=(1, 0)))
    for pair in (1, (1,), "01", (0, 1, 2)):
        with pytest.raises(ValueError, match=r"`box` must be a pair, \(low, high\), got"):
            inversion.L2(box=pair)
    with pytest.raises(TypeError, match="`box` must be a real number, got 'a'"):
        inversion.L2(box=("a", 1))
    with pytest.raises(ValueError, match=r"`targets\[1\]` must be a class of the model, in \[0, 3\], got 4"):
        inversion.gradient(model, torch.rand(2, 12), [0, 4])
    with pytest.raises(TypeError, match="`progress` must be callable or None, got 3"):
        inversion.invert(model, g, (12,), labels=[0], progress=3)


@pytest.mark.parametrize("box", [(5.0, math.inf), (-math.inf, 0.0), (-1e308, 1e308)])
def test_infinite_boxes(box):
    model = nn.Linear(3, 2)
    release = inversion.gradient(model, torch.ones(1, 3), [1])
    with pytest.raises(ValueError, match=r"`box` must have two finite ends.*got \(.*, .*\)"):
        inversion.invert(
            model, release, (3,), labels=[1], objective=inversion.L2(box=box), optimizer=inversion.LBFGS(iterations=1)
        )
    inversion.invert(
        model,
        release,
        (3,),
        labels=[1],
        objective=inversion.L2(box=(-math.inf, math.inf)),
        optimizer=inversion.LBFGS(iterations=1, restarts=1),
    )


def test_restarts_beyond_memory():
    model = nn.Linear(3, 2)
    released = inversion.gradient(model, torch.ones(1, 3), [1])
    for optimizer in (inversion.LBFGS(restarts=10**13), inversion.Adam(restarts=2**62)):
        with pytest.raises(ValueError, match="restarts="):
            inversion.invert(model, released, (3,), labels=[1], optimizer=optimizer)


def test_shapes_of_mappings():
    """A transposed weight has as many numbers, and gave an answer."""
    model = nn.Sequential(nn.Linear(3, 2))
    parts = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    wrong = parts | {"0.weight": parts["0.weight"].T}
    with pytest.raises(
        ValueError, match=r"`gradient\['0\.weight'\]` must have the parameter's shape, \(2, 3\), got \(3, 2\)"
    ):
        inversion.invert(model, wrong, (3,), labels=[1], optimizer=inversion.LBFGS(iterations=1))
    with pytest.raises(
        ValueError, match=r"`gradient\['0\.weight'\]` must have the parameter's shape, \(2, 3\), got \(3, 2\)"
    ):
        inversion.closed_form(model, wrong, (3,))
    with pytest.raises(
        ValueError, match=r"`states\[1\]\['0\.weight'\]` must have the parameter's shape, \(2, 3\), got \(3, 2\)"
    ):
        inversion.invert(
            model,
            inversion.ReleasedGradient(torch.ones(2, 8), states=[parts, wrong]),
            (3,),
            labels=[1],
            optimizer=inversion.LBFGS(iterations=1),
        )
    with pytest.raises(ValueError, match=r"`gradient` must hold the parameter '0\.bias'"):
        inversion.invert(
            model, {"0.weight": parts["0.weight"]}, (3,), labels=[1], optimizer=inversion.LBFGS(iterations=1)
        )


def test_bad_input_before_any_work():
    model = smooth()
    x = torch.rand(2, 12)
    g = inversion.gradient(model, x, [0, 1])
    for call in (
        lambda: inversion.gradient(model, x, [0, 1], loss="ce"),
        lambda: inversion.ReleasedGradient(g, loss="ce"),
    ):
        with pytest.raises(TypeError, match="`loss` must be callable or None, got 'ce'"):
            call()
    with pytest.raises(ValueError, match="`inputs` must hold finite numbers"):
        inversion.gradient(model, x * math.nan, [0, 1])
    with pytest.raises(ValueError, match="`gradient` must hold finite numbers"):
        inversion.closed_form(model, g * math.nan, (12,))
    with pytest.raises(ValueError, match=r"`states\[0\]` must hold finite numbers"):
        inversion.invert(
            model, inversion.ReleasedGradient(g, states=torch.full((1, len(g)), math.nan)), (12,), labels=[0]
        )
    with pytest.raises(TypeError, match="`together` must be True or False, got 'no'"):
        inversion.invert(model, g, (12,), labels=[0], optimizer=inversion.SignedAdam(together="no"))
    for known, message in (
        ((x,), "a pair"), (5, "a pair"), ((x, torch.zeros(2)), "must hold integer labels"),
        ((x, [0]), "must hold inputs"), ((x * math.nan, [0, 1]), "must hold finite numbers"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"known.*{message}"):
            inversion.invert(model, g, (12,), labels=[0], objective=inversion.DPSGDSteps(1.0, known=known))
