"""One run, many canaries: rows that are in the training set or not, each by its own coin, and one score for each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base import memory_limit, validate
from leakcore._base.array_record import ArrayRecord

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution

_LAST_RUN = 2**61


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CanaryTrials(ArrayRecord):
    """Scores of canaries, and the coins that decided which of them were in the training set.

    Attributes:
        scores: (runs, canaries) float64, larger for "was in the training set".
        included: (runs, canaries) bool, the coins.
        first_run: number of the first model.
    """

    scores: np.ndarray
    included: np.ndarray
    first_run: int


def canaries(features: Any, classes: int, *, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of random direction, as long as the data's rows on average, with random labels.

    Directions are normal vectors, so two canaries' gradients are nearly orthogonal and disturb each other little.

    Args:
        features: (rows, inputs) floating, the training data; only the mean of the rows' norms is used.
        classes: number of classes, at least 2; each label is uniform over them.
        count: how many canaries, at least 1.
        seed: seed of directions and labels.

    Returns:
        Features (count, inputs), of the dtype of `features`, and labels (count,) int64.

    Guarantees:
        Pure functions of the seed, the same on every machine to rounding. ValueError or TypeError names an argument
        that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> rows, labels = membership.canaries(np.eye(4), 10, count=3, seed=0)
        >>> rows.shape, labels.shape, np.linalg.norm(rows, axis=1).round(6).tolist()
        ((3, 4), (3,), [1.0, 1.0, 1.0])
    """
    x = validate.real_array("finite", np.isfinite, features=features)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"`features` must have shape (rows, inputs), at least 1 each, got {x.shape}")
    kind = validate.plain_array(features=features).dtype
    if kind.kind != "f":
        raise TypeError(f"`features` must be floating, got {kind}: integers cannot hold a random direction")
    n, key = validate.integer(1, None, count=count), validate.seed(seed=seed)
    memory_limit.require(24 * n * x.shape[1], count=n)
    drawn = special.ndtri(kernels.uniform((n, x.shape[1]), seed=key, purpose=kernels.Stream.CANARY_DIRECTIONS))
    length = np.linalg.norm(x, axis=1).mean() / np.linalg.norm(drawn, axis=1, keepdims=True)
    labels = kernels.uniform((n, 1), seed=key, purpose=kernels.Stream.CANARY_LABELS)[:, 0]
    drawn_labels = np.floor(labels * validate.integer(2, None, classes=classes)).astype(np.int64)
    return (drawn * length).astype(kind), drawn_labels


def canary_coins(runs: int | range, canaries: int, *, seed: int) -> np.ndarray:
    """Fair coins that decide which canaries `play_canaries` trains on.

    Args:
        runs: how many runs, or which, as range(first, stop).
        canaries: how many canaries, at least 1.
        seed: the ensemble's.

    Returns:
        (runs, canaries) bool, True for "in the training set".

    Guarantees:
        A pure function of (seed, run, canary), the same on every machine, from a random stream that nothing else uses.
        ValueError or TypeError names an argument that does not fit.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.canary_coins(2, 5, seed=0).shape
        (2, 5)
    """
    count = validate.integer(1, None, canaries=canaries)
    return fair_coins(runs, count, seed=seed, purpose=kernels.Stream.CANARY_COINS, name="canaries")


def fair_coins(runs: int | range, count: int, *, seed: int, purpose: kernels.Stream, name: str) -> np.ndarray:
    """(runs, count) bool; purpose: each use has its own; name: what messages call `count`."""
    from leakcore.dpsgd import arguments

    first, stop = arguments.run_range(runs, most=_LAST_RUN)
    memory_limit.require(9 * (stop - first) * count, **{"runs": stop - first, name: count})
    draws = kernels.uniform((stop - first, count), seed=validate.seed(seed=seed), purpose=purpose, first_row=first)
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
    """Train on all rows and on those canaries whose coin says so, and score every canary from what the run released.

    The score of canary z is Σ_t ⟨clip_C(∇ℓ(θ_t, z)), ḡ_t⟩, with ḡ_t the released sum minus the known rows' clipped
    gradients: the attacker knows everything but the canaries' coins and sees every release (the threat model of DP-SGD;
    Steinke, Nasr and Jagielski 2023, Section 6, the white-box audit). The update is divided by the ensemble's expected
    batch size whatever the coins say, so the adjacency is add/remove.

    Args:
        ensemble: the mechanism, with an expected batch size. Shuffled batches are refused: their size would depend on
            coins.
        features: (rows, inputs), always in the training set.
        labels: (rows,) class numbers.
        canary_features: (m, inputs).
        canary_labels: (m,) class numbers.
        runs: how many, or which, as range(first, stop). One is enough; several have coins of their own and count
            together.
        execution: as in `dpsgd.Ensemble.run`.

    Returns:
        `CanaryTrials`. `bounds.epsilon_lower_bound_one_run` turns guesses at the coins into a proof.

    Guarantees:
        Deterministic on one machine. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> from leakcore.attacks import membership
        >>> x, y = np.eye(8, 100), np.arange(8) % 2
        >>> rows, labels = membership.canaries(x, 2, count=30, seed=0)
        >>> batches = dpsgd.PoissonBatches(1.0, expected_batch_size=8)
        >>> model = dpsgd.Ensemble(
        ...     (100, 2), sample_rate=batches,
        ...     noise_multiplier=0.5, max_grad_norm=1.0, learning_rate=0.1, steps=20, seed=0,
        ... )
        >>> trials = membership.play_canaries(model, x, y, rows, labels)
        >>> inside, outside = (trials.scores[trials.included == side].mean() for side in (True, False))
        >>> bool(inside > outside + 3)  # the run's releases point towards the canaries that were trained on
        True
    """
    from leakcore.dpsgd import Observer, PerRun, Rows

    x, y = read_labelled(ensemble, features, labels, by_coins="canaries")
    planted = validate.plain_array(canary_labels=canary_labels)
    if planted.ndim != 1 or len(planted) == 0:
        raise ValueError(f"`canary_labels` must have shape (rows,), at least one row, got {planted.shape}")
    if ensemble.expected_batch_size is None:
        raise ValueError(
            "`ensemble` must have an expected_batch_size, or the size of a step shows how many canaries are in"
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
    """Rows and labels as arrays, for an ensemble whose batches may leave out what coins (of `by_coins`) exclude."""
    from leakcore.dpsgd import Ensemble, PoissonBatches

    validate.instance(Ensemble, ensemble=ensemble)
    x, y = validate.plain_array(features=features), validate.plain_array(labels=labels)
    if y.ndim != 1 or len(y) == 0:
        raise ValueError(f"`labels` must have shape (rows,), at least one row, got {y.shape}")
    if not isinstance(ensemble.sampling, PoissonBatches):
        raise ValueError(
            f"`ensemble` must have Poisson or full batches, because {by_coins} are in or out by coins, got "
            f"{ensemble.sampling}"
        )
    return x, y


def batches_by_coins(ensemble: Ensemble, runs: int | range, included: np.ndarray) -> np.ndarray:
    """(runs, steps, rows) bool: the ensemble's own batches, without what each run's coins (runs, rows) exclude."""
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
