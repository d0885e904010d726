"""What a module must be for its gradients to be those of its rows: outputs with classes, layers that keep still."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from leakcore import attacks, defenses, dpsgd, leakage
from leakcore.attacks import inversion
from leakcore.gradients.flat_module import FlatModule


class _Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).squeeze(-1)


def test_rows_are_not_taken_for_classes() -> None:
    torch.manual_seed(0)
    model, x = _Squeezed(), torch.randn(5, 4)
    labels = torch.tensor([0, 1, 1, 0, 1])
    message = r"`loss` must be given for outputs of another shape than \(rows, classes\) or \(rows, 1\), got None and"
    for y in (labels, labels.float()):
        with pytest.raises(ValueError, match=message):
            inversion.gradient(model, x, y)
        with pytest.raises(ValueError, match=message):
            defenses.release(model, x, y)
    for measure in (leakage.sensitivity, leakage.l1_sensitivity, leakage.v_information_original):
        with pytest.raises(ValueError, match=r"`loss` must be given for outputs of another.*, got None and \("):
            measure(model, x, labels)
    # With a loss of its own it is the logit's.
    loss = nn.functional.binary_cross_entropy_with_logits
    wanted = torch.autograd.grad(loss(model(x), labels.float()), list(model.parameters()))
    result = inversion.gradient(model, x, labels.float(), loss=loss)
    torch.testing.assert_close(result, torch.cat([g.flatten() for g in wanted]))


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], layers: int) -> None:
        super().__init__()
        self.recurrent = kind(4, 3, layers, batch_first=True, dropout=0.5 if layers > 1 else 0.0)
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.recurrent(x)[0][:, -1])


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.attention(x, x, x)[0].mean(1))


def _ending(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 2))


CHANGES = "changes the vectors of its spectral norm: call model.eval"
RANDOM = "is random (dropout=0.5), and no seed here controls it: call model.eval"
RESTLESS = {
    "spectral norm": (lambda: _ending(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))), CHANGES),
    "spectral norm of old": (lambda: _ending(nn.utils.spectral_norm(nn.Linear(4, 4))), CHANGES),
    "attention": (_Attending, RANDOM),
    **{kind.__name__: (lambda kind=kind: _Recurrent(kind, 2), RANDOM) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
}


@pytest.mark.parametrize("name", RESTLESS)
@pytest.mark.filterwarnings("ignore:.*torch.nn.utils.spectral_norm:FutureWarning")
def test_layers_that_draw_or_change_are_named(name: str) -> None:
    make, message = RESTLESS[name]
    model, x, y = make().train(), torch.ones(2, 3, 4), torch.tensor([0, 1])
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for call in (
        lambda: inversion.gradient(model, x, y),
        lambda: defenses.release(model, x, y),
        lambda: attacks.attributes.layer_gradients(model, x, y),
        lambda: leakage.l1_sensitivity(model, x, y),
    ):
        with pytest.raises(ValueError, match=r"model: layer \S+ \(\w+\) ") as caught:
            call()
        assert message in str(caught.value)
    with pytest.raises(ValueError, match=r"(?s)module: .*: call module\.eval\(\)"):
        dpsgd.Ensemble(
            dpsgd.ModuleNetwork(model, (3, 4)), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=1, seed=0
        )
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert inversion.gradient(model.eval(), x, y).isfinite().all()


def test_what_drops_nothing_is_taken_in_training_mode() -> None:
    x, y = torch.ones(2, 3, 4), torch.tensor([0, 1])
    for model in (_Recurrent(nn.GRU, 1), _ending(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4), "bias"))):
        assert inversion.gradient(model.train(), x, y).isfinite().all()


def test_batch_norm_without_running_statistics_mixes_in_eval_mode_too() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)).eval()
    with pytest.raises(ValueError, match=r"layer 1 \(BatchNorm1d\) mixes samples even in eval mode.*track_running"):
        defenses.release(model, torch.rand(5, 4), [0, 1, 0, 1, 0])
    original = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    assert len(defenses.release(original, torch.rand(5, 4), [0, 1, 0, 1, 0]).gradient) == 29


class _Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.dropout(self.first(x).tanh(), 0.5, self.training))


def test_dropout_that_is_not_a_layer_is_noticed() -> None:
    torch.manual_seed(0)
    model, x, y = _Dropping().train(), torch.rand(3, 4), torch.tensor([0, 1, 1])
    g = inversion.gradient(model.eval(), x, y)
    model.train()
    rng = torch.get_rng_state()
    for call in (
        lambda: inversion.gradient(model, x, y),
        lambda: inversion.closed_form(model, g, (4,)),
        lambda: defenses.release(model, x, y),
        lambda: defenses.release(model, x, y, defense=defenses.ClipSamples(1.0)),
    ):
        with pytest.raises(ValueError, match="`model` must not draw random numbers as it runs, which no"):
            call()
    assert torch.equal(rng, torch.get_rng_state())
    with pytest.raises(ValueError, match="`model` must not draw random numbers as it runs, which no seed"):
        inversion.invert(model, g, (4,), labels=y, optimizer=inversion.LBFGS(iterations=1, restarts=1))
    torch.testing.assert_close(defenses.release(model.eval(), x, y).gradient, g)


class _Counting(nn.Module):
    """Buffers that it changes, and replaces, whenever it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x)


def test_looking_at_a_model_leaves_it_as_it_was() -> None:
    model, x = _Counting(), torch.rand(1, 4)
    flat = FlatModule(model)
    flat.require_no_draws(x)
    ((module, fed),) = flat.calls(x)
    assert module is model.linear
    assert torch.equal(fed, x)
    assert float(model.calls) == 0
    assert torch.equal(model.mean, torch.zeros(4))
    assert not model.linear._forward_pre_hooks
