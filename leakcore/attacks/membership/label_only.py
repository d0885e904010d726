"""The label-only attack: a model keeps the label of noisy copies of a row that it was trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base import memory_limit, validate
from leakcore.attacks.membership.observations import Observations, References


@dataclasses.dataclass(frozen=True)
class LabelOnly:
    """The share of a row's noisy copies that the model gives the row's label (Choquette-Choo et al. 2021).

    It reads labels alone, no probabilities. With copies at several noise levels the share grows with the distance to
    the decision boundary.

    Example:
        >>> from leakcore.attacks import membership
        >>> observed = membership.Observations(losses=[[0.2, 0.3]], copies_right=[[1.0, 0.25]])
        >>> membership.scores("label-only", observed).tolist()
        [[1.0, 0.25]]
    """

    def score(self, target: Observations, references: References | None) -> np.ndarray:
        """(models, rows) scores in [0, 1]."""
        return np.array(target.need("copies_right", attack=f"{self}", role="target"))


def noisy_copies(features: Any, *, scales: Sequence[float], count: int, seed: int) -> np.ndarray:
    """Copies of rows with normal noise, for the label-only attack (`Queries.copies`).

    Args:
        features: (rows, ...) floating.
        scales: standard deviations of the noise in units of each feature's own standard deviation over the rows.
        count: copies at each scale.
        seed: of the noise.

    Returns:
        (copies, rows, ...) of the features' type: the rows themselves first, then `count` copies at each scale.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an argument of another type.

    Guarantees:
        A pure function of the seed, the same on every machine to rounding.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> copies = membership.noisy_copies(np.eye(3), scales=(0.5, 1.0), count=4, seed=0)
        >>> copies.shape, bool((copies[0] == np.eye(3)).all())
        ((9, 3, 3), True)
    """
    rows = validate.real_array("finite", np.isfinite, features=features)
    kind = validate.plain_array(features=features).dtype
    if kind.kind != "f":
        raise TypeError(f"`features` must be floating, got {kind}: integers cannot hold noise")
    if rows.ndim < 2 or 0 in rows.shape:
        raise ValueError(f"`features` must have shape (rows, ...), at least 1 each, got {rows.shape}")
    levels = validate.real_array("above 0 and finite", lambda v: (v > 0) & np.isfinite(v), scales=scales)
    if levels.ndim != 1 or not len(levels):
        raise ValueError(f"`scales` must be at least one number, got shape {levels.shape}")
    each, key = validate.integer(1, None, count=count), validate.seed(seed=seed)
    number = each * len(levels)
    memory_limit.require(24 * (number + 1) * rows.size, count=each)
    uniform = kernels.uniform((number, rows.size), seed=key, purpose=kernels.Stream.NOISY_COPIES)
    noise = special.ndtri(uniform).reshape(number, *rows.shape) * rows.std(axis=0)
    noise *= np.repeat(levels, each).reshape(-1, *(1,) * rows.ndim)
    return np.concatenate([rows[None], rows + noise]).astype(kind)
