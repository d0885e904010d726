"""Bits that are promised: one result for any number of BLAS, OpenMP and native threads, on every tier that fuses
multiply-adds, computed in one place or in shards elsewhere. Each cell is one process that computes everything."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from leakcore import attacks, audit, bounds, dpsgd, kernels, leakage, mechanisms
from leakcore.attacks import membership
from tests.dpsgd.ensemble import flat_arguments as flat

TIERS = [t for t in kernels.build_info()["simd_available"] if t != "baseline"] or ["baseline"]
THREADS = (1, 2)
CELLS = [(tier, threads) for tier in TIERS for threads in THREADS]
SIGMA = (1.0, 0.1, 4)
MANY = 120_000
"""Samples: arrays that a BLAS shares out among its threads, above ten thousand numbers."""


def _ensemble(layers: tuple[int, ...] = (600, 5, 3), **more: Any) -> dpsgd.Ensemble:
    settings: dict[str, Any] = {
        "noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.5, "steps": 4, "sample_rate": 0.3,
        "expected_batch_size": 30.0, "seed": 3,
    }  # fmt: skip
    return flat.ensemble(layers, **{**settings, **more})


def _rows() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(2).random((100, 600)).astype(np.float32), np.arange(100) % 3


def _bound(method: str | bounds.methods.Method, **more: Any) -> tuple[Any, ...]:
    bound = bounds.reconstruction(*SIGMA, kappa=[0.1, 0.01], method=method, **more)
    return bound.value, bound.interval if bound.interval is not None else 0.0


def _pair() -> tuple[Any, ...]:
    bound = bounds.reconstruction_of(mechanisms.FixedSize(1.0, 2, 10, 20), kappa=0.1, num_samples=MANY)
    return bound.value, bound.interval


def _claim() -> tuple[Any, ...]:
    report = audit.claim(
        {
            "data": {"name": "digits", "num_rows": 60},
            "mechanism": {"learning_rate": 0.5, "steps": 3, "noise_multiplier": 1.0},
            "audit": {"trials": 12, "k": [1], "attack": "clipbkd"},
        }
    )
    return tuple(proof.found.value for proof in report.proofs)


def _scores() -> tuple[Any, ...]:
    rng = np.random.default_rng(3)
    inside, outside = rng.normal(1, 1, 12_000), rng.normal(0, 1, 12_000)
    bound = bounds.epsilon_lower_bound_from_scores(inside, outside, delta=1e-5, adjacency="add-remove")
    members = rng.random(12_000) < 0.5
    report = audit.from_scores(scores=np.where(members, inside, outside), members=members, delta=1e-5, coins=True)
    return bound.value, bound.threshold, len(report.to_json())


def _game(**more: Any) -> tuple[Any, ...]:
    x, y = _rows()
    result = flat.game(
        attacks.reconstruction_game,
        _ensemble(),
        dpsgd.Rows(x[:50], y[:50]),
        dpsgd.Rows(x[50:], y[50:]),
        runs=40,
        **more,
    )
    return result.value, result.interval


def _canaries() -> tuple[Any, ...]:
    x, y = _rows()
    points, labels = membership.canaries(x, 3, count=20, seed=3)
    return points, membership.play_canaries(_ensemble(), x, y, points, labels).scores


def _v_information() -> tuple[Any, ...]:
    rng = np.random.default_rng(4)
    measured = leakage.v_information(rng.normal(size=(120, 300)), np.arange(120) % 2, permutations=1)
    return measured.value, measured.raw, measured.null


def _subspace() -> tuple[Any, ...]:
    sides = np.random.default_rng(5).normal(size=(2, 20, 130, 140))
    return (leakage.subspace_distance(*sides, permutations=1, seed=1).value,)


ENTRIES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "certified": lambda: _bound("certified", num_samples=MANY),
    "importance": lambda: _bound("importance", num_samples=MANY),
    "monte-carlo": lambda: _bound("monte-carlo", num_samples=MANY),
    "monte-carlo from the alternative": lambda: _bound(bounds.methods.MonteCarlo(MANY, under="alternative")),
    "exact": lambda: _bound("exact"),
    "a pair": _pair,
    "fano": lambda: (bounds.fano_advantage(*SIGMA, prior=np.full(30_000, 1 / 30_000)).value,),
    "membership": lambda: (bounds.membership(*SIGMA, fpr=[0.01, 0.1]).value,),
    "ensemble": lambda: (_ensemble().run(*_rows(), runs=40).parameters,),
    "ensemble in doubles": lambda: (_ensemble((600, 20, 6, 3), dtype="float64").run(*_rows(), runs=8).parameters,),
    "prior-aware attack": _game,
    "claim": _claim,
    "scores": _scores,
    "canaries": _canaries,
    "v-information": _v_information,
    "subspace": _subspace,
}


def digests() -> dict[str, str]:
    """A digest for every entry."""
    out = {}
    for name, entry in ENTRIES.items():
        whole = hashlib.sha256()
        for part in entry():
            whole.update(np.ascontiguousarray(np.asarray(part, dtype=np.float64)).tobytes())
        out[name] = whole.hexdigest()
    return out


def shard(first: int, runs: int) -> tuple[list[str], int]:
    """Bits of runs [first, first + runs) of an ensemble, one by one, and a game's hits in them."""
    x, y = _rows()
    parameters = _ensemble().run(x, y, runs=range(first, first + runs)).parameters
    game = attacks.reconstruction_game(
        _ensemble(), dpsgd.Rows(x[:50], y[:50]), dpsgd.Rows(x[50:], y[50:]), runs=range(first, first + runs)
    )
    return [row.tobytes().hex() for row in parameters], game.hits


def certificate(samples: int, **more: Any) -> dict[str, Any]:
    """A certificate's limits and its state."""
    method = bounds.methods.Certified(samples, width=1e-9, **more)
    bound = bounds.reconstruction(*SIGMA, kappa=[0.1, 0.01], method=method)
    assert bound.interval is not None
    return {"interval": np.asarray(bound.interval).tolist(), "state": bound.state}


def everything() -> dict[str, Any]:
    """What a cell computes in one process."""
    return {
        "digests": digests(),
        "whole": shard(0, 40),
        "first": shard(0, 17),
        "rest": shard(17, 23),
        "begun": certificate(250_000)["state"],
        "ended": certificate(600_000),
    }


@functools.cache
def _in_cell(tier: str, threads: int, expression: str) -> Any:
    number = str(threads)
    environment = {
        **os.environ, "LEAKCORE_ISA": tier, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LEAKCORE_NUM_THREADS"), number),
    }  # fmt: skip
    program = f"import json\nfrom tests.public import test_same_bits as t\nprint(json.dumps(t.{expression}))"
    done = subprocess.run(
        [sys.executable], input=program, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


BY_TIER = {"scores"}
"""Sums over columns, whose order follows the width of a register: they agree between tiers to the stated bound only."""


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("cell", CELLS[1:], ids=str)
def test_bits_of_cells(cell):
    first, other = (_in_cell(*c, "everything()")["digests"] for c in (CELLS[0], cell))
    assert {name for name in ENTRIES if first[name] != other[name]} <= (set() if cell[0] == TIERS[0] else BY_TIER)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("tier", TIERS)
def test_bits_by_threads(tier):
    one, two = (_in_cell(tier, threads, "everything()")["digests"] for threads in THREADS)
    assert one == two


def test_divided_runs():
    """The first runs here, the rest on another number of threads and, where there is one, another tier."""
    here, elsewhere = (_in_cell(*cell, "everything()") for cell in (CELLS[0], CELLS[-1]))
    (first, hits), (rest, more) = here["first"], elsewhere["rest"]
    assert [[*first, *rest], hits + more] == here["whole"]


def test_resumed_by_another_cell():
    """A certificate: the counts so far travel, the rest is drawn elsewhere, on the same tier."""
    here = _in_cell(*CELLS[0], "everything()")
    going_on = f"certificate(600_000, resume={here['begun']!r})"
    assert _in_cell(TIERS[0], THREADS[-1], going_on) == here["ended"]


@pytest.mark.skipif(len(TIERS) == 1, reason="one tier here")
def test_resumed_by_another_tier():
    here = _in_cell(*CELLS[0], "everything()")
    with pytest.raises(AssertionError, match="was begun elsewhere"):
        _in_cell(TIERS[-1], 1, f"certificate(600_000, resume={here['begun']!r})")
