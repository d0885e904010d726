"""Rows along the direction of least variance, which clipping does not shrink: ClipBKD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.validate import asks_adjacency
from leakcore.attacks.poisoning.least_variance_direction import least_direction
from leakcore.attacks.poisoning.losses import read_rows
from leakcore.attacks.poisoning.poisoned_data import Poisoning, copies, read_probabilities


class ClipBKD:
    """k copies of one row along the direction in which the data vary least: it survives clipping and noise.

    x_p is the right singular vector of the smallest singular value of the (n, d) training features, scaled to the mean
    norm of the rows; y_p is the class that a clean model finds least likely for x_p (Jagielski, Ullman and Oprea 2020,
    Algorithm 4). Where several directions have that value (constant features, fewer rows than features), it is the one
    nearest to an axis; the largest entry is positive. The model is tested on (x_p, y_p) itself.

    Args:
        probabilities: a function from features (rows, d) to class probabilities (rows, classes) of a clean model; None:
            a logistic regression fitted to the features. The attacker of the paper has a model that was never trained
            on the audited release.
        contrast: under "replace", let D₀ hold the same points with the class that the clean model finds likeliest,
            instead of the rows. An auditor chooses both data sets; two gradients that point apart use the whole
            distance 2C that replacement allows, a row that is learned anyway only about C of it.

    Raises:
        TypeError: for probabilities that cannot be called.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import poisoning
        >>> x = np.random.default_rng(0).standard_normal((40, 3)) * [3.0, 2.0, 0.0]  # the last feature never varies
        >>> poison = poisoning.ClipBKD().poison(x, (x[:, 0] > 0).astype(int), adjacency="replace", k=2)
        >>> [abs(p) > 0.1 for p in poison.poison_features[0].tolist()], poison.k
        ([False, False, True], 2)
    """

    def __init__(self, probabilities: Callable[[np.ndarray], Any] | None = None, *, contrast: bool = False) -> None:
        self.probabilities = read_probabilities(probabilities)
        self.contrast = contrast

    def direction(self, features: Any) -> np.ndarray:
        """The poisoned row's features x_p, (d,)."""
        x = validate.real_array("finite", np.isfinite, features=features)
        if x.ndim != 2 or 0 in x.shape:
            raise ValueError(f"`features` must have shape (rows, dimensions), at least 1 each, got {x.shape}")
        return np.asarray(least_direction(x) * np.linalg.norm(x, axis=1).mean())

    @asks_adjacency
    def poison(self, features: Any, labels: Any, *, adjacency: str, k: int = 1, seed: int = 0) -> Poisoning:
        """Replace k random rows by k copies of (x_p, y_p), or add the copies.

        Args:
            features: (rows, d) floating, the training set.
            labels: (rows,) class numbers.
            adjacency: "replace" or "add-remove", as in `Backdoor.poison`.
            k: how many rows.
            seed: of the choice of rows.

        Returns:
            `Poisoning`.

        Raises:
            ValueError: for a value or shape that is not allowed; the text names the argument.
            TypeError: for an argument of another type.
        """
        x, y = read_rows(features, labels, "")
        point = self.direction(x)
        return copies("clipbkd", x, y, point, self.probabilities, k, adjacency, seed, contrast=self.contrast)
