"""Two data sets that differ in poisoned rows, how rows are placed, and the losses that models have at them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import array_memory, validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Adjacency, parse_adjacency
from leakcore._base.version import need

if TYPE_CHECKING:
    from leakcore.dpsgd import EnsembleRun


def losses(run: EnsembleRun, features: Any, labels: Any) -> np.ndarray:
    """Losses of trained models at rows: cross-entropy of softmax, or of the sigmoid of one logit.

    Args:
        run: an `EnsembleRun` with its parameters.
        features: (rows, inputs) floating, finite.
        labels: (rows,) class numbers.

    Returns:
        (runs, rows) float64.

    Guarantees:
        Deterministic for a machine and torch build. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> from leakcore.attacks import poisoning
        >>> model = dpsgd.Ensemble((4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=2, seed=0)
        >>> x, y = np.eye(4), np.array([0, 1, 0, 1])
        >>> poisoning.losses(model.run(x, y, runs=3), x, y).shape
        (3, 4)
    """
    import torch
    from torch.nn import functional

    from leakcore.dpsgd import EnsembleRun

    validate.instance(EnsembleRun, run=run)
    x, y = read_rows(features, labels, "")
    # A copy: data sets are read-only, and torch warns of memory that it must not write.
    if not np.isfinite(x).all() or x.shape[1] != run.layers[0]:
        raise ValueError(f"`features` must hold finite numbers in shape (rows, {run.layers[0]}), got {x.shape}")
    rows = torch.from_numpy(np.array(x, dtype=run.parameters.dtype))
    targets = torch.from_numpy(y)
    out = np.empty((len(run), len(y)))
    for i in range(len(run)):
        module = run.module(run.first_run + i)
        with torch.no_grad():
            logits = module(rows)
            if logits.shape[1] == 1:
                values = functional.binary_cross_entropy_with_logits(
                    logits[:, 0].double(), targets.double(), reduction="none"
                )
            else:
                values = functional.cross_entropy(logits.double(), targets, reduction="none")
        out[i] = values.numpy()
    return out


def read_rows(features: Any, labels: Any, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays, one class for each row; errors call them `prefix`features and `prefix`labels."""
    array_memory.refuse_transforms(f"{prefix}features")
    x = validate.plain_array(**{f"{prefix}features": features})
    y = validate.plain_array(**{f"{prefix}labels": labels})
    if x.ndim != 2 or x.dtype.kind != "f":
        raise ValueError(
            f"`{prefix}features` must be floating of shape (rows, dimensions), got {x.dtype} of shape {x.shape}"
        )
    if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        raise ValueError(
            f"`{prefix}labels` must hold one integer for each of {len(x)} rows, got {y.dtype} of shape {y.shape}"
        )
    if (y < 0).any():
        raise ValueError(f"`{prefix}labels` must be classes from 0 on, got {y.min()}")
    return x, y.astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Poisoning:
    """Two data sets that differ in k rows, and the points whose loss tells them apart.

    Attributes:
        name: name of the attack.
        common_features: the rows that both data sets hold.
        common_labels: their labels.
        clean_features: the k rows that only D₀ holds; none under add/remove.
        clean_labels: their labels.
        poison_features: the k rows that only D₁ holds.
        poison_labels: their labels.
        test_features: where the loss is measured; the statistic is minus its mean, larger where the poison was learned.
        test_labels: their labels.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import poisoning
        >>> x, y = np.random.default_rng(0).random((20, 3)), np.arange(20) % 2
        >>> poisoned = poisoning.ClipBKD().poison(x, y, k=2, adjacency="add-remove")
        >>> poisoned.k, poisoned.adjacency, poisoned.poison_features.shape
        (2, 'add-remove', (2, 3))
    """

    name: str
    common_features: np.ndarray
    common_labels: np.ndarray
    clean_features: np.ndarray
    clean_labels: np.ndarray
    poison_features: np.ndarray
    poison_labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray

    @property
    def k(self) -> int:
        """Number of rows in which the data sets differ."""
        return len(self.poison_labels)

    @property
    def adjacency(self) -> Adjacency:
        """Whether the poison replaces rows or is added."""
        return "replace" if len(self.clean_labels) else "add-remove"

    def statistic(self, run: EnsembleRun) -> np.ndarray:
        """(runs,) float64: minus the mean loss on the test points, for each trained model."""
        return np.asarray(-losses(run, self.test_features, self.test_labels).mean(axis=1))


def read_probabilities(probabilities: Any) -> Callable[[np.ndarray], Any] | None:
    """The clean model's probabilities, a function of features, or None where a logistic regression stands in."""
    if probabilities is not None and not callable(probabilities):
        raise TypeError(
            f"`probabilities` must be a function from features to class probabilities, got {probabilities!r}"
        )
    return probabilities  # type: ignore[no-any-return]


def order(rows: int, seed: int) -> np.ndarray:
    """A seeded order of `rows` rows, the same on every machine."""
    keys = kernels.uniform((1, rows), seed=validate.seed(seed=seed), purpose=kernels.Stream.POISONED_ROWS)
    return np.argsort(keys[0], kind="stable")


def copies(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    point: np.ndarray,
    probabilities: Callable[[np.ndarray], Any] | None,
    k: int,
    adjacency: str,
    seed: int,
    contrast: bool = False,
) -> Poisoning:
    """k copies of (point, its least likely class), which replace k random rows or are added to all rows."""
    count = validate.integer(1, len(x), k=k)
    row = point[None].astype(x.dtype)
    chances = _probabilities(x, y, row, probabilities)
    repeated = np.repeat(row, count, axis=0)
    poisoning = place(name, x, y, order(len(x), seed)[:count], adjacency, repeated, int(chances.argmin()), row)
    if not contrast or poisoning.adjacency != "replace":
        return poisoning
    likeliest = np.full(count, int(chances.argmax()))
    return dataclasses.replace(poisoning, clean_features=repeated, clean_labels=likeliest)


def place(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    chosen: np.ndarray,
    adjacency: str,
    poison: np.ndarray,
    label: int,
    test: np.ndarray,
) -> Poisoning:
    """`poison` replaces the `chosen` rows, or is added to all rows."""
    replaced = chosen if parse_adjacency(adjacency) == "replace" else chosen[:0]
    rest = np.setdiff1d(np.arange(len(y)), replaced)
    return Poisoning(
        name=name,
        common_features=x[rest],
        common_labels=y[rest],
        clean_features=x[replaced],
        clean_labels=y[replaced],
        poison_features=poison,
        poison_labels=np.full(len(poison), label),
        test_features=test,
        test_labels=np.full(len(test), label),
    )


def _probabilities(
    x: np.ndarray, y: np.ndarray, point: np.ndarray, probabilities: Callable[[np.ndarray], Any] | None
) -> np.ndarray:
    """The clean model's probability of each class number at the one point."""
    if probabilities is None:
        need("sklearn")
        from sklearn.linear_model import LogisticRegression

        with one_thread():
            clean = LogisticRegression(max_iter=1000).fit(x, y)
        # A class that no row has is neither the least nor the most likely one.
        out = np.full(int(clean.classes_.max()) + 1, np.nan)
        out[clean.classes_] = clean.predict_proba(point)[0]
        return np.where(np.isnan(out), np.nanmean(out), out)
    chances = np.asarray(probabilities(point), dtype=np.float64)
    if chances.ndim != 2 or chances.shape[0] != 1 or chances.shape[1] < 2 or not np.isfinite(chances).all():
        raise ValueError(
            f"`probabilities` must return finite numbers of shape (1, classes) for one row, got {chances.shape}"
        )
    return np.asarray(chances[0])
