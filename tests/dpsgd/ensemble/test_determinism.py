"""A run's bits depend on (seed, run) and the data: not on how many runs, which ranges or order, or how many threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from leakcore import dpsgd, kernels
from leakcore.dpsgd.ensemble import arguments, block, sampling, workers
from leakcore.dpsgd.ensemble.sampling import Streams
from tests.dpsgd.ensemble import flat_arguments as flat

FIELDS = ("parameters", "dots", "clipped_norms", "cosine")
TOTAL = 80


def _ensemble(seed: int = 11, **change) -> dpsgd.Ensemble:
    settings = {
        "noise_multiplier": 1.0, "max_grad_norm": 0.5, "learning_rate": 2.0, "steps": 5, "sample_rate": 0.5,
        "seed": seed,
    }  # fmt: skip
    return flat.ensemble((13, 10, 10), "elu", **settings | change)


def _data(rows: int = 203):
    rng = np.random.default_rng(0)
    return {
        "features": rng.random((rows, 13)),
        "labels": rng.integers(0, 10, rows),
        "extra_features": rng.random((TOTAL, 1, 13)),
        "extra_labels": rng.integers(0, 10, (TOTAL, 1)),
        "candidate_features": rng.random((TOTAL, 3, 13)),
        "candidate_labels": rng.integers(0, 10, (TOTAL, 3)),
    }


def _run(ensemble: dpsgd.Ensemble, first: int, runs: int, **more) -> dpsgd.EnsembleRun:
    data = _data()
    part = {k: v[first : first + runs] if v.shape[0] == TOTAL else v for k, v in data.items()}
    return flat.run(ensemble, **part, runs=runs, first_run=first, candidate_cosines=True, **more)


@pytest.fixture(autouse=True, scope="module", params=["native loops", "batched products"])
def path(request) -> Iterator[None]:
    """Both ways to the sums; the second is what other devices take."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "batched products":
            patch.setattr(workers, "has_native_sums", lambda layers, activation: False)
        yield


@pytest.fixture(scope="module")
def whole(path) -> dpsgd.EnsembleRun:
    return _run(_ensemble(), 0, TOTAL, num_threads=1)


@pytest.mark.parametrize("runs", [1, 7, 64])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_the_number_of_runs_or_threads(whole, runs, threads) -> None:
    part = _run(_ensemble(), 0, runs, num_threads=threads)
    for field in FIELDS:
        assert (getattr(part, field) == getattr(whole, field)[:runs]).all(), field


def test_bits_do_not_depend_on_ranges_or_order(whole) -> None:
    for first, runs in [(66, 14), (5, 3), (31, 35), (15, 16), (8, 1), (0, 5)]:
        part = _run(_ensemble(), first, runs)
        for field in FIELDS:
            assert (getattr(part, field) == getattr(whole, field)[first : first + runs]).all(), (field, first)


def test_bits_do_not_depend_on_the_callers_thread_settings(whole) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with kernels.thread_limit(2):
            part = _run(_ensemble(), 16, 16, num_threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    for field in FIELDS:
        assert (getattr(part, field) == getattr(whole, field)[16:32]).all()


def test_training_does_not_depend_on_being_watched(whole) -> None:
    data = {k: v for k, v in _data().items() if not k.startswith("candidate")}
    unwatched = flat.run(_ensemble(), **data, runs=TOTAL)
    assert unwatched.dots is None
    assert (unwatched.parameters == whole.parameters).all()


def test_seed_and_run_number_matter(whole) -> None:
    other = _run(_ensemble(seed=12), 0, 16)
    assert (other.parameters != whole.parameters[:16]).all(axis=1).all()
    assert len(np.unique(whole.parameters[:, 0])) == TOTAL


def test_negative_control_noise_keyed_by_place_instead_of_run(monkeypatch, whole) -> None:
    """An ensemble that numbers its noise by the block's order of work, not by run, is caught by that comparison."""
    right = Streams.noise
    monkeypatch.setattr(
        Streams, "noise", lambda self, n, size, step, *, first_run: right(self, n, size, step, first_run=0)
    )
    part = _run(_ensemble(), 32, 16)
    assert (part.parameters != whole.parameters[32:48]).all(axis=1).all()


def test_another_number_of_slots_changes_rounding_only(monkeypatch, whole) -> None:
    for module in (arguments, block, sampling, workers):
        monkeypatch.setattr(module, "SLOTS", 3)
    part = _run(_ensemble(), 0, TOTAL)
    np.testing.assert_allclose(part.parameters, whole.parameters, rtol=0, atol=1e-4)


def test_fixed_initialisation_is_that_of_run_zero() -> None:
    fixed = flat.run(_ensemble(initialisation="fixed", steps=0), **_shared(), runs=20, first_run=40)
    own = flat.run(_ensemble(steps=0), **_shared(), runs=20)
    assert (fixed.parameters == own.parameters[0]).all()
    assert len(np.unique(own.parameters[:, 5])) == 20


def test_initial_parameters_are_uniform_in_torch_linears_range() -> None:
    """Kolmogorov–Smirnov of 200 runs × parameters against U(±1/√fan_in); fixed seed, p = 0.001."""
    from scipy import stats

    drawn = flat.run(_ensemble(steps=0), **_shared(), runs=200).parameters
    first, second = drawn[:, :140].ravel(), drawn[:, 140:].ravel()
    for values, fan_in in ((first, 13), (second, 10)):
        assert np.abs(values).max() <= fan_in**-0.5
        assert stats.kstest(values * fan_in**0.5, "uniform", args=(-1, 2)).pvalue > 0.001


def _shared() -> dict[str, np.ndarray]:
    return {k: v for k, v in _data().items() if k in {"features", "labels"}}
