"""The quantile attack: is a model more confident of a row than of non-members with like features?"""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.version import need
from leakcore.attacks.membership.observations import Observations, References, confidence

_LEAVES = 8


@dataclasses.dataclass(frozen=True)
class QuantileRegression:
    """Confidence in units of non-members' (Bertran et al. 2023); it needs no reference model.

    For each attacked model scikit-learn's boosted trees learn two quantiles of φ = log(p/(1 − p)) as functions of a
    population row's features: the median m(x) and an upper quantile u(x). The score is (φ − m)/(u − m).

    Args:
        quantile: the upper one, in (0.5, 1). Near 1 it needs a large population.
        iterations: trees of each regression, of 8 leaves.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.QuantileRegression()
        QuantileRegression(quantile=0.9, iterations=30)
    """

    quantile: float = 0.9
    iterations: int = 30

    def __post_init__(self) -> None:
        upper = validate.open_probability(quantile=self.quantile)
        if upper <= 0.5:
            raise ValueError(f"`quantile` must be in (0.5, 1), got {upper}")
        object.__setattr__(self, "quantile", upper)
        object.__setattr__(self, "iterations", validate.integer(1, 10_000, iterations=self.iterations))

    def score(self, target: Observations, references: References | None) -> np.ndarray:
        """(models, rows) scores."""
        attack = f"{self}"
        names = ("features", "population_features", "population_losses")
        features, population, losses = (target.need(name, attack=attack, role="target") for name in names)
        scores = np.empty(target.losses.shape)
        for model, (own, others) in enumerate(zip(confidence(target.losses), confidence(losses), strict=True)):
            middle, upper = (self._predicted(q, population, others, features) for q in (0.5, self.quantile))
            spread = upper - middle
            # Two separate regressions may cross, and a leaf may hold equal values.
            least = np.median(spread[spread > 0]) / 10 if (spread > 0).any() else 1.0
            scores[model] = (own - middle) / np.maximum(spread, least)
        return scores

    def _predicted(self, quantile: float, rows: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
        need("sklearn")
        from sklearn.ensemble import HistGradientBoostingRegressor

        state = kernels.subseed(0, kernels.Stream.QUANTILE_TREES, bits=32)  # bins of more than 200,000 rows
        regressor = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=quantile,
            max_iter=self.iterations,
            max_leaf_nodes=_LEAVES,
            early_stopping=False,
            random_state=state,
        )
        return np.asarray(regressor.fit(rows, values).predict(asked), np.float64)
