"""Small Poisson batches: rows gathered into padded blocks give what masked passes give, bits independent of company;
and what the other ways into and out of an ensemble (pool, executor, record) promise."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from leakcore import dpsgd, models
from leakcore.dpsgd.ensemble import sampling, workers
from leakcore.dpsgd.ensemble.passes import RowGroup
from tests.dpsgd.ensemble import flat_arguments as flat

FIELDS = ("parameters", "dots", "clipped_norms", "cosine", "clipped")
ROWS, RUNS = 1500, 70
RNG = np.random.default_rng(5)
X, Y = RNG.random((ROWS, 6)), RNG.integers(0, 4, ROWS)
EXTRA, EXTRA_Y = RNG.random((RUNS, 2, 6)), RNG.integers(0, 4, (RUNS, 2))
CAND, CAND_Y = RNG.random((RUNS, 3, 6)), RNG.integers(0, 4, (RUNS, 3))


def _run(first: int = 0, runs: int = RUNS, **more) -> dpsgd.EnsembleRun:
    how = {"dtype": "float64", "sample_rate": 0.02} | {k: more.pop(k) for k in ("dtype", "sample_rate") if k in more}
    ensemble = flat.ensemble(
        (6, 5, 4), noise_multiplier=0.5, max_grad_norm=0.3, learning_rate=2, steps=8, seed=3, **how
    )
    part = slice(first, first + runs)
    return flat.run(
        ensemble, X, Y, runs=runs, first_run=first, extra_features=EXTRA[part], extra_labels=EXTRA_Y[part],
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
    common = RowGroup.of(X[:100], Y[:100], 4, torch.float64, torch.device("cpu"))
    gather = sampling.Gather(common, 3, 8)
    taken = np.random.default_rng(0).random((3, 100)) < 0.15
    taken[1] = False
    sums = np.zeros((3, 6))
    for rows, weight in gather.blocks(taken):
        assert rows.inputs.shape == (3, 8, 7)
        sums += (rows.inputs * weight[:, :, None]).sum(1).numpy()[:, :6]
        assert torch.equal(rows.squares, (rows.inputs**2).sum(-1))
        assert torch.equal(rows.targets.sum(1), torch.ones(3, 8, dtype=torch.float64))
    np.testing.assert_allclose(sums, taken.astype(float) @ X[:100], rtol=1e-12)
    assert len(list(gather.blocks(np.zeros((3, 100), bool)))) == 1


def test_a_pool_gives_the_same_bits_as_features() -> None:
    index, labels = RNG.integers(0, ROWS, (RUNS, 3)), Y
    ensemble = dpsgd.Ensemble((6, 5, 4), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=3, seed=0)
    by_index = ensemble.run(
        X[:20],
        Y[:20],
        runs=RUNS,
        per_run=dpsgd.PerRun(dpsgd.Rows(X, Y, index[:, :1])),
        observer=dpsgd.Observer(dpsgd.Rows(X, Y, index)),
    )
    by_features = ensemble.run(
        X[:20],
        Y[:20],
        runs=RUNS,
        per_run=dpsgd.PerRun(dpsgd.Rows(X[index[:, :1]], labels[index[:, :1]])),
        observer=dpsgd.Observer(dpsgd.Rows(X[index], labels[index])),
    )
    for field in ("parameters", "dots", "clipped_norms"):
        assert (getattr(by_index, field) == getattr(by_features, field)).all()


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_an_executor_changes_nothing(kind) -> None:
    data = {"pool_features": X, "pool_labels": Y, "extra_index": np.arange(300)[:, None], "record": True}
    ensemble = dpsgd.Ensemble(
        (6, 4), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=3, sample_rate=0.3, seed=0
    )
    alone = flat.run(ensemble, X[:30], Y[:30], runs=300, first_run=40, **data)
    pool = ThreadPoolExecutor(3) if kind == "threads" else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    calls: list[tuple[int, int]] = []
    with pool as executor:
        shared = flat.run(
            ensemble,
            X[:30],
            Y[:30],
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
        X[:12],
        Y[:12],
        runs=3,
        per_run=dpsgd.PerRun(dpsgd.Rows(X[40:41], Y[40:41])),
        observer=dpsgd.Observer(dpsgd.Rows(X[40:42], Y[40:42]), subtract_known=False, record=True),
    )
    path = np.concatenate([out.thetas, out.parameters[:, None]], axis=1)
    np.testing.assert_allclose(np.diff(path, axis=1), -2 * out.observed / 13, rtol=1e-9, atol=1e-12)
    module = models.mlp((6, 4)).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(out.thetas[2, 4].copy()), module.parameters())
    loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(X[41:42])), torch.from_numpy(Y[41:42]))
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
        per_run=dpsgd.PerRun(dpsgd.Rows(X[:1], Y[:1])),
        observer=dpsgd.Observer(record=True),
    )
    path = np.concatenate([out.thetas, out.parameters[:, None]], axis=1)
    np.testing.assert_allclose(np.diff(path, axis=1), -2 * out.observed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"pool_features": X, "extra_index": [[0]]},
            ValueError,
            r"`labels` must be given for a pool, which.*, got None",
        ),
        (
            {"pool_features": X, "pool_labels": Y, "extra_index": [[ROWS]]},
            ValueError,
            r"`extra.index` must be in \[0, 1499\], a row.*, got 1500",
        ),
        (
            {"pool_features": X, "pool_labels": Y, "extra_index": [[0.5]]},
            TypeError,
            r"`extra.index` must be of an integer type, got float64",
        ),
        (
            {"pool_features": X, "pool_labels": Y, "extra_index": [0]},
            ValueError,
            r"`extra.index` must have shape \(runs=1, at.*, got \(1,\)",
        ),
        (
            {"scorers": {"a": 3}, "candidate_features": X[:2], "candidate_labels": Y[:2]},
            TypeError,
            r"`scorers\['a'\]` must have a start\(shape\).*, got 3",
        ),
        ({"scorers": {"a": 3}}, ValueError, r"`candidates` must be given for cosines, scorers and.*, got None"),
    ],
)
def test_errors(change, error, message) -> None:
    ensemble = dpsgd.Ensemble((6, 4), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=1, seed=0)
    with pytest.raises(error, match=message):
        flat.run(ensemble, X[:3], Y[:3], runs=1, **change)
