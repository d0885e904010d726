"""One run, many canaries: rows that are in the training set or not, each by its own coin, and one score for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base import memory_limit
from leakcore._base import validate as check

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CanaryTrials:
    """scores: (runs, canaries) float64, larger for "was there". included: (runs, canaries) bool, the coins. first_run:
    number of the first model."""

    scores: np.ndarray
    included: np.ndarray
    first_run: int


def canaries(features: Any, classes: int, *, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` rows of random direction, (count, inputs), as long as the rows of `features` on average, and random
    labels (count,).

    Directions are normal vectors, so two canaries' gradients are nearly orthogonal and disturb each other little; a
    label is any of the classes. Pure functions of the seed, the same on every machine to rounding. Raises ValueError
    or TypeError that names the argument.
    """
    x = check.real_array("finite", np.isfinite, features=features)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"features.shape={x.shape}: must be (rows, inputs), neither of them 0")
    kind = check.plain_array(features=features).dtype
    if kind.kind != "f":
        raise TypeError(f"features.dtype={kind}: must be floating, integers cannot hold a random direction")
    n, key = check.integer(1, None, count=count), check.seed(seed=seed)
    memory_limit.require(24 * n * x.shape[1], count=n)
    drawn = special.ndtri(kernels.uniform(n, x.shape[1], seed=key, purpose=kernels.Stream.CANARY_DIRECTIONS))
    length = np.linalg.norm(x, axis=1).mean() / np.linalg.norm(drawn, axis=1, keepdims=True)
    labels = kernels.uniform(n, 1, seed=key, purpose=kernels.Stream.CANARY_LABELS)[:, 0]
    made = np.floor(labels * check.integer(2, None, classes=classes)).astype(np.int64)
    return (drawn * length).astype(kind), made


def canary_coins(runs: int, canaries: int, *, seed: int, first_run: int = 0) -> np.ndarray:
    """(runs, canaries) bool: the fair coins of `play_canaries`, a pure function of (seed, run, canary)."""
    return fair_coins(
        runs, check.integer(1, None, canaries=canaries), seed=seed, first_run=first_run,
        purpose=kernels.Stream.CANARY_COINS, name="canaries",
    )  # fmt: skip


def fair_coins(runs: int, count: int, *, seed: int, first_run: int, purpose: kernels.Stream, name: str) -> np.ndarray:
    """(runs, count) bool; purpose: each use its own; name: of `count` in messages."""
    memory_limit.require(9 * check.integer(1, None, runs=runs) * count, **{"runs": runs, name: count})
    draws = kernels.uniform(
        runs, count, seed=check.seed(seed=seed), purpose=purpose,
        first_row=check.integer(0, 2**61, first_run=first_run),
    )  # fmt: skip
    return np.asarray(draws < 0.5)


def play_canaries(
    ensemble: Ensemble,
    features: Any,
    labels: Any,
    canary_features: Any,
    canary_labels: Any,
    *,
    runs: int = 1,
    first_run: int = 0,
    checkpoint: str | Path | None = None,
    num_threads: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> CanaryTrials:
    """Train on all rows and those canaries whose coin says so, and score every canary by what the run released.

    The score of canary z is Σ_t ⟨clip_C(∇ℓ(θ_t, z)), ḡ_t⟩, with ḡ_t the released sum less the known rows' clipped
    gradients: the attacker knows every row but the canaries' coins, and sees every release (the threat model of DP-SGD;
    Steinke, Nasr and Jagielski 2023, Section 6, the white-box audit). The update is divided by the ensemble's expected
    batch size, which must be given, whatever the coins say: adjacency add/remove.

    features, labels: (rows, inputs) and (rows,), always there. canary_features, canary_labels: (m, inputs) and (m,).
    runs: one is enough; several have coins of their own and count together. Other arguments as in
    `dpsgd.Ensemble.run`. What the scores prove: `bounds.epsilon_lower_bound_one_run` on guesses at the coins.

    Deterministic on one machine. Raises ValueError or TypeError that names the argument; shuffled batches
    (`batch_size`) are refused: their size would depend on coins.
    """
    count, first = check.integer(1, None, runs=runs), check.integer(0, 2**61, first_run=first_run)
    from leakcore.dpsgd import Ensemble, Execution, Observer, PerRun, Rows, Streams

    check.instance(Ensemble, ensemble=ensemble)
    x, y = check.plain_array(features=features), check.plain_array(labels=labels)
    extra = check.plain_array(canary_labels=canary_labels)
    for name, given in (("labels", y), ("canary_labels", extra)):
        if given.ndim != 1 or len(given) == 0:
            raise ValueError(f"{name}.shape={given.shape}: must be (rows,), at least one")
    if ensemble.batch_size is not None:
        raise ValueError(
            f"ensemble: batch_size={ensemble.batch_size}: canaries are in or out by coins, use Poisson or full batches"
        )
    if ensemble.expected_batch_size is None:
        raise ValueError(
            "ensemble: expected_batch_size must be given, or the step's size tells how many canaries are in"
        )
    rows, m = len(y), len(extra)
    included = canary_coins(count, m, seed=ensemble.seed, first_run=first)
    batches = np.ones((count, ensemble.steps, rows + m), bool)
    if ensemble.sample_rate < 1:
        streams = Streams(ensemble.seed, ensemble.dtype)
        for step in range(ensemble.steps):
            batches[:, step] = streams.batch(count, rows + m, ensemble.sample_rate, step, first_run=first)
    batches[:, :, rows:] &= included[:, None]
    planted = Rows(canary_features, canary_labels)
    run = ensemble.run(
        x,
        y,
        runs=range(first, first + count),
        per_run=PerRun(planted, batches=batches),
        observer=Observer(planted),
        keep_parameters=False,
        execution=Execution(num_threads=num_threads, executor=executor, checkpoint=checkpoint, progress=progress),
    )
    assert run.dots is not None
    return CanaryTrials(scores=run.dots.sum(axis=1, dtype=np.float64), included=included, first_run=first)
