"""Shadow models of the model-based attack: final parameters of models that differ in one training point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate
from leakcore.attacks.arguments import counting_on

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution

_PORTION = 1024
"""Runs trained per call of the ensemble."""


def shadow_models(
    ensemble: Ensemble,
    known_features: Any,
    known_labels: Any,
    points: Any,
    labels: Any,
    *,
    first_run: int = 0,
    execution: Execution | None = None,
) -> np.ndarray:
    """Final parameters of one model per point, each trained on the known rows and that point.

    Run first_run + i trains on point i, so ranges of runs can be trained in any order, anywhere. The attacker knows the
    initial parameters: use a fixed initialisation, as the text does; with one per run the reconstructor must also see
    through those. The target's model is one more such run, with a number that no shadow model has.

    Args:
        ensemble: the mechanism.
        known_features: (rows, inputs), the rows that the attacker knows.
        known_labels: (rows,) class numbers.
        points: (points, inputs), one for each shadow model.
        labels: (points,) class numbers.
        first_run: number of the first model.
        execution: device, threads, workers and progress, without a checkpoint. None: as `dpsgd.Execution()`.

    Returns:
        (points, parameters) in the ensemble's dtype.

    Raises:
        FloatingPointError: as `dpsgd.Ensemble.run`.

    Guarantees:
        The same run has the same bits, as in `dpsgd.Ensemble.run`.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks, dpsgd
        >>> model = dpsgd.Ensemble((4, 2), noise_multiplier=0.1, max_grad_norm=1.0, learning_rate=0.1, steps=3, seed=0)
        >>> attacks.shadow_models(model, np.eye(4), np.arange(4) % 2, np.ones((6, 4)), np.arange(6) % 2).shape
        (6, 10)
    """
    from leakcore.dpsgd import Ensemble, PerRun, Rows, read_execution

    validate.instance(Ensemble, ensemble=ensemble)
    how = read_execution(execution)
    if how.checkpoint is not None:
        raise ValueError(
            f"`execution.checkpoint` must be None, got {str(how.checkpoint)!r}: shadow models store no runs"
        )
    x, y = validate.plain_array(points=points), validate.plain_array(labels=labels)
    if x.ndim != 2 or y.shape != x.shape[:1] or len(y) == 0:
        raise ValueError(
            f"`points` and `labels` must have shapes (points, inputs) and (points,), got {x.shape} and {y.shape}"
        )
    first = validate.integer(0, 2**62, first_run=first_run)
    out = np.empty((len(x), ensemble.num_parameters), ensemble.dtype)
    for start in range(0, len(x), _PORTION):
        part = slice(start, min(start + _PORTION, len(x)))
        out[part] = ensemble.run(
            known_features,
            known_labels,
            runs=range(first + part.start, first + part.stop),
            per_run=PerRun(Rows(x[part, None], y[part, None])),
            execution=counting_on(how, start, len(x)),
        ).parameters
    return out
