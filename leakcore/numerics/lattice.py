"""A privacy loss on a lattice {origin + kh}: one step from both sides, and a composition under a tilt.

Both laws of a step (`LossCells`) are laws of ν whose atoms carry the loss, so that μ has e^{loss} times ν's mass there:
- "dots": ν's mass of the cell between two points is split over them such that μ's mass of the cell is right too
  (connect the dots, Doroshenko et al. 2022). e^ℓ in the cell is a mean of its ends, so this pair dominates the step.
- "cells": all that is seen is the nearest point. Who sees less has a smaller profile. The cell's own loss, log(μ/ν), is
  within O(h²) of its point; nearly every atom is moved there by a common shift, the rest one point further.
Both err by O(h²). What arithmetic may round is moved to the safe side of each direction: a higher loss raises the
profile of "remove" and lowers that of "add".

A composition (`LatticeLaw`): the steps' laws are tilted by e^{θ·loss}, composed as powers of their discrete Fourier
transforms, and transformed back. It needs no smoothness: losses may pile up, be rare and large, or span thousands
of nats, at the price of an error that falls with the square of h only. Limits are proved except for rounding, for which
ten times the usual estimate is allowed.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft

from leakcore.numerics.arithmetic import AccuracyError, log1mexp, log1p, times

ROUNDING = 2.0**-50
"""Relative rounding of a cell's masses, times 1 plus the size of their logarithms."""

_WIDE = 600.0
"""Spacing h up to which e^h is a float."""
EVERYWHERE = (-math.inf, math.inf)


@dataclasses.dataclass(frozen=True)
class LatticeStep:
    """ν's log masses at the losses origin + index·h.

    log_beyond: log of the mass left out, under the law whose excess the profile counts (μ for "remove", ν for "add").
    log_infinite: log of that law's mass where the other one has none.
    """

    index: np.ndarray
    log_nu: np.ndarray
    origin: float
    log_beyond: float
    log_infinite: float = -math.inf


class Grid(NamedTuple):
    """Points first to last of the lattice {origin + k·spacing}, and the point `top` at the end of reach."""

    origin: float
    spacing: float
    first: int
    last: int
    top: int

    @classmethod
    def within(cls, losses: tuple[float, float], fine: tuple[float, float], origin: float, spacing: float) -> Grid:
        """The points for losses in a range, on the lattice within `fine`."""
        low, high = losses
        first = math.floor((max(low, fine[0]) - origin) / spacing - 1e-9)
        last = max(math.ceil((min(high, fine[1]) - origin) / spacing), first + 1)
        return cls(origin, spacing, first, last, max(math.ceil((high - origin) / spacing), last))

    def edges(self) -> np.ndarray:
        """Losses that part the line: from half a cell below the first point by half cells to the last one, then top;
        −∞ and ∞ at the ends."""
        half = 0.5 * np.arange(2 * self.first - 1, 2 * self.last + 2)
        half[-1] = self.top
        edges = self.origin + self.spacing * half
        edges[0] = -math.inf
        return np.append(edges, math.inf)


class LossCells:
    """The masses of one step between neighbouring `Grid.edges`, half points, from which both laws are made: logs of
    ν's, and of μ's or what a subclass makes μ from. log_infinite: of μ's mass where ν has none, and of ν's where μ has
    none."""

    def __init__(
        self,
        grid: Grid,
        log_nu: np.ndarray,
        log_other: np.ndarray,
        log_infinite: tuple[float, float] = (-math.inf, -math.inf),
    ) -> None:
        self._origin, self._spacing, self._first, self._last, self._top = grid
        self._nu, self._other, self._infinite = log_nu, log_other, log_infinite

    def dots(self, remove: bool) -> LatticeStep:
        """The dominating law for one direction of the profile."""
        nu, other = (np.logaddexp(part[1:-2:2], part[2:-2:2]) for part in (self._nu, self._other))
        log_share = self._log_shares(nu, other, remove)
        with np.errstate(divide="ignore"):
            out = np.append(nu + log1mexp(log_share), -np.inf)
        out[1:] = np.logaddexp(out[1:], nu + log_share)
        index = np.arange(self._first, self._last + 1)
        # Mass beyond the ends goes to the last point where that is the safe side; where it is not, one chord leads to
        # the end of reach, and the mass beyond that is counted as lost.
        if not remove:
            out[-1] = np.logaddexp(out[-1], np.logaddexp(self._nu[-2], self._nu[-1]))
            return LatticeStep(index, out, self._origin, float(self._nu[0]), self._infinite[1])
        out[0] = np.logaddexp(out[0], self._nu[0])
        if self._top > self._last:
            index, out = np.append(index, self._top), np.append(out, -np.inf)
            out[-1] = self._nu[-2] + self._log_share()
            out[-2] = np.logaddexp(out[-2], self._nu[-2])
        return LatticeStep(index, out, self._origin, float(self._log_mu(-1)), self._infinite[0])

    def _log_shares(self, nu: np.ndarray, other: np.ndarray, remove: bool) -> np.ndarray:
        """log of what of ν's mass in each cell goes to its upper end, (e^{ℓ − kh} − 1)/(e^h − 1), on the safe side."""
        sign = 1.0 if remove else -1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            if self._spacing < _WIDE:
                excess, error = self._excess(nu, other)
                return np.log(np.clip((excess + sign * error) / math.expm1(self._spacing), 0.0, 1.0))
            # Where e^h overflows, e^{ℓ − kh − h} is no less than it, and with 1 taken from e^{ℓ − kh} no more.
            at = self._points(len(nu))
            rise = self._log_ratio(nu, other) - at
            size = 8.0 + np.abs(at) + np.abs(nu) + np.abs(other)
            rise = np.where(np.isfinite(nu) & np.isfinite(rise), rise + sign * ROUNDING * size, -np.inf)
            if not remove:
                rise = np.where(rise > 0.0, rise + log1mexp(-rise), -np.inf)
            return np.asarray(np.minimum(rise - self._spacing, 0.0))

    def cells(self, remove: bool, theta: float) -> LatticeStep:
        """The law of who sees the cell alone; its common shift is chosen for a tilt by e^{θ·loss}."""
        if self._spacing >= _WIDE:
            raise AccuracyError("losses too far apart for a lattice from below")
        # The last one holds everything from its lower half point on.
        parts = (np.append(part[:-2], np.logaddexp(part[-2], part[-1])) for part in (self._nu, self._other))
        nu, other = (np.logaddexp(part[0::2], part[1::2]) for part in parts)
        excess, error = self._excess(nu, other)
        h = self._spacing
        # By how much each atom lies on the wrong side of its point.
        with np.errstate(divide="ignore"):
            off = np.log1p(np.maximum(excess - error if remove else excess + error, -1.0))
        wrong = -off if remove else off
        logs = nu + theta * h * np.arange(len(nu))
        weights = np.exp(logs - logs.max())
        order = np.argsort(wrong)
        sorted_wrong = wrong[order]
        above = np.append(np.cumsum((weights / weights.sum())[order][::-1])[::-1][1:], 0.0)
        cost = np.where(np.abs(sorted_wrong) <= 0.5 * h, sorted_wrong + h * above, np.inf)
        best = int(np.argmin(cost))
        shift = float(sorted_wrong[best]) if cost[best] < np.inf else 0.5 * h
        far = wrong > shift
        out = np.full(len(nu) + 1, -np.inf)
        # One point more, below for "remove" and above for "add"; an end cell that reaches further is dropped.
        near_at, far_at = (out[1:], out[:-1]) if remove else (out[:-1], out[1:])
        near_at[~far] = nu[~far]
        moved = far & (wrong <= h + shift)
        far_at[moved] = np.logaddexp(far_at[moved], nu[moved])
        index = np.arange(len(out)) + (self._first - 1 if remove else self._first)
        infinite = self._infinite[0 if remove else 1]
        return LatticeStep(index, out, self._origin + (-shift if remove else shift), -math.inf, infinite)

    def _log_mu(self, part: int) -> float:
        return float(self._other[part])

    def _log_ratio(self, nu: np.ndarray, other: np.ndarray) -> np.ndarray:
        """log(μ/ν) of parts with these masses."""
        return np.asarray(other - nu)

    def _log_share(self) -> float:
        """How much of ν's mass between the last point and the end of reach goes to that end."""
        if self._nu[-2] == -np.inf:
            return -math.inf
        rise = float(self._log_mu(-2) - self._nu[-2]) - (self._origin + self._last * self._spacing)
        width = (self._top - self._last) * self._spacing
        rise = min(max(rise + 1e-12 * (1.0 + abs(rise)), 1e-300), width)
        return min(_log_expm1(rise) - _log_expm1(width) + 1e-12, 0.0)

    def _points(self, count: int) -> np.ndarray:
        """The first `count` points."""
        return self._origin + (self._first + np.arange(count)) * self._spacing

    def _excess(self, nu: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(e^{ℓ − point} − 1 with ℓ = log(μ/ν) of the part from a point on, what rounding may have moved it by)."""
        at = self._points(len(nu))
        empty = ~np.isfinite(nu)
        with np.errstate(invalid="ignore"):
            rise = np.where(empty, 0.0, np.clip(other - nu - at, -800.0, 700.0))
        size = 8.0 + np.abs(at) + np.where(empty, 0.0, np.abs(nu) + np.abs(np.where(np.isfinite(other), other, 0.0)))
        return np.expm1(rise), ROUNDING * size * np.exp(rise)


class StepLaw(abc.ABC):
    """One step's loss, `count` times in the composition."""

    @property
    @abc.abstractmethod
    def count(self) -> int: ...

    @property
    def log_infinite(self) -> tuple[float, float]:
        """log of μ's mass where ν has none, and of ν's where μ has none."""
        return -math.inf, -math.inf

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """Upper bounds of log E_μ e^{sL} ("remove") or log E_ν e^{−sL} ("add") over finite losses, for each s > 0; ∞
        where none is proved."""
        return np.full(len(s), np.inf)

    @abc.abstractmethod
    def loss_range(self, reach: float) -> tuple[float, float]:
        """Losses beyond which ν and μ have less mass than a normal variate beyond `reach`."""

    @abc.abstractmethod
    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> LossCells:
        """The step within reach, on the lattice within `fine`: beyond it the tilted law has no mass that matters."""

    def out_of_reach(self, theta: float) -> AccuracyError:
        """The error to raise where a float cannot hold the loss, or θ times it."""
        return AccuracyError(f"one step's loss tilted by {theta:.3g} is out of reach at {self}")


@dataclasses.dataclass(frozen=True)
class KnownMasses(StepLaw):
    """A step law whose masses between any two losses are known, under ν and under μ."""

    count: int = dataclasses.field(default=1, kw_only=True)

    @abc.abstractmethod
    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log of ν's and of μ's mass of losses in (edges[i], edges[i + 1]]; edges rise from −∞ to ∞."""

    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> LossCells:
        grid = Grid.within(self.loss_range(reach), fine, 0.0, spacing)
        return LossCells(grid, *self.log_masses(grid.edges()), self.log_infinite)


def _log_expm1(x: float) -> float:
    return math.log(math.expm1(x)) if x < 30.0 else x


_OUTSIDE = 34.0
"""−log of the tilted mass that may lie on either side of the window."""
_COARSE = 1500
"""Cells of a step's law where only a tilt and a window are needed."""
_UNIT = 2.0**-53
_LEFT_OUT = 24.0
"""−log of the part of δ that may lie beyond the reach of single steps."""
_FINE = 42.0
"""−log of the tilted mass of all steps beyond which a step's lattice ends."""
_PAD = 0.01
"""Fraction of the window's width that is added on either side, since losses may end sharply there."""


class CoarseLaw:
    """The dominating law with a few thousand points a step, for tilts, windows and Chernoff's bound. Steps are known
    for probabilities of e^{log_floor} or more. `log_infinite` and `log_outside` are logs of the mass of certain losses
    and of the finite ones that are left out; `rounding` is that of the cumulant, all steps together."""

    def __init__(self, laws: Sequence[StepLaw], log_floor: float, remove: bool) -> None:
        self.laws = laws
        total = sum(law.count for law in laws)
        self.reach = math.sqrt(2.0 * (_LEFT_OUT + abs(log_floor) + math.log(total)))
        self.remove, self.sign, self.power = remove, (1.0 if remove else -1.0), (1.0 if remove else 0.0)
        self._log_nu, self._losses = [], []
        beyond, log_finite = -math.inf, 0.0
        for law in laws:
            low, high = law.loss_range(self.reach)
            h = (high - low) / _COARSE
            if not 0.0 < h < 1e300:
                raise law.out_of_reach(1.0)
            step = law.cells(h, self.reach).dots(remove)
            beyond = float(np.logaddexp(beyond, math.log(law.count) + step.log_beyond))
            log_finite += law.count * math.log1p(-min(math.exp(step.log_infinite), 1.0 - _UNIT))
            used = step.log_nu > -math.inf
            self._losses.append((step.origin + step.index * h)[used])
            self._log_nu.append(step.log_nu[used])
        self.log_infinite = math.log(-math.expm1(log_finite)) if log_finite < 0.0 else -math.inf
        mean = variance = 0.0
        for log_nu, losses, law in zip(self._log_nu, self._losses, laws, strict=True):
            weights = np.exp(log_nu + self.power * losses)
            weights /= weights.sum()
            m = float(weights @ losses)
            mean += law.count * m
            variance += law.count * float(weights @ (losses - m) ** 2)
        self.log_outside = beyond
        self.rounding = total * 64.0 * _UNIT
        self.mean, self.deviation = mean, math.sqrt(variance)
        if not 0.0 < self.deviation < math.inf:
            raise laws[0].out_of_reach(self.power)

    def cumulant(self, thetas: np.ndarray) -> np.ndarray:
        """K(θ) = log E_ν e^{θL} for each θ."""
        out = np.zeros(len(thetas))
        for log_nu, losses, law in zip(self._log_nu, self._losses, self.laws, strict=True):
            logs = log_nu + np.multiply.outer(thetas, losses)
            peak = logs.max(axis=1)
            out += law.count * (peak + np.log(np.exp(logs - peak[:, None]).sum(axis=1)))
        return out

    def chernoff_table(self) -> tuple[np.ndarray, np.ndarray]:
        """(s, K(power ± s)) on a grid of s > 0: log δ(ε) ≤ K − sε for each."""
        s = np.exp(np.linspace(-4.0, 40.0, 128)) / (50.0 * self.deviation)
        k = self.cumulant(self.power + self.sign * s)
        used = np.isfinite(k)
        return s[used], k[used]

    def theta(self, gap: float) -> float:
        """The tilt that lies `gap` beyond the profile's own power."""
        return self.power + self.sign * gap

    def best_gap(self, *, log_delta: float | None = None, epsilon: float = 0.0) -> tuple[float, float]:
        """(s, bound): the s > 0 of Chernoff's log δ(ε) ≤ K(power ± s) − sε, and the bound, which is one of ε where
        log_delta is given, else one of log δ(ε). It leaves out `log_infinite` and `log_outside`."""
        low, high = -4.0, 60.0
        for points in (64, 16, 16):
            logs = np.linspace(low, high, points)
            s = np.exp(logs) / (50.0 * self.deviation)
            k = self.cumulant(self.power + self.sign * s)
            value = k - s * epsilon if log_delta is None else (k - log_delta) / s
            value = np.where(np.isfinite(value), value, np.inf)
            best = int(np.argmin(value))
            low, high = logs[max(best - 1, 0)], logs[min(best + 1, points - 1)]
        return float(s[best]), float(value[best])

    def window(self, gap: float) -> Window:
        """Where the law under this tilt has all but e^{−34} of its mass on either side."""
        theta = self.theta(gap)
        base = float(self.cumulant(np.array([theta]))[0])
        ends, powers = [], []
        for side in (-1.0, 1.0):
            s = np.exp(np.linspace(-6.0, 50.0, 64)) / self.deviation
            grown = self.cumulant(theta + side * s) - base
            distance = np.where(np.isfinite(grown), (grown + _OUTSIDE) / s, np.inf)
            ends.append(side * float(distance.min()))
        pad = _PAD * (ends[1] - ends[0])
        ends = [ends[0] - pad, ends[1] + pad]
        for side, end in zip((-1.0, 1.0), ends, strict=True):
            s = np.exp(np.linspace(0.0, math.log(2e4), 48)) / (ends[1] - ends[0])
            log_mass = self.cumulant(theta + side * s) - base - side * s * end
            powers.append(side * float(s[int(np.argmin(np.where(np.isfinite(log_mass), log_mass, np.inf)))]))
        fine = []
        for log_nu, losses, law in zip(self._log_nu, self._losses, self.laws, strict=True):
            # Mass beyond an end goes to that end, with the tilt's weight there. "remove" has a chord to its far end,
            # which must not matter to the bound of what lies beyond the window either.
            few = _FINE + math.log(law.count)
            least = float(np.logaddexp.reduce(log_nu + theta * losses)) - few
            if self.remove:
                lumped = np.logaddexp.accumulate(log_nu) + theta * losses
                low = float(losses[max(int(np.searchsorted(lumped, least)) - 2, 0)])
                most = theta + powers[1]
                chord = np.logaddexp.accumulate((log_nu + losses)[::-1])[::-1] + (most - 1.0) * losses[-1]
                used = losses[chord > float(np.logaddexp.reduce(log_nu + most * losses)) - few]
                top = float(used[-1]) if len(used) else float(losses[-1])
                fine.append((low, top + 2.0 * float(losses[1] - losses[0])))
            else:
                lumped = np.logaddexp.accumulate(log_nu[::-1]) + theta * losses[::-1]
                fine.append((-math.inf, float(losses[::-1][max(int(np.searchsorted(lumped, least)) - 2, 0)])))
        return Window(gap, ends[0], ends[1], (powers[0], powers[1]), tuple(fine))


class Window(NamedTuple):
    """A tilt with the ends of its law; `powers` are those of Chernoff's bounds of what is beyond, and `fine` has the
    ends of each law's single steps."""

    gap: float
    low: float
    high: float
    powers: tuple[float, float]
    fine: tuple[tuple[float, float], ...]

    @property
    def width(self) -> float:
        """high − low."""
        return self.high - self.low


class Tails(NamedTuple):
    """At each point x: log δ(x), rounded to the law's side; log μ(L > x) from below; log ν(L > x) from above; log of
    ν's mass at x from below."""

    x: np.ndarray
    log_delta: np.ndarray
    log_mu: np.ndarray
    log_nu: np.ndarray
    log_at: np.ndarray


class LatticeLaw:
    """sign·L under the tilt on a window, from above (`dominating`) or below, for δ(ε), ε(δ) and the blow-up. sign is 1
    for "remove", where θ = 1 + gap, and −1 for "add", where θ = −gap; δ(ε) = e^{K − gap·ε}·Σ_x g(x) e^{−gap·(x − ε)}·(1
    − e^{−(x − ε)}) over x > ε in both."""

    def __init__(
        self, coarse: CoarseLaw, window: Window, spacing: float, size: int, cells: list[LossCells], dominating: bool
    ) -> None:
        self.gap, self._h, self.dominating = window.gap, spacing, dominating
        remove, theta = coarse.remove, coarse.theta(window.gap)
        log_phi = np.zeros(size // 2 + 1, dtype=np.complex128)
        relative = np.zeros(size // 2 + 1)
        self.log_moment = self._slack = 0.0
        start, beyond, log_finite = 0.0, -math.inf, 0.0
        tails = [0.0, 0.0]
        for source, parts in zip(coarse.laws, cells, strict=True):
            law = parts.dots(remove) if dominating else parts.cells(remove, theta)
            step = _Tilted(law, theta, spacing, size)
            with np.errstate(divide="ignore", invalid="ignore"):
                log_phi += times(source.count, log1p(step.transform))
                relative += source.count * step.rounding / np.abs(1.0 + step.transform)
            self.log_moment += source.count * step.log_moment
            self._slack += source.count * _UNIT * (16.0 + abs(step.log_moment))
            start += source.count * step.place
            beyond = float(np.logaddexp(beyond, math.log(source.count) + law.log_beyond))
            log_finite += source.count * math.log1p(-math.exp(law.log_infinite))
            for i, power in enumerate(window.powers):
                tails[i] += source.count * step.log_moment_around(power, spacing)
        size_phi = np.exp(log_phi.real)
        with np.errstate(invalid="ignore"):
            wrong = np.where(size_phi > 0.0, size_phi * (relative + _UNIT * (4.0 + np.abs(log_phi))), 0.0)
            mass = fft.irfft(np.where(size_phi > 0.0, np.exp(log_phi), 0.0), size)
        first = math.floor((window.low - start) / spacing)
        x = start + (first + np.arange(size)) * spacing
        mass = np.roll(mass, -first % size)
        self._mass, self._x = (mass, x) if remove else (mass[::-1], -x[::-1])
        # Rounding differs from frequency to frequency, so that its squares add up, but not from point to point.
        usual = math.sqrt(2.0 * float(np.mean(wrong**2) + (_UNIT * math.log2(size)) ** 2 * np.mean(size_phi**2)) / size)
        self.noise = max(20.0 * usual, -2.0 * float(mass.min()))
        with np.errstate(divide="ignore"):
            self._infinite = float(np.log(-np.expm1(log_finite)))
        self._beyond = float(np.logaddexp(beyond, self._infinite))
        ends = (float(x[0]) - start, float(x[-1]) - start)
        self.outside = 1e-300 + sum(
            math.exp(min(k - s * end, 0.0)) for k, s, end in zip(tails, window.powers, ends, strict=True)
        )

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """(log δ(ε), its derivative), rounding on the safe side of what the law is."""
        x = self._x
        first = int(np.searchsorted(x, epsilon, side="right"))
        last = min(len(x), first + int(min(60.0 / (self.gap * self._h), 1e9)) + 2)
        over = x[first:last] - epsilon
        part = np.exp(-self.gap * over)
        steep = part * np.exp(-over)
        part *= -np.expm1(-over)
        g = self._mass[first:last]
        value = float(g @ part)
        allowance = self.noise * float(part.sum()) + 1e-14 * value + self.outside
        slope = -float(g @ steep) / value if value > 0.0 else math.nan
        value = value + allowance if self.dominating else value - allowance
        if value <= 0.0:
            return self._infinite, math.nan
        out = math.log(value) + self.log_moment - self.gap * epsilon
        if self.dominating:
            return min(float(np.logaddexp(out + self._slack, self._beyond)), 0.0), slope
        return float(np.logaddexp(out - self._slack, self._infinite)), slope

    def tails(self) -> Tails:
        """The law's tails at all of its points, of "remove" only."""
        rates = self._h * np.array([self.gap, self.gap + 1.0])
        mu, nu = (_decayed_sums(self._mass, rate) for rate in rates)
        noise = self.noise * np.minimum(1.0 / np.expm1(rates), len(mu))
        rounding = 1e-14 * (1.0 + self.gap) * np.abs(mu)
        sign = 1.0 if self.dominating else -1.0
        scale = self.log_moment - self.gap * self._x
        with np.errstate(divide="ignore", invalid="ignore"):
            # What the fast transform may have moved the smaller of the two sums by is counted once for each.
            delta = np.log(np.maximum(mu - nu + sign * (noise[0] + rounding + self.outside), 0.0)) + scale
            mu_tail = np.log(np.maximum(mu - noise[0] - rounding - self.outside, 0.0)) + scale
            nu_tail = np.log(np.maximum(nu + noise[1] + rounding + self.outside, 0.0)) + scale - self._x
            at = np.log(np.maximum(self._mass - self.noise, 0.0)) + scale - self._x
        infinite = self._beyond if self.dominating else self._infinite
        return Tails(
            self._x,
            np.minimum(np.logaddexp(delta + sign * self._slack, infinite), 0.0),
            np.logaddexp(mu_tail - self._slack, infinite),
            nu_tail + self._slack,
            at - self._slack,
        )

    def epsilon(self, log_delta: float, start: float) -> float:
        """ε with log δ(ε) = log_delta, on the safe side; Newton's steps kept inside a bisection. AccuracyError where it
        lies beyond the window."""
        first, last = float(self._x[0]), float(self._x[-1])
        low, high = first, last
        at = float(min(max(start, low), high))
        for _ in range(100):
            value, slope = self.log_delta(at)
            low, high = (at, high) if value > log_delta else (low, at)
            step = (log_delta - value) / slope if slope < 0.0 and math.isfinite(value) else math.nan
            hair = 2e-12 * (1.0 + abs(at))
            if high - low <= 2.0 * hair:
                break
            # A hair to the far side, so that the bracket closes from both ends.
            at = at + step + math.copysign(hair, step) if abs(step) < 0.1 * (last - first) else math.nan
            if not low < at < high:
                at = 0.5 * (low + high)
        end = high if self.dominating else low
        if end in (first, last):
            raise AccuracyError("epsilon lies beyond the window of the privacy loss")
        return end


def _decayed_sums(mass: np.ndarray, rate: float) -> np.ndarray:
    """Σ_{j>k} mass_j·e^{−rate·(j − k)} for each k; in blocks over which the weights stay within a float's range."""
    size = int(min(max(300.0 / rate, 1.0), len(mass)))
    weights = np.exp(-rate * np.arange(1, size + 1))
    out, carry = np.empty_like(mass), 0.0
    for start in range((len(mass) - 1) // size * size, -1, -size):
        block = mass[start : start + size]
        decay = weights[: len(block)]
        sums = np.cumsum((block * decay)[::-1])[::-1]
        # From the block's own first point; what lies at or before a point is left out.
        out[start : start + len(block)] = np.append(sums[1:], 0.0) / decay + carry * (decay[-1] / decay)
        carry = float(sums[0] + carry * decay[-1])
    return out


class _Tilted:
    """One step's law under the tilt: the transform is that around its heaviest point, at `place`, less 1."""

    def __init__(self, law: LatticeStep, theta: float, spacing: float, size: int) -> None:
        used = np.flatnonzero(law.log_nu > -np.inf)
        index, losses = law.index[used], law.origin + law.index[used] * spacing
        logs = law.log_nu[used] + theta * losses
        heaviest = int(np.argmax(logs))
        self.place = float(losses[heaviest])
        # Relative to the heaviest point, whose own share is then known best.
        weights = np.exp(logs - logs[heaviest])
        weights[heaviest] = 0.0
        others = float(weights.sum())
        self.log_moment = float(logs[heaviest]) + math.log1p(others)
        self._weights, self._places = weights / (1.0 + others), index - index[heaviest]
        moved = others / (1.0 + others)
        wrapped = np.bincount(self._places % size, self._weights, minlength=size)
        wrapped[0] -= moved
        self.transform = fft.rfft(wrapped)
        self.rounding = _UNIT * math.log2(size) * moved

    def log_moment_around(self, power: float, spacing: float) -> float:
        """log E e^{power·(loss − place)}."""
        exponent = power * spacing * self._places
        if float(exponent.max()) < 1.0:
            return math.log1p(float(self._weights @ np.expm1(exponent)))
        with np.errstate(divide="ignore"):
            logs = np.log(self._weights) + exponent
        rest = max(1.0 - float(self._weights.sum()), 1e-300)
        peak = max(float(logs.max()), math.log(rest))
        return peak + math.log(float(np.exp(logs - peak).sum()) + math.exp(math.log(rest) - peak))
