"""The privacy profile step by step on a logarithmic grid: for losses too rough for Fourier inversion.

With few steps, small q or small σ the loss piles up within a hair of its minimum Σ log(1 − q_t) and yet has a heavy upper
tail, so that its characteristic function hardly decays. In Y = L − Σ log(1 − q_t) ≥ 0 the profile
    h_k(y) = E_μ[(1 − e^{y − Y_k})_+]   (δ_remove at ε = y + minimum, after k steps)
obeys h_{k+1}(y) = E_μ[h_k(y − λ)] with λ = ℓ − log(1 − q) ≥ 0 the next step's loss, and it is known exactly where
y − λ ≤ 0, since E_μ[e^{−Y_k}] = Π(1 − q). h is smooth in log y: Chebyshev interpolation on panels that are geometric in y
turns one step into a matrix. All integrands are positive, so tails keep their relative accuracy.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from leakcore.numerics._loss import AccuracyError, PrivacyLoss, StepGroup

_LEAST = 1e-15
"""h is Lipschitz with constant 1, so values of Y below this are 0 for every purpose."""
_MATRIX_POWER_FROM = 300
_GROUP_LIMIT = 32


class Profile:
    """h_n on [0, top] for all the steps of `loss`, which has no Gaussian part. `refine` > 1 makes every grid finer."""

    def __init__(self, loss: PrivacyLoss, top: float, refine: float = 1.0) -> None:
        if loss.gaussian_variance > 0.0 or len(loss.groups) > _GROUP_LIMIT:
            raise AccuracyError("the privacy loss is too rough for Fourier inversion and too varied for the recursion")
        self.minimum, self.top = loss.minimum, top
        self._order = round(16 * refine)
        self._edges = _panel_edges(loss, top, 3.0 / refine)
        self._reference, self._barycentric = _chebyshev(self._order)
        left, right = self._edges[:-1, None], self._edges[1:, None]
        self.nodes = (left + (right - left) * self._reference).ravel()
        self.values = self._iterate(loss)

    def __call__(self, y: np.ndarray) -> np.ndarray:
        """h_n(y) for y in [0, top]."""
        index, weights = self._interpolation(np.asarray(y, dtype=np.float64))
        return np.asarray((self.values[index] * weights).sum(axis=-1))

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
        hit = gap == 0.0
        ratio = self._barycentric / np.where(hit, 1.0, gap)
        weights = np.where(hit.any(axis=1, keepdims=True), hit, ratio)
        return panel[:, None] * self._order + np.arange(self._order), weights / weights.sum(axis=1, keepdims=True)

    def _iterate(self, loss: PrivacyLoss) -> np.ndarray:
        # Before any step Y = 0 and h_0 = 0 for y ≥ 0; `survival` is Π(1 − q) so far.
        h, log_survival = np.zeros(len(self.nodes)), 0.0
        for group in loss.groups:
            matrix, tail_mu, tail_nu = self._step(group)
            if group.count < _MATRIX_POWER_FROM:
                for _ in range(group.count):
                    h = matrix @ h + (tail_mu - math.exp(log_survival) * tail_nu)
                    log_survival += group.minimum
                continue
            # The state (h, 1, survival) evolves linearly.
            size = len(h)
            whole = np.zeros((size + 2, size + 2))
            whole[:size, :size], whole[:size, size], whole[:size, size + 1] = matrix, tail_mu, -tail_nu
            whole[size, size], whole[size + 1, size + 1] = 1.0, 1.0 - group.rate
            state = np.concatenate((h, [1.0, math.exp(log_survival)]))
            count = group.count
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
        matrix = np.zeros((len(y), len(y)))
        gauss, gauss_weights = np.polynomial.legendre.leggauss(self._order)
        # λ below 1e-16 changes nothing.
        lowest = max(-9.5, min(sigma * (-36.8 - log_odds) + 0.5 / sigma, 9.0))
        stay = (1.0 - q) * special.ndtr(crossing) + q * special.ndtr(crossing - 1.0 / sigma)
        for row in np.flatnonzero(crossing <= lowest):
            matrix[row, row] = stay[row]
        for row in np.flatnonzero(crossing > lowest):
            ends = _graded_ends(lowest, float(crossing[row]), sigma, 9.5 + 1.0 / sigma)
            half = 0.5 * (ends[:-1] - ends[1:])[:, None]
            z = (0.5 * (ends[:-1] + ends[1:])[:, None] + half * gauss).ravel()
            density = np.exp(-0.5 * z * z) * (1.0 - q) + q * np.exp(-0.5 * (z - 1.0 / sigma) ** 2)
            weight = (half * gauss_weights).ravel() * density / math.sqrt(2.0 * math.pi)
            loss = np.log1p(np.exp(z / sigma - 0.5 / sigma**2 + log_odds))
            rest = np.maximum(y[row] - loss, 0.0)
            index, inner = self._interpolation(rest)
            matrix[row] = np.bincount(index.ravel(), (inner * weight[:, None]).ravel(), minlength=len(y))
            # Mass below `lowest` leaves y unchanged to within rounding.
            matrix[row, row] += (1.0 - q) * special.ndtr(lowest) + q * special.ndtr(lowest - 1.0 / sigma)
        return matrix, tail_mu, np.exp(y + group.minimum) * tail_nu


def _graded_ends(lowest: float, crossing: float, sigma: float, highest: float) -> np.ndarray:
    """Panel ends from min(crossing, highest) down to `lowest`, graded towards the crossing, where y − λ(z) vanishes."""
    distance = [0.0]
    width = 1e-11 * sigma
    while crossing - distance[-1] > lowest:
        distance.append(distance[-1] + width)
        # λ changes over σ and the Gaussian over 1; far below the crossing λ no longer matters.
        width = min(4.0 * width, 2.0 * sigma, 1.0)
    ends = crossing - np.array(distance)
    ends[-1] = lowest
    if crossing > highest:
        ends = np.concatenate(([highest], ends[ends < highest]))
    return ends


def _panel_edges(loss: PrivacyLoss, top: float, ratio: float) -> np.ndarray:
    """0, then geometric panels up to where linear ones are shorter."""
    least = min(
        math.exp(math.log(g.rate) - math.log1p(-g.rate) - 0.5 / g.sigma**2 - 9.5 / g.sigma) for g in loss.groups
    )
    least = min(max(least, _LEAST), 0.5 * top)
    spread = math.sqrt(loss.cumulants(0.0).variance)
    longest = ratio / 3.0 * min(0.5, 2.0 * spread, min(0.5 / g.sigma for g in loss.groups))
    edges = [0.0, least]
    while edges[-1] < top:
        edges.append(edges[-1] + min((ratio - 1.0) * edges[-1], longest))
    edges[-1] = top
    if len(edges) > 400:
        raise AccuracyError("the privacy loss spans too wide a range for the recursion")
    return np.array(edges)


def _chebyshev(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes in (0, 1) and barycentric weights (Chebyshev points of the first kind)."""
    angle = (np.arange(order) + 0.5) * math.pi / order
    return 0.5 * (1.0 - np.cos(angle)), np.where(np.arange(order) % 2 == 0, 1.0, -1.0) * np.sin(angle)
