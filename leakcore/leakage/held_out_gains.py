"""Gains of predictions for rows that the fit did not use, over units of cross-validation, and limits of their means.

Each limit adds one unit that was not observed: with the worst gain that a prediction could have made below, with the
best above. Where all gains are equal, the limits then lie about 3/units of such a gain from them (the "rule of three"
at 95%), and no interval has zero width.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.process_wide import one_thread


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """Rows that belong together, such as one sample in several snapshots, make a unit; else each row is one. rows: (n,)
    number of the unit of each row. labels, strata: (units,) class and number of the stratum of each."""

    rows: np.ndarray
    labels: np.ndarray
    strata: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, groups: Any, strata: Any) -> Units:
        """Units of rows; ValueError where a group has two labels or lies in two strata."""
        number = len(labels)
        layer = _codes(strata, number, "strata")
        if groups is None:
            return cls(np.arange(number), labels, layer)
        rows = _codes(groups, number, "groups")
        first = np.full(rows.max() + 1, number)
        np.minimum.at(first, rows, np.arange(number))
        for name, values in (("labels", labels), ("strata", layer)):
            if (values != values[first][rows]).any():
                bad = int(np.argmax(values != values[first][rows]))
                raise ValueError(
                    f"`groups` must give the rows of each group the same {name}, which row {bad} and its group lack"
                )
        return cls(rows, labels[first], layer[first])

    def balanced(self, rng: np.random.Generator) -> np.ndarray:
        """Units, sorted, with as many of each class in every stratum: drawn at random from the larger ones."""
        classes = self.labels.max() + 1
        chosen = []
        for stratum in range(self.strata.max() + 1):
            sets = [np.flatnonzero((self.strata == stratum) & (self.labels == c)) for c in range(classes)]
            size = min(len(s) for s in sets)
            chosen += [rng.choice(s, size, replace=False) for s in sets]
        return np.sort(np.concatenate(chosen))

    def only(self, chosen: np.ndarray) -> tuple[Units, np.ndarray]:
        """These units alone, and their rows."""
        new = np.full(len(self.labels), -1)
        new[chosen] = np.arange(len(chosen))
        inside = np.flatnonzero(new[self.rows] >= 0)
        return Units(new[self.rows[inside]], self.labels[chosen], self.strata[chosen]), inside

    def permuted(self, rng: np.random.Generator) -> Units:
        """The same units with their labels permuted within each stratum: the sets keep their sizes."""
        labels = self.labels.copy()
        for stratum in range(self.strata.max() + 1):
            inside = np.flatnonzero(self.strata == stratum)
            labels[inside] = labels[rng.permutation(inside)]
        return Units(self.rows, labels, self.strata)

    def folds(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """(units,) the fold of each, with every class distributed evenly."""
        out = np.empty(len(self.labels), np.int64)
        dealt = 0
        for c in range(self.labels.max() + 1):
            members = rng.permutation(np.flatnonzero(self.labels == c))
            out[members] = (dealt + np.arange(len(members))) % number
            dealt += len(members)
        return out


def _codes(values: Any, number: int, name: str) -> np.ndarray:
    if values is None:
        return np.zeros(number, np.int64)
    array = validate.even_array(**{name: values})
    if array.shape != (number,):
        raise ValueError(f"`{name}` must have shape ({number},), one for each row, got {array.shape}")
    try:
        return np.unique(array, return_inverse=True)[1].reshape(-1).astype(np.int64)
    except TypeError as why:  # objects that cannot be ordered
        raise TypeError(f"`{name}` must hold values that can be sorted ({why})") from why


_SHARPEST = 50.0
_INNER = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Gains:
    """log f[g](p) − log f[∅](p) of every row, by a fit that did not use its unit.

    raw, calibrated: (rows,) gains of the family's own probabilities, and of the calibrated ones. worst: the least that
    a prediction could have gained. best: (rows,) gains of the best fit to all rows; None where it is not known.
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
        self,
        fitted: Any,
        train: np.ndarray,
        labels: np.ndarray,
        units: Units,
        rng: np.random.Generator,
        prior: np.ndarray,
        share: float,
    ) -> float:
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
            lambda t: -float(gains(math.exp(t)).mean()), bounds=(math.log(1e-3), math.log(_SHARPEST)), method="bounded"
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


def student(gains: np.ndarray, units: Units, confidence: float) -> tuple[float, float, float]:
    """(mean over rows, low, high): Student's interval over units."""
    mean, error, reach = _moments(gains, units, None, confidence)
    return mean, mean - reach * error, mean + reach * error


def gain_limits(
    held_out: np.ndarray, worst: float, best: np.ndarray | None, units: Units, confidence: float, empirical_prior: bool
) -> tuple[float, float, float]:
    """(low, high of the held-out gain, high of V-information I = sup_f E[gain of f]).

    Low, of both: fitted members of the family gain at most I on average, so the lower limit of the held-out gain is one
    of I. High, of I: the member that reaches I gains at most as much on these rows as the best fit to them, whose gains
    are `best` (None: not known; I is at most the logarithm of the number of classes); where the prior was also
    estimated, from as many units, its error (χ²/(2·units)) is added. Each side holds with probability
    (1 + confidence)/2. worst: the least gain that a prediction for a held-out row could have made.
    """
    from scipy.special import chdtri

    classes = int(units.labels.max()) + 1
    most = math.log(classes)
    mean, error, reach = _moments(held_out, units, worst, confidence)
    low = mean - reach * error
    mean, error, _ = _moments(held_out, units, most, confidence)
    high = mean + reach * error
    if best is None:
        return low, high, max(high, most)
    mean, spread, _ = _moments(best, units, most, confidence)
    largest = mean + reach * max(spread, error)
    if empirical_prior:
        largest += float(chdtri(classes - 1, (1 - confidence) / 2)) / (2 * len(units.labels))
    return low, high, min(largest, most)


def _moments(gains: np.ndarray, units: Units, one_more: float | None, confidence: float) -> tuple[float, float, float]:
    """(mean over rows, its standard error over units, Student's quantile), with one more unit of that gain, if any."""
    from scipy.special import stdtrit

    number, rows = len(units.labels), float(len(gains))
    sums, sizes = np.bincount(units.rows, gains, minlength=number), np.bincount(units.rows, minlength=number)
    if one_more is not None:
        typical = rows / number
        sums, sizes = np.append(sums, typical * one_more), np.append(sizes, typical)
        number, rows = number + 1, rows + typical
    mean = float(sums.sum() / rows)
    error = math.sqrt(number / (number - 1) * float(((sums - sizes * mean) ** 2).sum())) / rows
    return mean, error, float(stdtrit(number - 1, (1 + confidence) / 2))
