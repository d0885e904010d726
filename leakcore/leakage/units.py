"""The units of cross-validation and permutation: a row, or a group of rows that share data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import validate as check


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """rows: (n,) the unit of each row. labels, strata: (units,)."""

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
    array = check.even_array(**{name: values})
    if array.shape != (number,):
        raise ValueError(f"`{name}` must have shape ({number},), one for each row, got {array.shape}")
    try:
        return np.unique(array, return_inverse=True)[1].reshape(-1).astype(np.int64)
    except TypeError as why:  # objects that cannot be ordered
        raise TypeError(f"`{name}` must hold values that can be sorted ({why})") from why
