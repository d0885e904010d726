"""The native loops against batched products: sums of every shape, batch and type; and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from leakcore import dpsgd
from leakcore.dpsgd.ensemble import workers
from leakcore.kernels.ensemble import EnsembleRows, EnsembleSums, Taken
from tests.dpsgd.ensemble import flat_arguments as flat

SHAPES = [
    ((13, 3), "relu"), ((5, 2), "relu"), ((5, 1), "relu"), ((1, 1), "relu"), ((13, 10, 10), "elu"),
    ((17, 32, 2), "relu"), ((20, 33, 7, 2), "tanh"), ((20, 9, 5, 1), "sigmoid"), ((17, 40, 30, 4), "leaky_relu"),
    ((33, 12, 2), "identity"), ((70, 23, 11), "elu"),
]  # fmt: skip
ROWS = 203


def _run(layers, activation, dtype, **how) -> dpsgd.EnsembleRun:
    rng = np.random.default_rng(4)
    ensemble = flat.ensemble(
        layers, activation, noise_multiplier=0.5, max_grad_norm=0.6, learning_rate=0.5, steps=6, dtype=dtype, seed=1,
        **how,
    )  # fmt: skip
    classes = max(2, layers[-1])
    return ensemble.run(
        rng.normal(size=(ROWS, layers[0])),
        rng.integers(0, classes, ROWS),
        runs=35,
        per_run=dpsgd.PerRun(dpsgd.Rows(rng.normal(size=(35, 2, layers[0])), rng.integers(0, classes, (35, 2)))),
    )


@pytest.mark.parametrize(("layers", "activation"), SHAPES, ids=str)
@pytest.mark.parametrize("how", [{}, {"sample_rate": 0.3}, {"batch_size": 17}, {"clip_slack": 1e-6}], ids=str)
def test_equal_to_batched_products(layers, activation, how, monkeypatch) -> None:
    ours = {dtype: _run(layers, activation, dtype, **how).parameters for dtype in ("float32", "float64")}
    monkeypatch.setattr(workers, "has_native_sums", lambda layers, activation: False)
    products = {dtype: _run(layers, activation, dtype, **how).parameters for dtype in ours}
    np.testing.assert_allclose(ours["float64"], products["float64"], rtol=0, atol=1e-12)
    # A rounding may put a unit on the other side of ReLU's kink: one row's contribution, η·C/B, is then another.
    close = 0.5 * 0.6 / 17 if "relu" in activation else 5e-6
    np.testing.assert_allclose(ours["float32"], products["float32"], rtol=0, atol=close)
    np.testing.assert_allclose(ours["float32"], ours["float64"], rtol=0, atol=close)
    assert (ours["float32"] != products["float32"]).any(), "both took the same path"


def _sums(rows: EnsembleRows, weights: np.ndarray, runs: int, taken: Taken | None = None) -> np.ndarray:
    """The sums of a linear model with three outputs."""
    into = np.full_like(weights, np.nan)
    EnsembleSums(runs, (weights.shape[2] - 1, 3), "relu", str(weights.dtype), max_grad_norm=1.0, slack=0.0).add(
        [weights.ctypes.data], rows, None, [into.ctypes.data], [0], common_taken=taken
    )
    return into


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 59, 60, 61, 125])
def test_a_run_does_not_feel_the_others(dtype, size) -> None:
    """All rows by all runs, by each alone, and by index: the same bits."""
    rng = np.random.default_rng(0)
    rows = EnsembleRows.of(rng.normal(size=(size, 37)).astype(dtype), rng.integers(0, 3, size))
    weights = rng.normal(size=(40, 3, 38)).astype(dtype)
    together = _sums(rows, weights, 40)
    by_index = _sums(rows, weights, 40, Taken.of(np.ones((40, size), bool)))
    assert np.isfinite(together).all()
    assert (by_index == together).all()
    for run in (0, 7, 39):
        assert (_sums(rows, weights[run : run + 1], 1) == together[run]).all()


def test_runs_without_rows_have_a_zero_sum() -> None:
    rng = np.random.default_rng(0)
    rows = EnsembleRows.of(rng.normal(size=(9, 5)), rng.integers(0, 3, 9))
    taken = np.zeros((3, 9), bool)
    taken[1, [2, 8]] = True
    sums = _sums(rows, rng.normal(size=(3, 3, 6)), 3, Taken.of(taken))
    assert (sums[[0, 2]] == 0).all()
    assert np.linalg.norm(sums[1]) > 0.1


def test_a_norm_beyond_the_type_makes_the_sum_nan() -> None:
    rows = EnsembleRows.of(np.full((2, 5), 1e25, np.float32), np.array([0, 1]))
    assert np.isnan(_sums(rows, np.zeros((1, 3, 6), np.float32), 1)).all()


def test_saturated_outputs_have_no_gradient_and_no_nan() -> None:
    rows = EnsembleRows.of(np.ones((2, 1)), np.array([0, 0]))
    weights = np.zeros((1, 3, 2))
    weights[0, :, 1] = (2000.0, 0.0, -2000.0)
    sums = _sums(rows, weights, 1)
    assert np.abs(sums).max() < 1e-300
