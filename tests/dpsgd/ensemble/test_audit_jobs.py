"""What an audit asks of an ensemble: shuffled minibatches, ways to initialise, probes of the final models, and faults
on purpose."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import dpsgd
from leakcore.dpsgd.ensemble.sampling import DrawnBatches, Streams
from tests.dpsgd.ensemble import flat_arguments as flat

RNG = np.random.default_rng(8)
ROWS, RUNS = 61, 70
X, Y = RNG.random((ROWS, 6)), RNG.integers(0, 4, ROWS)
EXTRA, EXTRA_Y = RNG.random((2, 6)), RNG.integers(0, 4, 2)
PROBES, PROBES_Y = RNG.random((5, 6)), RNG.integers(0, 4, 5)


def _ensemble(**change) -> dpsgd.Ensemble:
    settings = {
        "noise_multiplier": 0.5, "max_grad_norm": 0.3, "learning_rate": 2.0, "steps": 25, "dtype": "float64", "seed": 3,
    }  # fmt: skip
    return flat.ensemble((6, 5, 4), "relu", **settings | change)


def _run(ensemble: dpsgd.Ensemble, first: int = 0, runs: int = RUNS, **more) -> dpsgd.EnsembleRun:
    settings = {
        "extra_features": EXTRA, "extra_labels": EXTRA_Y, "probe_features": PROBES, "probe_labels": PROBES_Y,
    }  # fmt: skip
    return flat.run(ensemble, X, Y, runs=runs, first_run=first, **settings | more)


def _batches(seed: int, runs: int, rows: int, size: int, steps: int) -> np.ndarray:
    """The batches as the documentation states them: per epoch an order of all rows, cut."""
    out = np.zeros((runs, steps, rows), bool)
    per_epoch = rows // size
    for run in range(runs):
        for step in range(steps):
            order = Streams(seed, "float64").order(1, rows, step // per_epoch, first_run=run)[0]
            out[run, step, order[step % per_epoch * size : (step % per_epoch + 1) * size]] = True
    return out


@pytest.mark.parametrize("size", [4, 12, 40, 63])
def test_shuffled_batches_are_cut_from_each_epochs_order(size) -> None:
    """Gathered and masked, with rows left over and without: the same as Poisson runs given these very batches."""
    ours = _run(_ensemble(batch_size=size), runs=3)
    same = _run(
        _ensemble(sample_rate=0.5, expected_batch_size=size), runs=3, batches=_batches(3, 3, ROWS + 2, size, 25)
    )
    np.testing.assert_allclose(ours.parameters, same.parameters, rtol=0, atol=1e-10)


def test_every_row_once_per_epoch_in_orders_that_differ() -> None:
    shuffled = DrawnBatches(dpsgd.ShuffledBatches(3), Streams(1, "float32"), 10)
    steps = np.stack([shuffled.batch(t, 32) for t in range(6)])
    assert (steps.sum(axis=2) == 3).all()
    for epoch in (steps[:3], steps[3:]):
        assert epoch.sum(axis=0).max() == 1
    assert (steps[:3] != steps[3:]).any(axis=(0, 2)).all()
    assert len(np.unique(steps[0], axis=0)) > 20
    again = DrawnBatches(dpsgd.ShuffledBatches(3), Streams(1, "float32"), 10)
    assert (again.batch(5, 32) == steps[5]).all()


def test_every_order_is_equally_likely() -> None:
    """24 orders of 4 rows, 4,800 runs, χ² against equal shares; fixed seed, p = 0.001."""
    orders = Streams(5, "float32").order(4800, 4, 7, first_run=0)
    counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("size", [4, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_do_not_depend_on_company(size, dtype) -> None:
    ensemble = _ensemble(batch_size=size, dtype=dtype, initialisation="glorot")
    whole = _run(ensemble, num_threads=1)
    for first, runs, threads in [(0, 1, 1), (0, 7, 2), (0, 64, 2), (33, 30, 3), (69, 1, 1)]:
        part = _run(ensemble, first, runs, num_threads=threads)
        for field in ("parameters", "probe_logits", "probe_losses"):
            assert (getattr(part, field) == getattr(whole, field)[first : first + runs]).all(), (field, first)


def test_probes_are_what_the_models_say() -> None:
    own = RNG.random((3, 5, 6))
    for features in (PROBES, own):
        out = _run(_ensemble(), 40, 3, probe_features=features)
        for i in range(3):
            with torch.no_grad():
                logits = out.module(40 + i)(torch.from_numpy(np.array(np.broadcast_to(features, own.shape)[i])))
            losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(PROBES_Y), reduction="none")
            np.testing.assert_allclose(out.probe_logits[i], logits.numpy(), rtol=0, atol=1e-12)
            np.testing.assert_allclose(out.probe_losses[i], losses.numpy(), rtol=0, atol=1e-12)
    bare = _run(_ensemble(), 40, 3, probe_labels=None, keep_parameters=False)
    assert (bare.probe_logits == _run(_ensemble(), 40, 3).probe_logits).all()
    assert bare.probe_losses is None
    assert bare.parameters.shape == (3, 0)
    with pytest.raises(ValueError, match="`keep_parameters` must be True for runs that have parameters, got False"):
        bare.module(40)


def test_probe_losses_of_one_logit() -> None:
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((6, 1), dtype="float64"), noise_multiplier=1, max_grad_norm=1, learning_rate=900, steps=3, seed=0
    )
    labels = PROBES_Y % 2
    out = ensemble.run(X, Y % 2, runs=2, probes=dpsgd.Rows(PROBES, labels))
    z, y = torch.from_numpy(out.probe_logits[:, :, 0]), torch.from_numpy(labels).double().expand(2, -1)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none")
    np.testing.assert_allclose(out.probe_losses, expected.numpy(), rtol=1e-12, atol=1e-12)
    assert out.probe_losses.max() > 30, "nothing saturates: the stable form is not put to the test"


def test_glorot_is_normal_with_its_spread_and_zero_biases() -> None:
    """Kolmogorov–Smirnov per layer, 200 runs; fixed seed, p = 0.001."""
    drawn = _run(_ensemble(steps=0, initialisation="glorot"), runs=200).parameters
    first, bias, second = drawn[:, :30], drawn[:, 30:35], drawn[:, 35:55]
    assert (bias == 0).all()
    assert (drawn[:, 55:] == 0).all()
    for weights, spread in ((first, (2 / 11) ** 0.5), (second, (2 / 9) ** 0.5)):
        assert stats.kstest(weights.ravel() / spread, "norm").pvalue > 0.001
    half = _run(_ensemble(steps=0, initialisation="glorot", initialisation_scale=0.5), runs=200).parameters
    np.testing.assert_allclose(half, drawn / 2, rtol=1e-15)


def test_noise_around_a_fixed_point() -> None:
    fixed = _run(_ensemble(steps=0, initialisation="fixed-glorot"), 32, 40).parameters
    assert (fixed == fixed[0]).all()
    assert (fixed[0] == _run(_ensemble(steps=0, initialisation="glorot"), runs=1).parameters[0]).all()
    noisy = _run(_ensemble(steps=0, initialisation="fixed-glorot", initialisation_noise=0.5), 32, 40).parameters
    own = _run(_ensemble(steps=0, initialisation="glorot"), 32, 40).parameters
    moved = (noisy - fixed)[:, :30] / (0.5 * (2 / 11) ** 0.5)
    assert stats.kstest(moved.ravel(), "norm").pvalue > 0.001
    assert (noisy[:, 30:35] == fixed[:, 30:35]).all()
    assert abs(np.corrcoef(moved.ravel(), own[:, :30].ravel())[0, 1]) < 4 / moved.size**0.5
    parameters = _run(_ensemble(steps=0, initialisation_noise=0.5), 32, 40, initial=fixed[0]).parameters
    assert (parameters == noisy).all()


def test_a_fault_without_departure_is_none() -> None:
    assert (_run(_ensemble(fault=dpsgd.Fault())).parameters == _run(_ensemble()).parameters).all()


def test_faults_of_noise() -> None:
    halved = _run(_ensemble(noise_multiplier=1.0, fault=dpsgd.Fault(noise=0.5)))
    assert (halved.parameters == _run(_ensemble(noise_multiplier=0.5)).parameters).all()
    bare = _run(_ensemble(steps=1, fault=dpsgd.Fault(bias_noise=0.0))).parameters
    noisy, silent = (_run(_ensemble(steps=1, noise_multiplier=s)).parameters for s in (0.5, 0.0))
    biases = np.r_[30:35, 55:59]
    np.testing.assert_allclose(bare[:, biases], silent[:, biases], rtol=0, atol=1e-12)
    weights = np.setdiff1d(np.arange(59), biases)
    assert (bare[:, weights] == noisy[:, weights]).all()
    assert np.abs(bare - noisy).max() > 1e-4


def test_the_fault_of_clipping_the_batch() -> None:
    """One step by autograd: the mean gradient is clipped, whichever sample it came from."""
    huge = np.full((1, 6), 50.0)
    for clip in (1e-3, 1e3):
        ensemble = _ensemble(noise_multiplier=0.0, max_grad_norm=clip, steps=1, fault=dpsgd.Fault(clip="batch"))
        start = _run(_ensemble(steps=0), runs=2)
        out = _run(ensemble, runs=2, extra_features=huge, extra_labels=[1])
        for run in range(2):
            module = start.module(run)
            x, y = torch.from_numpy(np.concatenate([X, huge])), torch.from_numpy(np.append(Y, 1))
            torch.nn.functional.cross_entropy(module(x), y).backward()
            gradient = torch.cat([p.grad.flatten() for p in module.parameters()]).numpy()
            gradient *= min(1.0, clip / np.linalg.norm(gradient))
            np.testing.assert_allclose(
                out.parameters[run], start.parameters[run] - 2.0 * gradient, rtol=0, atol=1e-12 * max(clip, 1)
            )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probe_features": PROBES[:, :5]}, r"`probes.features` must have shape \(rows, 6\).*, got \(5, 5\)"),
        ({"probe_features": np.zeros((4, 5, 6))}, r"`probes.features` and.*, got \(4, 5, 6\) and"),
        ({"probe_features": np.zeros((0, 6)), "probe_labels": None}, "probes.features.*at least one row"),
        ({"probe_labels": [0, 1, 2, 3, 4]}, r"`probes.labels` must be in \[0, 3\] \(last of layers=\(6,.*, got 4"),
        ({"checkpoint": "/dev/null/x"}, "`checkpoint` must be writable, got '/dev/null/x'"),
    ],
)
def test_errors(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        _run(_ensemble(), runs=3, **change)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="`batch_size` must be at most the 63 rows of a training set, got 64"):
        _run(_ensemble(batch_size=64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": -1}, "`noise` must be at least 0, got -1"),
        ({"bias_noise": -1}, "`bias_noise` must be at least 0, got -1"),
        ({"clip": "none"}, "`clip` must be 'sample' or 'batch', got 'none'"),
    ],
)
def test_errors_of_faults(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        dpsgd.Fault(**change)
