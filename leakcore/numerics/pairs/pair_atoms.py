"""Many atoms of a pair, brought to the points of a lattice from both sides."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from leakcore.numerics.lattice.cells import Grid

_TRADES = 4
_MOST_TRADED = 0.45
"""The largest part of a point's mass that goes to one neighbour at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class PairAtoms:
    """Atoms of a pair in increasing loss; μ's log mass of an atom is log_nu + losses.

    Attributes:
        losses: log μ/ν of each atom.
        log_nu: log of ν's masses.
        log_mu_lost: log of μ's mass that the atoms lack, which counts as a loss of ∞.
        log_nu_lost: log of ν's mass that they lack, which counts as a loss of −∞.
    """

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
    log μ/ν is above `at` a part of the point below it, as much as brings it there.

    What is taken has the μ/ν that its point had. `at` is evenly spaced.
    """
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
