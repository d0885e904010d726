"""One sampled Gaussian step: its likelihood ratio, its privacy profile in closed form, and finite versions of it.

The finite versions (`step_table`) bound the step from both sides, tilted and ready to be drawn by table. Cut z = x/σ
into cells with masses ν_c, μ_c (differences of Φ). Both are pairs of laws on finitely many atoms:
- "cells": the cell alone is seen. Less is seen than z, so a composition has a blow-up at most the true one.
- "dots": each cell's masses are split over its two ends, in the one way that keeps both, so that the ratio at an end is
  e^{ℓ(end)} (connect the dots: Doroshenko et al. 2022). e^{ℓ} within a cell is a mean of its ends, so this pair
  dominates the step, and so does a composition. What lies beyond the last end is left out and bounded apart.
Neither looks beyond the group's `cut`: a strong tilt of a loss with small q could have most of its mass out there,
where ν and μ have none to speak of. They differ by the square of a cell's width.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from leakcore.numerics import gaussian_pair
from leakcore.numerics.arithmetic import log1mexp, log_masses
from leakcore.numerics.loss import PrivacyLoss, StepGroup


def step_log_ratio(dots: np.ndarray, norms: np.ndarray, noise: float, sample_rate: float) -> np.ndarray:
    """log(1 − q + q·exp((2s − n²)/(2·noise²))), Hayes, Mahloujifar and Balle (2023), Appendix G.

    Args:
        dots: s = ⟨c, ḡ⟩ of the candidates' clipped gradients c with the released one.
        norms: n = ‖c‖.
        noise: standard deviation σC > 0.
        sample_rate: q in (0, 1].
    """
    log_out = math.log1p(-sample_rate) if sample_rate < 1 else -math.inf
    out: np.ndarray = np.logaddexp(log_out, math.log(sample_rate) + (2 * dots - norms**2) / (2 * noise**2))
    return out


_FLOOR = 4e-15
"""Rounding of a value that is only a logarithm."""


def is_one_step(loss: PrivacyLoss) -> bool:
    """Whether the loss is that of one sampled step, steps without noise aside."""
    return loss.num_mixture_steps == 1 and loss.gaussian_variance == 0.0


def beyond_the_minimum(epsilon: float, direction: str) -> tuple[float, float]:
    """log δ(ε) where every loss is above the threshold: nothing is gained for "add", everything for "remove"."""
    value = float(log1mexp(np.array(epsilon))) if direction == "remove" and epsilon < 0.0 else -math.inf
    return value - _FLOOR, min(value + _FLOOR, 0.0)


def log_delta(group: StepGroup, epsilon: float, direction: str) -> tuple[float, float]:
    """The Gaussian pair's profile, rescaled: μ − e^ε ν = q·(N(1) − e^{ε′} N(0)), e^{ε′} = (e^ε − 1 + q)/q, and in the
    other direction c·(N(0) − e^{ε″} N(1)), c = 1 − e^ε(1 − q), e^{ε″} = q·e^ε/c. For −minimum > ±ε > minimum.
    """
    q = group.rate
    if direction == "remove":
        log_scale, error = math.log(q), 0.0
        if epsilon > 30.0:
            inner = epsilon + math.log1p(-(1.0 - q) * math.exp(-epsilon)) - log_scale
        else:
            inner = math.log1p(max(math.expm1(epsilon) / q, -1.0 + 1e-300))
        shift = abs(epsilon) + abs(log_scale) if epsilon > 30.0 else math.exp(min(max(-inner, 0.0), 690.0))
        shift *= 2.0**-51
    else:
        # 1 − e^ε(1 − q) cancels near its end, ε = −log(1 − q).
        left = epsilon + group.minimum
        log_scale = float(log1mexp(np.array(left)))
        inner = epsilon + math.log(q) - log_scale
        error = 2.0**-52 * (abs(epsilon) - group.minimum) / -left
        shift = error + 2.0**-51 * (abs(epsilon) - math.log(q) - log_scale)
    low, high = gaussian_pair.log_profile_limits(inner, 1.0 / group.sigma, shift)
    error += 2.0**-51 * (1.0 + abs(log_scale))
    return log_scale + low - error, min(log_scale + high + error, 0.0)


def epsilon(group: StepGroup, log_target: float, direction: str) -> tuple[float, float]:
    """ε by bisection. The profile falls with ε; beyond its closed form it is 0 ("add") or 1 − e^ε ("remove")."""

    def at(epsilon: float) -> tuple[float, float]:
        if (epsilon if direction == "remove" else -epsilon) <= group.minimum:
            return beyond_the_minimum(epsilon, direction)
        return log_delta(group, epsilon, direction)

    low, high = -1.0, 1.0
    while at(low)[0] < log_target:
        low *= 2.0
    while at(high)[1] > log_target:
        high *= 2.0
    while low < (middle := 0.5 * (low + high)) < high and high - low > 1e-14 * (1.0 + abs(high)):
        low, high = (middle, high) if at(middle)[1] > log_target else (low, middle)
    # δ is known to 1e-12 of itself, and d log δ/dε is at least 1 in size where δ is small.
    slack = 1e-11 * (1.0 + abs(high))
    return low - slack, min(high + slack, -group.minimum) if direction == "add" else high + slack


_NEGLIGIBLE = 54.0
"""Cells are fine where the tilted density is above e⁻⁵⁴ of its peak."""
_REACH = 10.5
_MAX_SPAN = 100_000.0
_INDEX_BITS = 16


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
