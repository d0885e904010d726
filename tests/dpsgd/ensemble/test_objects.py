"""What `Ensemble.run` and the reconstruction game take: each object refuses what does not belong to it, and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leakcore import attacks, dpsgd
from leakcore.dpsgd.ensemble.arguments import RowReader

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
        (
            dpsgd.Rows,
            {"features": X, "index": [[0]]},
            ValueError,
            r"`labels` must be given for a pool, which.*, got None",
        ),
        (dpsgd.PoissonBatches, {"sample_rate": 0}, ValueError, r"`sample_rate` must be in \(0, 1\], got 0"),
        (dpsgd.ShuffledBatches, {"batch_size": 0}, ValueError, "`batch_size` must be at least 1, got 0"),
        (
            dpsgd.Network,
            {"layers": (3, 2), "initialisation": 3},
            ValueError,
            r"`initialisation` must be 'per-run', 'fixed',.*, got 3",
        ),
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
