"""Rows with a white square and a label of the attacker's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.validate import asks_adjacency
from leakcore.attacks.poisoning.losses import read_rows
from leakcore.attacks.poisoning.poisoned_data import Poisoning, order, place


class Backdoor:
    """Rows with a white square in the corner and a label of the attacker's choice.

    Pert(x) sets the top left `patch`×`patch` pixels of every channel to `value` (Jagielski, Ullman and Oprea 2020,
    Algorithm 3; Gu et al. 2017). k rows of the training set become (Pert(x), y_p); the model is tested on Pert of
    held-out rows of other classes, with label y_p.

    Args:
        shape: of an image, (channels, height, width); rows are flattened in that order.
        label: y_p, of the perturbed rows.
        patch: side of the square, at least 1 and at most the image's.
        value: of its pixels; 1 for images in [0, 1].

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import poisoning
        >>> attack = poisoning.Backdoor((1, 4, 4), label=1, patch=2)
        >>> images, labels = np.zeros((6, 16)), np.arange(6) % 2
        >>> poison = attack.poison(images, labels, images, labels, adjacency="add-remove", k=2)
        >>> poison.poison_features.sum(axis=1).tolist(), poison.poison_labels.tolist(), poison.adjacency
        ([4.0, 4.0], [1, 1], 'add-remove')
    """

    def __init__(self, shape: Sequence[int], *, label: int, patch: int = 5, value: float = 1.0) -> None:
        self.shape = validate.sizes(shape=shape)
        if len(self.shape) != 3:
            raise ValueError(f"`shape` must be (channels, height, width), got {self.shape}")
        self.label = validate.integer(0, None, label=label)
        self.patch = validate.integer(1, min(self.shape[1:]), patch=patch)
        self.value = validate.real(value=value)

    def perturb(self, features: Any) -> np.ndarray:
        """Pert of each row of `features`, (rows, pixels), floating; a copy."""
        rows = np.array(validate.plain_array(features=features))
        if rows.dtype.kind != "f":
            raise ValueError(f"`features` must be floating, got {rows.dtype}; `value` is in their units")
        if rows.ndim != 2 or rows.shape[1] != math.prod(self.shape):
            raise ValueError(
                f"`features` must have shape (rows, {math.prod(self.shape)}), images of {self.shape}, got {rows.shape}"
            )
        rows.reshape(len(rows), *self.shape)[:, :, : self.patch, : self.patch] = self.value
        return rows

    @asks_adjacency
    def poison(
        self,
        features: Any,
        labels: Any,
        test_features: Any,
        test_labels: Any,
        *,
        adjacency: str,
        k: int = 1,
        seed: int = 0,
    ) -> Poisoning:
        """Replace k random rows that do not bear `label` by their perturbed copies, or add the copies.

        Args:
            features: (rows, pixels) floating, the training set.
            labels: (rows,) class numbers.
            test_features: (rows, pixels), held-out rows; the ones of other classes are perturbed and tested.
            test_labels: (rows,) class numbers.
            adjacency: "replace": the perturbed rows replace their originals. "add-remove": they are added, the
                originals stay. There is no default: what is in and out decides what an audit proves.
            k: how many rows.
            seed: of the choice.

        Returns:
            `Poisoning`.

        Raises:
            ValueError: where fewer than k rows, or no test row, have another label.
            ValueError: for a value or shape that is not allowed; the text names the argument.
            TypeError: for an argument of another type.

        Guarantees:
            A pure function of the seed and the data.
        """
        x, y = read_rows(features, labels, "")
        tx, ty = read_rows(test_features, test_labels, "test_")
        others = np.flatnonzero(y != self.label)
        count = validate.integer(1, len(others), k=k)
        held_out = tx[ty != self.label]
        if len(held_out) == 0:
            raise ValueError(f"`test_labels` must have rows of other labels than {self.label}, or none is left to test")
        chosen = others[order(len(others), seed)[:count]]
        return place("backdoor", x, y, chosen, adjacency, self.perturb(x[chosen]), self.label, self.perturb(held_out))
