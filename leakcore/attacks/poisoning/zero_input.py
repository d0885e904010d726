"""Rows of zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.validate import asks_adjacency
from leakcore.attacks.poisoning.losses import read_rows
from leakcore.attacks.poisoning.poisoned_data import Poisoning, copies, read_probabilities


class ZeroInput:
    """k copies of the row of zeros: in the first layer only the biases learn from it.

    A canary for implementations that treat biases differently, such as one that forgets their noise. At x = 0 the
    gradient of the first layer's weights is 0, so in logistic regression the whole clipped gradient goes into the
    biases, and the model is tested at x = 0, where only they count.

    Args:
        label: y of the row; None: the class that a clean model finds least likely for it, as in `ClipBKD`.
        probabilities: of that model, as in `ClipBKD`.
        contrast: as in `ClipBKD`; with a label, D₀ holds class 0, or 1 where the label is 0.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import poisoning
        >>> poison = poisoning.ZeroInput(label=1).poison(np.ones((6, 3)), np.arange(6) % 2, adjacency="add-remove")
        >>> poison.poison_features.tolist(), poison.poison_labels.tolist()
        ([[0.0, 0.0, 0.0]], [1])
    """

    def __init__(
        self,
        label: int | None = None,
        *,
        probabilities: Callable[[np.ndarray], Any] | None = None,
        contrast: bool = False,
    ) -> None:
        self.label = None if label is None else validate.integer(0, None, label=label)
        self.probabilities = read_probabilities(probabilities)
        self.contrast = contrast

    @asks_adjacency
    def poison(self, features: Any, labels: Any, *, adjacency: str, k: int = 1, seed: int = 0) -> Poisoning:
        """Replace k random rows by k rows of zeros, or add these; arguments as in `ClipBKD.poison`."""
        x, y = read_rows(features, labels, "")
        probabilities = self.probabilities
        if self.label is not None:
            known = (np.arange(max(2, self.label + 1)) != self.label)[None].astype(float)
            probabilities = lambda _: known  # noqa: E731
        zero = np.zeros(x.shape[1])
        return copies("zero-input", x, y, zero, probabilities, k, adjacency, seed, contrast=self.contrast)
