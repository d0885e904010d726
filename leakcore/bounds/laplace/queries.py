"""ℓ1-sensitivities of common queries, exact for the neighbouring relation they name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency, Assumptions, Result, parse_adjacency

SOURCE = "Dwork, McSherry, Nissim and Smith (2006); Lecture 13 (Lei 2024), Definition 4 (eq. 3.3)"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class L1Sensitivity(Result):
    """value: Δ₁ = max ‖f(X) − f(X′)‖₁ over neighbouring datasets, attained. query: which f; dimensions: of its
    value.
    """

    query: str
    dimensions: int


def sum_sensitivity(
    lower: Any = None, upper: Any = None, *, l1_norm: float | None = None, adjacency: str = "replace"
) -> L1Sensitivity:
    """Δ₁ of f(X) = Σ_i x_i.

    For rows in the box lower ≤ x ≤ upper: Σ_c (upper_c − lower_c) under "replace", Σ_c max(|lower_c|, |upper_c|) under
    "add-remove". For rows with ‖x‖₁ ≤ l1_norm = R: 2R and R. Attained, at corners of the box
    and of the ball.

    lower, upper: numbers, or (k,) arrays, one per coordinate, finite, lower ≤ upper. l1_norm: in [0, ∞). One of the two
    ways. Rows that may lie outside must be clipped before the query, or the bound is void.
    Raises ValueError or TypeError that names the argument.
    """
    relation = parse_adjacency(adjacency)
    if l1_norm is not None:
        if lower is not None or upper is not None:
            raise ValueError(f"lower={lower!r}, upper={upper!r}, l1_norm={l1_norm!r}: give lower and upper, or l1_norm")
        radius = validate.non_negative(l1_norm=l1_norm)
        return _result("sum", (2.0 if relation == "replace" else 1.0) * radius, 1, relation, "every row has ‖x‖₁ ≤ R")
    low, high = _box(lower, upper)
    per = high - low if relation == "replace" else np.maximum(np.abs(low), np.abs(high))
    return _result("sum", float(per.sum()), per.size, relation, "every row lies in the box")


def mean_sensitivity(lower: Any, upper: Any, num_rows: int, *, adjacency: str = "replace") -> L1Sensitivity:
    """Δ₁ of f(X) = (1/n) Σ_i x_i for rows in the box lower ≤ x ≤ upper.

    "replace": Σ_c (upper_c − lower_c)/n; n = num_rows is public. "add-remove": the number of rows is not public, and
    the larger of two neighbours has at least n + 1 rows if both have at least num_rows = n: the mean moves by
    |x − mean of the others|/(n + 1), so Δ₁ = Σ_c (upper_c − lower_c)/(n + 1). Without a least number (n = 0) the mean
    is not defined: release a noisy sum and a noisy count instead. Attained.

    num_rows ≥ 1. Other arguments and errors as in `sum_sensitivity`.
    """
    relation = parse_adjacency(adjacency)
    low, high = _box(lower, upper)
    n = validate.integer(1, num_rows=num_rows)
    rows = n if relation == "replace" else n + 1
    what = f"every row lies in the box; {'exactly' if relation == 'replace' else 'at least'} {n} rows"
    return _result("mean", float((high - low).sum()) / rows, low.size, relation, what)


def count_sensitivity(num_queries: int = 1, *, adjacency: str = "replace") -> L1Sensitivity:
    """Δ₁ = num_queries of f(X) = how many rows satisfy each of num_queries ≥ 1 predicates, which one row may all
    satisfy.

    The same under both relations: a row satisfies a predicate or not. Disjoint predicates are a histogram, which is
    cheaper. Attained. Raises ValueError or TypeError that names the argument.
    """
    k = validate.integer(1, num_queries=num_queries)
    return _result("count", float(k), k, parse_adjacency(adjacency), "predicates may overlap")


def histogram_sensitivity(num_bins: int, *, bins_per_row: int = 1, adjacency: str = "replace") -> L1Sensitivity:
    """Δ₁ of f(X) = counts of num_bins bins, each row in at most s = bins_per_row of them.

    "add-remove": s. "replace": a row may leave s bins and enter s others, so min(2s, num_bins). Attained. A public
    binning is assumed: bins chosen from the data leak by being chosen.

    num_bins ≥ 1, bins_per_row in [1, num_bins]. Raises ValueError or TypeError that names the argument.
    """
    relation = parse_adjacency(adjacency)
    bins = validate.integer(1, num_bins=num_bins)
    per_row = validate.integer(1, bins, bins_per_row=bins_per_row)
    value = min(2 * per_row, bins) if relation == "replace" else per_row
    return _result("histogram", float(value), bins, relation, f"a row lies in at most {per_row} of {bins} bins")


def _box(lower: Any, upper: Any) -> tuple[np.ndarray, np.ndarray]:
    if lower is None or upper is None:
        raise ValueError(f"lower={lower!r}, upper={upper!r}: must both be given")
    low = validate.real_array("finite", np.isfinite, lower=lower)
    high = validate.real_array("finite", np.isfinite, upper=upper)
    if low.ndim > 1 or high.ndim > 1 or low.size == 0 or high.size == 0:
        raise ValueError(f"lower.shape={low.shape}, upper.shape={high.shape}: must be numbers or (k,), k ≥ 1")
    try:
        low, high = np.broadcast_arrays(low, high)
    except ValueError:
        raise ValueError(f"upper.shape={high.shape}: must be that of lower, {low.shape}") from None
    if (low > high).any():
        at = int(np.argmax(np.ravel(low > high)))
        raise ValueError(f"lower={float(np.ravel(low)[at])!r}: must be at most upper={float(np.ravel(high)[at])!r}")
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
