"""B_κ = sup{μ(E): ν(E) ≤ κ} of a composition, from lattice laws on both sides.

Upper: B_κ ≤ κe^x + δ(x) for every x, with δ of the law that dominates. Lower: any test has at most the power B_κ; the
test is the one of the law that is dominated, L > x and a part of L = x.
"""

from __future__ import annotations

import numpy as np

from leakcore.numerics.lattice import lattice_profile
from leakcore.numerics.lattice.lattice_profile import LAST_BITS, SECOND_BITS, TOO_MANY, Limit, ProfileQuestion, Sides
from leakcore.numerics.lattice.law import CoarseLaw, Tails
from leakcore.numerics.privacy_loss.loss import AccuracyError

_ENOUGH = 1e-6
"""Width of the limits of log B at which refining the lattice stops."""
_AS_GOOD = 3.0
"""Width of the limits, relative to that at the κ that the tilt was made for, with which another κ is answered, too."""
_THRESHOLDS = 2001


def log_blow_up(sides: Sides, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of log B_κ for each of a 1-d array of log κ ≤ 0; low at least log κ, high at most 0."""
    low, high = log_kappa.copy(), np.zeros_like(log_kappa)
    pending = np.flatnonzero(log_kappa < 0.0)
    high[log_kappa == 0.0] = 0.0
    # From the far tail inwards; a law answers all κ whose thresholds lie near its tilt.
    pending = pending[np.argsort(log_kappa[pending], kind="stable")]
    while len(pending):
        first = pending[:1]
        for bits in (SECOND_BITS, LAST_BITS):
            upper, lower = _laws(sides, float(log_kappa[first[0]]), bits)
            if upper is not None:
                high[pending] = np.minimum(high[pending], _from_above(upper, log_kappa[pending]))
            if lower is not None:
                low[pending] = np.maximum(low[pending], _from_below(lower, log_kappa[pending]))
            if high[first[0]] - low[first[0]] <= _ENOUGH:
                break
        wide = max(_ENOUGH, _AS_GOOD * float(high[first[0]] - low[first[0]]))
        pending = pending[1:]
        pending = pending[high[pending] - low[pending] > wide]
    return low, high


def _laws(sides: Sides, log_kappa: float, bits: int) -> tuple[Tails | None, Tails | None]:
    """The tails of the laws on both sides under a tilt for this κ."""
    out: list[Tails | None] = []
    for laws, dominating in ((sides.upper, True), (sides.lower, False)):
        if not laws or sum(law.count for law in laws) >= TOO_MANY:
            out.append(None)
            continue
        try:
            with lattice_profile.in_floats(laws):
                floor = log_kappa - 20.0
                question = ProfileQuestion(epsilon=_threshold(CoarseLaw(laws, floor, True), log_kappa))
                limit: Limit = lattice_profile.prepared(laws, floor, "remove", question, dominating)[0]
                out.append(limit.law(bits).tails())
        except AccuracyError:
            out.append(None)
    return out[0], out[1]


def _threshold(coarse: CoarseLaw, log_kappa: float) -> float:
    """x at which κe^x + δ(x) is about least, with Chernoff's bound in place of δ."""
    s, k = coarse.chernoff_table()
    top = max(float(np.min((k - log_kappa) / (s + 1.0))), 1.0)
    x = np.linspace(coarse.mean - 3.0 * coarse.deviation - top, top + 1.0, _THRESHOLDS)
    log_delta = np.minimum(np.min(k[:, None] - np.outer(s, x), axis=0), 0.0)
    return float(x[int(np.argmin(np.logaddexp(log_kappa + x, log_delta)))])


def _from_above(tails: Tails, log_kappa: np.ndarray) -> np.ndarray:
    return np.array([np.min(np.logaddexp(one + tails.x, tails.log_delta)) for one in log_kappa])


def _from_below(tails: Tails, log_kappa: np.ndarray) -> np.ndarray:
    out = np.full(len(log_kappa), -np.inf)
    for i, one in enumerate(log_kappa):
        enough = np.flatnonzero(tails.log_nu <= one)
        if len(enough) == 0:
            continue
        k = int(enough[0])
        rest = np.exp(one) * -np.expm1(min(tails.log_nu[k] - one, 0.0))
        with np.errstate(divide="ignore"):
            more = min(float(np.log(rest)), float(tails.log_at[k])) + tails.x[k]
        out[i] = min(float(np.logaddexp(tails.log_mu[k], more)), 0.0)
    return out
