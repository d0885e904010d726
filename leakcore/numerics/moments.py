"""Limits of ε and δ that need moments alone: they hold however far out, and for however many steps, one asks.

Chernoff's bound. With s > 0, and x = L − ε for "remove",
    (1 − e^{−x})₊ ≤ c_s·e^{sx},  c_s = s^s/(1 + s)^{1+s},
so that log δ(ε) ≤ Σ log E_μ e^{sL} − sε + log c_s (Canonne, Kamath and Steinke 2020, Proposition 12); for "add" the
same of −L under ν. Infinite losses are added. One step's moments have proofs in closed form (`StepLaw.log_moments`) or
come from the masses P and Q of cells of its loss (`ManySteps`): e^{(1+s)ℓ} lies below its chord over each cell,
in e^ℓ, which the two masses determine (connect the dots, Doroshenko et al. 2022).

Cantelli's inequality, from below (`Moments`). With m and v the mean and the variance of L under P,
    P(L > m − a) ≥ a²/(v + a²), so that δ(ε) ≥ a²/(v + a²)·(1 − e^{ε − m + a}) for every a > 0.
Who sees only the cell of a loss sees less, and has the loss log(P/Q) of the cell.

Capped moments (`log_tail_bound`), where rare steps make most of a large loss: small q, little noise or a far threshold.
Losses above a cap c are counted, and moments taken of those below: with ℓ = log(1 − q + q·e^g), g = (2x − 1)/(2σ²),
    P_μ(L > ε) ≤ Σ_t μ(ℓ_t > c) + e^{−sε}·Π_t E_μ[e^{sℓ_t}; ℓ_t ≤ c] for every s > 0.
Every term is bounded by normal distribution functions: e^{sℓ} ≤ 1 + sℓ + ψ(sℓ) with ψ(u) = e^u − 1 − u, where ψ(u)/u²
and ψ on [0, ∞) rise, ℓ ≤ q(e^g − 1) and |ℓ| ≤ q|e^g − 1|/(1 − q).

The least loss (`epsilon_from_below`). δ_add(ε) = E_ν(1 − e^{ε+L})_+ is 0 from ε = −min L on. On the event that z_t ≤ z
in every step, of probability Φ(z)^T under ν, L is at most Σ ℓ_t(z): δ_add(ε) ≥ Φ(z)^T·(1 − e^{ε + Σℓ_t(z)}), every z.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from leakcore._base.validate import LARGE
from leakcore.numerics.arithmetic import dot
from leakcore.numerics.lattice import ROUNDING, StepLaw
from leakcore.numerics.loss import PrivacyLoss, StepGroup

_POWERS = np.exp(np.linspace(-14.0, 60.0, 297))
_NEAR = 33
_ROUNDING = 2.0**-48


def log_delta_above(laws: Sequence[StepLaw], epsilon: float, direction: str) -> float:
    """An upper bound of log δ(ε), 0 at most."""
    remove, log_infinite = direction == "remove", infinite(laws, direction)

    def bound(s: np.ndarray) -> np.ndarray:
        moments, away = _moments(laws, s, remove), s * epsilon
        return np.asarray(moments - away + _log_share(s) + _ROUNDING * (np.abs(moments) + np.abs(away) + 1.0))

    return min(float(np.logaddexp(_least(bound), log_infinite)), 0.0)


def epsilon_above(laws: Sequence[StepLaw], log_delta: float, direction: str) -> float:
    """An upper bound of the ε, of either sign, with log δ(ε) = log_delta; ∞ where infinite losses have as much mass."""
    remove, log_infinite = direction == "remove", infinite(laws, direction)
    if log_infinite >= log_delta:
        return math.inf
    rest = log_delta + math.log(-math.expm1(log_infinite - log_delta)) if log_infinite > -math.inf else log_delta

    def bound(s: np.ndarray) -> np.ndarray:
        moments = _moments(laws, s, remove)
        return np.asarray((moments + _log_share(s) - rest + _ROUNDING * (np.abs(moments) + abs(rest) + 1.0)) / s)

    return _least(bound)


def log_blow_up_above(laws: Sequence[StepLaw], log_kappa: np.ndarray) -> np.ndarray:
    """Upper bounds of log B_κ ≤ log(κe^x + δ(x)), for every x."""
    log_infinite = infinite(laws, "remove")
    moments = _moments(laws, _POWERS, True)
    k = moments + _log_share(_POWERS) + _ROUNDING * (moments + 1.0)
    with np.errstate(invalid="ignore"):
        # The least of κe^x + e^{k − sx} over x, at e^{(1 + s)x} = s·e^k/κ: κe^x·(1 + 1/s).
        x = (np.log(_POWERS) + k - log_kappa[:, None]) / (1.0 + _POWERS)
        least = np.nanmin(log_kappa[:, None] + x + np.log1p(1.0 / _POWERS) + _ROUNDING * (1.0 + np.abs(x)), axis=1)
    return np.asarray(np.minimum(np.logaddexp(least, log_infinite), 0.0))


def infinite(laws: Sequence[StepLaw], direction: str) -> float:
    """log of the mass of infinite losses, all steps together."""
    side = 0 if direction == "remove" else 1
    finite = math.fsum(law.count * math.log1p(-math.exp(law.log_infinite[side])) for law in laws)
    return math.log(-math.expm1(finite)) if finite < 0.0 else -math.inf


def gaussian_log_moments(s: np.ndarray, separation: float, rate: float = 1.0) -> np.ndarray:
    """log[1 − rate + rate·e^{s(s+1)m²/2}] at separation m. It is log E_μ(μ/ν)^s of N(m, 1) against N(0, 1) at rate 1.
    Moments of order s + 1 are jointly convex in (μ, ν), so that it bounds those of any pair (1 − rate)·(R, R) +
    rate·(μ, ν)."""
    whole = 0.5 * (separation * separation) * s * (1.0 + s)
    if rate == 1.0:
        return np.asarray(whole)
    near = np.minimum(whole, 30.0)
    return np.asarray(
        np.where(whole > 30.0, np.logaddexp(math.log1p(-rate), math.log(rate) + whole), np.log1p(rate * np.expm1(near)))
    )


def _moments(laws: Sequence[StepLaw], s: np.ndarray, remove: bool) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum([law.count * law.log_moments(s, remove) for law in laws], axis=0)
    return np.asarray(np.where(np.isnan(total), np.inf, total))


def _log_share(s: np.ndarray) -> np.ndarray:
    """log c_s = −s·log(1 + 1/s) − log(1 + s)."""
    return np.asarray(-s * np.log1p(1.0 / s) - np.log1p(s))


def _least(bound: Callable[[np.ndarray], np.ndarray]) -> float:
    """The least of a bound that holds for every s, on a grid and then on a finer one around its best point."""
    s = _POWERS
    for _ in range(3):
        with np.errstate(over="ignore", invalid="ignore"):
            values = bound(s)
        values = np.where(np.isnan(values), np.inf, values)
        best = int(np.argmin(values))
        least = float(values[best])
        s = np.geomspace(s[max(best - 1, 0)], s[min(best + 1, len(s) - 1)], _NEAR)
    return least


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


_EDGES = np.geomspace(1e-3, 1.0, 200)
"""Edges of the bins of ℓ, as fractions of ε."""
_CAPS = range(10, len(_EDGES), 5)
_SLACK = 1e-11
"""More than the rounding of a difference of normal distribution functions, relative to them."""
_CAPPED_ROUNDING = 1e-9
"""More than all other rounding, relative to the probability."""
_LARGEST = 600.0
"""Largest exponent sℓ."""


def log_tail_bound(loss: PrivacyLoss, epsilon: float) -> float:
    """An upper bound of log P_μ(L > ε), hence of log δ_remove(ε); 0 where ε ≤ 0. Steps with σ = 0 are not in it."""
    from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

    if epsilon <= 0.0 or not loss.groups or max(group.sigma for group in loss.groups) > LARGE:
        return 0.0
    edges = epsilon * _EDGES
    steps = [_Step(group, edges) for group in loss.groups]
    best = 0.0
    for k in _CAPS:
        above = float(np.logaddexp.reduce([step.log_above[k] + math.log(step.count) for step in steps]))
        if above >= best:
            continue
        capped = [step.capped(k) for step in steps]
        if not all(math.isfinite(mean + square) for mean, square, _ in capped):
            continue  # moments beyond a float, as of very little noise: nothing to be had at this cap

        def below(log_s: float, k: int = k, capped: list[tuple[float, float, np.ndarray]] = capped) -> float:
            s = math.exp(log_s)
            psi = np.expm1(s * edges[: k + 1]) - s * edges[: k + 1]
            value = 0.5 * loss.gaussian_variance * s * (1.0 + s) - s * epsilon
            for step, (mean, square, masses) in zip(steps, capped, strict=True):
                grown = s * mean + square * psi[0] / edges[0] ** 2 + dot(masses, psi[1:])
                value += step.count * math.log1p(grown)
            return value

        ends = math.log(0.05 / epsilon), math.log(_LARGEST / edges[k])
        least = float(minimize_scalar(below, bounds=ends, method="bounded").fun)
        best = min(best, float(np.logaddexp(above, least)))
    return min(best + _CAPPED_ROUNDING, 0.0)


class _Step:
    """One step's loss under μ: the law at the edges, and moments below them."""

    def __init__(self, group: StepGroup, edges: np.ndarray) -> None:
        self.count, self._q, self._v = group.count, group.rate, group.sigma**-2
        near = np.minimum(edges, 30.0)
        shift = np.log(np.expm1(near) + group.rate) + (edges - near) - math.log(group.rate)
        self._x = group.sigma**2 * shift + 0.5
        parts = [log_ndtr((k - self._x) / group.sigma) for k in (0.0, 1.0)]
        self.log_above = np.logaddexp(math.log1p(-group.rate) + parts[0], math.log(group.rate) + parts[1])
        above = np.exp(self.log_above)
        self._masses = above[:-1] - above[1:] + _SLACK * above[:-1]
        self._sigma = group.sigma

    def capped(self, k: int) -> tuple[float, float, np.ndarray]:
        """Upper bounds: of E[ℓ; ℓ ≤ edge k], of E[ℓ²; ℓ ≤ edge 0], and the masses of the bins between."""
        one, exponential, _ = self._moments(k)
        mean = self._q * (exponential - one + _SLACK * (exponential + one))
        one, exponential, squared = self._moments(0)
        whole = squared + 2.0 * exponential + one
        spread = whole - 4.0 * exponential + _SLACK * whole if math.isfinite(whole) else math.inf
        return mean, (self._q / (1.0 - self._q)) ** 2 * spread, self._masses[:k]

    def _moments(self, k: int) -> tuple[float, float, float]:
        """E_μ of 1, e^g and e^{2g} where ℓ ≤ edge k: under N(i, σ²), e^{jg} moves the normal law to N(i + j, σ²)."""
        q, v, x = self._q, self._v, float(self._x[k])
        log_below = [float(log_ndtr((x - i) / self._sigma)) for i in range(4)]
        grown = (0.0, 0.0, v, 3.0 * v)  # log E e^{jg} = j(j − 1)v/2 + ijv under N(i, σ²)
        with np.errstate(over="ignore"):
            parts = np.exp(np.add(grown, log_below))
        one, exponential, squared = (1.0 - q) * parts[:3] + q * parts[1:]
        return float(one), float(exponential), float(squared)


_PLACES = np.linspace(-8.0, 12.0, 401)
_LEAST_ROUNDING = 1e-14


def epsilon_from_below(loss: PrivacyLoss, log_delta: float) -> float:
    """The largest ε for which the event proves that δ_add(ε) ≥ e^{log_delta}, less rounding; −∞ where there is none."""
    if loss.gaussian_variance > 0.0 or not loss.groups or len(loss.groups) > len(_PLACES):
        return -math.inf
    log_share = loss.num_mixture_steps * log_ndtr(_PLACES) * (1.0 + _LEAST_ROUNDING)
    with np.errstate(over="ignore"):  # a float cannot hold the losses of very little noise
        losses = np.sum([group.count * group.term(_PLACES) for group in loss.groups], axis=0)
    used = (log_share > log_delta) & np.isfinite(losses)
    if not used.any():
        return -math.inf
    log_rest = np.log1p(-np.exp(log_delta - log_share[used]))
    best = float(np.max(log_rest - losses[used]))
    return best - _LEAST_ROUNDING * (loss.num_mixture_steps * 1e-2 + abs(best) + abs(loss.minimum))
