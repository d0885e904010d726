"""Models of every make (numbers as parameters, bfloat16, a root called as its layer), and gradients at any scale."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import defenses, leakage
from leakcore._base.columns import ColumnScaler
from leakcore.attacks import attributes


class Tempered(nn.Module):
    """A linear layer times a number, as CLIP's logit_scale."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(5, 3), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.scale


def _rows(n: int = 40) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(n, 5), torch.randint(0, 3, (n,))


def _by_layer(model, x, y, progress=None, **measures):
    return leakage.by_layer(model, x, y, measures=leakage.LayerMeasures(**measures), progress=progress)


def test_scalar_parameter() -> None:
    x, y = _rows()
    model = Tempered()
    model(x[:1])[0, y[0]].backward()
    names = ("Tempered", "layer")
    assert leakage.sensitivity(model, x[:3], y[:3]).layers == names
    assert leakage.l1_sensitivity(model, x[:6], y[:6], adjacency="add-remove").num_parameters == 19
    parts = attributes.layer_gradients(model, x, y)
    assert [parts[name].shape for name in names] == [(40, 1), (40, 18)]
    released = defenses.release(model, x, y)
    assert released.parts["scale"].shape == ()
    np.testing.assert_allclose(float(released.parts["scale"]), parts["Tempered"].mean(), rtol=1e-5)
    report = _by_layer(model, x, y, attributes={"a": np.arange(40) % 2}, samples=2, permutations=1, iterations=0)
    assert report.layers == names


def test_bfloat16() -> None:
    x, y = _rows()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    single, half = (x, model), (x.bfloat16(), model.bfloat16())
    measured = leakage.l1_sensitivity(half[1], half[0][:6], y[:6])
    same = leakage.l1_sensitivity(single[1].float(), half[0][:6].float(), y[:6])
    assert measured.value == pytest.approx(same.value, rel=0.05)
    model.bfloat16()
    report = _by_layer(model, half[0], y, attributes={"a": np.arange(40) % 2}, samples=2, permutations=1, iterations=2)
    assert np.isfinite(report.original.raw).all()  # type: ignore[union-attr]


def test_root_called_as_its_layer() -> None:
    class head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.head = nn.Parameter(torch.eye(5)), nn.Linear(5, 3)

        def forward(self, x: Any) -> Any:
            return self.head(x @ self.w)

    x, y = _rows(3)
    measured = leakage.sensitivity(head(), x, y)
    assert measured.layers == ("head()", "head")
    np.testing.assert_array_equal(measured.parameters, [25, 18])


class Recurrent(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.steps, self.drop, self.last = nn.LSTM(1, 4, batch_first=True), nn.Dropout(dropout), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(self.steps(x[..., None])[0][:, -1]))


def test_unbatched_layers() -> None:
    """An LSTM in float64 goes row by row; what draws random numbers is refused all the same."""
    x, y = _rows(6)
    torch.manual_seed(1)
    model = Recurrent().double().eval()
    parts = attributes.layer_gradients(model, x.double(), y)
    for i in range(len(x)):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 1].double()), y[i : i + 1]).backward()
        expected = torch.cat([p.grad.flatten() for p in model.steps.parameters()])
        np.testing.assert_allclose(parts["steps"][i], expected.numpy(), rtol=1e-6, atol=1e-9)
    with pytest.raises((ValueError, RuntimeError), match="random"):
        attributes.layer_gradients(Recurrent(0.5).double().train(), x.double(), y)


pytest.importorskip("torch")


FAMILIES: dict[str, Any] = {
    "logistic": "logistic",
    "magnitudes": "magnitudes",
    "random-forest": leakage.RandomForest(15),
    "mlp": leakage.MLP(8, steps=40),
}


def _case(n: int = 100) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(n, 6)))  # a family of magnitudes sees no sign
    return x, (x[:, 0] + 0.2 * rng.normal(size=n) > 0.67).astype(np.int64)


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("exponent", [-1000, -40, 900])
def test_v_information(family: str, exponent: int) -> None:
    x, labels = _case()
    values = [
        leakage.v_information(
            np.ldexp(x, e), labels, family=FAMILIES[family], permutations=0, validation=leakage.CrossValidation(folds=2)
        ).value
        for e in (0, exponent)
    ]
    assert values[0] > 0.1
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("exponent", [-120, -40, 100])
def test_attributes(exponent: int) -> None:
    x, has = _case()
    sets = attributes.GradientSets(
        gradients={"0": x.astype(np.float32)},
        attribute=has,
        batch=np.arange(100),
        snapshot=np.zeros(100, np.int64),
        targets=has,
    )
    scaled = dataclasses.replace(sets, gradients={"0": np.ldexp(sets.gradients["0"], exponent)})
    plain, other = (attributes.infer(s, s, trees=10) for s in (sets, scaled))
    assert plain.value > 0.9
    np.testing.assert_array_equal(plain.named, other.named)
    assert plain.auc == other.auc


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("exponent", [-1000, -50, 900])
@pytest.mark.parametrize("columns", [3, 30])
def test_mutual_information(exponent: int, columns: int) -> None:
    x, labels = _case(200)
    wide = x @ np.random.default_rng(1).normal(size=(6, columns))
    values = [
        leakage.mutual_information(
            np.ldexp(wide, e), labels, permutations=0, network=leakage.MineNetwork(steps=60)
        ).value
        for e in (0, exponent)
    ]
    assert values[0] > 0.05
    assert values[0] == values[1]


def test_column_order() -> None:
    rows = np.array([[1e300, 5.0, 1.0, 0.0], [-1e300, 5.0, 1.0 + 1e-9, 0.0], [1e299, 5.0, 1.0 + 2e-9, 0.0]])
    ready = ColumnScaler(rows)
    result = ready(rows)
    assert result.dtype == np.float32
    assert (np.abs(result) <= 1.0).all()
    assert (np.argsort(result[:, 0]) == [1, 2, 0]).all()
    assert (np.diff(result[:, 2]) > 0.5).all()
    assert (result[:, [1, 3]] == 0.0).all()
    assert np.isfinite(ready(np.full((1, 4), 1.7e308))).all()
