"""The privacy profile step by step on a logarithmic grid: for losses too rough for Fourier inversion.

With few steps, small q or small σ the loss piles up within a hair of its minimum Σ log(1 − q_t) and yet has a
heavy upper tail, so that its characteristic function hardly decays. In Y = L − Σ log(1 − q_t) ≥ 0 the profile
    h_k(y) = E_μ[(1 − e^{y − Y_k})_+]   (δ_remove at ε = y + minimum, after k steps)
obeys h_{k+1}(y) = E_μ[h_k(y − λ)] with λ = ℓ − log(1 − q) ≥ 0 the next step's loss, and it is known exactly where
y − λ ≤ 0, since E_μ[e^{−Y_k}] = Π(1 − q). h is smooth in log y: Chebyshev interpolation on panels that are
geometric in y turns one step into a matrix. All integrands are positive, so tails keep their relative accuracy.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
from scipy import special

from leakcore.numerics.arithmetic import AccuracyError, bisect
from leakcore.numerics.loss import PrivacyLoss, StepGroup

_LEAST = 1e-15
"""h is Lipschitz with constant 1, so values of Y below this count as 0."""
_GROUP_LIMIT = 32
_PANELS = 160
"""Largest number of panels."""
_WORK_LIMIT = 3e9
"""Steps times entries of a step's matrix: a second or two."""
_CELL_LIMIT = 3e6
"""Nodes of one step's integrals, half a second of work: they grow with 1/σ², to minutes below σ = 0.01."""
_WIDEST = 690.0
"""e^y must be a float."""
_TOO_WIDE = "the privacy loss spans too wide a range for the recursion"
_REACH = 9.5
"""Standard deviations beyond which a Gaussian has no mass (1e-21)."""
_GROWTH = 20.0
_CHUNK = 1 << 16


class Profile:
    """h_n on [0, top] for all the steps of `loss`, which has no Gaussian part. `refine` > 1 makes every grid finer.
    `theta` is the tilt of the tail that is wanted: h falls like e^{−(θ−1)y} there, and single steps reach z = θ/σ. What
    is interpolated is h·e^{(θ−1)y}, which is flatter."""

    def __init__(self, loss: PrivacyLoss, top: float, theta: float, refine: float = 1.0) -> None:
        if loss.gaussian_variance > 0.0 or len(loss.groups) > _GROUP_LIMIT:
            raise AccuracyError("the privacy loss is too rough for Fourier inversion and too varied for the recursion")
        self.minimum, self.top = loss.minimum, top
        self._order = round(16 * refine)
        self._theta = max(theta, 1.0)
        self._slope = _flattening(loss, self._theta - 1.0, top)
        self._edges = _panel_edges(loss, top, self._theta - self._slope, 3.0 / refine)
        # Nodes in (0, 1) and barycentric weights of Chebyshev points of the first kind.
        each = np.arange(self._order)
        angle = (each + 0.5) * math.pi / self._order
        self._reference = 0.5 * (1.0 - np.cos(angle))
        self._barycentric = np.where(each % 2 == 0, 1.0, -1.0) * np.sin(angle)
        left, right = self._edges[:-1, None], self._edges[1:, None]
        self.nodes = (left + (right - left) * self._reference).ravel()
        work = float(len(self.nodes)) ** 2 * sum(min(g.count, 2 * len(self.nodes)) for g in loss.groups)
        if top > _WIDEST or work > _WORK_LIMIT:
            raise AccuracyError(_TOO_WIDE)
        self._flattened = self._iterate(loss)
        with np.errstate(invalid="ignore"):
            self.values = self._flattened * np.exp(-self._slope * self.nodes)
        # h is a probability: anything else means that the grid was lost, which two grids may be in the same way.
        if not (np.isfinite(self.values).all() and self.values.min() > -1e-9 and self.values.max() < 1.0 + 1e-9):
            raise AccuracyError("the recursion for the privacy loss lost its accuracy")

    def __call__(self, y: np.ndarray) -> np.ndarray:
        """h_n(y) for y in [0, top]."""
        at = np.asarray(y, dtype=np.float64)
        index, weights = self._interpolation(at)
        return np.asarray((self._flattened[index] * weights).sum(axis=-1) * np.exp(-self._slope * at))

    def least(self, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(B, y): the minimum over y of κe^{y + minimum} + h(y) and where it is attained, for each κ."""
        best, where = np.empty(len(log_kappa)), np.empty(len(log_kappa))
        for k, log_k in enumerate(log_kappa + self.minimum):
            y, h = self.nodes, self.values
            for _ in range(7):
                i = int(np.argmin(np.exp(log_k + y) + h))
                y = np.linspace(y[max(i - 1, 0)], y[min(i + 1, len(y) - 1)], 33)
                h = self(y)
            total = np.exp(log_k + y) + h
            best[k], where[k] = total.min(), y[int(np.argmin(total))]
        return best, where

    def _interpolation(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(node indices, weights), both of shape (len(y), order)."""
        panel = np.clip(np.searchsorted(self._edges, y, side="right") - 1, 0, len(self._edges) - 2)
        left, right = self._edges[panel], self._edges[panel + 1]
        gap = ((y - left) / (right - left))[:, None] - self._reference
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = self._barycentric / gap
            total = weights.sum(axis=1)
            weights /= total[:, None]
        # At a node itself its weight is infinite.
        for row in np.flatnonzero(~np.isfinite(total)):
            weights[row] = gap[row] == 0.0
        return panel[:, None] * self._order + np.arange(self._order), weights

    def _iterate(self, loss: PrivacyLoss) -> np.ndarray:
        # Before any step Y = 0 and h_0 = 0 for y ≥ 0; `survival` is Π(1 − q) so far.
        h, log_survival = np.zeros(len(self.nodes)), 0.0
        for group in loss.groups:
            matrix, tail_mu, tail_nu = self._step(group)
            flatten = np.exp(self._slope * self.nodes)
            tail_mu, tail_nu = flatten * tail_mu, flatten * tail_nu
            # A product of matrices costs as much as some hundreds of products with a vector.
            if group.count < 2 * len(h):
                for _ in range(group.count):
                    # Not a BLAS product: its threads wait for one another longer than they work on a matrix this small.
                    h = np.einsum("ij,j->i", matrix, h) + (tail_mu - math.exp(log_survival) * tail_nu)
                    log_survival += group.minimum
                continue
            # The state (h, 1, survival) evolves linearly.
            size = len(h)
            whole = np.zeros((size + 2, size + 2))
            whole[:size, :size], whole[:size, size], whole[:size, size + 1] = matrix, tail_mu, -tail_nu
            whole[size, size], whole[size + 1, size + 1] = 1.0, 1.0 - group.rate
            state = np.concatenate((h, [1.0, math.exp(log_survival)]))
            count = group.count
            with np.errstate(over="ignore", invalid="ignore"):  # a grid that is lost shows in the values
                while count:
                    if count & 1:
                        state = whole @ state
                    count >>= 1
                    if count:
                        whole = whole @ whole
            h = state[:size]
            log_survival += group.count * group.minimum
        return h

    def _step(self, group: StepGroup) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Matrix of h ↦ E_μ[h(y − λ); λ < y], and the closed forms of the rest: μ(λ > y) and e^y·E_μ[e^{−λ}; λ > y]."""
        y = self.nodes
        sigma, q = group.sigma, group.rate
        log_odds = math.log(q) - math.log1p(-q)
        with np.errstate(divide="ignore"):
            # λ(z) = log1p(odds·exp(z/σ − 1/(2σ²))) < y  ⇔  z < z_y
            crossing = sigma * (np.log(np.expm1(y)) - log_odds) + 0.5 / sigma
        tail_nu = special.ndtr(-crossing)
        tail_mu = (1.0 - q) * tail_nu + q * special.ndtr(1.0 / sigma - crossing)
        # Below `lowest` λ is under 1e-16 and leaves y as it is; above `highest` there is no mass in this tail.
        lowest = max(-_REACH, min(sigma * (-36.8 - log_odds) + 0.5 / sigma, _REACH))
        highest = self._theta / sigma + _REACH
        matrix = np.diag(
            (1.0 - q) * special.ndtr(np.minimum(crossing, lowest))
            + q * special.ndtr(np.minimum(crossing, lowest) - 1.0 / sigma)
        )
        distance = _graded_distances(sigma, float(min(crossing[-1], highest)) - lowest)
        if float(len(y)) * len(distance) * self._order > _CELL_LIMIT:
            raise AccuracyError(_TOO_WIDE)
        gauss, gauss_weights = np.polynomial.legendre.leggauss(self._order)
        rows_at_once = max(1, _CHUNK // (len(distance) * self._order))
        for first in range(0, len(y), rows_at_once):
            rows = np.arange(first, min(first + rows_at_once, len(y)))
            start = np.clip(crossing[rows], lowest, highest)[:, None]
            ends = np.maximum(start - distance, lowest)
            # Panels that lie wholly below `lowest` have no width.
            at, panel = np.nonzero(ends[:, :-1] > ends[:, 1:])
            if len(at) == 0:
                continue
            right, left = ends[at, panel][:, None], ends[at, panel + 1][:, None]
            half = 0.5 * (right - left)
            z = 0.5 * (right + left) + half * gauss
            density = (1.0 - q) * np.exp(-0.5 * z * z) + q * np.exp(-0.5 * (z - 1.0 / sigma) ** 2)
            weight = half * gauss_weights * density / math.sqrt(2.0 * math.pi)
            shift = z / sigma - 0.5 / (sigma * sigma) + log_odds
            loss = np.where(shift > 30.0, shift, np.log1p(np.exp(np.minimum(shift, 30.0))))
            index, inner = self._interpolation(np.maximum(y[rows[at]][:, None] - loss, 0.0).ravel())
            place = np.repeat(at * len(y), self._order)[:, None] + index
            added = np.bincount(
                place.ravel(),
                (inner * (weight * np.exp(self._slope * loss)).reshape(-1, 1)).ravel(),
                minlength=len(rows) * len(y),
            )
            matrix[rows] += added.reshape(len(rows), len(y))
        return matrix, tail_mu, np.exp(y + group.minimum) * tail_nu


def _graded_distances(sigma: float, reach: float) -> np.ndarray:
    """Panel ends as distances below the crossing, where y − λ(z) vanishes: geometric, then as wide as λ allows."""
    distance = [0.0]
    width = 1e-8 * sigma
    while distance[-1] < reach:
        distance.append(distance[-1] + width)
        width = min(4.0 * width, 4.0 * sigma, 1.5)
    return np.array([*distance, math.inf])


def _flattening(loss: PrivacyLoss, wanted: float, top: float) -> float:
    """The largest slope s ≤ `wanted` with e^{s·top} a float and E_μ[e^{sY}], by which errors may grow, moderate."""
    slope = min(wanted, 300.0 / top)
    for _ in range(60):
        try:
            if loss.cumulants(1.0 + slope).value - slope * loss.minimum < _GROWTH:
                return slope
        except AccuracyError:
            pass
        slope *= 0.7
    return 0.0


def _panel_edges(loss: PrivacyLoss, top: float, decay: float, ratio: float) -> np.ndarray:
    """0, then geometric panels up to where linear ones are shorter; AccuracyError where it takes too many."""
    odds = [
        math.exp(math.log(g.rate) - math.log1p(-g.rate) - 0.5 / (g.sigma * g.sigma) - _REACH / g.sigma)
        for g in loss.groups
    ]
    least = min(max(min(odds), _LEAST), 0.5 * top)
    # What h can change over: a step's Gaussian, the decay left in its tail and, around the mean, the spread under ν.
    longest = ratio / 3.0 * min(1.5, 2.5 / decay, *(0.75 / g.sigma for g in loss.groups))
    try:
        at = loss.cumulants(0.0)
        centre, spread = at.mean - loss.minimum, math.sqrt(at.variance)
    except AccuracyError:
        centre = spread = 0.0
    edges = [0.0, least]
    while edges[-1] < top:
        edge = edges[-1]
        width = min((ratio - 1.0) * edge, longest)
        if edge < centre - 12.0 * spread:
            width = min(width, max(centre - 12.0 * spread - edge, 2.0 * spread))
        else:
            width = min(width, ratio / 3.0 * max(2.0 * spread, edge - centre - 10.0 * spread))
        edges.append(edge + width)
        if len(edges) > _PANELS:
            raise AccuracyError(_TOO_WIDE)
    edges[-1] = top
    return np.array(edges)


def profile_pair(loss: PrivacyLoss, top: float, theta: float, refine: float = 1.0) -> tuple[Profile, Profile]:
    """Two profiles on grids of different fineness, for the answer and its error, that reach at least to `top`. They are
    kept with the loss, and `top` and `theta` are rounded up, so that neighbouring questions share them."""
    if not top > 0.0:
        raise AccuracyError("no loss lies below the place in question, where the recursion begins")
    steps = math.ceil(math.log(top) / math.log(1.3))
    tilt = 2.0 ** math.ceil(math.log2(max(theta, 1.0)))
    key = ("profiles", steps, tilt, refine)
    if key not in loss.cache:
        reach = 1.3**steps
        loss.cache[key] = (Profile(loss, reach, tilt, refine), Profile(loss, 1.03 * reach, tilt, 0.85 * refine))
    first, second = loss.cache[key]
    return first, second


_LEAST_ADD = math.log(1e-8)
"""Below this the recursion, which gets δ_add as a difference of numbers near 1, cannot promise its digits."""


def log_delta(loss: PrivacyLoss, epsilon: float, direction: str) -> tuple[float, float]:
    """log δ by two discretisations; AccuracyError where there are none, before any long work."""
    _require_minimum(loss)
    threshold = epsilon if direction == "remove" else -epsilon
    power, sign = (1.0, 1.0) if direction == "remove" else (0.0, -1.0)
    theta = loss.tilt_with_mean(threshold, power, sign)
    first, second = (_log_delta(one, epsilon, direction) for one in profile_pair(loss, threshold - loss.minimum, theta))
    if direction == "add" and first < _LEAST_ADD:
        raise AccuracyError("the recursion for the privacy loss does not resolve so small a delta")
    return first, second


def epsilon(loss: PrivacyLoss, log_target: float, direction: str) -> tuple[float, float]:
    """(low, high) of ε, to 1e-6; AccuracyError otherwise, before any long work."""
    _require_minimum(loss)
    if direction == "add":
        low, high = 0.0, -loss.minimum
        if log_target < _LEAST_ADD:
            raise AccuracyError("the recursion for the privacy loss does not resolve so small a delta")
        theta, top = 1.0, -loss.minimum
    else:
        # δ(ε) ≤ inf_s exp(K(1+s) − sε): with s at K′(1+s) = ε this end is feasible.
        theta = loss.solve_tilt(lambda tilt: loss.log_chernoff(tilt) + loss.cumulants(tilt).mean, log_target, 1.0, 1.0)
        low, high = loss.minimum, loss.cumulants(theta).mean
        top = high - loss.minimum
        with contextlib.suppress(AccuracyError):
            coarse = Profile(loss, top, theta, 0.6)
            top = min(top, 1.05 * max(_bisect_epsilon(coarse, log_target, direction, low, high) - loss.minimum, 1e-9))
    first, second = (_bisect_epsilon(one, log_target, direction, low, high) for one in profile_pair(loss, top, theta))
    gap = abs(first - second) + 1e-13 * (1.0 + abs(first))
    if gap > 1e-6 * (1.0 + abs(first)):
        raise AccuracyError("epsilon could not be computed to 1e-6")
    return first - gap, first + gap


def _require_minimum(loss: PrivacyLoss) -> None:
    if loss.minimum == -math.inf:
        raise AccuracyError("the recursion for the privacy loss begins at its minimum, and full batches have none")


def _log_delta(profile: Profile, epsilon: float, direction: str) -> float:
    y = np.array([(epsilon if direction == "remove" else -epsilon) - profile.minimum])
    h = float(profile(y)[0])
    # Put–call parity: E_ν(1 − e^{ε+L})_+ = 1 − e^ε + e^ε·δ_remove(−ε). The difference cancels to about 1e-14.
    value = h if direction == "remove" else -math.expm1(epsilon) + math.exp(epsilon) * h
    return math.log(value) if value > 0.0 else -math.inf


def _bisect_epsilon(profile: Profile, log_target: float, direction: str, low: float, high: float) -> float:
    if direction == "remove":
        high = min(high, profile.minimum + profile.top)
    if not _log_delta(profile, high, direction) <= log_target:
        raise AccuracyError("the recursion for the privacy loss does not reach the wanted delta")
    start = low
    low, high = bisect(low, high, lambda at: _log_delta(profile, at, direction) > log_target)
    if direction == "remove" and low == start:
        raise AccuracyError("the recursion for the privacy loss found no epsilon")
    return high
