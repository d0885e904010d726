"""Rows that poison a training set: a backdoor, rows along the direction of least variance (ClipBKD), rows of zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.validate import asks_adjacency
from leakcore.attacks.poisoning.poisoned_data import Poisoning, copies, order, place, read_probabilities, read_rows


def least_direction(x: np.ndarray) -> np.ndarray:
    """(d,) unit: a right singular vector of the smallest singular value of the (n, d) rows, its largest entry positive.

    Where that value is not simple (features that are constant, fewer rows than features) a decomposition returns any
    direction of its space, another with every BLAS and number of threads. This takes the projection onto that space of
    the axis that lies nearest to it, the first of several: of a constant feature, that feature alone.
    """
    with one_thread():
        # Of the triangle, whose singular values equal the ones of the rows; the Gram matrix would square the condition.
        triangle = x if x.shape[0] <= x.shape[1] else scipy.linalg.qr(x, mode="r", check_finite=False)[0][: x.shape[1]]
        _, values, vectors = scipy.linalg.svd(triangle, full_matrices=True, check_finite=False)
        values = np.append(values, np.zeros(x.shape[1] - len(values)))
        same = values <= values[-1] + 8.0 * max(x.shape) * np.finfo(np.float64).eps * values[0]
        space = vectors[same]
        share = np.sqrt((space * space).sum(axis=0))  # of each axis, the length of its projection onto the space
        axis = int(np.argmax(share >= share.max() * (1.0 - 1e-6)))
        direction = space[:, axis] @ space
    return np.asarray(direction * (np.sign(direction[np.abs(direction).argmax()]) / np.linalg.norm(direction)))


class Backdoor:
    """Rows with a white square in the corner and a label of the attacker's choice.

    Pert(x) sets the top left `patch`×`patch` pixels of every channel to `value` (Jagielski, Ullman and Oprea 2020,
    Algorithm 3; Gu et al. 2017). k rows of the training set become (Pert(x), y_p); the model is tested on Pert of
    held-out rows of other classes, with label y_p.

    Args:
        shape: shape of an image, (channels, height, width); rows are flattened in that order.
        label: y_p, of the perturbed rows.
        patch: side of the square, at least 1 and at most the image's.
        value: value of its pixels; 1 for images in [0, 1].

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
            seed: seed of the choice.

        Returns:
            `Poisoning`.

        Raises:
            ValueError: where fewer than k rows, or no test row, have another label.

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
        """Replace k random rows by k copies of (x_p, y_p), or add the copies; arguments as in `Backdoor.poison`."""
        x, y = read_rows(features, labels, "")
        point = self.direction(x)
        return copies("clipbkd", x, y, point, self.probabilities, k, adjacency, seed, contrast=self.contrast)


class ZeroInput:
    """k copies of the row of zeros: in the first layer only the biases learn from it.

    A canary for implementations that treat biases differently, such as one that forgets their noise. At x = 0 the
    gradient of the first layer's weights is 0, so in logistic regression the whole clipped gradient goes into the
    biases, and the model is tested at x = 0, where only they count.

    Args:
        label: y of the row; None: the class that a clean model finds least likely for it, as in `ClipBKD`.
        probabilities: function to class probabilities of that model, as in `ClipBKD`.
        contrast: as in `ClipBKD`; with a label, D₀ holds class 0, or 1 where the label is 0.

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
