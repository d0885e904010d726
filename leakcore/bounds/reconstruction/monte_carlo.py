"""Monte-Carlo estimates of B_κ: no guarantee, but a standard error and a warning where the tail is not sampled."""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import Executor

import numpy as np

from leakcore.bounds.reconstruction.certified import Pair, draw_all, dual_thresholds
from leakcore.numerics import dot

_FEW = 100.0
"""Effective samples below which the standard error itself is not to be trusted."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Flat arrays over κ: log B̂, its standard error, the effective sample size of the tail; and what may mislead."""

    log_value: np.ndarray
    standard_error: np.ndarray
    effective_sample_size: np.ndarray
    warnings: tuple[str, ...]


def estimate(
    pair: Pair, log_kappa: np.ndarray, *, num_samples: int, under: str, seed: int, executor: Executor | None = None
) -> Estimate:
    """B̂ from `num_samples` draws of ν ("null": Algorithm 1 of Hayes et al. 2023) or of μ ("alternative")."""
    if len(log_kappa) == 0:
        return Estimate(np.zeros(0), np.zeros(0), np.zeros(0), ())
    log_ratio = draw_all(pair, num_samples, under, seed, executor)
    single = _from_null if under == "null" else _from_alternative
    log_value, error, effective = (np.array(x) for x in zip(*single(log_ratio, log_kappa), strict=True))
    few = effective < _FEW
    warnings: tuple[str, ...] = ()
    if few.any():
        message = (
            f"the tail of {int(few.sum())} of {len(few)} values of kappa holds fewer than {_FEW:g} effective samples "
            f"(least {float(effective.min()):.3g}): the estimate and its standard error are unreliable there"
        )
        warnings = (message,)
    return Estimate(np.minimum(log_value, 0.0), error, effective, warnings)


def _from_null(log_ratio: np.ndarray, log_kappa: np.ndarray) -> list[tuple[float, float, float]]:
    n = len(log_ratio)
    # N′ = ⌈κN⌉; the guard keeps a κN that is whole but for rounding (0.1 · 1e6) from being rounded up.
    sizes = [min(max(math.ceil(math.exp(k) * n * (1.0 - 1e-12)), 1), n) for k in log_kappa]
    # Selection puts each N′-th largest in place with all larger ones behind it; no sort.
    split = np.partition(log_ratio, sorted({n - size for size in sizes}))
    out = []
    for size in sizes:
        tail = split[n - size :]
        peak = float(tail.max())
        if math.isinf(peak):
            out.append((-math.inf, 0.0, float(size)))
            continue
        scaled = np.exp(tail - peak)
        total = float(scaled.sum())
        # The threshold is itself an order statistic; to first order that turns r·1_E into (r − e^t)_+.
        excess = scaled - math.exp(float(tail.min()) - peak)
        spread = math.sqrt(max(dot(excess, excess) / n - (float(excess.sum()) / n) ** 2, 0.0) / n)
        out.append((max(peak + math.log(total / n), -math.inf), _scaled(spread, peak), total**2 / dot(scaled, scaled)))
    return out


def _from_alternative(log_ratio: np.ndarray, log_kappa: np.ndarray) -> list[tuple[float, float, float]]:
    n = len(log_ratio)
    out = []
    for k, t in zip(log_kappa, dual_thresholds(log_ratio, log_kappa), strict=True):
        inside = np.exp(t - log_ratio[log_ratio >= t])
        excess = 1.0 - inside
        mean = float(excess.sum()) / n
        spread = math.sqrt(max(dot(excess, excess) / n - mean * mean, 0.0) / n)
        weights = float(inside.sum())
        effective = weights**2 / dot(inside, inside) if weights > 0.0 else 0.0
        # The dual's value at the sample's own threshold: second order in the error of t.
        with np.errstate(divide="ignore"):
            log_value = float(np.logaddexp(t + k, np.log(mean)))
        out.append((max(log_value, float(k)), spread, effective))
    return out


def _scaled(spread: float, peak: float) -> float:
    return spread * math.exp(min(peak, 700.0))
