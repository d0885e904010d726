"""The loss-trajectory attack: losses at several checkpoints tell members from others better than the last one."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore._base import validate
from leakcore._base.version import need
from leakcore.attacks.membership.observations import Observations, References, confidence


@dataclasses.dataclass(frozen=True)
class LossTrajectory:
    """Log odds of a logistic regression on φ = log(p/(1 − p)) at each checkpoint (after Liu et al. 2022).

    The regression is fitted on the reference models' rows, whose membership is known. Columns are standardised. The
    text distils the trajectory from the final model and fits a network; here the attacker has the checkpoints, as a
    server of federated learning does.

    Args:
        strength: inverse weight of the ridge penalty, above 0.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.LossTrajectory()
        LossTrajectory(strength=1.0)
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", validate.positive(strength=self.strength))

    def score(self, target: Observations, references: References) -> np.ndarray:
        """(models, rows) scores, positive where a row looks trained on."""
        need("sklearn")
        from sklearn.linear_model import LogisticRegression

        attack = f"{self}"
        attacked = target.need("checkpoint_losses", attack=attack, role="target")
        known = references.need("checkpoint_losses", attack=attack, role="references")
        if known.shape[1] != attacked.shape[1]:
            raise ValueError(
                f"`references.checkpoint_losses` must be at the {attacked.shape[1]} checkpoints of `target`, got shape "
                f"{known.shape}"
            )
        answers = references.included.ravel()
        if answers.all() or not answers.any():
            raise ValueError(
                f"`references.included` must have rows in and rows out of models for {attack}, got all "
                f"{'in' if answers.all() else 'out'}"
            )
        columns, asked = _columns(known), _columns(attacked)
        mean, spread = columns.mean(axis=0), columns.std(axis=0)
        spread[spread == 0] = 1.0
        model = LogisticRegression(C=self.strength, max_iter=1000).fit((columns - mean) / spread, answers)
        odds = model.decision_function((asked - mean) / spread)
        return np.asarray(odds.reshape(target.losses.shape))


def _columns(losses: np.ndarray) -> np.ndarray:
    """(models·rows, checkpoints)."""
    return np.moveaxis(confidence(losses), 1, 2).reshape(-1, losses.shape[1])
