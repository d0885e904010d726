"""Gains of predictions for rows that the fit did not use: one layer, cross-validated and calibrated."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base.one_thread import one_thread
from leakcore.leakage.units import Units

_SHARPEST = 50.0
_INNER = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Gains:
    """(rows,) log f[g](p) − log f[∅](p), raw and calibrated, each row's by a fit that did not use its unit.

    worst: the least that a prediction could have gained. best: (rows,) of the best fit to all of them, if known.
    """

    raw: np.ndarray
    calibrated: np.ndarray
    worst: float
    best: np.ndarray | None = None


def gains_of(problem: Problem, units: Units, seed: int, number: int) -> Gains:
    """`Problem.gains` of permutation `number`, 0 for the labels as they are, the same wherever it is called."""
    with one_thread():
        gains = problem.gains(units, kernels.generator(seed, kernels.Stream.V_FOLDS, step=number))
        return dataclasses.replace(gains, best=problem.best(units)) if number == 0 else gains


class Problem:
    """Cross-validation of one layer, for any labels."""

    def __init__(self, features: np.ndarray, family: Any, prior: str, folds: int) -> None:
        self._features, self._family, self._prior, self._folds = features, family, prior, folds

    def gains(self, units: Units, rng: np.random.Generator) -> Gains:
        """The gain of every row, by `folds` fits."""
        labels, classes = units.labels[units.rows], int(units.labels.max()) + 1
        fold = units.folds(self._folds, rng)[units.rows]
        raw, calibrated = np.empty(len(labels)), np.empty(len(labels))
        worst = worst_raw = 0.0
        for k in range(self._folds):
            train, test = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            prior = self._log_prior(labels[train], classes)
            share = 1 / (len(train) + 1)
            fitted = self._fit(train, labels)
            beta = self._beta(fitted, train, labels, units, rng, prior, share)
            predicted = self._predict(fitted, test, classes)
            at = np.arange(len(test)), labels[test]
            raw_gains, calibrated_gains = (tempered(predicted, prior, b, share) - prior for b in (1.0, beta))
            raw[test], calibrated[test] = raw_gains[at], calibrated_gains[at]
            worst, worst_raw = min(worst, float(calibrated_gains.min())), min(worst_raw, float(raw_gains.min()))
        # Where every fold ignores its input, only the raw predictions show what one could have lost.
        return Gains(raw, calibrated, worst or worst_raw)

    def best(self, units: Units) -> np.ndarray | None:
        """(rows,) gains of the family's best fit to all rows, on these rows; None where the family cannot tell."""
        fit = getattr(self._family, "best_log_prob", None)
        labels, classes = units.labels[units.rows], int(units.labels.max()) + 1
        if fit is None:
            return None
        best = fit(self._features, labels)
        if best is None:
            return None
        best = _checked(best, (len(labels), classes))
        return np.asarray((best - self._log_prior(labels, classes))[np.arange(len(labels)), labels])

    def _beta(
        self, fitted: Any, train: np.ndarray, labels: np.ndarray, units: Units, rng: np.random.Generator,
        prior: np.ndarray, share: float,
    ) -> float:  # fmt: skip
        """The power with the least loss on rows held out inside the training part; 0 where none is surely better."""
        from scipy.optimize import minimize_scalar

        alone, _ = units.only(np.unique(units.rows[train]))
        singles = len(alone.labels) == len(train)
        held_out = getattr(fitted, "held_out_log_prob", None)
        if held_out is not None and singles:  # a forest leaves out rows, not groups of them
            predicted = _checked(held_out(), (len(train), len(prior)))
        else:
            inner = alone.folds(_INNER, rng)[alone.rows]
            predicted = np.empty((len(train), len(prior)))
            for k in range(_INNER):
                part = self._fit(train[inner != k], labels)
                predicted[inner == k] = self._predict(part, train[inner == k], len(prior))
        at = np.arange(len(train)), labels[train]

        def gains(power: float) -> np.ndarray:
            return np.asarray(tempered(predicted, prior, power, share)[at] - prior[labels[train]])

        # In log β the search is equally fine for overconfident and for timid families.
        best = minimize_scalar(
            lambda t: -float(gains(math.exp(t)).mean()),
            bounds=(math.log(1e-3), math.log(_SHARPEST)),
            method="bounded",
        )
        won = gains(math.exp(best.x))
        return math.exp(best.x) if won.mean() > won.std() / math.sqrt(len(won)) else 0.0

    def _fit(self, rows: np.ndarray, labels: np.ndarray) -> Any:
        model = copy.deepcopy(self._family)
        model.fit(self._features[rows], labels[rows])
        return model

    def _predict(self, model: Any, rows: np.ndarray, classes: int) -> np.ndarray:
        return _checked(model.log_prob(self._features[rows]), (len(rows), classes))

    def _log_prior(self, labels: np.ndarray, classes: int) -> np.ndarray:
        if self._prior == "uniform":
            return np.full(classes, -math.log(classes))
        return np.asarray(np.log(np.bincount(labels, minlength=classes) / len(labels)))


def tempered(log_prob: np.ndarray, prior: np.ndarray, power: float, share: float) -> np.ndarray:
    """log of (1 − share)·f̃ + share·f[∅], f̃ ∝ f[∅]^(1−power)·f_ε^power, f_ε the family's mixed with the same share."""
    mixed = np.logaddexp(log_prob + math.log1p(-share), prior + math.log(share))
    turned = (1 - power) * prior + power * mixed
    turned -= np.logaddexp.reduce(turned, axis=1, keepdims=True)
    return np.asarray(np.logaddexp(turned + math.log1p(-share), prior + math.log(share)))


def _checked(values: Any, shape: tuple[int, int]) -> np.ndarray:
    log_prob = np.asarray(values, dtype=np.float64)
    if log_prob.shape != shape:
        raise ValueError(f"`family.log_prob` must return shape {shape}, (rows, classes), got {log_prob.shape}")
    if np.isnan(log_prob).any() or (log_prob > 1e-6).any():
        raise ValueError("`family.log_prob` must return logarithms of probabilities, none of them NaN or above 0")
    return log_prob
