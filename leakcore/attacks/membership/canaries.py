"""One run, many canaries: rows that are in the training set or not, each by its own coin, and one score for each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base import memory_limit
from leakcore._base import validate as check

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution

_LAST_RUN = 2**61


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
    drawn = special.ndtri(kernels.uniform((n, x.shape[1]), seed=key, purpose=kernels.Stream.CANARY_DIRECTIONS))
    length = np.linalg.norm(x, axis=1).mean() / np.linalg.norm(drawn, axis=1, keepdims=True)
    labels = kernels.uniform((n, 1), seed=key, purpose=kernels.Stream.CANARY_LABELS)[:, 0]
    drawn_labels = np.floor(labels * check.integer(2, None, classes=classes)).astype(np.int64)
    return (drawn * length).astype(kind), drawn_labels


def canary_coins(runs: int | range, canaries: int, *, seed: int) -> np.ndarray:
    """(runs, canaries) bool: the fair coins of `play_canaries`, a pure function of (seed, run, canary)."""
    count = check.integer(1, None, canaries=canaries)
    return fair_coins(runs, count, seed=seed, purpose=kernels.Stream.CANARY_COINS, name="canaries")


def fair_coins(runs: int | range, count: int, *, seed: int, purpose: kernels.Stream, name: str) -> np.ndarray:
    """(runs, count) bool; purpose: each use its own; name: of `count` in messages."""
    from leakcore.dpsgd import arguments

    first, stop = arguments.run_range(runs, most=_LAST_RUN)
    memory_limit.require(9 * (stop - first) * count, **{"runs": stop - first, name: count})
    draws = kernels.uniform((stop - first, count), seed=check.seed(seed=seed), purpose=purpose, first_row=first)
    return np.asarray(draws < 0.5)


def play_canaries(
    ensemble: Ensemble,
    features: Any,
    labels: Any,
    canary_features: Any,
    canary_labels: Any,
    *,
    runs: int | range = 1,
    execution: Execution | None = None,
) -> CanaryTrials:
    """Train on all rows and those canaries whose coin says so, and score every canary by what the run released.

    The score of canary z is Σ_t ⟨clip_C(∇ℓ(θ_t, z)), ḡ_t⟩, with ḡ_t the released sum less the known rows' clipped
    gradients: the attacker knows every row but the canaries' coins, and sees every release (the threat model of DP-SGD;
    Steinke, Nasr and Jagielski 2023, Section 6, the white-box audit). The update is divided by the ensemble's expected
    batch size, which must be given, whatever the coins say: adjacency add/remove.

    Args:
        ensemble: the mechanism. Shuffled batches are refused: their size would depend on coins.
        features, labels: (rows, inputs) and (rows,), always there.
        canary_features, canary_labels: (m, inputs) and (m,).
        runs: how many, or which, as range(first, stop). One is enough; several have coins of their own and count
            together.
        execution: as in `dpsgd.Ensemble.run`.

    Returns:
        `CanaryTrials`. What the scores prove: `bounds.epsilon_lower_bound_one_run` on guesses at the coins.

    Raises:
        ValueError, TypeError: that names the argument.

    Guarantees:
        Deterministic on one machine.
    """
    from leakcore.dpsgd import Observer, PerRun, Rows

    x, y = read_labelled(ensemble, features, labels, by_coins="canaries")
    planted = check.plain_array(canary_labels=canary_labels)
    if planted.ndim != 1 or len(planted) == 0:
        raise ValueError(f"canary_labels.shape={planted.shape}: must be (rows,), at least one")
    if ensemble.expected_batch_size is None:
        raise ValueError(
            "ensemble: expected_batch_size must be given, or the step's size tells how many canaries are in"
        )
    rows, m = len(y), len(planted)
    included = canary_coins(runs, m, seed=ensemble.seed)
    always = np.ones((len(included), rows), bool)
    canaries = Rows(canary_features, canary_labels)
    run = ensemble.run(
        x,
        y,
        runs=runs,
        per_run=PerRun(canaries, batches=batches_by_coins(ensemble, runs, np.concatenate([always, included], axis=1))),
        observer=Observer(canaries),
        keep_parameters=False,
        execution=execution,
    )
    assert run.dots is not None
    return CanaryTrials(scores=run.dots.sum(axis=1, dtype=np.float64), included=included, first_run=run.first_run)


def read_labelled(ensemble: Any, features: Any, labels: Any, *, by_coins: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels as arrays, for an ensemble whose batches may leave out what coins exclude, `by_coins`."""
    from leakcore.dpsgd import Ensemble

    check.instance(Ensemble, ensemble=ensemble)
    x, y = check.plain_array(features=features), check.plain_array(labels=labels)
    if y.ndim != 1 or len(y) == 0:
        raise ValueError(f"labels.shape={y.shape}: must be (rows,), at least one")
    if ensemble.batch_size is not None:
        raise ValueError(
            f"ensemble: batch_size={ensemble.batch_size}: {by_coins} are in or out by coins, use Poisson or full "
            "batches"
        )
    return x, y


def batches_by_coins(ensemble: Ensemble, runs: int | range, included: np.ndarray) -> np.ndarray:
    """(runs, steps, rows) bool: the ensemble's own batches, less what each run's coins (runs, rows) exclude."""
    from leakcore.dpsgd import Streams, arguments

    count, rows = included.shape
    shape = (count, ensemble.steps, rows)
    if ensemble.sample_rate == 1:
        return np.broadcast_to(included[:, None], shape)
    first, _ = arguments.run_range(runs)
    batches = np.empty(shape, bool)
    streams = Streams(ensemble.seed, ensemble.dtype)
    for step in range(ensemble.steps):
        batches[:, step] = included & streams.batch(count, rows, ensemble.sample_rate, step, first_run=first)
    return batches
