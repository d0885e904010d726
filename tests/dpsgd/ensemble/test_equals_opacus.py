"""One run of the ensemble against the same run trained by Opacus, noise injected into both. Opacus divides by
norm + 1e-6: `clip_slack=1e-6` is that, and without it the two differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakcore import dpsgd, models
from leakcore.dpsgd.ensemble.sampling import DrawnBatches, Streams

pytest.importorskip("opacus")
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.optimizers import optimizer as opacus_optimizer

from tests.dpsgd.ensemble import flat_arguments as flat

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:opacus"),
    pytest.mark.filterwarnings("ignore::FutureWarning:opacus"),
]
ROWS, SIZE, STEPS, SIGMA, CLIP, RATE, SEED = 300, 50, 40, 0.7, 0.5, 0.4, 9


def _data(layers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.random((ROWS, layers[0])), rng.integers(0, max(2, layers[-1]), ROWS)


def _by_opacus(layers, activation, run: int, start: np.ndarray, batches, monkeypatch) -> np.ndarray:
    """The run as an Opacus user writes it; noise and batches come from the ensemble's streams."""
    x, y = (torch.from_numpy(a) for a in _data(layers))
    module = models.mlp(layers, activation).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), module.parameters())
    wrapped = GradSampleModule(module)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=RATE), noise_multiplier=SIGMA, max_grad_norm=CLIP,
        expected_batch_size=SIZE,
    )  # fmt: skip
    pending: list[torch.Tensor] = []
    monkeypatch.setattr(
        opacus_optimizer, "_generate_noise", lambda std, reference, **_: std * pending.pop(0).view_as(reference)
    )
    streams, sizes = Streams(SEED, "float64"), [p.numel() for p in module.parameters()]
    for step in range(STEPS):
        pending += torch.from_numpy(streams.noise(1, sum(sizes), step, first_run=run)[0].copy()).split(sizes)
        taken = torch.from_numpy(batches[step])
        optimizer.zero_grad()
        out = wrapped(x[taken])
        if layers[-1] == 1:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(out[:, 0], y[taken].double())
        else:
            loss = torch.nn.functional.cross_entropy(out, y[taken])
        loss.backward()
        optimizer.step()
        assert not pending
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def _ours(layers, activation, **change) -> dpsgd.Ensemble:
    how = {
        "noise_multiplier": SIGMA, "max_grad_norm": CLIP, "learning_rate": RATE, "steps": STEPS, "batch_size": SIZE,
        "clip_slack": 1e-6, "dtype": "float64", "seed": SEED,
    }  # fmt: skip
    return flat.ensemble(layers, activation, **how | change)


@pytest.mark.parametrize(
    ("layers", "activation"),
    [((20, 8, 3), "relu"), ((20, 3), "elu"), ((20, 1), "elu"), ((20, 7, 6, 2), "tanh"), ((64, 32, 2), "relu")],
    ids=str,
)
def test_one_run_of_the_ensemble_is_the_run_of_opacus(layers, activation, monkeypatch) -> None:
    x, y = _data(layers)
    runs = _ours(layers, activation).run(x, y, runs=70)
    start = _ours(layers, activation, steps=0).run(x, y, runs=70)
    shuffled = DrawnBatches(dpsgd.ShuffledBatches(SIZE), Streams(SEED, "float64"), ROWS)
    for run in (3, 69):
        at = run % 32
        batches = [shuffled.batch(step, run - at)[at] for step in range(STEPS)]
        theirs = _by_opacus(layers, activation, run, start.parameters[run], batches, monkeypatch)
        np.testing.assert_allclose(runs.parameters[run], theirs, rtol=0, atol=1e-10)
        assert np.abs(theirs - start.parameters[run]).max() > 0.01, "nothing was trained"


def test_full_batches_of_opacus(monkeypatch) -> None:
    layers = (20, 8, 3)
    x, y = _data(layers)
    runs = _ours(layers, "relu", batch_size=None, expected_batch_size=SIZE).run(x, y, runs=3)
    start = _ours(layers, "relu", steps=0).run(x, y, runs=3)
    theirs = _by_opacus(layers, "relu", 2, start.parameters[2], np.ones((STEPS, ROWS), bool), monkeypatch)
    np.testing.assert_allclose(runs.parameters[2], theirs, rtol=0, atol=1e-10)


def test_negative_control_without_the_slack_the_runs_differ(monkeypatch) -> None:
    layers = (20, 3)
    x, y = _data(layers)
    ours = _ours(layers, "elu", clip_slack=0.0).run(x, y, runs=1).parameters[0]
    start = _ours(layers, "elu", steps=0).run(x, y, runs=1).parameters[0]
    shuffled = DrawnBatches(dpsgd.ShuffledBatches(SIZE), Streams(SEED, "float64"), ROWS)
    batches = [shuffled.batch(step, 0)[0] for step in range(STEPS)]
    theirs = _by_opacus(layers, "elu", 0, start, batches, monkeypatch)
    assert 1e-9 < np.abs(ours - theirs).max() < 1e-4
