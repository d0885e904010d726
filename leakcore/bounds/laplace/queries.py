"""ℓ1-sensitivities of common queries, exact for the neighbouring relation they name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency, Assumptions, Result, parse_adjacency
from leakcore._base.validate import asks_adjacency

SOURCE = "Dwork, McSherry, Nissim and Smith (2006); Lecture 13 (Lei 2024), Definition 4 (eq. 3.3)"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class L1Sensitivity(Result):
    """ℓ1-sensitivity of a query, as the `*_sensitivity` functions return it.

    Attributes:
        value: Δ₁ = max ‖f(X) − f(X′)‖₁ over neighbouring datasets, attained.
        query: the name of f: "sum", "mean", "count" or "histogram".
        dimensions: number of entries of f(X).
    """

    quantity: str = "L1 sensitivity"
    query: str
    dimensions: int


def sum_sensitivity(
    lower: Any = None, upper: Any = None, *, l1_norm: float | None = None, adjacency: str = "add-remove"
) -> L1Sensitivity:
    """ℓ1-sensitivity of a sum, f(X) = Σ_i x_i.

    For rows in the box lower ≤ x ≤ upper it is Σ_c max(|lower_c|, |upper_c|) under "add-remove" and Σ_c (upper_c −
    lower_c) under "replace"; for rows with ‖x‖₁ ≤ R it is R and 2R. Give either the box or R. Rows that may lie
    outside must be clipped before the query, or the bound does not hold.

    Args:
        lower: a number, or (k,) numbers, one per coordinate, finite.
        upper: a number, or (k,) numbers, finite and at least `lower`.
        l1_norm: R in [0, ∞), instead of a box.
        adjacency: "add-remove" or "replace".

    Returns:
        `L1Sensitivity` of kind "upper". Exact: attained at corners of the box and of the ball.

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

    Example:
        >>> from leakcore.bounds import laplace
        >>> laplace.sum_sensitivity([0, -1], [10, 1]).value, laplace.sum_sensitivity(l1_norm=3).value
        (11.0, 3.0)
        >>> laplace.sum_sensitivity([0, -1], [10, 1], adjacency="replace").value
        12.0
    """
    relation = parse_adjacency(adjacency)
    if l1_norm is not None:
        if lower is not None or upper is not None:
            raise ValueError(
                f"give `lower` and `upper`, or `l1_norm`, got lower={lower!r}, upper={upper!r}, l1_norm={l1_norm!r}"
            )
        radius = validate.non_negative(l1_norm=l1_norm)
        return _result("sum", (2.0 if relation == "replace" else 1.0) * radius, 1, relation, "every row has ‖x‖₁ ≤ R")
    low, high = _box(lower, upper)
    per = high - low if relation == "replace" else np.maximum(np.abs(low), np.abs(high))
    return _result("sum", float(per.sum()), per.size, relation, "every row lies in the box")


@asks_adjacency
def mean_sensitivity(lower: Any, upper: Any, num_rows: int, *, adjacency: str) -> L1Sensitivity:
    """ℓ1-sensitivity of a mean, f(X) = (1/n) Σ_i x_i, for rows in the box lower ≤ x ≤ upper.

    "replace": Σ_c (upper_c − lower_c)/n, where n is public. "add-remove": Σ_c (upper_c − lower_c)/(n + 1). There the
    number of rows is not public; if both neighbours have at least n rows, the larger one has at least n + 1, and the
    mean moves by |x − mean of the others|/(n + 1). Without a least number the mean is not defined: release a noisy sum
    and a noisy count.

    Args:
        lower: a number, or (k,) numbers, one per coordinate, finite.
        upper: a number, or (k,) numbers, finite and at least `lower`.
        num_rows: n ≥ 1, the number of rows ("replace") or the least number ("add-remove").
        adjacency: "add-remove" or "replace". Required, because it says what n is.

    Returns:
        `L1Sensitivity` of kind "upper". Exact: attained.

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

    Example:
        >>> from leakcore.bounds import laplace
        >>> laplace.mean_sensitivity(0, 1, 100, adjacency="replace").value
        0.01
    """
    relation = parse_adjacency(adjacency)
    low, high = _box(lower, upper)
    n = validate.integer(1, num_rows=num_rows)
    rows = n if relation == "replace" else n + 1
    what = f"every row lies in the box; {'exactly' if relation == 'replace' else 'at least'} {n} rows"
    return _result("mean", float((high - low).sum()) / rows, low.size, relation, what)


def count_sensitivity(num_queries: int = 1, *, adjacency: str = "add-remove") -> L1Sensitivity:
    """ℓ1-sensitivity of counts: how many rows satisfy each of k predicates.

    It is k under both relations, since one row may satisfy all predicates. Disjoint predicates are a histogram, which
    needs less noise (`histogram_sensitivity`).

    Args:
        num_queries: k ≥ 1.
        adjacency: "add-remove" or "replace".

    Returns:
        `L1Sensitivity` of kind "upper". Exact: attained.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore.bounds import laplace
        >>> laplace.count_sensitivity(3).value
        3.0
    """
    k = validate.integer(1, num_queries=num_queries)
    return _result("count", float(k), k, parse_adjacency(adjacency), "predicates may overlap")


def histogram_sensitivity(num_bins: int, *, bins_per_row: int = 1, adjacency: str = "add-remove") -> L1Sensitivity:
    """ℓ1-sensitivity of a histogram: counts of bins, each row in at most s of them.

    "add-remove": s. "replace": a row may leave s bins and enter s others, so min(2s, num_bins). The bins must be
    public: bins that are chosen from the data leak by that choice.

    Args:
        num_bins: at least 1.
        bins_per_row: s in [1, num_bins].
        adjacency: "add-remove" or "replace".

    Returns:
        `L1Sensitivity` of kind "upper". Exact: attained.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore.bounds import laplace
        >>> laplace.histogram_sensitivity(10).value, laplace.histogram_sensitivity(10, adjacency="replace").value
        (1.0, 2.0)
    """
    relation = parse_adjacency(adjacency)
    bins = validate.integer(1, num_bins=num_bins)
    per_row = validate.integer(1, bins, bins_per_row=bins_per_row)
    value = min(2 * per_row, bins) if relation == "replace" else per_row
    return _result("histogram", float(value), bins, relation, f"a row lies in at most {per_row} of {bins} bins")


def _box(lower: Any, upper: Any) -> tuple[np.ndarray, np.ndarray]:
    if lower is None or upper is None:
        raise ValueError(f"`lower` and `upper` must both be given, got lower={lower!r} and upper={upper!r}")
    low = validate.real_array("finite", np.isfinite, lower=lower)
    high = validate.real_array("finite", np.isfinite, upper=upper)
    if low.ndim > 1 or high.ndim > 1 or low.size == 0 or high.size == 0:
        raise ValueError(
            f"`lower` and `upper` must be numbers or have shape (k,), k ≥ 1, got {low.shape} and {high.shape}"
        )
    try:
        low, high = np.broadcast_arrays(low, high)
    except ValueError:
        raise ValueError(f"`upper` must have the shape of `lower`, {low.shape}, got {high.shape}") from None
    if (low > high).any():
        at = int(np.argmax(np.ravel(low > high)))
        raise ValueError(
            f"`lower` must be at most upper={float(np.ravel(high)[at])!r}, got {float(np.ravel(low)[at])!r}"
        )
    return low, high


def _result(query: str, value: float, dimensions: int, relation: Adjacency, what: str) -> L1Sensitivity:
    return L1Sensitivity(
        value=value,
        kind="upper",
        confidence=None,
        interval=None,
        method="closed form, attained",
        assumptions=Assumptions(
            adjacency=relation, attacker="sees the query's value, and knows all rows but one", notes=(what,)
        ),
        provenance=SOURCE,
        query=query,
        dimensions=dimensions,
    )
