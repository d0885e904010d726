"""Exact (Clopper–Pearson) confidence limits of a binomial proportion."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Number


def clopper_pearson(
    successes: Any, trials: Any, *, confidence: float, side: str = "two-sided"
) -> tuple[Number, Number]:
    """Confidence limits (low, high) of a probability p from `successes` out of `trials` independent draws.

    Clopper and Pearson (1934): low solves P(Bin(n, p) ≥ k) = a and high solves P(Bin(n, p) ≤ k) = a. These are the Beta
    quantiles low = I⁻¹(a; k, n−k+1) and high = I⁻¹(1−a; k+1, n−k), with a = (1 − confidence)/2 for "two-sided" and a =
    1 − confidence for "lower" (then high is 1) and "upper" (then low is 0).

    Args:
        successes: k, an integer or an integer array, 0 ≤ k ≤ n; broadcast with `trials`.
        trials: n ≥ 1, likewise.
        confidence: in (0, 1).
        side: "two-sided", "lower" or "upper".

    Returns:
        (low, high): floats for scalar input, otherwise float64 arrays of the broadcast shape. No successes give low = 0
        exactly, all successes give high = 1 exactly.

    Raises:
        ValueError: for a count outside its range, shapes that do not broadcast, or another value that is not allowed.
        TypeError: for a count that is not an integer.

    Guarantees:
        Holds for finite samples: whatever p is, the interval misses it with probability at most 1 − confidence.
        Deterministic.

    Example:
        >>> from leakcore import numerics
        >>> low, high = numerics.clopper_pearson(7, 10, confidence=0.95)
        >>> f"{low:.3f} to {high:.3f}"
        '0.348 to 0.933'
    """
    level = validate.open_probability(confidence=confidence)
    which = validate.one_of("two-sided", "lower", "upper", side=side)
    n = _counts("trials", trials, 1)
    k = _counts("successes", successes, 0)
    try:
        k, n = np.broadcast_arrays(k, n)
    except ValueError:
        raise ValueError(f"`successes` and `trials` must broadcast, got shapes {k.shape} and {n.shape}") from None
    if (k > n).any():
        at = tuple(np.argwhere(k > n)[0])
        raise ValueError(f"`successes` must be at most trials={int(n[at])}, got {int(k[at])}")
    tail = (1.0 - level) / (2.0 if which == "two-sided" else 1.0)
    low = np.zeros(k.shape)
    high = np.ones(k.shape)
    # At k = 0 and k = n one Beta quantile is undefined and its limit is 0 or 1: shift those cases, then discard them.
    if which != "upper":
        low = np.where(k == 0, 0.0, special.betaincinv(np.maximum(k, 1), n - k + 1.0, tail))
    if which != "lower":
        # The complementary inverse keeps a tiny tail exact, where 1 − tail would round to 1.
        high = np.where(k == n, 1.0, special.betainccinv(k + 1.0, np.maximum(n - k, 1), tail))
    if k.ndim == 0:
        return float(low), float(high)
    return low, high


def _counts(name: str, value: Any, least: int) -> np.ndarray:
    out = validate.even_array(**{name: value})
    if out.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be an integer or an array of integers, got {value!r}")
    if (out < least).any():
        raise ValueError(f"`{name}` must be at least {least}, got {int(out[out < least][0])}")
    return out.astype(np.int64)
