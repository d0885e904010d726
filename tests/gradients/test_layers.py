"""A model with its layers and batch: checked once, and handed down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import leakage
from leakcore.gradients import LayeredModel, checks, gradients_of_layers, layer_gradients


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.random((48, 4))), torch.from_numpy(rng.integers(0, 2, 48))


def test_it_holds_what_it_was_made_of() -> None:
    model, (x, y) = _model(), _batch()
    layered = LayeredModel.of(model, x, y.to(torch.int32))
    assert layered.names == ("0", "2")
    assert layered.sizes == (15, 8)
    assert layered.parameters(["2"]) == ["2.weight", "2.bias"]
    assert layered.targets.dtype == torch.int64
    assert len(layered.first(3).inputs) == len(layered.first(3).targets) == 3
    assert layered.first(3).layers is layered.layers
    ours, theirs = gradients_of_layers(layered), layer_gradients(model, x, y)
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_every_measure_by_layer_checks_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    check = checks.trained_parameters

    def counted(model: Any) -> Any:
        calls.append(model)
        return check(model)

    monkeypatch.setattr(checks, "trained_parameters", counted)
    x, y = _batch()
    measures = leakage.LayerMeasures(
        attributes={"a": np.arange(48) % 3 == 0}, samples=1, rows=24, permutations=1, iterations=2, family="logistic"
    )
    leakage.by_layer(_model(), x, y, measures=measures)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": 3}, TypeError, r"`model` must be a torch.nn.Module, got int"),
        ({"model": nn.Flatten()}, ValueError, "`model` must have parameters that require grad, or there"),
        ({"model": nn.Sequential(nn.Dropout(), nn.Linear(4, 2)).double()}, ValueError, r"model: layer 0 \(Dropout\)"),
        ({"loss": 3}, TypeError, "`loss` must be a function of outputs and targets or None, got int"),
        ({"inputs": torch.zeros(48, 4)}, ValueError, r"`inputs` must be.*, got torch.float32 on cpu"),
        (
            {"inputs": torch.full((48, 4), torch.nan).double()},
            ValueError,
            r"`inputs\[0\]` must be finite, got a NaN or an infinity",
        ),
        ({"targets": torch.full((48,), 2)}, ValueError, r"`targets\[0\]` must be a class of the model, in.*, got 2"),
        (
            {"targets": torch.zeros(47).long()},
            ValueError,
            r"`targets` must hold one target for each of.*, got shape \(47,\)",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], error: Any, message: str) -> None:
    x, y = _batch()
    good: dict[str, Any] = {"model": _model(), "loss": None, "inputs": x, "targets": y}
    with pytest.raises(error, match=message):
        LayeredModel.of(**good | change)


def test_a_model_that_does_not_run_passes_until_its_outputs_are_needed() -> None:
    _, y = _batch()
    layered = LayeredModel.of(_model(), torch.zeros(48, 5).double(), y)
    assert layered.misfit is not None
    with pytest.raises(ValueError, match=r"`inputs` must fit the model, got shape \(48, 5\)"):
        gradients_of_layers(layered)
