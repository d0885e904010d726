"""The loss threshold: a row that a model fits well was trained on."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore._base import validate
from leakcore.attacks.membership.observations import Observations, References


@dataclasses.dataclass(frozen=True)
class LossThreshold:
    """The scores threshold − loss: positive where a row is called a member (Yeom et al. 2018).

    Args:
        threshold: a number; or None for the reference models' mean loss at the rows that they were trained on, and for
            0 where there are none, which leaves the order of the rows and nothing to guess by. The text takes each
            attacked model's own training loss, which DP-SGD does not release.

    Raises:
        ValueError: for a threshold that is not finite.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import membership
        >>> observed = membership.Observations(losses=[[0.25, 1.0]])
        >>> membership.scores(membership.LossThreshold(0.5), observed).tolist()
        [[0.25, -0.5]]
    """

    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            limit = validate.real(threshold=self.threshold)
            if not np.isfinite(limit):
                raise ValueError(f"`threshold` must be finite, got {limit}")
            object.__setattr__(self, "threshold", limit)

    def score(self, target: Observations, references: References | None) -> np.ndarray:
        """(models, rows) scores."""
        limit = self.threshold
        if limit is None:
            limit = 0.0 if references is None else _mean_over_models(references)
        return np.asarray(limit - target.losses)


def mean_training_loss(models: References) -> np.ndarray:
    """(models,), each model's mean loss at the rows that it was trained on; 0 without any."""
    inside = models.included
    return np.asarray((models.losses * inside).sum(axis=1) / np.maximum(inside.sum(axis=1), 1))


def _mean_over_models(references: References) -> float:
    """0 where no model was trained on any of the rows."""
    trained = references.included.any(axis=1)
    return float(mean_training_loss(references)[trained].mean()) if trained.any() else 0.0
