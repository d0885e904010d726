from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import dpsgd
from leakcore.dpsgd.ensemble.sampling import Streams
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
        (
            {"max_grad_norm": 1e-20},
            ValueError,
            "`max_grad_norm` must have a square that is a normal number in dtype='float32', got 1e-20",
        ),
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
        (
            {"features": np.full((4, 2), 1e300)},
            ValueError,
            r"`features\[0, 0\]` must be finite in float32, got 1e\+300",
        ),
        (
            {"features": np.zeros((4, 2), dtype=complex)},
            TypeError,
            r"`features` must be of a real floating.*, got complex128",
        ),
        (
            {"features": torch.zeros(4, 2, requires_grad=True)},
            TypeError,
            r"`features` must not require grad: pass features.detach\(\)",
        ),
        ({"features": [[1, 2], [3]]}, TypeError, "`features` must be an array of numbers"),
        ({"features": np.zeros((0, 2)), "labels": np.zeros(0, dtype=int)}, ValueError, "at least one row"),
        (
            {"labels": np.zeros(3, dtype=int)},
            ValueError,
            r"`labels` must give one label to each row.*, got shape \(3,\)",
        ),
        ({"labels": np.zeros(4)}, TypeError, "`labels` must be of an integer type, got float64"),
        (
            {"labels": np.array([0, 1, 3, 0])},
            ValueError,
            r"`labels` must be in \[0, 2\] \(last of layers=\(2,.*, got 3",
        ),
        ({"labels": np.array([0, 1, -1, 0])}, ValueError, r"`labels` must be in \[0, 2\] \(last of.*, got -1"),
        ({"runs": 0}, ValueError, "`runs` must be at least 1, got 0"),
        ({"runs": range(0)}, ValueError, r"`runs` must be a range of consecutive numbers,.*, got range\(0, 0\)"),
        ({"runs": range(0, 4, 2)}, ValueError, r"`runs` must be a range of consecutive.*, got range\(0, 4, 2\)"),
        ({"first_run": -1}, ValueError, r"`runs` must start in \[0, 4611686018427387904\], got range\(-1, 1\)"),
        (
            {"extra_features": np.zeros((2, 1, 2))},
            ValueError,
            r"`extra.labels` must give one label to each row, got None",
        ),
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
        (
            CANDIDATES | {"candidate_labels": np.zeros((2, 4), dtype=int)},
            ValueError,
            r"`candidates.labels` must give one label to.*, got shape \(2, 4\)",
        ),
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
        (
            {"batches": np.ones((2, 3, 5), dtype=bool)},
            ValueError,
            r"`batches` must have shape \(2, 3, 4\), got \(2, 3, 5\)",
        ),
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
