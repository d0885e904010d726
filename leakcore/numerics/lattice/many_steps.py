"""ε and δ of many equal steps from moments of one step's loss: a bracket that no number of steps makes wrong.

A lattice is too coarse for 10¹² steps that each say next to nothing. Two proofs need moments alone. With m and v
the mean and the variance of the whole loss L under P, Cantelli's inequality P(L > m − a) ≥ a²/(v + a²) gives

    δ(ε) ≥ a²/(v + a²)·(1 − e^{ε − m + a})  for every a > 0,

and (1 − e^{−x})_+ ≤ e^{sx}·(s/(1+s))^s/(1+s) gives

    δ(ε) ≤ e^{K(s) − sε}·(s/(1+s))^s/(1+s)  for every s > 0, K(s) = log E_P e^{sL}

(Canonne, Kamath and Steinke 2020, Proposition 12). One step's moments come from the masses P and Q of cells of its
loss. From below: who sees the cell alone sees less, and has the loss log(P/Q) of the cell. From above: e^{(1+s)ℓ} lies
below its chord over each cell, in e^ℓ, which the two masses determine (connect the dots, Doroshenko et al. 2022).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore.numerics.lattice.cells import ROUNDING, StepLaw
from leakcore.numerics.privacy_loss.loss import PrivacyLoss

_RATIO = 0.01
"""Width of a cell relative to its distance from a loss of 0."""
_LEAST = 1e-9
"""Width of the cell at a loss of 0, relative to the largest loss."""
_SHARES = np.exp(np.linspace(-18.0, 5.0, 185))
"""a/√v for which Cantelli's inequality is tried."""
_TILTS = np.exp(np.linspace(-8.0, 12.0, 241))
"""s·√v that are tried."""
_PLAIN_TILTS = np.exp(np.linspace(-3.0, 6.0, 73))
_BEYOND = 30.0
"""−log of the part of δ that may lie beyond the reach of single steps."""
_MASS_ROUNDING = 4.0 * ROUNDING
"""Relative rounding of a cell's mass, times 8 plus the size of its logarithm and of its loss."""


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean (from below) and variance of the loss of a composition that the mechanism dominates, under P."""

    mean: float
    variance: float

    def epsilon(self, delta: float) -> float:
        """An ε that is too small for this δ; −∞ where none is proved."""
        tail = _SHARES**2 / (1.0 + _SHARES**2)
        enough = tail > delta
        if not enough.any() or not math.isfinite(self.mean + self.variance):
            return -math.inf
        values = self.mean - _SHARES[enough] * math.sqrt(self.variance) + np.log1p(-delta / tail[enough])
        return float(values.max())

    def log_delta(self, epsilon: float) -> float:
        """A lower limit of log δ(ε)."""
        if not math.isfinite(self.mean + self.variance):
            return -math.inf
        over = self.mean - _SHARES * math.sqrt(self.variance) - epsilon
        tail = _SHARES**2 / (1.0 + _SHARES**2)
        values = np.where(over > 0.0, -np.expm1(-np.maximum(over, 0.0)) * tail, 0.0)
        best = float(values.max())
        return math.log(best) if best > 0.0 else -math.inf


def moments_of_loss(loss: PrivacyLoss, direction: str) -> Moments:
    """Of sampled Gaussian steps, without the ones that have no noise."""
    power, sign = (1.0, 1.0) if direction == "remove" else (0.0, -1.0)
    at = loss.cumulants(power)
    return Moments(sign * at.mean - loss.rounding(power) - 1e-12 * abs(at.mean), at.variance * (1.0 + 1e-9))


class ManySteps:
    """Step laws with the masses of cells, for one direction; `known` is False where a law has no masses to ask for."""

    def __init__(self, laws: Sequence[StepLaw], direction: str, log_floor: float) -> None:
        self.known = bool(laws) and all(hasattr(law, "log_masses") for law in laws)
        if not self.known:
            return
        total = sum(law.count for law in laws)
        self._reach = math.sqrt(2.0 * (_BEYOND + abs(log_floor) + math.log(max(total, 1))))
        self._cells = [_Cells(law, direction, self._reach) for law in laws if law.count]

    def moments(self) -> Moments:
        """From below. A law with infinite losses is left out: the others alone leak no more."""
        mean = variance = 0.0
        for cells in self._cells:
            if cells.infinite == 0.0:
                m, v = cells.moments()
                mean, variance = mean + cells.count * m, variance + cells.count * v
        return Moments(mean, variance)

    def upper(self, *, epsilon: float | None = None, log_delta: float | None = None) -> float:
        """The upper limit of log δ(ε), or of ε where log δ is asked for; the useless one where there is none."""
        finite = math.fsum(cells.count * math.log1p(-min(cells.infinite, 1.0 - 2.0**-53)) for cells in self._cells)
        lost = -math.expm1(finite) + math.fsum(cells.count * cells.beyond for cells in self._cells)
        variance = math.fsum(cells.count * cells.second() for cells in self._cells)
        if not 0.0 < variance < math.inf:
            return math.inf if epsilon is None else 0.0
        # Rare large losses make most of the variance, and the best tilt is then not in proportion to it.
        s = np.sort(np.concatenate([_TILTS / math.sqrt(variance), _PLAIN_TILTS]))
        k = np.sum([cells.count * cells.cumulant(s) for cells in self._cells], axis=0)
        k = k + s * (np.log(s) - np.log1p(s)) - np.log1p(s)
        k = np.where(np.isfinite(k), k, np.inf)
        if epsilon is not None:
            best = float((k - s * epsilon + ROUNDING * (np.abs(k) + s * abs(epsilon))).min())
            with np.errstate(divide="ignore"):
                return min(float(np.logaddexp(best, np.log(lost))) + 1e-12, 0.0)
        assert log_delta is not None
        rest = math.exp(log_delta) - lost if log_delta > -700.0 else 0.0
        if lost == 0.0:
            log_rest = log_delta
        elif rest > 0.0:
            log_rest = math.log(rest)
        else:
            return math.inf
        high = float(((k - log_rest) / s).min())
        return high + 1e-12 * abs(high)


class _Cells:
    """One step's cells: P's and Q's log masses, P the law whose excess the profile counts."""

    def __init__(self, law: Any, direction: str, reach: float) -> None:
        low, high = law.loss_range(reach)
        size = max(abs(low), abs(high))
        steps = math.ceil(math.log(1.0 / _LEAST) / _RATIO)
        positive = size * np.exp(_RATIO * np.arange(-steps, 1))
        edges = np.concatenate([-positive[::-1], [0.0], positive])
        edges = edges[(edges > low) & (edges < high)]
        # Mass that is piled up at the end of the range belongs to a cell that ends beyond it.
        pad = 1e-9 * size + 1e-300
        edges = np.concatenate([[-math.inf, low - pad], edges, [high + pad, math.inf]])
        nu, mu = law.log_masses(edges)
        infinite = getattr(law, "log_infinite", (-math.inf, -math.inf))
        if direction != "remove":
            edges, nu, mu = -edges[::-1], mu[::-1], nu[::-1]
        self.count = int(law.count)
        self.infinite = math.exp(infinite[0 if direction == "remove" else 1])
        self._edges, self._log_p, self._log_q = edges, mu, nu
        self.beyond = float(np.exp(mu[-1]))
        self._points, self._weights, self._relative = self._dots()

    def moments(self) -> tuple[float, float]:
        """(mean from below, variance) of the cell's own loss under P."""
        used = (self._log_p > -np.inf) & (self._log_q > -np.inf)
        log_p, log_q = self._log_p[used], self._log_q[used]
        loss, p = log_p - log_q, np.exp(log_p)
        off = ROUNDING * (8.0 + np.abs(log_p) + np.abs(log_q))
        mean = float((p * (loss - off)).sum())
        return mean, float((p * (np.abs(loss - mean) + off) ** 2).sum())

    def second(self) -> float:
        """E_P ℓ² of the dots."""
        return float((self._weights * self._points**2).sum())

    def cumulant(self, s: np.ndarray) -> np.ndarray:
        """log E_P e^{sℓ} from above, for each s > 0."""
        out = np.empty(len(s))
        safe, off = self._weights, self._weights * self._relative
        for i, tilt in enumerate(s.tolist()):
            exponent = tilt * self._points
            if float(exponent.max()) > 700.0:
                out[i] = math.inf
                continue
            grown = np.expm1(exponent)
            out[i] = math.log1p(max(float((safe * grown).sum()) + float((off * np.abs(grown)).sum()), -1.0 + 1e-16))
        return out

    def _dots(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(losses, P's masses at them, what each mass may be off by), every cell's mass at its ends."""
        a, b = self._edges[:-2], self._edges[1:-1]  # the last cell, beyond reach, is counted as lost
        log_p, log_q = self._log_p[:-1], self._log_q[:-1]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
            size = 8.0 + np.abs(log_p) + np.where(np.isfinite(log_q), np.abs(log_q), 0.0)
            rise = log_p - log_q - a + ROUNDING * size
            # P's share at the upper end: e^{b}·w_b/P with w_b = Q·(e^{ℓ−a} − 1)/(e^{b−a} − 1).
            share = -np.expm1(-rise) / -np.expm1(-(b - a))
        share = np.where(np.isfinite(a) & np.isfinite(log_q), np.clip(share, 0.0, 1.0), 1.0)
        p = np.exp(log_p)
        lower = np.where(np.isfinite(a), a, b)
        off = _MASS_ROUNDING * (size + np.abs(b))
        points, weights = np.concatenate([lower, b]), np.concatenate([p * (1.0 - share), p * share])
        used = weights > 0.0
        return points[used], weights[used], np.concatenate([off, off])[used]
