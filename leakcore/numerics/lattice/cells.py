"""One step's loss as a law on a lattice {origin + kh}, from both sides.

Both are laws of ν whose atoms carry the loss, so that μ has e^{loss} times ν's mass there:
- "dots": ν's mass of the cell between two points is split over them such that μ's mass of the cell is right too
  (connect the dots, Doroshenko et al. 2022). e^ℓ in the cell is a mean of its ends, so this pair dominates the step.
- "cells": all that is seen is the nearest point. Who sees less has a smaller profile. The cell's own loss, log(μ/ν), is
  within O(h²) of its point; nearly every atom is moved there by a common shift, the rest one point further.
Both err by O(h²). What arithmetic may round is moved to the safe side of each direction: a higher loss raises the
profile of "remove" and lowers that of "add".
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import NamedTuple, Protocol

import numpy as np

from leakcore.numerics.gaussian.gaussian_pair import log1mexp
from leakcore.numerics.privacy_loss.loss import AccuracyError

ROUNDING = 2.0**-50
"""Relative rounding of a cell's masses, times 1 plus the size of their logarithms."""

_WIDE = 600.0
"""Spacing h up to which e^h is a float."""
EVERYWHERE = (-math.inf, math.inf)


@dataclasses.dataclass(frozen=True)
class LatticeStep:
    """ν's log masses at the losses origin + index·h.

    log_beyond: of the mass left out, under the law whose excess the profile counts (μ for "remove", ν for "add").
    log_infinite: of that law's mass where the other one has none.
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
    """The masses of one step between half points, from which both laws are made.

    log_nu, log_other: of the parts between `Grid.edges`; other is μ, or what a subclass makes μ from. log_infinite: log
    of μ's mass where ν has none, and of ν's where μ has none.
    """

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


class StepLaw(Protocol):
    """One step's loss, `count` times in the composition."""

    @property
    def count(self) -> int: ...

    @property
    def log_infinite(self) -> tuple[float, float]:
        """log of μ's mass where ν has none, and of ν's where μ has none."""
        ...

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """Upper bounds of log E_μ e^{sL} ("remove") or log E_ν e^{−sL} ("add") over finite losses, for each s > 0; ∞
        where none is proved."""
        ...

    def loss_range(self, reach: float) -> tuple[float, float]:
        """Losses beyond which ν and μ have less mass than a normal variate beyond `reach`."""
        ...

    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> LossCells:
        """The step within reach, on the lattice within `fine`: beyond it the tilted law has no mass that matters."""
        ...

    def out_of_reach(self, theta: float) -> AccuracyError:
        """The error to raise where a float cannot hold the loss, or θ times it."""
        ...


@dataclasses.dataclass(frozen=True)
class KnownMasses(abc.ABC):
    """A step law whose masses between any two losses are known, under ν and under μ.

    Attributes:
        count: how often the step is in the composition.
        log_infinite: log of μ's mass where ν has none, and of ν's where μ has none.
    """

    count: int = dataclasses.field(default=1, kw_only=True)

    @property
    def log_infinite(self) -> tuple[float, float]:
        return -math.inf, -math.inf

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """See `StepLaw`: none is proved."""
        return np.full(len(s), np.inf)

    @abc.abstractmethod
    def loss_range(self, reach: float) -> tuple[float, float]:
        """See `StepLaw`."""

    @abc.abstractmethod
    def log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log of ν's and of μ's mass of losses in (edges[i], edges[i + 1]]; edges rise from −∞ to ∞."""

    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> LossCells:
        """See `StepLaw`."""
        grid = Grid.within(self.loss_range(reach), fine, 0.0, spacing)
        return LossCells(grid, *self.log_masses(grid.edges()), self.log_infinite)

    def out_of_reach(self, theta: float) -> AccuracyError:
        """See `StepLaw`."""
        return AccuracyError(f"one step's loss tilted by {theta:.3g} is out of reach at {self}")


def _log_expm1(x: float) -> float:
    return math.log(math.expm1(x)) if x < 30.0 else x
