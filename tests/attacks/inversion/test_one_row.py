"""What one row gives away in closed form: its label, and the input of the first layer."""

import numpy as np
import pytest
import torch
from torch import nn

from leakcore.attacks import inversion
from tests.attacks.inversion.networks import smooth


class _HeadFirst(torch.nn.Module):
    """Its output layer is registered before the others, all of one width."""

    def __init__(self, between=None):
        super().__init__()
        self.head = torch.nn.Linear(4, 4)
        self.body = torch.nn.Linear(6, 4)
        self.between = between or torch.nn.Identity()

    def forward(self, x):
        return self.between(self.head(torch.tanh(self.body(x))))


def test_a_label_is_recovered_from_the_layer_that_makes_the_logits():
    torch.manual_seed(3)
    for label in range(4):
        model = _HeadFirst()
        g = inversion.gradient(model, torch.rand(1, 6), torch.tensor([label]))
        attack = inversion.invert(model, g, (6,), labels="recover", optimizer=inversion.LBFGS(iterations=2, restarts=1))
        assert attack.labels.tolist() == [label]
    model = _HeadFirst(torch.nn.LogSigmoid())
    g = inversion.gradient(model, torch.rand(1, 6), torch.tensor([1]))
    with pytest.raises(ValueError, match=r"`labels='recover'` needs a model that ends in an nn.Linear,"):
        inversion.invert(model, g, (6,), labels="recover")


def test_a_label_is_recovered_only_where_the_signs_tell():
    """Two logits without a bias, inputs of the last layer of either sign: the label is searched for, and found."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2, bias=False)).double()
    for label in (0, 1):
        g = inversion.gradient(model, torch.rand(1, 6), [label])
        attack = inversion.invert(
            model, g, (6,), labels="recover", optimizer=inversion.LBFGS(iterations=300, restarts=2)
        )
        assert "label" not in attack.assumptions.attacker
        assert attack.labels.tolist() == [label]
    g = inversion.gradient(smooth(), torch.rand(1, 12), [1])
    attack = inversion.invert(
        smooth(), g, (12,), labels="recover", optimizer=inversion.LBFGS(iterations=20, restarts=1)
    )
    assert attack.assumptions.attacker.endswith("reads the label from the signs of the last layer's gradient")


class _Ordered(nn.Module):
    """Layers registered from the last to the first."""

    def __init__(self, before: nn.Module | None = None, times: int = 1) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(6, 2), nn.Linear(6, 6)
        self.before, self.times = before, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.before is None else self.before(x)
        for _ in range(self.times):
            x = self.body(x.flatten(1)).tanh()
        return self.head(x)


def test_the_closed_form_is_of_the_layer_that_the_input_enters():
    torch.manual_seed(0)
    rng = torch.get_rng_state()
    x, y = torch.rand(1, 2, 3, generator=torch.Generator().manual_seed(1)), [0]
    model = _Ordered()
    torch.set_rng_state(rng)
    np.testing.assert_allclose(inversion.closed_form(model, inversion.gradient(model, x, y), (2, 3)), x[0], atol=1e-5)
    flat = nn.Linear(6, 3)
    rng = torch.get_rng_state()
    np.testing.assert_allclose(
        inversion.closed_form(flat, inversion.gradient(flat, x.flatten(1), y), (6,)), x.flatten(), atol=1e-5
    )
    assert torch.equal(rng, torch.get_rng_state())
    assert not any(part._forward_pre_hooks for part in model.modules())
    fed = "`model` must give the flattened input unchanged to its first layer, body"
    for other, message in (
        (_Ordered(nn.LayerNorm(3, elementwise_affine=False)), fed),
        (_Ordered(nn.Softplus()), fed),
        (_Ordered(nn.AvgPool1d(1), times=2), "`model` must use its first layer, body, once, got 2 uses"),
        (_Ordered(nn.LayerNorm(3)), r"`model` must begin with an nn\.Linear with bias, got LayerNorm"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=False), nn.Linear(4, 2)),
            r"`model` must begin with an nn\.Linear with bias, got Linear",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            inversion.closed_form(other, inversion.gradient(other, x, y), (2, 3))
    with pytest.raises(ValueError, match=r"`shape` must fit the model, got \(5,\) \(`inputs` must.*, got shape \(5,\)"):
        inversion.closed_form(model, inversion.gradient(model, x, y), (5,))
