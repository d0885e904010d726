"""Batches of every kind: their law, that runs train on exactly them, and that gathering changes no bits."""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import dpsgd, models
from leakcore.dpsgd.ensemble import sampling, workers
from leakcore.dpsgd.ensemble.passes import RowGroup
from leakcore.dpsgd.ensemble.sampling import DrawnBatches, Streams
from tests.dpsgd.ensemble import flat_arguments as flat

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


FIELDS = ("parameters", "dots", "clipped_norms", "cosine", "clipped")
ROWS_LONG, RUNS_LONG = 1500, 70
RNG_LONG = np.random.default_rng(5)
X_LONG, Y_LONG = RNG_LONG.random((ROWS_LONG, 6)), RNG_LONG.integers(0, 4, ROWS_LONG)
EXTRA_LONG, EXTRA_Y = RNG_LONG.random((RUNS_LONG, 2, 6)), RNG_LONG.integers(0, 4, (RUNS_LONG, 2))
CAND, CAND_Y = RNG_LONG.random((RUNS_LONG, 3, 6)), RNG_LONG.integers(0, 4, (RUNS_LONG, 3))


def _run(first: int = 0, runs: int = RUNS_LONG, **more) -> dpsgd.EnsembleRun:
    how = {"dtype": "float64", "sample_rate": 0.02} | {k: more.pop(k) for k in ("dtype", "sample_rate") if k in more}
    ensemble = flat.ensemble(
        (6, 5, 4), noise_multiplier=0.5, max_grad_norm=0.3, learning_rate=2, steps=8, seed=3, **how
    )
    part = slice(first, first + runs)
    return flat.run(
        ensemble, X_LONG, Y_LONG, runs=runs, first_run=first,
        extra_features=EXTRA_LONG[part], extra_labels=EXTRA_Y[part],
        candidate_features=CAND[part], candidate_labels=CAND_Y[part], candidate_cosines=True, **more,
    )  # fmt: skip


@pytest.fixture
def by_products(monkeypatch) -> None:
    """Batched matrix products, as on other devices: the native loops copy no batches."""
    monkeypatch.setattr(workers, "has_native_sums", lambda layers, activation: False)


def test_small_rates_gather_and_large_ones_do_not() -> None:
    assert sampling.block_rows(1000, 0.01) == 24
    assert sampling.block_rows(1000, 0.5) is None
    assert sampling.block_rows(1000, 1.0) is None
    assert sampling.block_rows(10, 0.01) is None


@pytest.mark.usefixtures("by_products")
def test_gathered_batches_equal_masked_passes(monkeypatch) -> None:
    gathered = _run()
    monkeypatch.setattr(sampling, "block_rows", lambda rows, rate: None)
    masked = _run()
    for field in FIELDS:
        np.testing.assert_allclose(getattr(gathered, field), getattr(masked, field), rtol=1e-10, atol=1e-12)
    assert (gathered.parameters != masked.parameters).any(), "both took the same path"


@pytest.mark.usefixtures("by_products")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_do_not_depend_on_company_even_where_a_batch_overflows_its_block(monkeypatch, dtype) -> None:
    """Blocks of 16 rows per chunk of 750, mean batch 15: nearly every step of some run needs a second block."""
    monkeypatch.setattr(sampling, "block_rows", lambda rows, rate: 16)
    whole = _run(dtype=dtype, num_threads=1)
    for first, runs, threads in [(0, 1, 1), (33, 30, 2), (69, 1, 1), (5, 40, 3)]:
        part = _run(first, runs, dtype=dtype, num_threads=threads)
        for field in FIELDS:
            assert (getattr(part, field) == getattr(whole, field)[first : first + runs]).all(), field


def test_blocks_hold_each_sampled_row_once() -> None:
    common = RowGroup.of(X_LONG[:100], Y_LONG[:100], 4, torch.float64, torch.device("cpu"))
    gather = sampling.Gather(common, 3, 8)
    taken = np.random.default_rng(0).random((3, 100)) < 0.15
    taken[1] = False
    sums = np.zeros((3, 6))
    for rows, weight in gather.blocks(taken):
        assert rows.inputs.shape == (3, 8, 7)
        sums += (rows.inputs * weight[:, :, None]).sum(1).numpy()[:, :6]
        assert torch.equal(rows.squares, (rows.inputs**2).sum(-1))
        assert torch.equal(rows.targets.sum(1), torch.ones(3, 8, dtype=torch.float64))
    np.testing.assert_allclose(sums, taken.astype(float) @ X_LONG[:100], rtol=1e-12)
    assert len(list(gather.blocks(np.zeros((3, 100), bool)))) == 1


def test_a_pool_gives_the_same_bits_as_features() -> None:
    index, labels = RNG_LONG.integers(0, ROWS_LONG, (RUNS_LONG, 3)), Y_LONG
    ensemble = dpsgd.Ensemble((6, 5, 4), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=3, seed=0)
    by_index = ensemble.run(
        X_LONG[:20],
        Y_LONG[:20],
        runs=RUNS_LONG,
        per_run=dpsgd.PerRun(dpsgd.Rows(X_LONG, Y_LONG, index[:, :1])),
        observer=dpsgd.Observer(dpsgd.Rows(X_LONG, Y_LONG, index)),
    )
    by_features = ensemble.run(
        X_LONG[:20],
        Y_LONG[:20],
        runs=RUNS_LONG,
        per_run=dpsgd.PerRun(dpsgd.Rows(X_LONG[index[:, :1]], labels[index[:, :1]])),
        observer=dpsgd.Observer(dpsgd.Rows(X_LONG[index], labels[index])),
    )
    for field in ("parameters", "dots", "clipped_norms"):
        assert (getattr(by_index, field) == getattr(by_features, field)).all()


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_an_executor_changes_nothing(kind) -> None:
    data = {"pool_features": X_LONG, "pool_labels": Y_LONG, "extra_index": np.arange(300)[:, None], "record": True}
    ensemble = dpsgd.Ensemble(
        (6, 4), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=3, sample_rate=0.3, seed=0
    )
    alone = flat.run(ensemble, X_LONG[:30], Y_LONG[:30], runs=300, first_run=40, **data)
    pool = ThreadPoolExecutor(3) if kind == "threads" else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    calls: list[tuple[int, int]] = []
    with pool as executor:
        shared = flat.run(
            ensemble,
            X_LONG[:30],
            Y_LONG[:30],
            runs=300,
            first_run=40,
            executor=executor,
            progress=lambda *at: calls.append(at),
            **data,
        )
    for field in ("parameters", "thetas", "observed"):
        assert (getattr(alone, field) == getattr(shared, field)).all()
    assert shared.first_run == 40
    assert calls[-1] == (300, 300)


def test_a_recorded_run_replays() -> None:
    """θ_{t+1} = θ_t − η·g_t/B from the record itself, and the scores are ⟨clipped gradient, ḡ_t⟩ at θ_t."""
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((6, 4), dtype="float64"), noise_multiplier=1, max_grad_norm=0.2, learning_rate=2, steps=5, seed=0
    )
    out = ensemble.run(
        X_LONG[:12],
        Y_LONG[:12],
        runs=3,
        per_run=dpsgd.PerRun(dpsgd.Rows(X_LONG[40:41], Y_LONG[40:41])),
        observer=dpsgd.Observer(dpsgd.Rows(X_LONG[40:42], Y_LONG[40:42]), subtract_known=False, record=True),
    )
    path = np.concatenate([out.thetas, out.parameters[:, None]], axis=1)
    np.testing.assert_allclose(np.diff(path, axis=1), -2 * out.observed / 13, rtol=1e-9, atol=1e-12)
    module = models.mlp((6, 4)).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(out.thetas[2, 4].copy()), module.parameters())
    loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(X_LONG[41:42])), torch.from_numpy(Y_LONG[41:42]))
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, module.parameters())])
    clipped = gradient * min(1.0, 0.2 / float(gradient.norm()))
    assert float(clipped @ torch.from_numpy(out.observed[2, 4])) == pytest.approx(out.dots[2, 4, 1], rel=1e-9)


def test_the_known_rows_may_be_none_for_several_steps() -> None:
    """Without known rows the released gradient is the private one in every step, not a running sum."""
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((6, 4), dtype="float64"), noise_multiplier=1, max_grad_norm=0.2, learning_rate=2, steps=5, seed=0
    )
    out = ensemble.run(
        np.zeros((0, 6)),
        np.zeros(0, int),
        runs=2,
        per_run=dpsgd.PerRun(dpsgd.Rows(X_LONG[:1], Y_LONG[:1])),
        observer=dpsgd.Observer(record=True),
    )
    path = np.concatenate([out.thetas, out.parameters[:, None]], axis=1)
    np.testing.assert_allclose(np.diff(path, axis=1), -2 * out.observed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pool_features": X_LONG, "extra_index": [[0]]}, ValueError, "`labels` must be given for a pool, which.*"),
        (
            {"pool_features": X_LONG, "pool_labels": Y_LONG, "extra_index": [[ROWS_LONG]]},
            ValueError,
            r"`extra.index` must be in \[0, 1499\], a row.*, got 1500",
        ),
        ({"pool_features": X_LONG, "pool_labels": Y_LONG, "extra_index": [[0.5]]}, TypeError, "`extra.index` must be"),
        ({"pool_features": X_LONG, "pool_labels": Y_LONG, "extra_index": [0]}, ValueError, "`extra.index` must have"),
        (
            {"scorers": {"a": 3}, "candidate_features": X_LONG[:2], "candidate_labels": Y_LONG[:2]},
            TypeError,
            r"`scorers\['a'\]` must have a start\(shape\).*, got 3",
        ),
        ({"scorers": {"a": 3}}, ValueError, r"`candidates` must be given for cosines, scorers and.*, got None"),
    ],
)
def test_errors(change, error, message) -> None:
    ensemble = dpsgd.Ensemble((6, 4), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=1, seed=0)
    with pytest.raises(error, match=message):
        flat.run(ensemble, X_LONG[:3], Y_LONG[:3], runs=1, **change)
