from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import dpsgd
from leakcore.dpsgd.ensemble.randomness import Streams
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
        sample_rate=dpsgd.PoissonBatches(expected_batch_size=4),
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
        ({"noise_multiplier": -1}, ValueError, r"noise_multiplier=-1: must be in \[0, inf\)"),
        ({"noise_multiplier": float("nan")}, ValueError, "noise_multiplier=nan"),
        ({"max_grad_norm": 0}, ValueError, r"max_grad_norm=0: must be in \(0, inf\)"),
        (
            {"max_grad_norm": 1e-20},
            ValueError,
            "max_grad_norm=1e-20: its square must be a normal number in dtype='float32'",
        ),
        ({"max_grad_norm": 1e20}, ValueError, "max_grad_norm=1e\\+20: its square"),
        ({"learning_rate": 0}, ValueError, r"learning_rate=0: must be in \(0, inf\)"),
        ({"steps": -1}, ValueError, "steps=-1: must be an integer in"),
        ({"steps": 2.0}, TypeError, "steps=2.0: must be an integer"),
        ({"sample_rate": 0}, ValueError, r"sample_rate=0: must be in \(0, 1\]"),
        ({"sample_rate": 1.01}, ValueError, r"sample_rate=1.01: must be in \[0, 1\]"),
        ({"expected_batch_size": 0}, ValueError, r"expected_batch_size=0: must be in \(0, inf\)"),
        ({"initialisation": "xavier"}, ValueError, "initialisation='xavier': must be one of 'per-run', 'fixed', 'gl"),
        ({"initialisation_scale": -1}, ValueError, r"scale=-1: must be in \[0, inf\)"),
        ({"initialisation_noise": -1}, ValueError, r"noise=-1: must be in \[0, inf\)"),
        ({"batch_size": 0}, ValueError, "batch_size=0: must be an integer"),
        ({"sample_rate": "poisson"}, TypeError, "sample_rate='poisson': must be a real number"),
        ({"fault": "noise"}, TypeError, "fault='noise': must be a dpsgd.Fault"),
        ({"clip_slack": -1e-6}, ValueError, "clip_slack=-1e-06"),
        ({"dtype": "bfloat16"}, ValueError, "dtype='bfloat16': must be one of 'float32', 'float64'"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": None}, TypeError, "seed=None: must be an integer"),
        ({"activation": "swish"}, ValueError, "activation='swish'"),
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
        ({"features": np.zeros((4, 3))}, ValueError, r"features.shape=\(4, 3\): must be \(rows, 2\)"),
        ({"features": np.full((4, 2), np.inf)}, ValueError, r"features\[0, 0\]=inf: must be finite in float32"),
        ({"features": np.full((4, 2), 1e300)}, ValueError, r"features\[0, 0\]=1e\+300: must be finite in float32"),
        ({"features": np.zeros((4, 2), dtype=complex)}, TypeError, "features.dtype=complex128: must be a real"),
        ({"features": torch.zeros(4, 2, requires_grad=True)}, TypeError, "features: cannot be read as a NumPy array"),
        ({"features": [[1, 2], [3]]}, TypeError, "features: cannot be read as a NumPy array"),
        ({"features": np.zeros((0, 2)), "labels": np.zeros(0, dtype=int)}, ValueError, "at least one row"),
        ({"labels": np.zeros(3, dtype=int)}, ValueError, r"labels.shape=\(3,\): must give one label to each row"),
        ({"labels": np.zeros(4)}, TypeError, "labels.dtype=float64: must be an integer type"),
        ({"labels": np.array([0, 1, 3, 0])}, ValueError, r"labels=3: must be in \[0, 2\]"),
        ({"labels": np.array([0, 1, -1, 0])}, ValueError, r"labels=-1: must be in \[0, 2\]"),
        ({"runs": 0}, ValueError, "runs=0"),
        ({"runs": range(0)}, ValueError, r"runs=range\(0, 0\): must be a range of consecutive numbers"),
        ({"runs": range(0, 4, 2)}, ValueError, r"runs=range\(0, 4, 2\): must be a range of consecutive numbers"),
        ({"first_run": -1}, ValueError, r"runs=range\(-1, 1\): must start in"),
        ({"extra_features": np.zeros((2, 1, 2))}, ValueError, "extra.labels=None: must give one label to each row"),
        (
            {"extra_features": np.zeros((3, 1, 2)), "extra_labels": np.zeros((3, 1), dtype=int)},
            ValueError,
            r"extra.features.shape=\(3, 1, 2\).*must start with runs=2",
        ),
        (
            {"extra_features": np.zeros((2, 0, 2)), "extra_labels": np.zeros((2, 0), dtype=int)},
            ValueError,
            "extra.features.*at least one row per run",
        ),
        (CANDIDATES | {"candidate_labels": np.zeros((2, 4), dtype=int)}, ValueError, "candidates.labels.shape"),
        ({"candidate_cosines": True}, ValueError, "need candidates, got candidates=None"),
        ({"subtract_known": False}, ValueError, "need candidates, got candidates=None"),
        (
            {"candidate_features": np.zeros((1, 2)), "candidate_labels": [0], "candidate_cosines": True},
            ValueError,
            "cosines needs at least 2",
        ),
        ({"initial": np.zeros(8)}, ValueError, r"initial.shape=\(2, 8\): must be \(2, 9\)"),
        ({"initial": np.zeros(9, dtype=int)}, TypeError, "initial.dtype=int64: must be a real floating type"),
        ({"initial": np.full(9, np.nan)}, ValueError, r"initial\[0, 0\]=nan: must be finite in float32"),
        ({"noise": np.zeros((2, 3, 8))}, ValueError, r"noise.shape=\(2, 3, 8\): must be \(2, 3, 9\)"),
        ({"batches": np.ones((2, 3, 4))}, TypeError, "batches.dtype=float64: must be bool"),
        ({"batches": np.ones((2, 3, 5), dtype=bool)}, ValueError, r"batches.shape=\(2, 3, 5\): must be \(2, 3, 4\)"),
        ({"num_threads": 0}, ValueError, "num_threads=0"),
        ({"progress": 1}, TypeError, "progress=1: must be a callable, or None"),
        ({**CANDIDATES, "scorers": 3}, TypeError, "scorers is a int: must be a Mapping"),
    ],
)
def test_errors_of_a_run(change, error, message) -> None:
    ensemble = dpsgd.Ensemble((2, 3), **MECHANISM)
    flat.run(ensemble, **DATA)
    with pytest.raises(error, match=message):
        flat.run(ensemble, **DATA | change)


def test_noise_for_a_noiseless_mechanism_is_refused() -> None:
    ensemble = dpsgd.Ensemble((2, 3), **MECHANISM | {"noise_multiplier": 0})
    with pytest.raises(ValueError, match="noise: must be None with noise_multiplier=0"):
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
    with pytest.raises(ValueError, match=r"sample_rate=1.01: must be in \[0, 1\]; or a dpsgd.PoissonBatches or"):
        dpsgd.Ensemble((4, 2), **settings, sample_rate=1.01)


def test_an_ensemble_with_one_argument_replaced_keeps_the_others() -> None:
    ensemble = flat.ensemble((2, 3), "tanh", **MECHANISM, sample_rate=0.5, expected_batch_size=3.0, clip_slack=1e-6)
    shorter = ensemble.replace(steps=1)
    assert shorter.settings() == {**ensemble.settings(), "steps": 1}
    assert ensemble.replace(sample_rate=0.25).expected_batch_size is None
    with pytest.raises(TypeError, match="noise_multipler"):
        ensemble.replace(noise_multipler=1.0)
