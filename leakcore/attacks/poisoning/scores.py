"""One score per model trained with and without poisoned rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import array_memory, memory_limit, validate
from leakcore._base.results import Adjacency
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
        name: of the poisoning.
        adjacency: of the poisoning, "replace" or "add-remove".
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
        execution: threads, workers, checkpoint and progress, which counts models; None: as
            `dpsgd.Execution()`.

    Returns:
        `PoisoningScores`. `bounds.epsilon_lower_bound_from_scores` turns them into a proof.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic on one machine.

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

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        As `poisoning_scores`.

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
    from leakcore.dpsgd import Ensemble, PerRun, Rows, arguments, read_execution

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
    how = read_execution(execution)

    def train(before: int, first_run: int, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        def report(done: int, _: int) -> None:
            if how.progress is not None:
                how.progress(before + done, total)

        run = ensemble.run(
            poisoning.common_features,
            poisoning.common_labels,
            runs=range(first_run, first_run + count),
            per_run=PerRun(Rows(features, labels) if len(labels) else None),
            probes=Rows(poisoning.test_features, poisoning.test_labels),
            keep_parameters=False,
            execution=dataclasses.replace(how, progress=report),
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
