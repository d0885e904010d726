"""Batches of a fixed size and allocated ones: their law, and that runs train on exactly them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import dpsgd
from leakcore.dpsgd.ensemble import workers
from leakcore.dpsgd.ensemble.sampling import DrawnBatches, Streams

ROWS, STEPS, RUNS = 40, 6, 5
RNG = np.random.default_rng(0)
X, Y = RNG.random((ROWS, 4)), RNG.integers(0, 2, ROWS)
EXTRA = dpsgd.Rows(RNG.random((RUNS, 1, 4)), np.zeros((RUNS, 1), int))
CANDIDATES = dpsgd.Rows(RNG.random((RUNS, 3, 4)), np.zeros((RUNS, 3), int))


def _drawn(batches: DrawnBatches, steps: int, blocks: int = 1) -> np.ndarray:
    """(steps, runs, rows) bool."""
    runs = [np.stack([batches.batch(t, 32 * block) for t in range(steps)]) for block in range(blocks)]
    return np.concatenate(runs, axis=1)


def test_every_subset_of_a_fixed_size_is_equally_likely() -> None:
    """The 15 pairs of 6 rows, 3,200 batches; then pairs of consecutive steps' batches, which must be independent.

    χ² against equal shares; fixed seed, p = 0.001 each.
    """
    taken = _drawn(DrawnBatches(dpsgd.FixedBatches(2), Streams(3, "float32"), 6), steps=10, blocks=10)
    assert (taken.sum(axis=2) == 2).all()
    pairs = {pair: i for i, pair in enumerate(itertools.combinations(range(6), 2))}
    which = np.array([[pairs[tuple(np.flatnonzero(row))] for row in step] for step in taken])
    assert stats.chisquare(np.bincount(which.ravel(), minlength=15)).pvalue > 0.001
    both = np.bincount((15 * which[0::2] + which[1::2]).ravel(), minlength=225)
    assert stats.chisquare(both).pvalue > 0.001


def test_every_row_draws_one_batch_of_each_epoch_by_itself() -> None:
    """Batches of one row, and of two rows together, in 6,400 draws: χ² against equal shares; fixed seed, p = 0.001."""
    batches, epochs = 4, 20
    taken = _drawn(DrawnBatches(dpsgd.AllocatedBatches(batches), Streams(3, "float32"), 7), batches * epochs, blocks=10)
    whole = taken.reshape(epochs, batches, 320, 7)
    assert (whole.sum(axis=1) == 1).all()
    which = whole.argmax(axis=1)
    for row in range(7):
        assert stats.chisquare(np.bincount(which[..., row].ravel(), minlength=batches)).pvalue > 0.001 / 7
    for a, b in (
        (which[..., 0], which[..., 1]),
        (which[::2, :, 2], which[1::2, :, 2]),
        (which[:, ::2], which[:, 1::2]),
    ):
        assert stats.chisquare(np.bincount((batches * a + b).ravel(), minlength=batches**2)).pvalue > 0.001 / 3


def _ensemble(batches: Any, **change: Any) -> dpsgd.Ensemble:
    settings: dict[str, Any] = {
        "noise_multiplier": 0.7, "max_grad_norm": 0.5, "learning_rate": 0.8, "steps": STEPS, "seed": 5,
    }  # fmt: skip
    return dpsgd.Ensemble(dpsgd.Network((4, 3, 2), dtype="float64"), sample_rate=batches, **settings | change)


def _own(batches: Any) -> np.ndarray:
    """(runs, steps, rows) bool: the batches that runs draw by themselves."""
    streams, rows = Streams(5, "float64"), ROWS + 1
    return np.moveaxis(_drawn(DrawnBatches(batches, streams, rows), STEPS), 0, 1)[:RUNS]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    "batches", [dpsgd.FixedBatches(4), dpsgd.FixedBatches(30), dpsgd.AllocatedBatches(3), dpsgd.AllocatedBatches(20)]
)
def test_runs_train_on_the_batches_that_they_draw(batches: Any, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered, masked and by the native loops: the same as Poisson runs with these very batches."""
    monkeypatch.setattr(workers, "has_native_sums", lambda *_: native)
    size = batches.batch_size if isinstance(batches, dpsgd.FixedBatches) else (ROWS + 1) / batches.batches
    ours = _ensemble(batches).run(X, Y, runs=RUNS, per_run=dpsgd.PerRun(EXTRA))
    poisson = _ensemble(dpsgd.PoissonBatches(0.5, expected_batch_size=size))
    same = poisson.run(X, Y, runs=RUNS, per_run=dpsgd.PerRun(EXTRA, batches=_own(batches)))
    np.testing.assert_allclose(ours.parameters, same.parameters, rtol=0, atol=1e-10)
    part = _ensemble(batches).run(
        X, Y, runs=range(2, 4), per_run=dpsgd.PerRun(dpsgd.Rows(EXTRA.features[2:4], EXTRA.labels[2:4]))
    )
    assert (part.parameters == ours.parameters[2:4]).all()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("size", [4, 30])
def test_an_attacker_without_batches_subtracts_their_average(
    size: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "has_native_sums", lambda *_: native)
    batches = dpsgd.FixedBatches(size)
    watcher = dpsgd.Observer(CANDIDATES, batches="none", record=True)
    out = _ensemble(batches).run(X, Y, runs=RUNS, per_run=dpsgd.PerRun(EXTRA), observer=watcher)
    assert out.thetas is not None
    assert out.observed is not None
    whole = _ensemble(1.0, noise_multiplier=0.0, steps=1, learning_rate=1.0)
    for step in range(STEPS):
        after = out.parameters if step == STEPS - 1 else out.thetas[:, step + 1]
        released = (out.thetas[:, step] - after) * size / 0.8
        moved = whole.run(X, Y, runs=RUNS, per_run=dpsgd.PerRun(initial=out.thetas[:, step]))
        common = (out.thetas[:, step] - moved.parameters) * ROWS
        np.testing.assert_allclose(out.observed[:, step], released - size / (ROWS + 1) * common, atol=1e-8)


def test_an_attacker_who_knows_all_batches_scores_the_steps_of_the_extra_row_alone() -> None:
    batches, per_run = dpsgd.ShuffledBatches(8), dpsgd.PerRun(EXTRA)
    common, every = (
        _ensemble(batches).run(X, Y, runs=RUNS, per_run=per_run, observer=dpsgd.Observer(CANDIDATES, batches=which))
        for which in ("common", "all")
    )
    assert common.dots is not None
    assert every.dots is not None
    assert every.clipped_norms is not None
    there = (every.clipped_norms > 0).all(axis=2)
    assert (there == (every.clipped_norms > 0).any(axis=2)).all()
    assert 0 < there[:, :5].sum() <= RUNS  # 41 rows in 5 batches of 8: once an epoch, or left over
    assert (there[:, :5].sum(axis=1) <= 1).all()
    assert (every.dots == common.dots * there[..., None]).all()
    assert (every.clipped == common.clipped).all()


def test_what_an_attacker_knows_must_be_one_of_three() -> None:
    with pytest.raises(ValueError, match="`batches` must be 'common', 'all' or 'none', got 'some'"):
        dpsgd.Observer(CANDIDATES, batches="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`observer\.batches` must be 'common' or 'none' without extra"):
        _ensemble(0.5).run(X, Y, runs=RUNS, observer=dpsgd.Observer(CANDIDATES, batches="all"))
    with pytest.raises(ValueError, match="`batch_size` must be at most the 40 rows of a training set, got 41"):
        _ensemble(dpsgd.FixedBatches(41)).run(X, Y, runs=RUNS)
    for batches, name in ((dpsgd.FixedBatches, "batch_size"), (dpsgd.AllocatedBatches, "batches")):
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got 0"):
            batches(0)
