"""A gradient that the attacker crafts, and what the final model alone shows of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import memory_limit, validate
from leakcore.attacks.poisoning.scores import WORLD, PoisoningScores

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution

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

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic on one machine. Trials share no randomness with the references.

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
    from leakcore.dpsgd import CraftedGradient, PerRun, PoissonBatches, arguments, read_execution
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
    how = read_execution(execution)
    start = ensemble.replace(steps=0).run(features, labels, runs=1).parameters
    assert start is not None
    total, finished = pilots + 2 * count, 0

    def moved(mechanism: Ensemble, runs: range, crafted: CraftedGradient | None = None) -> np.ndarray:
        """(runs, parameters), how far each parameter went against its gradient."""
        nonlocal finished
        before = finished

        def report(done: int, _: int) -> None:
            if how.progress is not None:
                how.progress(before + done, total)

        run = mechanism.run(
            features,
            labels,
            runs=runs,
            per_run=PerRun(initial=start[0], crafted=crafted),
            execution=dataclasses.replace(how, progress=report),
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
