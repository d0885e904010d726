"""Random allocation (balls and bins): one epoch as finitely many atoms and as a step law, from above and from below.

A row draws one of b batches: Q = N(0, σ²I_b), P = (1/b) Σ_t N(e_t, σ²I_b), dP/dQ = S/b with S = Σ_t X_t and
X_t = exp((x_t − ½)/σ²) independent of mean 1 under Q. The pair dominates an epoch in both directions (Chua et al. 2025;
Feldman and Shenfeld 2025). Everything follows from S's law under Q. The space is cut by the largest X_t into levels,
each with a grid of its own, so that small and large sums are known equally well.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import ClassVar

import numpy as np

from leakcore.numerics.allocation_levels import LevelAtoms, LevelPlan, LogNormal, SumLevel, split_variance
from leakcore.numerics.arithmetic import AccuracyError
from leakcore.numerics.lattice import EVERYWHERE, Grid, LatticeStep, LossCells, StepLaw
from leakcore.numerics.moments import gaussian_log_moments

_TRADES = 4
_MOST_TRADED = 0.45
"""The largest part of a point's mass that goes to one neighbour at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class PairAtoms:
    """Atoms of a pair in increasing loss log μ/ν; μ's log mass of an atom is log_nu + losses. The mass of μ that the
    atoms lack counts as a loss of ∞, that of ν as one of −∞."""

    losses: np.ndarray
    log_nu: np.ndarray
    log_mu_lost: float
    log_nu_lost: float

    @functools.cached_property
    def masses(self) -> tuple[np.ndarray, np.ndarray]:
        """ν's and μ's masses."""
        with np.errstate(under="ignore"):
            return np.exp(self.log_nu), np.exp(self.log_nu + self.losses)

    def part_log_masses(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log of ν's and of μ's mass of losses in (edges[i], edges[i + 1]]."""
        ends = np.searchsorted(self.losses, edges, side="right")
        used = np.flatnonzero(ends[1:] > ends[:-1])
        out = []
        for masses in self.masses:
            parts = np.full(len(edges) - 1, -np.inf)
            if len(used):
                with np.errstate(divide="ignore"):
                    parts[used] = np.log(np.add.reduceat(masses, ends[used]))
            out.append(parts)
        return out[0], out[1]

    def point_log_masses(self, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
        """log of ν's and of μ's mass at each point of a grid, for who sees less than the atom.

        Each atom is drawn to the points on either side of it, with probabilities that fall linearly with the distance.
        Then points trade atoms until log μ/ν of each is the point itself, or nearly. All of it is a function of the
        atom and of coins. It adds to the loss's variance some h² and leaves its mean alone, where nearest points alone
        would have to be rounded to the safe side, by a part of h that depends on how many atoms each has.
        """
        count = grid.last - grid.first + 1
        place = (self.losses - grid.origin) / grid.spacing - grid.first
        np.clip(place, 0.0, count - 1.0, out=place)
        index = np.minimum(place.astype(np.int64), count - 2)
        place -= index
        points = []
        for masses in self.masses:
            upper = masses * place
            sums = np.bincount(index, masses - upper, minlength=count)
            points.append(sums + np.bincount(index + 1, upper, minlength=count))
        at = grid.origin + grid.spacing * np.arange(grid.first, grid.last + 1)
        nu, mu = points
        for _ in range(_TRADES):
            nu, mu = traded(nu, mu, at)
        with np.errstate(divide="ignore"):
            return np.log(nu), np.log(mu)


def traded(nu: np.ndarray, mu: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ν's and μ's masses after each point whose log μ/ν is below `at` took a part of the point above it, and each whose
    log μ/ν is above `at` a part of the point below it, as much as brings it there. What is taken has the μ/ν that its
    point had. `at` is evenly spaced."""
    up, down = np.zeros_like(nu), np.zeros_like(nu)
    with np.errstate(all="ignore"):
        excess = np.expm1(np.log(mu) - np.log(nu) - at)
        wanted, rise = excess * nu, np.exp(at[1] - at[0])
        # What part of itself each point gives to the one above it, and to the one below.
        up[:-1] = wanted[1:] / (nu[:-1] * (1.0 - (1.0 + excess[:-1]) / rise))
        down[1:] = -wanted[:-1] / (nu[1:] * (rise * (1.0 + excess[1:]) - 1.0))
    out = []
    for part in (up, down):
        part[~((part > 0.0) & (part < _MOST_TRADED))] = 0.0
    for masses in (nu, mu):
        moved = masses * (1.0 - up - down)
        moved[1:] += (masses * up)[:-1]
        moved[:-1] += (masses * down)[1:]
        out.append(moved)
    return out[0], out[1]


_SPREAD, _MOST_SPREAD = 2e-8, 2e-7
"""What rounding may add to the variance of an epoch's loss: relative to that variance, and at most in rare parts."""
_RARE = 35.0
"""The lowest grid is fitted to sums below which Q has e^35 times what may be left out."""
_MOST_LEVELS = 60
_LOSS_ERROR = 2.0**-45
_MASS_ERROR = 2.0**-48
"""Rounding of an atom's loss, and of one coordinate's masses."""
_NEGLIGIBLE = -15.0
"""log of the part of what may be left out that a single atom may have."""
_BITS, _MOST_BITS = 18, 20
_DEEP, _DEEP_BITS = 250.0, 16
"""From this −log of a mass on, shorter grids serve: nobody needs so small a δ to the last digits."""
_LITTLE_NOISE = 0.45
"""σ below which shorter grids are tried first."""
_MOST_MOMENTS = 1 << 13
"""Whole moments of an epoch that are bounded one by one."""
_LEAST_LOST, _LOST_RATIO, _MOST_LOST = 60.0, 1.35, 640.0
"""−log of the mass that a pair may leave out is one of a few numbers, so that questions share their pairs."""


class AllocationPair:
    """One epoch of random allocation to b batches with noise σ; μ is P, with the row, and ν is Q. log_lost: log of the
    mass that may be left out at either end. bits: log₂ of the points of each level's grid."""

    def __init__(self, sigma: float, batches: int, log_lost: float = -_LEAST_LOST, bits: int = _BITS) -> None:
        self.sigma, self.batches, self.log_lost = sigma, batches, log_lost
        reach = math.sqrt(2.0 * (2.0 + math.log(batches) - log_lost)) + 1.0 / sigma
        if not reach / sigma < 600.0:
            raise AccuracyError(f"one epoch's loss is out of a float's reach at noise_multiplier={sigma:g}")
        self._law = LogNormal(sigma, reach)
        self._top = float(self._law.x(reach))
        self._lost: list[tuple[float, float]] = []
        self._levels = self._cut(1 << bits)
        self._atoms: dict[tuple[bool, bool], PairAtoms] = {}
        self._parts: dict[bool, list[LevelAtoms]] = {}
        self._ranges: dict[float, tuple[float, float]] = {}

    def loss_range(self, log_mass: float) -> tuple[float, float]:
        """Losses beyond which neither Q nor P has more than e^{log_mass}, not counting what the pair leaves out."""
        if log_mass not in self._ranges:
            atoms = self.atoms(True, True)
            first, last = len(atoms.losses) - 1, 0
            for masses in atoms.masses:
                below, above = np.cumsum(masses), np.cumsum(masses[::-1])
                first = min(first, int(np.searchsorted(below, math.exp(log_mass))))
                last = max(last, len(masses) - 1 - int(np.searchsorted(above, math.exp(log_mass))))
            low, high = float(atoms.losses[first]), float(atoms.losses[last])
            pad = 1e-9 * (abs(low) + abs(high))
            self._ranges[log_mass] = low - pad, high + pad
        return self._ranges[log_mass]

    def atoms(self, remove: bool, dominating: bool) -> PairAtoms:
        """The atoms for one direction of the profile, "remove" (P over Q) or "add"; rounding is on the safe side."""
        if (remove, dominating) not in self._atoms:
            self._atoms[remove, dominating] = self._make_atoms(remove, dominating)
        return self._atoms[remove, dominating]

    def _level_atoms(self, dominating: bool) -> list[LevelAtoms]:
        """Of all levels; both directions are made from them, and then they are let go."""
        if dominating in self._parts:
            return self._parts.pop(dominating)
        parts = [level.dominating() if dominating else level.dominated() for level in self._levels]
        self._parts[dominating] = parts
        return parts

    def _make_atoms(self, remove: bool, dominating: bool) -> PairAtoms:
        parts = self._level_atoms(dominating)
        log_nu = np.concatenate([part.log_nu for part in parts])
        log_nu += (1.0 if dominating else -1.0) * _MASS_ERROR * (self.batches + 16)
        with np.errstate(divide="ignore"):
            losses = np.log(np.concatenate([part.ratio if remove else part.most for part in parts]))
        losses += _LOSS_ERROR if remove == dominating else -_LOSS_ERROR
        used = (log_nu + np.maximum(losses, 0.0) > self.log_lost + _NEGLIGIBLE) & np.isfinite(losses)
        lost = (-math.inf, -math.inf)
        if dominating:
            rare = log_nu[~used], (log_nu + losses)[~used]
            beyond = [self._beyond(), *self._lost, *(level.plan.lost(level.spacing) for level in self._levels)]
            nu, mu = (np.append(few, part) for few, part in zip(rare, zip(*beyond, strict=True), strict=True))
            lost = float(np.logaddexp.reduce(mu)), float(np.logaddexp.reduce(nu))
        losses, log_nu = losses[used], log_nu[used]
        order = np.argsort(losses, kind="stable")
        atoms = PairAtoms(losses[order], log_nu[order], *lost)
        side = 1.0 if dominating else -1.0
        for masses, log_rest in zip(atoms.masses, reversed(lost), strict=True):
            # Of what dominates nothing may be missing, and what is dominated may not exceed 1.
            if not -1e-9 < side * (float(masses.sum()) + math.exp(log_rest) - 1.0) < 1e-3:
                raise AccuracyError(
                    f"the sums' rounding is too large at noise_multiplier={self.sigma:g}, batches={self.batches}"
                )
        return atoms

    def _beyond(self) -> tuple[float, float]:
        """log of Q's and of P's mass where the largest X_t is above all levels, at most."""
        nu, mu = self._law.log_above(self._levels[-1].high)
        nu += math.log(self.batches)
        return nu, float(np.logaddexp(nu, mu))

    def _cut(self, size: int) -> list[SumLevel]:
        """Levels from below, each as wide as the loss's spread allows."""
        variance = min(1.0, math.expm1(min(1.0 / self.sigma**2, 1.0)) / self.batches)
        levels: list[SumLevel] = []
        low = 0.0
        while low < self._top * (1.0 - 1e-12):
            plan = self._next(low, size - self.batches - 4, variance)
            low = plan.high
            if plan.tilts:
                levels.append(SumLevel(plan, size))
                low = levels[-1].high
            else:
                self._lost.append(plan.lost(0.0))
            if len(levels) > _MOST_LEVELS:
                raise AccuracyError(f"one epoch's loss is too wide at noise_multiplier={self.sigma:g}")
        return levels

    def _next(self, low: float, points: int, variance: float) -> LevelPlan:
        """The next level: the largest whose rounding spreads the loss as little as is wanted, or nearly as little as
        the smallest sensible one."""
        law, b = self._law, self.batches
        if low == 0.0:
            usual = LevelPlan(law, b, 0.0, min(self._top, law.usual(b)), self.log_lost)
            smallest = usual.quantile(self.log_lost + _RARE)
            least, high = min(usual.largest(self.log_lost + _RARE), self._top), usual.high
            spread = _SPREAD * variance
        else:
            # What is rare adds little to the variance of the loss.
            log_mass = max(law.log_above(low)[0] + math.log(b), law.log_above(low)[1])
            spread = min(_MOST_SPREAD, _SPREAD * variance * math.exp(-min(log_mass, 0.0)))
            smallest, least = low, min(2.0 * low, self._top)
            high = low * points * math.sqrt(spread)
        plan = LevelPlan(law, b, low, least, self.log_lost)
        if not plan.tilts:
            return plan
        smallest = max(smallest, plan.bottom)
        spacings = np.geomspace(1e-9, 1.0, 200) * plan.width
        fits = spacings[split_variance(plan, spacings) <= spread * smallest**2]
        width = max(1.3 * plan.width, (float(fits[-1]) if len(fits) else 0.0) * points)
        high = min(high, self._top)
        while high > least:
            wider = LevelPlan(law, b, low, high, self.log_lost)
            if wider.tilts and wider.width <= width:
                return wider
            part = width / wider.width if wider.tilts else 0.5
            high *= min(max(part, 0.02), 0.8)
        return plan


@dataclasses.dataclass(frozen=True)
class AllocationStep(StepLaw):
    """One epoch as a step law of the lattice, `count` times, each time with a fresh draw.

    Attributes:
        sigma: noise multiplier.
        batches: batches of an epoch, `MOST_BATCHES` at most; the row draws one.
        count: epochs.
    """

    MOST_BATCHES: ClassVar[int] = 1 << (_MOST_BITS - 3)

    sigma: float
    batches: int
    count: int = 1

    def log_moments(self, s: np.ndarray, remove: bool) -> np.ndarray:
        """Moments are jointly convex, so that those of two Gaussians bound both; "remove": `_norms` as
        well. "add": a mean of numbers is at least their geometric one, L ≥ (1/b)Σ(x_t − ½)/σ², which is Gaussian."""
        out = gaussian_log_moments(s, 1.0 / self.sigma)
        if not remove:
            return np.asarray(np.minimum(out, 0.5 * s * (1.0 + s / self.batches) / self.sigma**2))
        table = _moment_table(self.sigma, self.batches)
        # log E_P e^{sL} is convex in s: between whole numbers it lies below the chord. It rises, so that it is at most
        # what it is at the next one; there `_coincidences` are convex and 0 at 0, and their sum at most a triangle.
        chords = np.interp(s, np.arange(len(table)), table, right=math.inf)
        after = np.ceil(s)
        triangle = 0.5 * (after + 1.0) * _coincidences(after, self.sigma, self.batches)
        return np.asarray(np.minimum(np.minimum(out, chords), triangle))

    def loss_range(self, reach: float) -> tuple[float, float]:
        return self._pair(reach).loss_range(-0.5 * reach * reach)

    def cells(self, spacing: float, reach: float, fine: tuple[float, float] = EVERYWHERE) -> LossCells:
        pair = self._pair(reach)
        return _AllocationCells(pair, Grid.within(self.loss_range(reach), fine, 0.0, spacing))

    def out_of_reach(self, theta: float) -> AccuracyError:
        return AccuracyError(
            f"one epoch's loss tilted by {theta:.3g} is out of reach at noise_multiplier={self.sigma:g}"
        )

    def _pair(self, reach: float) -> AllocationPair:
        if self.batches > self.MOST_BATCHES:
            raise AccuracyError(
                f"more than {self.MOST_BATCHES} batches are too many for a grid, got batches={self.batches}"
            )
        steps = math.ceil(math.log(max(0.5 * reach * reach / _LEAST_LOST, 1.0)) / math.log(_LOST_RATIO))
        lost = _LEAST_LOST * _LOST_RATIO**steps
        # Beyond what a float can hold the pair ends; what it leaves out counts as infinite losses.
        lost = min(lost, _MOST_LOST)
        bits = max(_BITS if lost < _DEEP else _DEEP_BITS, math.ceil(math.log2(self.batches)) + 3)
        return _cached_pair(self.sigma, self.batches, -lost, bits)


@functools.lru_cache(maxsize=16)
def _moment_table(sigma: float, batches: int) -> np.ndarray:
    """Upper bounds of log E_P (S/b)^s for s = 0, 1, 2, …

    E_Q S^{s+1} = b·E (X′ + R)^s, where X′ has X's law under N(1, σ²) and R is a sum of b − 1 others. Minkowski's
    inequality of order s gives E_Q S^{s+1} ≤ b·(‖X′‖ + ‖S‖)^s with ‖X′‖ = e^{(s+1)/(2σ²)}, and ‖S‖ from one order less.
    The other bound, for much noise, is Π_j e^{`_coincidences`(j)} over j = 1, …, s.
    """
    few = np.cumsum(_coincidences(np.arange(_MOST_MOMENTS, dtype=np.float64), sigma, batches))
    few *= 1.0 + 2.0**-52 * (8.0 + np.arange(_MOST_MOMENTS))
    log_b, out = math.log(batches), np.zeros(_MOST_MOMENTS)
    log_moment, rounding = log_b, 0.0  # log E_Q S^s, at first of s = 1
    for s in range(1, _MOST_MOMENTS):
        one, rest = 0.5 * (s + 1) / sigma**2, log_moment / s
        high, low = max(one, rest), min(one, rest)
        log_moment = log_b + s * (high + math.log1p(math.exp(low - high)))
        log_moment = min(log_moment, (s + 1) * (log_b + 0.5 * s / sigma**2))
        rounding += 2.0**-50 * (abs(log_moment) + (s + 1) * log_b)
        out[s] = log_moment - (s + 1) * log_b + rounding
    return np.asarray(np.minimum(out, few))


def _coincidences(j: np.ndarray, sigma: float, batches: int) -> np.ndarray:
    """log[1 + (e^{j/σ²} − 1)/b]. E_Q (S/b)^{s+1} = E e^{C/σ²}, where C counts the pairs that coincide of s + 1 uniform
    draws from b batches. The draw after j others meets N_t of them in batch t, Σ N_t = j, and Σ_t (e^{N_t/σ²} − 1) ≤
    e^{j/σ²} − 1."""
    exponent = j / sigma**2
    near = np.minimum(exponent, 30.0)
    far = np.logaddexp(0.0, exponent - math.log(batches))
    return np.asarray(np.where(exponent > 30.0, far, np.log1p(np.expm1(near) / batches)))


@functools.lru_cache(maxsize=2)
def _cached_pair(sigma: float, batches: int, log_lost: float, bits: int) -> AllocationPair:
    if bits == _BITS and sigma < _LITTLE_NOISE:
        # So wide a loss has many levels, which shorter grids show as well, or not at all.
        try:
            pair = AllocationPair(sigma, batches, log_lost, max(_DEEP_BITS, math.ceil(math.log2(batches)) + 3))
            for remove, dominating in itertools.product((True, False), repeat=2):
                pair.atoms(remove, dominating)
            return pair
        except AccuracyError:
            pass
    return AllocationPair(sigma, batches, log_lost, bits)


class _AllocationCells(LossCells):
    """The cells of a grid of losses: the dominating atoms' for "dots", the dominated ones' for "cells"."""

    def __init__(self, pair: AllocationPair, grid: Grid) -> None:
        self._pair, self._grid = pair, grid

    def dots(self, remove: bool) -> LatticeStep:
        atoms = self._pair.atoms(remove, True)
        lost = (atoms.log_mu_lost, atoms.log_nu_lost)
        return LossCells(self._grid, *atoms.part_log_masses(self._grid.edges()), lost).dots(remove)

    def cells(self, remove: bool, theta: float) -> LatticeStep:
        parts = []
        for masses in self._pair.atoms(remove, False).point_log_masses(self._grid):
            part = np.full(2 * len(masses) + 1, -np.inf)
            part[:-1:2] = masses
            parts.append(part)
        return LossCells(self._grid, parts[0], parts[1]).cells(remove, theta)
