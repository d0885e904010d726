"""From reconstructions to success: nearest prior point, pixels within a tolerance, squared error and its references."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result

UNIFORM_MSE = 1 / 6
"""E(u − v)² of independent u, v uniform in [0, 1]: the mean squared error of a random uniform guess at another."""
_BLOCK = 2**22
"""Distances held at once."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SuccessRate(Result):
    """Mean over reconstructions of the probability of success, with an empirical Bernstein interval over them.

    Attributes:
        each: (reconstructions,) float64 in [0, 1], the probability for each of them.
    """

    schema: ClassVar[str] = "leakcore.success_rate/1"

    quantity: str = "success probability"
    each: np.ndarray


def nearest_prior(
    reconstructions: Any, target_index: Any, pool: Any, *, num_candidates: int, confidence: float = 0.95
) -> SuccessRate:
    """How often the target is the prior's point that is nearest to the reconstruction (Hayes et al. 2023, Appendix D).

    The prior is the target and num_candidates − 1 distinct others, uniform from the rest of the pool. The text draws
    1,000 such priors per target; this is the exact average over all of them: if k of the m others are at most as far
    from ẑ as the target (ties count against the attack), it is Π_{j<n−1} (m − k − j)/(m − j). Distances are Euclidean.

    Args:
        reconstructions: (rows, d).
        target_index: (rows,), each target's row in the pool.
        pool: (P, d).
        num_candidates: n ≥ 2, at most P.
        confidence: level of the interval, in (0, 1 − 1e-12]; it takes the rows as independent.

    Returns:
        `SuccessRate`, kind "estimate". Its `value` compares with a prior-aware attack with as many candidates; chance
        is 1/n.

    Guarantees:
        Deterministic; rounding decides no comparison of distances. ValueError or TypeError names an argument that does
        not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks
        >>> pool = np.eye(5)
        >>> rate = attacks.nearest_prior(pool[:2] + 0.1, [0, 1], pool, num_candidates=3)
        >>> rate.value, rate.kind  # each reconstruction is nearest to its target
        (1.0, 'estimate')
    """
    points, others = _points(reconstructions=reconstructions), _points(pool=pool)
    index = validate.plain_array(target_index=target_index)
    n = validate.integer(2, None, num_candidates=num_candidates)
    if n > len(others):
        raise ValueError(f"`num_candidates` must be at most the {len(others)} rows of pool, got {n}")
    if points.shape[1] != others.shape[1]:
        raise ValueError(f"`pool` must have the {points.shape[1]} columns of reconstructions, got shape {others.shape}")
    if index.dtype.kind not in "iu" or index.shape != (len(points),):
        raise ValueError(f"`target_index` must be one integer for each of {len(points)} rows, got shape {index.shape}")
    if ((index < 0) | (index >= len(others))).any():
        raise ValueError(
            f"`target_index` must lie in [0, {len(others) - 1}], got values in [{index.min()}, {index.max()}]"
        )
    nearer = np.empty(len(points), np.int64)
    rows = max(1, _BLOCK // others.shape[0])
    for start in range(0, len(points), rows):
        part = slice(start, start + rows)
        nearer[part] = _as_near(points[part], others, index[part])
    drawn = np.arange(n - 1)
    rest = len(others) - 1
    each = np.prod(np.maximum(rest - nearer[:, None] - drawn, 0) / (rest - drawn), axis=1)
    return _rate(
        each,
        confidence,
        method=f"nearest of {n} prior points, averaged over all priors from {len(others)} points; empirical Bernstein",
        attacker="reconstructs without a prior; only the evaluation knows the candidates",
        provenance="Hayes et al. 2023, Appendix D",
    )


def pixels_within(reconstructions: Any, originals: Any, *, tolerance: float = 32 / 255) -> np.ndarray:
    """Each reconstruction's share of features with |z − ẑ| < tolerance (Hayes et al. 2023, Appendix I).

    A reconstruction is a success at level ρ where the share is at least ρ; `pixel_success` counts these.

    Args:
        reconstructions: (rows, d).
        originals: (rows, d).
        tolerance: > 0, in units of a feature.

    Returns:
        (rows,) float64 in [0, 1].

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> from leakcore import attacks
        >>> attacks.pixels_within([[0.0, 0.1, 0.5, 1.0]], [[0.0, 0.0, 0.0, 0.0]]).tolist()
        [0.5]
    """
    points, true = _pair(reconstructions, originals)
    limit = validate.positive(tolerance=tolerance)
    return np.asarray((abs(points - true) < limit).mean(axis=1))


def pixel_success(
    reconstructions: Any, originals: Any, *, fraction: float, tolerance: float = 32 / 255, confidence: float = 0.95
) -> SuccessRate:
    """Share of reconstructions with at least `fraction` of their features within a tolerance of the original's.

    Hayes et al. 2023, Appendix I. The κ to compare it with is P(Bin(d, 2·tolerance) ≥ ρd) with ρ = fraction, which the
    text prints as (2·tolerance)^{ρd} (E9).

    Args:
        reconstructions: (rows, d).
        originals: (rows, d).
        fraction: ρ in [0, 1].
        tolerance: > 0, in units of a feature.
        confidence: level of the interval, in (0, 1 − 1e-12]; it takes the rows as independent.

    Returns:
        `SuccessRate`, kind "estimate".

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks
        >>> attacks.pixel_success(np.array([[0.0, 0.1], [0.0, 0.9]]), np.zeros((2, 2)), fraction=1.0).value
        0.5
    """
    share = validate.probability(fraction=fraction)
    within = pixels_within(reconstructions, originals, tolerance=tolerance)
    return _rate(
        (within >= share).astype(np.float64),
        confidence,
        method=f"at least {share:g} of the features within {tolerance:.4g}; empirical Bernstein",
        attacker="reconstructs without a prior",
        provenance="Hayes et al. 2023, Appendix I",
    )


def mean_squared_error(reconstructions: Any, originals: Any) -> np.ndarray:
    """Mean over features of (z − ẑ)², the error of Figure 1 of Hayes et al. 2023.

    Args:
        reconstructions: (rows, d).
        originals: (rows, d).

    Returns:
        (rows,) float64. A uniform guess at a uniform point in [0, 1] has `UNIFORM_MSE` = 1/6.

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> from leakcore import attacks
        >>> attacks.mean_squared_error([[0.0, 1.0]], [[0.5, 1.0]]).tolist()
        [0.125]
    """
    points, true = _pair(reconstructions, originals)
    return np.asarray(np.square(points - true).mean(axis=1))


def nearest_neighbour_mse(points: Any) -> np.ndarray:
    """Mean squared error between each point and the nearest other one.

    Its mean is the threshold for a near-perfect reconstruction in Figure 1 of Hayes et al. 2023.

    Args:
        points: (rows, d), at least two rows.

    Returns:
        (rows,) float64.

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> from leakcore import attacks
        >>> attacks.nearest_neighbour_mse([[0.0, 0.0], [0.0, 1.0], [4.0, 1.0]]).tolist()
        [0.5, 0.5, 8.0]
    """
    values = _points(points=points)
    if len(values) < 2:
        raise ValueError(f"`points` must have at least two rows, got shape {values.shape}")
    out = np.empty(len(values))
    rows = max(1, _BLOCK // len(values))
    for start in range(0, len(values), rows):
        distance = _squared_distances(values[start : start + rows], values)
        distance[np.arange(len(distance)), np.arange(start, start + len(distance))] = np.inf
        nearest = distance.argmin(axis=1)
        # Recomputed without the cancellation of the expanded square.
        out[start : start + len(distance)] = np.square(values[start : start + rows] - values[nearest]).mean(axis=1)
    return out


def _as_near(points: np.ndarray, pool: np.ndarray, index: np.ndarray) -> np.ndarray:
    """How many other rows of the pool are at most as far from each point as row `index` is."""
    distance = _squared_distances(points, pool)
    own = np.take_along_axis(distance, index[:, None], axis=1)
    # Rounding in the expanded square must not decide: distances that differ by less are recomputed.
    reach = (points * points).sum(axis=1)[:, None] + (pool * pool).sum(axis=1)
    close = abs(distance - own) <= 4 * (points.shape[1] + 4) * np.finfo(np.float64).eps * reach
    nearer = ((distance < own) & ~close).sum(axis=1)
    for row in range(len(points)):
        columns = np.flatnonzero(close[row])
        exact = np.square(pool[columns] - points[row]).sum(axis=1)
        mine = np.square(pool[index[row]] - points[row]).sum()
        nearer[row] += (exact <= mine).sum() - 1  # its own among them
    return np.asarray(nearer)


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    cross = a @ b.T
    return np.asarray((a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * cross)


def _rate(each: np.ndarray, confidence: float, *, method: str, attacker: str, provenance: str) -> SuccessRate:
    level = validate.confidence(confidence=confidence)
    return SuccessRate(
        value=float(each.mean()),
        kind="estimate",
        confidence=level,
        interval=_bernstein(each, 1 - level),
        method=method,
        assumptions=Assumptions(
            adjacency="add-remove", attacker=attacker, notes=("the success rate of this attack: others may do better",)
        ),
        provenance=provenance,
        each=each,
    )


def _bernstein(values: np.ndarray, alpha: float) -> tuple[float, float]:
    """Two-sided interval for the mean of independent [0, 1] variables (Maurer and Pontil 2009, Theorem 4)."""
    n = len(values)
    if n < 2:
        return 0.0, 1.0
    log = math.log(4 / alpha)
    half = math.sqrt(2 * float(values.var(ddof=1)) * log / n) + 7 * log / (3 * (n - 1))
    mean = float(values.mean())
    return max(0.0, mean - half), min(1.0, mean + half)


def _pair(reconstructions: Any, originals: Any) -> tuple[np.ndarray, np.ndarray]:
    points, true = _points(reconstructions=reconstructions), _points(originals=originals)
    if points.shape != true.shape:
        raise ValueError(f"`originals` must have the shape of `reconstructions`, {points.shape}, got {true.shape}")
    return points, true


def _points(**kwargs: Any) -> np.ndarray:
    ((name, _),) = kwargs.items()
    out, _ = validate.host_array(**kwargs)
    if out.ndim != 2 or 0 in out.shape:
        raise ValueError(f"`{name}` must have shape (rows, features), at least one of each, got {out.shape}")
    return out
