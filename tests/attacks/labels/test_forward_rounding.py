"""Models whose last layer cannot be read: none there, random, or weights that act twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakcore.attacks import labels
from tests.attacks.labels.systems import attacked


def test_unreadable_last_layers() -> None:
    x = torch.randn(4, 6)
    gradient = np.zeros(6)
    with pytest.raises(ValueError, match=r"no torch\.nn\.Linear"):
        labels.last_layer(labels.KnownModel(torch.nn.Identity(), x), gradient)
    with pytest.raises(
        ValueError, match=r"`gradient` must have one weight vector for each of the model's 2 logits, got 1"
    ):
        labels.last_layer(labels.KnownModel(torch.nn.Linear(6, 2), x), gradient)
    with pytest.raises(ValueError, match="random in training mode"):
        labels.last_layer(
            labels.KnownModel(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(6, 1)), x), gradient
        )
    with pytest.raises(ValueError, match="neither the output of its last linear layer nor the sigmoid or softmax"):
        labels.last_layer(labels.KnownModel(torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.Tanh()), x), gradient)
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module, got str"):
        labels.last_layer(labels.KnownModel("model", x), gradient)  # type: ignore[arg-type]
    # In evaluation mode dropout does nothing.
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(6, 1)).eval()
    assert labels.last_layer(labels.KnownModel(model, x), gradient).identifiable.all()


class _Twice(torch.nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a = torch.nn.Linear(8, 8, bias=False)
        self.b = torch.nn.Linear(8, 8, bias=False) if tied else self.a
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


class _Functional(_Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(torch.tanh(torch.nn.functional.linear(x, self.a.weight)))


@pytest.mark.parametrize("model", [_Twice(False), _Twice(True), _Functional(False)])
def test_shared_weights(model: torch.nn.Module) -> None:
    """Their gradient is the sum of both uses: of 120 labels that one use alone would determine, 57 were wrong."""
    x, y = torch.randn(6, 8), torch.randint(8, (6,))
    torch.nn.functional.cross_entropy(model(x), y).backward()
    gradient = next(model.parameters()).grad
    with pytest.raises(ValueError, match=r"parameter 'a.weight' is used more than once.*use general\(model"):
        attacked(labels.last_layer, model, x, gradient)
    recovery = attacked(labels.general, model, x, {"a.weight": gradient})
    assert (recovery.labels[recovery.determined] == y.numpy()[recovery.determined]).all()


def test_random_forward_pass() -> None:
    class Dropped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(torch.nn.functional.dropout(x, 0.5, self.training))
            return out

    model = Dropped()
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="depends on random numbers that it draws"):
        attacked(labels.last_layer, model, torch.ones(2, 4), np.ones((3, 4)))
    assert torch.equal(before, torch.get_rng_state())
    dropped = model.forward
    model.eval()
    model.forward = lambda x: (torch.rand(()), dropped(x))[1]  # type: ignore[method-assign]
    assert labels.last_layer(labels.KnownModel(model, torch.ones(2, 4)), np.ones((3, 4))) is not None
    assert torch.equal(before, torch.get_rng_state())
    with torch.inference_mode():
        assert labels.last_layer(labels.KnownModel(model, torch.ones(2, 4)), np.ones((3, 4))) is not None
    assert labels.last_layer(labels.KnownModel(model.eval(), torch.ones(2, 4)), np.ones((3, 4))) is not None


def test_shared_bias() -> None:
    class Added(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.l(torch.tanh(x + self.l.bias))
            return out

    model, x = Added(), torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"parameter 'l.bias' is used more than once"):
        attacked(labels.last_layer, model, x, np.ones((4, 4)))
