"""One score per model trained with and without poisoned rows, or with and without a crafted gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import array_memory, memory_limit, validate
from leakcore._base.results import Adjacency
from leakcore.attacks.arguments import counting_on
from leakcore.attacks.poisoning.poisoned_data import Poisoning

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution

WORLD = 2**61
"""Runs on the poisoned data set are numbered from here on: no trial shares its randomness with one on the clean set."""
_TRIALS_PER_K = 2**40
"""Each k has run numbers of its own, too."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PoisoningScores:
    """One score per trained model, larger for "trained with the poison".

    Attributes:
        scores_in: (trials,) float64, of models trained with the poison (D₁).
        scores_out: (trials,) float64, of models trained without it (D₀).
        first_trial: number of the first trial, on both.
        k: how many rows the poisoning replaces or adds.
        name: name of the poisoning.
        adjacency: relation of the two data sets, "replace" or "add-remove".
    """

    scores_in: np.ndarray
    scores_out: np.ndarray
    first_trial: int
    k: int
    name: str
    adjacency: Adjacency


def poisoning_scores(
    ensemble: Ensemble, poisoning: Poisoning, *, trials: int | range, execution: Execution | None = None
) -> PoisoningScores:
    """Train `trials` models on D₀ and as many on D₁, and score each by its loss at the test points.

    The score is minus the mean loss, larger where the poison was learned.

    The common rows are held once. Trial i has its own initial parameters (unless the ensemble fixes them), batches and
    noise on either data set, a pure function of (ensemble.seed, i, data set): ranges of trials may be computed
    anywhere, in any order, and concatenated.

    Args:
        ensemble: the mechanism under audit; where rows are added, it must have an expected_batch_size.
        poisoning: the two data sets, as `Backdoor.poison` or `ClipBKD.poison` return them.
        trials: how many, or which, as range(first, stop).
        execution: threads, workers, checkpoint and progress, which counts models; None: as `dpsgd.Execution()`.

    Returns:
        `PoisoningScores`. `bounds.epsilon_lower_bound_from_scores` turns them into a proof.

    Guarantees:
        Deterministic on one machine. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> from leakcore.attacks import poisoning
        >>> x = np.random.default_rng(0).standard_normal((20, 4)) * [3.0, 2.0, 1.0, 0.0]
        >>> poison = poisoning.ClipBKD().poison(x, (x[:, 0] > 0).astype(int), adjacency="replace", k=4)
        >>> model = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=0.1, max_grad_norm=1.0, learning_rate=0.5, steps=20, seed=0
        ... )
        >>> scores = poisoning.poisoning_scores(model, poison, trials=32)
        >>> scores.scores_in.shape, bool(scores.scores_in.mean() > scores.scores_out.mean())
        ((32,), True)
    """
    _require_poisoning(poisoning)
    return poisoning_sweep(ensemble, poisoning, (poisoning.k,), trials=trials, execution=execution)[poisoning.k]


def poisoning_sweep(
    ensemble: Ensemble,
    poisoning: Poisoning,
    ks: Sequence[int],
    *,
    trials: int | range,
    execution: Execution | None = None,
) -> dict[int, PoisoningScores]:
    """`poisoning_scores` for several numbers of poisoned rows; D₀ is trained once.

    Args:
        ensemble: as in `poisoning_scores`.
        poisoning: as in `poisoning_scores`; each k uses its first k rows.
        ks: distinct, each in [1, poisoning.k].
        trials: as in `poisoning_scores`.
        execution: as in `poisoning_scores`.

    Returns:
        {k: `PoisoningScores`}. All share one array scores_out, so the bounds for different k are not independent (each
        is valid by itself, and so is a choice that was made on other trials).

    Guarantees:
        As `poisoning_scores`. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> from leakcore.attacks import poisoning
        >>> poison = poisoning.ZeroInput(label=1).poison(np.eye(8), np.arange(8) % 2, adjacency="replace", k=4)
        >>> model = dpsgd.Ensemble((8, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=5, seed=0)
        >>> sorted(poisoning.poisoning_sweep(model, poison, (1, 4), trials=8))
        [1, 4]
    """
    _require_poisoning(poisoning)
    from leakcore.dpsgd import Ensemble, Execution, PerRun, Rows, arguments

    validate.instance(Ensemble, ensemble=ensemble)
    first, stop = arguments.run_range(trials, name="trials", most=_TRIALS_PER_K - 1)
    count = stop - first
    numbers = tuple(validate.integer(1, poisoning.k, ks=k) for k in validate.sizes(ks=ks))
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(f"`ks` must hold at least one number, each once, got {tuple(ks)}")
    # Under add/remove the default batch size would reveal how many rows there are.
    if poisoning.adjacency == "add-remove" and ensemble.expected_batch_size is None:
        raise ValueError(
            "`ensemble` must have an expected_batch_size where rows are added, or the size of a step gives them away"
        )
    total = (1 + len(numbers)) * count
    memory_limit.require(16 * total, trials=count)
    how = validate.settings(Execution, execution=execution)

    def train(before: int, first_run: int, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        run = ensemble.run(
            poisoning.common_features,
            poisoning.common_labels,
            runs=range(first_run, first_run + count),
            per_run=PerRun(Rows(features, labels) if len(labels) else None),
            probes=Rows(poisoning.test_features, poisoning.test_labels),
            keep_parameters=False,
            execution=counting_on(how, before, total),
        )
        assert run.probe_losses is not None
        return np.asarray(-run.probe_losses.mean(axis=1))

    scores_out = train(0, first, poisoning.clean_features, poisoning.clean_labels)
    sweep = {}
    for i, k in enumerate(numbers, 1):
        # The rows that are not poisoned at this k stay what they are in D₀, at the same place.
        features = np.concatenate([poisoning.poison_features[:k], poisoning.clean_features[k:]])
        labels = np.concatenate([poisoning.poison_labels[:k], poisoning.clean_labels[k:]])
        sweep[k] = PoisoningScores(
            scores_in=train(i * count, WORLD + k * _TRIALS_PER_K + first, features, labels),
            scores_out=scores_out,
            first_trial=first,
            k=k,
            name=poisoning.name,
            adjacency=poisoning.adjacency,
        )
    return sweep


def _require_poisoning(poisoning: Any) -> None:
    if not isinstance(poisoning, Poisoning):
        raise TypeError(f"`poisoning` must be a result of Backdoor.poison or ClipBKD.poison, got {poisoning!r}")
    array_memory.refuse_transforms("poisoning")  # the models are trained on its rows


_WITH = WORLD + WORLD // 2
"""Runs with the gradient are numbered from here on; the references from WORLD on."""


def crafted_gradient_scores(
    ensemble: Ensemble,
    features: Any,
    labels: Any,
    *,
    trials: int | range,
    references: int = 16,
    execution: Execution | None = None,
) -> PoisoningScores:
    """Train with and without a gradient of the attacker's own, and score the final models.

    The attacker knows all rows and the initial parameters, and sees the final model alone, not the models between. The
    crafted gradient has norm C and lies on one parameter: the one that the rows moved least in `references` trainings
    of the attacker's own, whose noise the attacker knows. A step takes it when its batch would take one more row. The
    score is how far that parameter moved in its direction (Cebere, Bellet and Papernot 2024, arXiv 2405.14457).

    Args:
        ensemble: the mechanism under audit: Poisson or full batches, with an expected_batch_size.
        features: (rows, inputs), in every training.
        labels: (rows,) class numbers.
        trials: how many, or which, as range(first, stop), with the gradient and as many without.
        references: trainings that choose the parameter, at least 1.
        execution: as in `dpsgd.Ensemble.run`; progress counts models.

    Returns:
        `PoisoningScores`, k = 1, adjacency add-remove.

    Guarantees:
        Deterministic on one machine. Trials share no randomness with the references. ValueError or TypeError names an
        argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> from leakcore.attacks import poisoning
        >>> x, y = np.eye(8, 20), np.arange(8) % 2
        >>> model = dpsgd.Ensemble(
        ...     (20, 2), sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=8),
        ...     noise_multiplier=2.0, max_grad_norm=1.0, learning_rate=0.5, steps=16, seed=0,
        ... )
        >>> scores = poisoning.crafted_gradient_scores(model, x, y, trials=200)
        >>> bool(scores.scores_in.mean() - scores.scores_out.mean() > 1.5 * scores.scores_out.std())  # μ = √16/2
        True
    """
    from leakcore.dpsgd import CraftedGradient, Execution, PerRun, PoissonBatches, arguments
    from leakcore.dpsgd import Ensemble as Mechanism

    validate.instance(Mechanism, ensemble=ensemble)
    if not isinstance(ensemble.sampling, PoissonBatches):
        raise ValueError(
            f"`ensemble` must have Poisson or full batches, because a gradient is added, got {ensemble.sampling}"
        )
    if ensemble.expected_batch_size is None:
        raise ValueError(
            "`ensemble` must have an expected_batch_size where a gradient is added, or the size of a step gives it away"
        )
    first, stop = arguments.run_range(trials, name="trials", most=WORLD // 2)
    pilots = validate.integer(1, 2**20, references=references)
    count, size = stop - first, ensemble.num_parameters
    memory_limit.require(4 * max(count, pilots) * size, trials=count)
    how = validate.settings(Execution, execution=execution)
    start = ensemble.replace(steps=0).run(features, labels, runs=1).parameters
    assert start is not None
    total, finished = pilots + 2 * count, 0

    def moved(mechanism: Ensemble, runs: range, crafted: CraftedGradient | None = None) -> np.ndarray:
        """(runs, parameters), how far each parameter went against its gradient."""
        nonlocal finished
        run = mechanism.run(
            features,
            labels,
            runs=runs,
            per_run=PerRun(initial=start[0], crafted=crafted),
            execution=counting_on(how, finished, total),
        )
        finished += len(runs)
        assert run.parameters is not None
        return np.asarray(start[0] - run.parameters)

    own = ensemble.replace(fault=None)
    at = _least_moved(own, moved(own, range(WORLD, WORLD + pilots)))
    gradient = np.zeros(size)
    gradient[at] = ensemble.max_grad_norm
    there = range(_WITH + first, _WITH + stop)
    taken = _batches(ensemble, len(np.asarray(labels)), there)
    return PoisoningScores(
        scores_out=moved(ensemble, range(first, stop))[:, at].astype(np.float64),
        scores_in=moved(ensemble, there, CraftedGradient(gradient, taken))[:, at].astype(np.float64),
        first_trial=first,
        k=1,
        name="crafted gradient",
        adjacency="add-remove",
    )


def _least_moved(ensemble: Ensemble, moved: np.ndarray) -> int:
    """The parameter that the rows moved least, by the mean square of what the noise of these runs does not explain."""
    from leakcore.dpsgd import Streams

    streams, runs = Streams(ensemble.seed, ensemble.dtype), len(moved)
    noise = np.zeros(moved.shape)
    for step in range(ensemble.steps if ensemble.noise_multiplier > 0 else 0):
        noise += streams.noise(runs, ensemble.num_parameters, step, first_run=WORLD)
    assert ensemble.expected_batch_size is not None
    unit = ensemble.learning_rate / ensemble.expected_batch_size
    of_rows = moved - unit * ensemble.noise_multiplier * ensemble.max_grad_norm * noise
    return int((of_rows**2).mean(axis=0).argmin())


def _batches(ensemble: Ensemble, rows: int, runs: range) -> np.ndarray:
    """(runs, steps) bool: the batches that hold one more row, numbered after all others."""
    from leakcore.dpsgd import Streams

    shape = (len(runs), ensemble.steps)
    if ensemble.sample_rate == 1:
        return np.broadcast_to(True, shape)
    streams, out = Streams(ensemble.seed, ensemble.dtype), np.empty(shape, bool)
    for step in range(ensemble.steps):
        drawn = streams.batch(len(runs), rows + 1, ensemble.sample_rate, step, first_run=runs.start)
        out[:, step] = drawn[:, rows]
    return out
