"""Any torch module: an MLP given as a module is the MLP, and a convolutional network is DP-SGD written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import dpsgd, models
from leakcore.dpsgd.ensemble import passes
from tests.dpsgd.ensemble import flat_arguments as flat

RNG = np.random.default_rng(2)
MECHANISM = {
    "noise_multiplier": 0.6, "max_grad_norm": 0.4, "learning_rate": 0.8, "steps": 5, "dtype": "float64", "seed": 6,
}  # fmt: skip


def _mlp(layers: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return models.mlp(layers, "tanh").double()


@pytest.mark.parametrize("layers", [(6, 5, 3), (6, 1)], ids=str)
@pytest.mark.parametrize(
    "how", [{}, {"sample_rate": 0.1}, {"batch_size": 20, "clip_slack": 1e-6}, {"fault": dpsgd.Fault(bias_noise=0)}]
)
def test_an_mlp_given_as_a_module_is_that_mlp(layers, how, monkeypatch) -> None:
    monkeypatch.setattr(passes, "_GRADIENTS", 700)
    module = _mlp(layers)
    classes = max(2, layers[-1])
    data = {
        "features": RNG.normal(size=(150, 6)), "labels": RNG.integers(0, classes, 150), "runs": 3, "first_run": 40,
        "extra_features": RNG.normal(size=(3, 2, 6)), "extra_labels": RNG.integers(0, classes, (3, 2)),
        "candidate_features": RNG.normal(size=(4, 6)), "candidate_labels": RNG.integers(0, classes, 4),
        "candidate_cosines": True, "probe_features": RNG.normal(size=(5, 6)), "probe_labels": np.ones(5, int),
    }  # fmt: skip
    ours = flat.run(flat.module_ensemble(module, (6,), **MECHANISM | how), **data)
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    theirs = flat.run(flat.ensemble(layers, "tanh", **MECHANISM | how), **data, initial=start)
    for field in ("parameters", "dots", "clipped_norms", "cosine", "clipped", "probe_logits", "probe_losses"):
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), rtol=0, atol=1e-10, err_msg=field)


def _conv() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.GroupNorm(3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ).double()


def test_a_convolutional_network_is_dp_sgd_written_out() -> None:
    x, y, noise = RNG.random((9, 36)), RNG.integers(0, 3, 9), RNG.normal(size=(1, 5, 75))
    module = _conv()
    ours = flat.module_ensemble(module, (1, 6, 6), **MECHANISM).run(x, y, runs=1, per_run=dpsgd.PerRun(noise=noise))
    plain = _conv()
    for step in range(5):
        total = torch.from_numpy(noise[0, step]) * 0.6 * 0.4
        for row, label in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
            loss = nn.functional.cross_entropy(plain(row.view(1, 1, 6, 6)), label[None])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, plain.parameters())])
            total += gradient * min(1.0, 0.4 / float(gradient.norm()))
        vector = torch.nn.utils.parameters_to_vector(plain.parameters()).detach() - 0.8 / 9 * total
        torch.nn.utils.vector_to_parameters(vector, plain.parameters())
    np.testing.assert_allclose(ours.parameters[0], vector.numpy(), rtol=0, atol=1e-10)
    with torch.no_grad():
        images = torch.from_numpy(x).view(-1, 1, 6, 6)
        np.testing.assert_allclose(ours.module(0)(images).numpy(), plain(images).numpy(), rtol=0, atol=1e-9)
        assert (plain(images) - module(images)).abs().max() > 0.01, "nothing was trained, or the caller's module was"


def test_bits_do_not_depend_on_company() -> None:
    x, y = RNG.random((40, 36)), RNG.integers(0, 3, 40)
    ensemble = flat.module_ensemble(
        _conv(), (1, 6, 6), **MECHANISM | {"dtype": "float32"}, batch_size=8, initialisation_noise=0.5
    )  # fmt: skip
    whole = ensemble.run(x, y, runs=70, execution=dpsgd.Execution(num_threads=2))
    assert len(np.unique(whole.parameters[:, 0])) == 70
    for first, runs in ((0, 1), (30, 7), (69, 1)):
        part = ensemble.run(x, y, runs=range(first, first + runs), execution=dpsgd.Execution(num_threads=1))
        assert (part.parameters == whole.parameters[first : first + runs]).all()


def test_a_checkpoint_knows_the_module(tmp_path) -> None:
    x, y = RNG.random((10, 6)), RNG.integers(0, 3, 10)
    for module in (_mlp((6, 3)), _mlp((6, 5, 3)), nn.Linear(6, 3).double()):
        ensemble = flat.module_ensemble(module, (6,), **MECHANISM)
        stored = [
            ensemble.run(x, y, runs=2, execution=dpsgd.Execution(checkpoint=tmp_path)).parameters for _ in range(2)
        ]
        assert (stored[0] == ensemble.run(x, y, runs=2).parameters).all()
        assert (stored[0] == stored[1]).all()


class _Scaled(nn.Module):
    """Like another by its repr and its parameters, not by what it computes."""

    def __init__(self, scale: float, act: object) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3).double()
        nn.init.constant_(self.linear.weight, 0.1)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.act(x * self.scale))


def test_a_checkpoint_knows_what_a_module_does_not_print(tmp_path) -> None:
    x, y = RNG.random((10, 6)), RNG.integers(0, 3, 10)
    modules = [_Scaled(1.0, torch.tanh), _Scaled(5.0, torch.tanh), _Scaled(1.0, torch.relu)]
    modules += [_Scaled(1.0, lambda v: v * 2.0), _Scaled(1.0, lambda v: v * 3.0)]
    for module in modules:
        ensemble = flat.module_ensemble(module, (6,), **MECHANISM)
        stored = ensemble.run(x, y, runs=2, execution=dpsgd.Execution(checkpoint=tmp_path)).parameters
        assert (stored == ensemble.run(x, y, runs=2).parameters).all()
    assert len(list(tmp_path.iterdir())) == len(modules)
    # Built again, it is the same one.
    flat.module_ensemble(_Scaled(5.0, torch.tanh), (6,), **MECHANISM).run(
        x, y, runs=2, execution=dpsgd.Execution(checkpoint=tmp_path)
    )
    assert len(list(tmp_path.iterdir())) == len(modules)


def _frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("module", "shape", "error", "message"),
    [
        ("net", (6,), TypeError, r"`module` must be a torch.nn.Module, got 'net'"),
        (
            nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)),
            (6,),
            ValueError,
            "`module` must compute each row by itself, but",
        ),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), (6,), ValueError, "module: Dropout.*call module.eval"),
        (nn.Flatten(), (6,), ValueError, "`module` must have parameters to train"),
        (_frozen(), (6,), ValueError, "`module` must have parameters that require grad, for all are"),
        (nn.Linear(6, 3), (5,), ValueError, r"`module` must take rows of input_shape=\(5,\) \(mat1 and mat2"),
        (nn.Linear(6, 3), (2, 6), ValueError, r"`module` must return \(2, outputs\) logits.*, got \(2, 2, 3\)"),
    ],
)
def test_errors(module, shape, error, message) -> None:
    with pytest.raises(error, match=message):
        flat.module_ensemble(module, shape, **MECHANISM)


def test_a_module_alone_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`network` must be sizes of layers or a.*, got Linear"):
        dpsgd.Ensemble(nn.Linear(6, 3), **{k: v for k, v in MECHANISM.items() if k != "dtype"})
