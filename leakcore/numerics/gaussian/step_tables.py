"""Finite versions of one sampled Gaussian step, from both sides, tilted and ready to be drawn by table.

Cut z = x/σ into cells with masses ν_c, μ_c (differences of Φ). Both versions are pairs of laws on finitely many atoms:
- "cells": the cell alone is seen. Less is seen than z, so a composition has a blow-up at most the true one.
- "dots": each cell's masses are split over its two ends, in the one way that keeps both, so that the ratio at an end is
  e^{ℓ(end)} (connect the dots: Doroshenko et al. 2022). e^{ℓ} within a cell is a mean of its ends, so this pair
  dominates the step, and so does a composition. What lies beyond the last end is left out and bounded apart.
Neither looks beyond the group's `cut`: a strong tilt of a loss with small q could have most of its mass out there,
where ν and μ have none to speak of.
They differ by the square of a cell's width: 1e-4 of B_κ at κ = 4⁻⁷⁸⁴ with 2¹⁵ cells.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from leakcore.numerics.privacy_loss.loss import StepGroup

_NEGLIGIBLE = 54.0
"""Cells are fine where the tilted density is above e⁻⁵⁴ of its peak."""
_REACH = 10.5
_MAX_SPAN = 100_000.0
_INDEX_BITS = 16
_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclasses.dataclass(frozen=True)
class StepTable:
    """Law of ℓ on atoms under ν tilted by e^{θℓ}, as an alias table.

    log_moment: log Σ ν_c e^{θℓ_c} over the atoms. Of "dots", what lies beyond the last: left_out, its mass under the
    tilted law at most; or, where the cut decided the last, log_beyond, the log of its mass under μ.
    threshold, values: column i = low bits of a 64-bit draw gives values[2i] if its high 48 bits are below
    threshold[i], else values[2i + 1].
    """

    log_moment: float
    left_out: float
    log_beyond: float
    mask: np.uint64
    threshold: np.ndarray
    values: np.ndarray

    def add_draws(self, total: np.ndarray, raw: np.ndarray) -> None:
        """total += ℓ of one draw per entry of `raw` (uint64)."""
        column = (raw & self.mask).astype(np.intp)
        other = (raw >> np.uint64(_INDEX_BITS)) >= self.threshold[column]
        column += column
        column += other
        total += self.values[column]


@functools.lru_cache(maxsize=16)
def step_table(group: StepGroup, theta: float, side: str, num_cells: int) -> StepTable:
    """The table of `side` "cells" or "dots" for θ ≥ 1, with about `num_cells` ≤ 2¹⁵ atoms. The last few are kept."""
    edges = _edges(group, theta, num_cells)
    ends = np.concatenate(([-np.inf], edges, [np.inf]))
    shift = 1.0 / group.sigma
    log_nu = log_masses(ends[:-1], ends[1:])
    log_hit = log_masses(ends[:-1] - shift, ends[1:] - shift)
    ratio = np.logaddexp(math.log1p(-group.rate), math.log(group.rate) + log_hit - log_nu)
    left_out, log_beyond = 0.0, -math.inf
    if side == "dots":
        low = np.concatenate(([group.minimum], group.term(edges)))
        nu, cell_ratio, ratio = log_nu[:-1], ratio[:-1], low
        gap = low[1:] - low[:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            upper = np.expm1(np.clip(cell_ratio - low[:-1], 0.0, gap)) / np.expm1(gap)
            # Where ℓ is flat to rounding it does not matter which end takes the mass; the upper one costs us.
            upper = np.where(gap > 1e-13, np.clip(upper, 0.0, 1.0), 1.0)
            log_nu = np.full(len(low), -np.inf)
            log_nu[:-1] = nu + np.log1p(-upper)
            log_nu[1:] = np.logaddexp(log_nu[1:], nu + np.log(upper))
    logs = log_nu + theta * ratio
    peak = float(logs.max())
    weights = np.exp(logs - peak)
    log_moment = peak + math.log(float(weights.sum()))
    last = float(edges[-1])
    if side == "dots" and last < theta / group.sigma + _REACH:
        log_beyond = float(
            np.logaddexp(
                math.log1p(-group.rate) + special.log_ndtr(-last), math.log(group.rate) + special.log_ndtr(shift - last)
            )
        )
    elif side == "dots":
        # Beyond the last end z the log density falls faster than −(z − θ/σ) per unit.
        log_end = -0.5 * last * last - 0.5 * math.log(2.0 * math.pi) + theta * float(ratio[-1])
        left_out = math.exp(log_end - log_moment) / (last - theta / group.sigma)
    threshold, values = _alias(weights / weights.sum(), ratio)
    return StepTable(log_moment, left_out, log_beyond, np.uint64(len(threshold) - 1), threshold, values)


def _edges(group: StepGroup, theta: float, num_cells: int) -> np.ndarray:
    """Cell ends: fine where the tilted density is not negligible, half a unit apart elsewhere, up to θ/σ + 10 or the
    cut."""
    high = min(theta / group.sigma + _REACH, group.cut)
    if high > _MAX_SPAN:
        raise group.out_of_reach(theta)
    coarse = np.arange(math.floor(-2.0 * _REACH), math.ceil(2.0 * high) + 1) * 0.5
    logs = -0.5 * coarse * coarse + theta * group.term(coarse)
    matters = logs > logs.max() - _NEGLIGIBLE
    # A mode is at least a unit wide (the curvature is at least −1), so a half-unit grid misses none.
    active = matters[1:] | matters[:-1]
    finer = max(2, num_cells // int(active.sum()))
    inside = (coarse[:-1][active][:, None] + 0.5 * np.arange(finer) / finer).ravel()
    return np.unique(np.concatenate((coarse, inside)))


def log_masses(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(Φ(b) − Φ(a)), a < b, to nearly full relative accuracy."""
    flip = a + b < 0.0
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    log_a = special.log_ndtr(-a)
    with np.errstate(divide="ignore"):
        wide = log_a + np.log(-np.expm1(special.log_ndtr(-b) - log_a))
    width = b - a
    narrow = (width < 0.6) & (np.maximum(np.abs(a), np.abs(b)) * width < 1.0)
    at, half = np.where(narrow, 0.5 * (a + b), 0.0), np.where(narrow, 0.5 * width, 0.1)
    # Φ(b) − Φ(a) cancels in a narrow cell: integrate φ relative to its value in the middle.
    part = np.zeros_like(at)
    for node, weight in zip(_GAUSS_NODES, _GAUSS_WEIGHTS, strict=True):
        step = half * node
        part += weight * np.exp(-step * (at + 0.5 * step))
    fine = -0.5 * at * at - 0.5 * math.log(2.0 * math.pi) + np.log(half * part)
    return np.asarray(np.where(narrow, fine, wide))


def _alias(probabilities: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's alias table (Vose 1991) with a power of two of columns: thresholds in units of 2⁻⁴⁸ and value pairs."""
    columns = 1 << max(1, (len(values) - 1).bit_length())
    share = np.zeros(columns)
    share[: len(values)] = probabilities * columns
    value = np.full(columns, values[int(np.argmax(probabilities))])
    value[: len(values)] = values
    keep = np.ones(columns)
    other = np.arange(columns)
    left = share.tolist()
    small = [i for i, s in enumerate(left) if s < 1.0]
    large = [i for i, s in enumerate(left) if s >= 1.0]
    while small and large:
        less, more = small.pop(), large[-1]
        keep[less], other[less] = left[less], more
        left[more] -= 1.0 - left[less]
        if left[more] < 1.0:
            small.append(large.pop())
    threshold = np.floor(keep * 2.0**48).astype(np.uint64)
    return threshold, np.stack((value, value[other]), axis=1).ravel()
