"""The robust attack: a row's likelihood ratio, compared with the ratios of rows that no model was trained on."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore.attacks.membership.observations import Observations, References


@dataclasses.dataclass(frozen=True)
class RMIA:
    """RMIA (Zarifzadeh, Liu and Shokri 2024), which works with one or two reference models.

    A row x and a population row z are compared by LR(x, z) = [P(x|θ)/P(x)]/[P(z|θ)/P(z)]; the score is the share of the
    population with LR(x, z) ≥ γ. P(x|θ) is the attacked model's probability of x's label, e^{−loss}, and P(x) its mean
    over models. Rows of equal share stand in the order of r = P(x|θ)/P(x): the score is (count + r/(1 + r))/(others +
    1).

    Args:
        gamma: γ, at least 1. The text takes 2; the authors' later tool takes 1, which tells more of rows that differ
            little.
        a: in [0, 1], the slope by which P_in is guessed from P_out offline: P(x) = ½((1 + a)·P_out(x) + 1 − a). The
            best value depends on the data.
        online: P(x) = ½(P_in(x) + P_out(x)), which needs each row in one reference model and out of one, and P(z) =
            P_out(z). False uses models that were not trained on the row; each row must be out of one.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.RMIA(gamma=2.0)
        RMIA(gamma=2.0, a=0.3, online=False)
    """

    gamma: float = 1.0
    a: float = 0.3
    online: bool = False

    def __post_init__(self) -> None:
        gamma = validate.positive(gamma=self.gamma)
        if gamma < 1:
            raise ValueError(f"`gamma` must be at least 1, got {gamma}")
        object.__setattr__(self, "gamma", gamma)
        object.__setattr__(self, "a", validate.probability(a=self.a))
        validate.boolean(online=self.online)

    def score(self, target: Observations, references: References) -> np.ndarray:
        """(models, rows) scores in [0, 1]."""
        attack = f"{self}"
        population = target.need("population_losses", attack=attack, role="target")
        reference = references.need("population_losses", attack=attack, role="references")
        if reference.shape[1] != population.shape[1]:
            raise ValueError(
                f"`references.population_losses` must be at the {population.shape[1]} population rows of `target`, got "
                f"shape {reference.shape}"
            )
        references.require(1 if self.online else 0, 1, attack=attack)
        outside = _log_mean(references.losses, ~references.included)
        everywhere = _log_mean(reference, np.ones(reference.shape, bool))
        if self.online:
            own = np.logaddexp(outside, _log_mean(references.losses, references.included)) - np.log(2)
            others = everywhere
        else:
            own, others = self._guessed(outside), self._guessed(everywhere)
        ratios = -target.losses - own
        within = special.expit(ratios)
        scores: np.ndarray = np.empty_like(ratios)
        for model, limits in enumerate(np.sort(-population - others, axis=1)):
            count = np.searchsorted(limits, ratios[model] - np.log(self.gamma), side="right")
            scores[model] = (count + within[model]) / (len(limits) + 1)
        return scores

    def _guessed(self, outside: np.ndarray) -> np.ndarray:
        """log of ½((1 + a)·P_out + 1 − a)."""
        with np.errstate(divide="ignore"):  # log 0 where a = 1
            return np.asarray(np.logaddexp(outside + np.log((1 + self.a) / 2), np.log((1 - self.a) / 2)))


def _log_mean(losses: np.ndarray, who: np.ndarray) -> np.ndarray:
    """log of the mean of e^{−loss} over the models that `who` names for each row."""
    return np.asarray(special.logsumexp(-losses, b=who, axis=0) - np.log(who.sum(axis=0)))
