"""One sampled Gaussian step as a law on a lattice {origin + kh}, from both sides.

Both are laws of ν whose atoms carry the loss, so that μ has e^{loss} times ν's mass there:
- "dots": ν's mass of the cell between two points is split over them such that μ's mass of the cell is right too
  (connect the dots, Doroshenko et al. 2022). e^ℓ in the cell is a mean of its ends, so this pair dominates the step.
- "cells": all that is seen is the nearest point. Who sees less has a smaller profile. The cell's own loss, log(μ/ν), is
  within O(h²) of its point; nearly every atom is moved there by a common shift, the rest one point further.
Both err by O(h²). What arithmetic may round is moved to the safe side of each direction: a higher loss raises the
profile of "remove" and lowers that of "add".
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics.gaussian.gaussian_pair import log1mexp
from leakcore.numerics.gaussian.step_tables import log_masses
from leakcore.numerics.privacy_loss.loss import AccuracyError, StepGroup

_ROUNDING = 2.0**-50
"""Relative rounding of a cell's masses, times 1 plus the size of their logarithms."""

_WIDE = 600.0
"""Spacing h up to which e^h is a float."""


@dataclasses.dataclass(frozen=True)
class LatticeStep:
    """ν's log masses at the losses origin + index·h; log_beyond: of the mass left out, under the law whose excess the
    profile counts (μ for "remove", ν for "add")."""

    index: np.ndarray
    log_nu: np.ndarray
    origin: float
    log_beyond: float


class StepCells:
    """The masses of one step between half points, from which both laws are made; `group.rate` may be 1.

    They are made within `reach` standard deviations of the means under ν and μ, on the lattice within `fine`, a range
    of losses: beyond it the tilted law has no mass that matters.
    """

    def __init__(
        self, group: StepGroup, spacing: float, reach: float, fine: tuple[float, float] = (-math.inf, math.inf)
    ) -> None:
        self._spacing, self._rate = spacing, group.rate
        low, high = loss_range(group, reach)
        self._origin = _origin(group, spacing)
        self._first = math.floor((max(low, fine[0]) - self._origin) / spacing - 1e-9)
        self._last = max(math.ceil((min(high, fine[1]) - self._origin) / spacing), self._first + 1)
        self._top = max(math.ceil((high - self._origin) / spacing), self._last)
        # From half a cell below the first point to the last one, and everything beyond in one or two parts.
        half = 0.5 * np.arange(2 * self._first - 1, 2 * self._last + 2)
        half[-1] = self._top
        edges = _positions(self._origin + spacing * half, group)
        edges[0] = -math.inf
        edges = np.append(edges, math.inf)
        shift = 1.0 / group.sigma
        self._nu, self._hit = _log_masses(edges), _log_masses(edges - shift)

    def dots(self, remove: bool) -> LatticeStep:
        """The dominating law for one direction of the profile."""
        nu, hit = (np.logaddexp(part[1:-2:2], part[2:-2:2]) for part in (self._nu, self._hit))
        log_share = self._log_shares(nu, hit, remove)
        with np.errstate(divide="ignore"):
            out = np.append(nu + log1mexp(log_share), -np.inf)
        out[1:] = np.logaddexp(out[1:], nu + log_share)
        index = np.arange(self._first, self._last + 1)
        # Mass beyond the ends goes to the last point where that is the safe side; where it is not, one chord leads to
        # the end of reach, and the mass beyond that is counted as lost.
        if not remove:
            out[-1] = np.logaddexp(out[-1], np.logaddexp(self._nu[-2], self._nu[-1]))
            return LatticeStep(index, out, self._origin, float(self._nu[0]))
        out[0] = np.logaddexp(out[0], self._nu[0])
        if self._top > self._last:
            index, out = np.append(index, self._top), np.append(out, -np.inf)
            out[-1] = self._nu[-2] + self._log_share()
            out[-2] = np.logaddexp(out[-2], self._nu[-2])
        return LatticeStep(index, out, self._origin, float(self._log_mu(-1)))

    def _log_shares(self, nu: np.ndarray, hit: np.ndarray, remove: bool) -> np.ndarray:
        """log of what of ν's mass in each cell goes to its upper end, (e^{ℓ − kh} − 1)/(e^h − 1), on the safe side."""
        sign = 1.0 if remove else -1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            if self._spacing < _WIDE:
                excess, error = self._excess(nu, hit)
                return np.log(np.clip((excess + sign * error) / math.expm1(self._spacing), 0.0, 1.0))
            # Where e^h overflows, e^{ℓ − kh − h} is no less than it, and with 1 taken from e^{ℓ − kh} no more.
            at = self._origin + (self._first + np.arange(len(nu))) * self._spacing
            rise = np.logaddexp(np.log1p(-self._rate) + nu, math.log(self._rate) + hit) - nu - at
            size = 8.0 + np.abs(at) + np.abs(nu) + np.abs(hit)
            rise = np.where(np.isfinite(nu) & np.isfinite(rise), rise + sign * _ROUNDING * size, -np.inf)
            if not remove:
                rise = np.where(rise > 0.0, rise + log1mexp(-rise), -np.inf)
            return np.asarray(np.minimum(rise - self._spacing, 0.0))

    def cells(self, remove: bool, theta: float) -> LatticeStep:
        """The law of who sees the cell alone; its common shift is chosen for a tilt by e^{θ·loss}."""
        if self._spacing >= _WIDE:
            raise AccuracyError("losses too far apart for a lattice from below")
        # The last one holds everything from its lower half point on.
        parts = (np.append(part[:-2], np.logaddexp(part[-2], part[-1])) for part in (self._nu, self._hit))
        nu, hit = (np.logaddexp(part[0::2], part[1::2]) for part in parts)
        excess, error = self._excess(nu, hit)
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
        return LatticeStep(index, out, self._origin + (-shift if remove else shift), -math.inf)

    def _log_mu(self, part: int) -> float:
        with np.errstate(divide="ignore"):
            return float(np.logaddexp(np.log1p(-self._rate) + self._nu[part], math.log(self._rate) + self._hit[part]))

    def _log_share(self) -> float:
        """How much of ν's mass between the last point and the end of reach goes to that end."""
        if self._nu[-2] == -np.inf:
            return -math.inf
        rise = float(self._log_mu(-2) - self._nu[-2]) - (self._origin + self._last * self._spacing)
        width = (self._top - self._last) * self._spacing
        rise = min(max(rise + 1e-12 * (1.0 + abs(rise)), 1e-300), width)
        return min(_log_expm1(rise) - _log_expm1(width) + 1e-12, 0.0)

    def _excess(self, nu: np.ndarray, hit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(e^{ℓ − point} − 1 with ℓ = log(μ/ν) of the part from a point on, what rounding may have moved it by)."""
        q, at = self._rate, self._origin + (self._first + np.arange(len(nu))) * self._spacing
        empty = ~np.isfinite(nu)
        with np.errstate(invalid="ignore"):
            gain = np.where(empty, 0.0, np.maximum(hit - nu, -800.0))
        sampled = np.exp(np.minimum(gain + (math.log(q) - at), 700.0))
        near = np.minimum(at, 1.0)
        small = (q * np.expm1(np.minimum(gain, 50.0)) - np.expm1(near)) * np.exp(-near)
        with np.errstate(over="ignore"):
            direct = (1.0 - q) * np.exp(-at) + sampled - 1.0
        excess = np.where((at < 1.0) & (gain < 50.0), small, direct)
        size = 8.0 + np.abs(at) + np.where(empty, 0.0, np.abs(nu) + np.abs(gain))
        return excess, _ROUNDING * (size * sampled + np.abs(at))


def loss_range(group: StepGroup, reach: float) -> tuple[float, float]:
    """The losses within `reach` standard deviations of the means under ν and μ, from the minimum where there is one."""
    low, high = -reach, reach + 1.0 / group.sigma
    if group.rate == 1.0:
        return tuple(float(z / group.sigma - 0.5 / group.sigma**2) for z in (low, high))  # type: ignore[return-value]
    return group.minimum, float(group.term(np.array([high]))[0])


def _log_expm1(x: float) -> float:
    return math.log(math.expm1(x)) if x < 30.0 else x


def _origin(group: StepGroup, spacing: float) -> float:
    """A point of the lattice: the mean loss of ν's mass around its median, where it may be piled up."""
    if group.rate == 1.0:
        return 0.0
    at = float(group.term(np.zeros(1))[0])
    for _ in range(4):
        edges = _positions(at + spacing * np.array([-0.5, 0.5]), group)
        nu, hit = (float(_log_masses(part)[0]) for part in (edges, edges - 1.0 / group.sigma))
        if not nu > -2.0:
            break  # spread over many cells
        at = math.log1p(group.rate * math.expm1(hit - nu))
    return at


def _positions(losses: np.ndarray, group: StepGroup) -> np.ndarray:
    """z at which the step's loss is each of these; −∞ below its minimum."""
    q = group.rate
    if q == 1.0:
        return np.asarray(group.sigma * losses + 0.5 / group.sigma)
    above = losses - group.minimum
    near = np.clip(above, 0.0, 30.0)
    with np.errstate(divide="ignore"):
        log_sampled = np.where(above > 30.0, above, np.log(np.expm1(near))) + (math.log1p(-q) - math.log(q))
    return np.asarray(group.sigma * log_sampled + 0.5 / group.sigma)


def _log_masses(edges: np.ndarray) -> np.ndarray:
    """ν's log masses between neighbouring edges, −∞ where they coincide."""
    out = np.full(len(edges) - 1, -np.inf)
    wide = edges[1:] > edges[:-1]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        out[wide] = log_masses(edges[:-1][wide], edges[1:][wide])
    return out
