"""Many Laplace mechanisms: what they add up to."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import _validate
from leakcore._results import Assumptions, Result, parse_adjacency
from leakcore.numerics._pld import fft_rounding, import_dp_accounting

_MAX_DISTINCT = 1000


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LaplaceComposition(Result):
    """value: ε at `delta` of all mechanisms together. basic: Σ_i ε_i, which holds at every δ. count: mechanisms."""

    delta: float
    basic: float
    count: int


_LEAST, _MOST = 1e-6, 500.0
"""What the distribution's grid of steps ε/200 holds in memory; beyond it the sum is as good."""


def compose(
    epsilons: Any, *, count: int = 1, delta: float = 0.0, method: str = "auto", adjacency: str = "replace"
) -> LaplaceComposition:
    """ε at δ of Laplace mechanisms run one after another, each chosen with sight of the earlier answers.

    "basic": Σ_i ε_i, exact at δ = 0. "pld": dp-accounting's privacy loss distribution of the pair Lap(0, 1/ε_i) against
    Lap(1, 1/ε_i), rounded pessimistically, at δ less what its convolutions may round (1e-13 + 1e-15 per mechanism; an
    infinite ε where δ is no more than that). "auto": the smaller of the two ("basic" alone at δ = 0).

    The scalar pair speaks for vectors, too: for shifts a, a′ of two coordinates (in units of b), with u = a + a′ and
    H_t the hockey-stick divergence at e^t, H_t of the scalar pair shifted by u is 1 − e^{(t−u)/2} for |t| ≤ u, and that
    of the product is 1 − (1 + a/2)e^{(t−u)/2} + ((t − a′ + a)₊/4)·e^{(t−u)/2} for 0 ≤ t ≤ u, a ≤ a′: never larger,
    since t ≤ u makes the last factor at most a/2. By induction no split of an ℓ1-distance over k coordinates leaks more
    than the whole of it in one.

    epsilons: ε_i in (0, ∞), a number or an array of at most 1,000. count: how often the whole list is run. delta: in
    [0, 1). adjacency: of the sensitivities behind the ε_i. Needs `pip install leakcore[accounting]` for δ > 0 (not for
    "basic"). Deterministic. Raises ValueError or TypeError that names the argument; ImportError.
    """
    levels = np.atleast_1d(_validate.real_array("in (0, inf)", lambda v: (v > 0) & np.isfinite(v), epsilons=epsilons))
    if levels.ndim != 1 or not 0 < levels.size <= _MAX_DISTINCT:
        raise ValueError(f"epsilons.shape={levels.shape}: must be a number or (n,), n from 1 to {_MAX_DISTINCT}")
    times = _validate.integer(1, count=count)
    slack = _validate.below_one(delta=delta)
    name = _validate.one_of("auto", "basic", "pld", method=method)
    relation = parse_adjacency(adjacency)
    if name == "pld" and slack == 0.0:
        raise ValueError("delta=0.0: method='pld' needs delta in (0, 1), use 'basic'")
    basic = times * float(levels.sum())
    value, used = basic, "basic"
    small, large = float(levels.min()), float(levels.max())
    if name == "pld" and (small < _LEAST or large > _MOST):
        raise ValueError(
            f"epsilons span [{small:g}, {large:g}]: method='pld' needs [{_LEAST:g}, {_MOST:g}]; use 'basic'"
        )
    if slack > 0.0 and name != "basic" and small >= _LEAST and large <= _MOST:
        found = _pld(levels, times, slack)
        if name == "pld" or found < basic:
            value, used = found, "pld"
    return LaplaceComposition(
        value=value,
        kind="upper",
        confidence=None,
        interval=None,
        method=used,
        assumptions=Assumptions(
            adjacency=relation, attacker="sees every answer, chooses each query by the earlier ones"
        ),
        provenance="Dwork and Roth (2014), Theorem 3.16"
        if used == "basic"
        else "dp-accounting, privacy loss distribution of the Laplace mechanism",
        delta=slack,
        basic=basic,
        count=times * levels.size,
    )


def _pld(levels: np.ndarray, times: int, delta: float) -> float:
    import_dp_accounting("pld")
    from dp_accounting.pld import privacy_loss_distribution as pld

    # All distributions that are composed share one grid.
    interval = min(1e-4, float(levels.min()) / 200.0)
    composed: Any = None
    for level, number in zip(*np.unique(levels, return_counts=True), strict=True):
        one = pld.from_laplace_mechanism(
            1.0 / float(level), value_discretization_interval=interval, pessimistic_estimate=True
        ).self_compose(int(number) * times)
        composed = one if composed is None else composed.compose(one)
    proved = delta - fft_rounding(times * levels.size)
    return max(0.0, float(composed.get_epsilon_for_delta(proved))) if proved > 0.0 else math.inf
