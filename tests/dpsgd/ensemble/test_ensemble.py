"""Ensembles: their arguments, their batches, and what a run returns."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import attacks, dpsgd
from leakcore.dpsgd.ensemble.arguments import RowReader
from leakcore.dpsgd.ensemble.sampling import DrawnBatches, Streams
from tests.dpsgd.ensemble import flat_arguments as flat

RATE, ROWS, RUNS = 0.3, 40, 3000


def test_batch_sizes_are_binomial_in_the_run_itself() -> None:
    """One step of one-feature logistic regression at θ = 0 moves the bias by η·½·|B|/(qN): |B| is read off the result.

    Chi-square against Bin(N, q), cells of at least five expected runs; fixed seed, p = 0.001.
    """
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((1, 1), dtype="float64"),
        noise_multiplier=0,
        max_grad_norm=1,
        learning_rate=1,
        steps=1,
        sample_rate=RATE,
        seed=4,
    )
    out = ensemble.run(
        np.zeros((ROWS - 1, 1)),
        np.ones(ROWS - 1, dtype=int),
        runs=RUNS,
        per_run=dpsgd.PerRun(dpsgd.Rows(np.zeros((1, 1)), [1]), initial=np.zeros(2)),
    )
    sizes = out.parameters[:, 1] * 2 * RATE * ROWS
    np.testing.assert_allclose(sizes, np.round(sizes), atol=1e-9)
    expected = RUNS * stats.binom.pmf(np.arange(ROWS + 1), ROWS, RATE)
    keep = expected >= 5
    observed = np.bincount(np.round(sizes).astype(int), minlength=ROWS + 1)
    counts = np.append(observed[keep], observed[~keep].sum())
    wanted = np.append(expected[keep], RUNS - expected[keep].sum())
    assert stats.chisquare(counts, wanted).pvalue > 0.001


def test_every_row_is_sampled_at_the_rate_independently_of_the_others() -> None:
    """Row counts against Bin(steps·runs, q), Bonferroni over rows; correlations of rows, steps and runs; p = 0.001."""
    streams, steps = Streams(9, "float32"), 20
    drawn = np.stack([streams.batch(200, ROWS, RATE, t, first_run=0) for t in range(steps)])
    total = drawn.shape[0] * drawn.shape[1]
    pvalues = [stats.binomtest(int(k), total, RATE).pvalue for k in drawn.sum(axis=(0, 1))]
    assert min(pvalues) > 0.001 / ROWS
    limit = stats.norm.isf(0.0005 / 2) / total**0.5
    for a, b in (
        (drawn[:, :, 0], drawn[:, :, 1]),
        (drawn[:-1, :, 5], drawn[1:, :, 5]),
        (drawn[:, :-1, 7], drawn[:, 1:, 7]),
    ):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < limit * (total / a.size) ** 0.5


def test_noise_has_the_stated_scale() -> None:
    """With nothing to learn from (a saturated row), one step is pure noise: σ·C·η/B per coordinate. KS, p = 0.001."""
    ensemble = dpsgd.Ensemble(
        (3, 1),
        noise_multiplier=2.0,
        max_grad_norm=0.5,
        learning_rate=3.0,
        steps=1,
        sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=4),
        seed=1,
    )
    start = np.array([0.0, 0.0, 0.0, 200.0])
    out = ensemble.run(np.zeros((1, 3)), [1], runs=2000, per_run=dpsgd.PerRun(initial=start))
    moved = (out.parameters - start).astype(np.float64)[:, :3].ravel()
    assert stats.kstest(moved, "norm", args=(0, 2.0 * 0.5 * 3.0 / 4)).pvalue > 0.001


def test_full_batches_take_every_row() -> None:
    ensemble = dpsgd.Ensemble((1, 1), noise_multiplier=0, max_grad_norm=1, learning_rate=1, steps=1, seed=0)
    out = ensemble.run(np.zeros((8, 1)), np.ones(8, dtype=int), runs=2, per_run=dpsgd.PerRun(initial=np.zeros(2)))
    assert out.parameters.tolist() == [[0.0, 0.5], [0.0, 0.5]]


def test_progress_counts_runs_once() -> None:
    calls: list[tuple[int, int]] = []
    ensemble = dpsgd.Ensemble((2, 2), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=2, seed=0)
    ensemble.run(
        np.zeros((3, 2)),
        [0, 1, 0],
        runs=range(10, 50),
        execution=dpsgd.Execution(progress=lambda *at: calls.append(at)),
    )
    assert [total for _, total in calls] == [40] * len(calls)
    assert sorted(done for done, _ in calls) == [done for done, _ in calls]
    assert calls[-1] == (40, 40)


def test_an_interrupted_run_leaves_no_thread_behind() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    ensemble = dpsgd.Ensemble((2, 2), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=2000, seed=0)
    with pytest.raises(KeyboardInterrupt):
        ensemble.run(
            np.zeros((3, 2)), [0, 1, 0], runs=2000, execution=dpsgd.Execution(num_threads=2, progress=interrupt)
        )
    assert not [t for t in threading.enumerate() if t.name.startswith("leakcore-dpsgd")]


def test_overflow_is_an_error_that_names_the_run() -> None:
    ensemble = dpsgd.Ensemble((2, 2), noise_multiplier=1, max_grad_norm=1, learning_rate=3e38, steps=9, seed=0)
    with pytest.raises(FloatingPointError, match=r"run \d+: gradients or parameters overflowed float32: learning_rate"):
        ensemble.run(np.ones((3, 2)), [0, 1, 0], runs=3)


def test_a_gradient_too_large_to_measure_is_an_error_not_a_dropped_sample() -> None:
    ensemble = dpsgd.Ensemble((2, 2), noise_multiplier=0, max_grad_norm=1, learning_rate=1, steps=1, seed=0)
    with pytest.raises(FloatingPointError, match="run 0: gradients or parameters overflowed float32"):
        ensemble.run(np.full((3, 2), 1e25), [0, 1, 0], runs=1, per_run=dpsgd.PerRun(initial=np.zeros(6)))


MECHANISM = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 1.0, "steps": 3, "seed": 0}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"noise_multiplier": -1}, ValueError, "`noise_multiplier` must be at least 0, got -1"),
        ({"noise_multiplier": float("nan")}, ValueError, "`noise_multiplier` must be a number, got nan"),
        ({"max_grad_norm": 0}, ValueError, "`max_grad_norm` must be above 0, got 0"),
        ({"max_grad_norm": 1e-20}, ValueError, "`max_grad_norm` must have a"),
        ({"max_grad_norm": 1e20}, ValueError, r"`max_grad_norm` must have a square that is a.*, got 1e\+20"),
        ({"learning_rate": 0}, ValueError, "`learning_rate` must be above 0, got 0"),
        ({"steps": -1}, ValueError, r"`steps` must be in \[0, 16777215\], got -1"),
        ({"steps": 2.0}, TypeError, r"`steps` must be an integer, got 2.0"),
        ({"sample_rate": 0}, ValueError, r"`sample_rate` must be in \(0, 1\], got 0"),
        ({"sample_rate": 1.01}, ValueError, r"`sample_rate` must be in \[0, 1\], got 1.01"),
        ({"expected_batch_size": 0}, ValueError, "`expected_batch_size` must be above 0, got 0"),
        ({"initialisation": "xavier"}, ValueError, r"`initialisation` must be 'per-run',.*, got 'xavier'"),
        ({"initialisation_scale": -1}, ValueError, "`scale` must be at least 0, got -1"),
        ({"initialisation_noise": -1}, ValueError, "`noise` must be at least 0, got -1"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1, got 0"),
        ({"sample_rate": "poisson"}, TypeError, "`sample_rate` must be a real number, got 'poisson'"),
        ({"fault": "noise"}, TypeError, r"`fault` must be a dpsgd.Fault or None, got 'noise'"),
        ({"clip_slack": -1e-6}, ValueError, "`clip_slack` must be at least 0, got -1e-06"),
        ({"dtype": "bfloat16"}, ValueError, "`dtype` must be 'float32' or 'float64', got 'bfloat16'"),
        ({"seed": -1}, ValueError, r"`seed` must be in \[0, 18446744073709551615\], got -1"),
        ({"seed": None}, TypeError, "`seed` must be an integer, got None"),
        ({"activation": "swish"}, ValueError, r"`activation` must be 'elu', 'relu',.*, got 'swish'"),
        ({"layers": (2,)}, ValueError, r"`layers` must be .* at least two sizes, got \(2,\)"),
        ({"noise_multipler": 1.0}, TypeError, "noise_multipler"),
    ],
)
def test_errors_of_the_mechanism(change, error, message) -> None:
    with pytest.raises(error, match=message):
        flat.ensemble(**{"layers": (2, 3)} | MECHANISM | change)


DATA = {"features": np.zeros((4, 2)), "labels": np.array([0, 1, 2, 0]), "runs": 2}
CANDIDATES = {"candidate_features": np.zeros((2, 5, 2)), "candidate_labels": np.zeros((2, 5), dtype=int)}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"features": np.zeros((4, 3))}, ValueError, r"`features` must have shape \(rows, 2\).*, got \(4, 3\)"),
        ({"features": np.full((4, 2), np.inf)}, ValueError, r"`features\[0, 0\]` must be finite in float32, got inf"),
        ({"features": np.full((4, 2), 1e300)}, ValueError, r"`features\[0, 0\]` must be finite in float32"),
        ({"features": np.zeros((4, 2), dtype=complex)}, TypeError, "`features` must be of a real floating.*"),
        ({"features": torch.zeros(4, 2, requires_grad=True)}, TypeError, "`features` must not require"),
        ({"features": [[1, 2], [3]]}, TypeError, "`features` must be an array of numbers"),
        ({"features": np.zeros((0, 2)), "labels": np.zeros(0, dtype=int)}, ValueError, "at least one row"),
        ({"labels": np.zeros(3, dtype=int)}, ValueError, "`labels` must give one label to each row.*"),
        ({"labels": np.zeros(4)}, TypeError, "`labels` must be of an integer type, got float64"),
        ({"labels": np.array([0, 1, 3, 0])}, ValueError, r"`labels` must be in \[0, 2\] \(last of layers=\(2,.*"),
        ({"labels": np.array([0, 1, -1, 0])}, ValueError, r"`labels` must be in \[0, 2\] \(last of.*, got -1"),
        ({"runs": 0}, ValueError, "`runs` must be at least 1, got 0"),
        ({"runs": range(0)}, ValueError, r"`runs` must be a range of consecutive numbers,.*, got range\(0, 0\)"),
        ({"runs": range(0, 4, 2)}, ValueError, r"`runs` must be a range of consecutive.*, got range\(0, 4, 2\)"),
        ({"first_run": -1}, ValueError, r"`runs` must start in \[0, 4611686018427387904\], got range\(-1, 1\)"),
        ({"extra_features": np.zeros((2, 1, 2))}, ValueError, "`extra.labels` must give one label to each row"),
        (
            {"extra_features": np.zeros((3, 1, 2)), "extra_labels": np.zeros((3, 1), dtype=int)},
            ValueError,
            r"`extra.features` and `extra.labels` must have shapes that start with runs=2, got \(3, 1, 2\) and",
        ),
        (
            {"extra_features": np.zeros((2, 0, 2)), "extra_labels": np.zeros((2, 0), dtype=int)},
            ValueError,
            "extra.features.*at least one row per run",
        ),
        (CANDIDATES | {"candidate_labels": np.zeros((2, 4), dtype=int)}, ValueError, "`candidates.labels` must give"),
        ({"candidate_cosines": True}, ValueError, r"`candidates` must be given for cosines,.*, got None"),
        ({"subtract_known": False}, ValueError, r"`candidates` must be given for cosines, scorers.*, got None"),
        (
            {"candidate_features": np.zeros((1, 2)), "candidate_labels": [0], "candidate_cosines": True},
            ValueError,
            "`candidates` must have at least 2 rows with cosines, got 1",
        ),
        ({"initial": np.zeros(8)}, ValueError, r"`initial` must have shape \(2, 9\), got \(2, 8\)"),
        ({"initial": np.zeros(9, dtype=int)}, TypeError, "`initial` must be of a real floating type, got int64"),
        ({"initial": np.full(9, np.nan)}, ValueError, r"`initial\[0, 0\]` must be finite in float32, got nan"),
        ({"noise": np.zeros((2, 3, 8))}, ValueError, r"`noise` must have shape \(2, 3, 9\), got \(2, 3, 8\)"),
        ({"batches": np.ones((2, 3, 4))}, TypeError, "`batches` must be of type bool, got float64"),
        ({"batches": np.ones((2, 3, 5), dtype=bool)}, ValueError, r"`batches` must have shape \(2, 3, 4\)"),
        ({"num_threads": 0}, ValueError, "`num_threads` must be at least 1, got 0"),
        ({"progress": 1}, TypeError, "`progress` must be callable or None, got 1"),
        ({**CANDIDATES, "scorers": 3}, TypeError, "`scorers` must be of type Mapping, got int"),
    ],
)
def test_errors_of_a_run(change, error, message) -> None:
    ensemble = dpsgd.Ensemble((2, 3), **MECHANISM)
    flat.run(ensemble, **DATA)
    with pytest.raises(error, match=message):
        flat.run(ensemble, **DATA | change)


@pytest.mark.parametrize("fault", [dpsgd.Fault(noise=1e100), dpsgd.Fault(bias_noise=1e308)])
def test_noise_of_a_fault_beyond_floats_is_refused(fault: dpsgd.Fault) -> None:
    ensemble = dpsgd.Ensemble((2, 3), **MECHANISM, fault=fault)
    with pytest.raises(ValueError, match=r"times `fault.noise` and `fault.bias_noise` must be at most 3.4e\+38, the"):
        flat.run(ensemble, **DATA)


@pytest.mark.parametrize("hidden", [10**9, 2**63])
def test_a_network_beyond_the_memory_is_refused_before_it_is_made(hidden: int) -> None:
    ensemble = dpsgd.Ensemble((2, hidden, 3), **MECHANISM)
    with pytest.raises(ValueError, match=rf"`network=\(2, {hidden}, 3\)` needs .* GiB of memory"):
        ensemble.run(DATA["features"], DATA["labels"], runs=1, keep_parameters=False)


def test_noise_for_a_noiseless_mechanism_is_refused() -> None:
    ensemble = dpsgd.Ensemble((2, 3), **MECHANISM | {"noise_multiplier": 0})
    with pytest.raises(ValueError, match="`noise` must be None with noise_multiplier=0, which adds no noise"):
        flat.run(ensemble, **DATA, noise=np.zeros((2, 3, 9)))


def test_torch_tensors_and_lists_are_read_like_arrays() -> None:
    ensemble = dpsgd.Ensemble((2, 3), **MECHANISM)
    x = np.random.default_rng(0).random((4, 2)).astype("float32")
    first = ensemble.run(x, [0, 1, 2, 0], runs=2)
    second = ensemble.run(
        torch.from_numpy(x),
        torch.tensor([0, 1, 2, 0]),
        runs=2,
        per_run=dpsgd.PerRun(initial=torch.from_numpy(np.zeros(9))),
    )
    third = ensemble.run(x.tolist(), [0, 1, 2, 0], runs=2)
    assert (first.parameters == third.parameters).all()
    assert (first.parameters != second.parameters).any()


def test_a_rate_that_is_none_says_what_else_there_is() -> None:
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 1.0, "steps": 1, "seed": 0}
    with pytest.raises(ValueError, match=r"`sample_rate` must be in \[0, 1\], got 1.01"):
        dpsgd.Ensemble((4, 2), **settings, sample_rate=1.01)


def test_an_ensemble_with_one_argument_replaced_keeps_the_others() -> None:
    ensemble = flat.ensemble((2, 3), "tanh", **MECHANISM, sample_rate=0.5, expected_batch_size=3.0, clip_slack=1e-6)
    shorter = ensemble.replace(steps=1)
    assert shorter.settings() == {**ensemble.settings(), "steps": 1}
    assert ensemble.replace(sample_rate=0.25).expected_batch_size is None
    with pytest.raises(TypeError, match="noise_multipler"):
        ensemble.replace(noise_multipler=1.0)


X, Y = np.random.default_rng(0).random((12, 3)), np.arange(12) % 2
ENSEMBLE = dpsgd.Ensemble((3, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=2, seed=0)


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        (dpsgd.Execution, {"num_threads": 0}, ValueError, "`num_threads` must be at least 1, got 0"),
        (dpsgd.Execution, {"executor": 3}, TypeError, r"`executor` must be a.*, got 3"),
        (dpsgd.Execution, {"checkpoint": 3}, TypeError, "`checkpoint` must be of type str or Path, got int"),
        (dpsgd.Execution, {"device": "tpu"}, ValueError, r"`device` must be 'cpu', 'cuda' or.*, got 'tpu'"),
        (dpsgd.Observer, {"candidates": X}, TypeError, "`candidates` must be of type Rows, got ndarray"),
        (dpsgd.Observer, {"record": 1}, TypeError, "`record` must be True or False, got 1"),
        (dpsgd.PerRun, {"extra": (X, Y)}, TypeError, "`extra` must be of type Rows, got tuple"),
        (dpsgd.Rows, {"features": None}, TypeError, r"`features` must have shape \(runs, n, inputs\).*, got None"),
        (dpsgd.Rows, {"features": X, "index": [[0]]}, ValueError, "`labels` must be given for a pool, which.*"),
        (dpsgd.PoissonBatches, {"sample_rate": 0}, ValueError, r"`sample_rate` must be in \(0, 1\], got 0"),
        (dpsgd.ShuffledBatches, {"batch_size": 0}, ValueError, "`batch_size` must be at least 1, got 0"),
        (dpsgd.Network, {"layers": (3, 2), "initialisation": 3}, ValueError, "`initialisation` must be"),
        (attacks.GameRules, {"num_candidates": 1}, ValueError, "`num_candidates` must be at least 2, got 1"),
        (attacks.GameRules, {"subtract_known": 1}, TypeError, "`subtract_known` must be True or False, got 1"),
    ],
)
def test_an_object_names_what_is_wrong(kind: Any, arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        kind(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"per_run": {"extra": X}}, "`per_run` must be of type PerRun, got dict"),
        ({"observer": dpsgd.Rows(X, Y)}, "`observer` must be of type Observer, got Rows"),
        ({"probes": X}, "`probes` must be of type Rows, got ndarray"),
        ({"execution": "cpu"}, "`execution` must be of type Execution, got str"),
        ({"keep_parameters": 1}, "`keep_parameters` must be True or False, got 1"),
    ],
)
def test_a_run_takes_objects_of_their_own_kind(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ENSEMBLE.run(X, Y, runs=1, **arguments)


def test_a_pool_that_two_objects_share_is_read_once() -> None:
    reader = RowReader((3, 2), "float32", 2)
    first, second = (reader.of_runs(dpsgd.Rows(X, Y, index), "rows") for index in ([[0], [1]], [[2, 3], [4, 5]]))
    assert first is not None
    assert second is not None
    assert first.samples is second.samples
    other = reader.of_runs(dpsgd.Rows(X.copy(), Y, [[0], [1]]), "rows")
    assert other is not None
    assert other.samples is not first.samples


def test_probes_of_a_pool_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`probes.index` must be None: give each run's features"):
        ENSEMBLE.run(X, Y, runs=1, probes=dpsgd.Rows(X, Y, [[0]]))


@pytest.mark.parametrize(
    ("known", "arguments", "error", "message"),
    [
        (dpsgd.Rows(X, Y, [[0]]), {}, ValueError, "`known.index` must be None: all its rows take part"),
        ((X, Y), {}, TypeError, "`known` must have features and labels, as dpsgd.Rows has, got tuple"),
        (dpsgd.Rows(X, Y), {"rules": 4}, TypeError, "`rules` must be of type GameRules, got int"),
        (
            dpsgd.Rows(X, Y),
            {"execution": dpsgd.Execution(checkpoint="somewhere")},
            ValueError,
            "`execution.checkpoint` must be None, got 'somewhere': a game stores no runs",
        ),
    ],
)
def test_a_game_refuses_what_it_does_not_use(known: Any, arguments: dict[str, Any], error: Any, message: str) -> None:
    pool = dpsgd.Rows(X, Y)
    with pytest.raises(error, match=message):
        attacks.reconstruction_game(ENSEMBLE, known, pool, **arguments)


def test_a_data_set_is_known_rows_and_pool() -> None:
    from leakcore import datasets

    known, pool = datasets.digits().split(30, seed=0)
    ensemble = dpsgd.Ensemble((64, 10), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=2, seed=0)
    rules = attacks.GameRules(3)
    by_sets = attacks.reconstruction_game(ensemble, known, pool, rules, runs=8)
    rows = [dpsgd.Rows(part.features, part.labels) for part in (known, pool)]
    assert by_sets == attacks.reconstruction_game(ensemble, *rows, rules, runs=8)


RNG = np.random.default_rng(8)
ROWS_AUDIT, RUNS_AUDIT = 61, 70
X_AUDIT, Y_AUDIT = RNG.random((ROWS_AUDIT, 6)), RNG.integers(0, 4, ROWS_AUDIT)
EXTRA, EXTRA_Y = RNG.random((2, 6)), RNG.integers(0, 4, 2)
PROBES, PROBES_Y = RNG.random((5, 6)), RNG.integers(0, 4, 5)


def _ensemble(**change) -> dpsgd.Ensemble:
    settings = {
        "noise_multiplier": 0.5, "max_grad_norm": 0.3, "learning_rate": 2.0, "steps": 25, "dtype": "float64", "seed": 3,
    }  # fmt: skip
    return flat.ensemble((6, 5, 4), "relu", **settings | change)


def _run(ensemble: dpsgd.Ensemble, first: int = 0, runs: int = RUNS_AUDIT, **more) -> dpsgd.EnsembleRun:
    settings = {
        "extra_features": EXTRA, "extra_labels": EXTRA_Y, "probe_features": PROBES, "probe_labels": PROBES_Y,
    }  # fmt: skip
    return flat.run(ensemble, X_AUDIT, Y_AUDIT, runs=runs, first_run=first, **settings | more)


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
        _ensemble(sample_rate=0.5, expected_batch_size=size), runs=3, batches=_batches(3, 3, ROWS_AUDIT + 2, size, 25)
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


@pytest.mark.full
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
    out = ensemble.run(X_AUDIT, Y_AUDIT % 2, runs=2, probes=dpsgd.Rows(PROBES, labels))
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
            x, y = torch.from_numpy(np.concatenate([X_AUDIT, huge])), torch.from_numpy(np.append(Y_AUDIT, 1))
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
