"""The ε of several Laplace mechanisms together."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore.numerics import fft_rounding, import_dp_accounting

_MAX_DISTINCT = 1000


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LaplaceComposition(Result):
    """ε of several Laplace mechanisms together, as `compose` returns it.

    Attributes:
        value: ε at `delta` of all mechanisms together.
        delta: δ that was asked for.
        basic: Σ_i ε_i, which holds at every δ.
        count: number of mechanisms.
    """

    quantity: str = "ε"
    delta: float
    basic: float
    count: int


_LEAST, _MOST = 1e-6, 500.0
"""Range of ε_i for which a grid of steps ε/200 fits in memory; outside it the sum is as good."""
_MAX_POINTS = 1 << 24
"""Most points of the composed distribution's grid, 8 bytes each, several times that while it is transformed."""
_ROUNDING = 1e-9
"""Relative allowance on top of a Rényi bound, far more than the rounding of its formulas."""


def compose(
    epsilons: Any, *, count: int = 1, delta: float = 0.0, method: str = "auto", adjacency: str = "add-remove"
) -> LaplaceComposition:
    """ε at δ of Laplace mechanisms run one after another, each chosen with sight of the earlier answers.

    The methods:

    - "basic": Σ_i ε_i, exact at δ = 0.
    - "pld": dp-accounting's privacy loss distribution of Lap(0, 1/ε_i) against Lap(1, 1/ε_i), for up to about 30,000
      mechanisms of one ε ≤ 0.1.
    - "rdp": the Rényi divergences of that pair (Mironov 2017, Proposition 6; Canonne, Kamath and Steinke 2020,
      Proposition 12), for any number of mechanisms, up to a tenth above "pld".
    - "auto": the smallest of these that is available ("basic" alone at δ = 0).

    The scalar pair also covers vectors: docs/explanation/bounds.md.

    Args:
        epsilons: ε_i in (0, ∞), a number or an array of at most 1,000.
        count: how often the whole list is run, in [1, 2⁶³).
        delta: δ in [0, 1).
        method: "auto", "basic", "pld" or "rdp".
        adjacency: relation of the sensitivities behind the ε_i, "add-remove" or "replace"; the number is the same.

    Returns:
        `LaplaceComposition` of kind "upper".

    Raises:
        ValueError: for a value that is not allowed, and where "pld" would need more than 2²⁴ points; the text names the
            argument.
        TypeError: for an argument of another type.
        ImportError: where dp-accounting is missing and "pld" is asked for, or within reach of "auto" at δ > 0.

    Guarantees:
        Deterministic. Rounding is on the safe side.

    Example:
        >>> from leakcore.bounds import laplace
        >>> total = laplace.compose(0.1, count=100, delta=1e-5, method="rdp")
        >>> f"{total.value:.2f} instead of {total.basic:.2f}"
        '4.53 instead of 10.00'
    """
    levels = np.atleast_1d(
        validate.real_array("above 0 and finite", lambda v: (v > 0) & np.isfinite(v), epsilons=epsilons)
    )
    if levels.ndim != 1 or not 0 < levels.size <= _MAX_DISTINCT:
        raise ValueError(
            f"`epsilons` must be a number or have shape (n,), n from 1 to {_MAX_DISTINCT}, got {levels.shape}"
        )
    times = validate.integer(1, 2**63 - 1, count=count)
    slack = validate.below_one(delta=delta)
    name = validate.one_of("auto", "basic", "pld", "rdp", method=method)
    relation = parse_adjacency(adjacency)
    if name in ("pld", "rdp") and slack == 0.0:
        raise ValueError(f"`delta` must be in (0, 1) with method={name!r}, got 0.0; use 'basic'")
    basic = times * float(levels.sum())
    value, used = basic, "basic"
    small, large = float(levels.min()), float(levels.max())
    if name == "pld" and (small < _LEAST or large > _MOST):
        raise ValueError(
            f"`epsilons` must lie in [{_LEAST:g}, {_MOST:g}] with method='pld', got values in [{small:g}, {large:g}]; "
            "use 'basic'"
        )
    points = _grid_points(levels, times)
    if name == "pld" and points > _MAX_POINTS:
        raise ValueError(
            f"`count` must be smaller with method='pld', got {times}: {times * levels.size} mechanisms need about "
            f"{points:.2g} points, more than {_MAX_POINTS}; use 'rdp'"
        )
    if slack > 0.0 and name in ("auto", "pld") and small >= _LEAST and large <= _MOST and points <= _MAX_POINTS:
        epsilon = _pld(levels, times, slack)
        if name == "pld" or epsilon < value:
            value, used = epsilon, "pld"
    if slack > 0.0 and name in ("auto", "rdp"):
        epsilon = _rdp(levels, times, slack)
        if name == "rdp" or epsilon < value:
            value, used = epsilon, "rdp"
    return LaplaceComposition(
        value=value,
        kind="upper",
        confidence=None,
        interval=None,
        method=used,
        assumptions=Assumptions(
            adjacency=relation, attacker="sees every answer, chooses each query by the earlier ones"
        ),
        provenance=_PROVENANCE[used],
        delta=slack,
        basic=basic,
        count=times * levels.size,
    )


_PROVENANCE = {
    "basic": "Dwork and Roth (2014), Theorem 3.16",
    "pld": "dp-accounting, privacy loss distribution of the Laplace mechanism",
    "rdp": "Mironov (2017), Proposition 6; Canonne, Kamath and Steinke (2020), Proposition 12",
}


def _interval(levels: np.ndarray) -> float:
    """Interval of the grid that all composed distributions share."""
    return min(1e-4, float(levels.min()) / 200.0)


def _grid_points(levels: np.ndarray, times: int) -> float:
    """About how many points dp-accounting's composition takes: its Chernoff bounds are as wide as the sum of the
    variances of losses, each in units of its whole range, where at most a quarter is possible."""
    number = np.unique(levels, return_counts=True)[1]
    width = 2.0 * np.unique(levels) / _interval(levels)
    return float((width * (0.25 * number * float(times) + 70.0)).sum())


def _rdp(levels: np.ndarray, times: int, delta: float) -> float:
    """The least ε at δ over the orders of two grids, the second around the best of the first: each is a bound."""
    sizes, number = np.unique(levels, return_counts=True)
    grid = np.logspace(-9.0, 15.0, 481)
    best = math.inf
    for _ in range(2):
        divergence = float(times) * (number @ _renyi(sizes[:, None], grid))
        with np.errstate(over="ignore"):
            epsilon_at = divergence - np.log1p(1.0 / grid) - (math.log(delta) + np.log1p(grid)) / grid
        least = int(np.argmin(epsilon_at))
        best = min(best, float(epsilon_at[least]))
        grid = np.geomspace(grid[max(least - 1, 0)], grid[min(least + 1, len(grid) - 1)], 401)
    return max(0.0, best * (1.0 + _ROUNDING))


def _renyi(epsilon: np.ndarray, over: np.ndarray) -> np.ndarray:
    """D_α of Lap(0, 1/ε) against Lap(1, 1/ε), α = 1 + over; at most αε²/2 (Bun and Steinke 2016, Proposition 3.3) and
    ε, which are taken where the formula cancels or overflows."""
    order = 1.0 + over
    weight, rest = order / (2.0 * over + 1.0), over / (2.0 * over + 1.0)
    up, down = over * epsilon, order * epsilon
    simple = np.minimum(0.5 * order * epsilon * epsilon, epsilon)
    tame = (down > 1e-5) & (up < 500.0)  # its two terms differ by a factor of about 1 − αε/2
    up, down = np.where(tame, up, 1.0), np.where(tame, down, 1.0)
    exact = np.log1p(weight * np.expm1(up) + rest * np.expm1(-down)) / over
    return np.asarray(np.where(tame, np.minimum(exact * (1.0 + _ROUNDING), simple), simple))


def _pld(levels: np.ndarray, times: int, delta: float) -> float:
    import_dp_accounting("pld")
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval = _interval(levels)
    composed: Any = None
    for level, number in zip(*np.unique(levels, return_counts=True), strict=True):
        one = pld.from_laplace_mechanism(
            1.0 / float(level), value_discretization_interval=interval, pessimistic_estimate=True
        ).self_compose(int(number) * times)
        composed = one if composed is None else composed.compose(one)
    proved = delta - fft_rounding(times * levels.size)
    return max(0.0, float(composed.get_epsilon_for_delta(proved))) if proved > 0.0 else math.inf
