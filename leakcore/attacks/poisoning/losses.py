"""Losses of trained models at given rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import array_memory, validate

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

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic for a machine and torch build.

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
