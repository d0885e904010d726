"""Monte-Carlo estimates of B_κ, and the interval of Hayes et al. (2023): neither is a guarantee."""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import Executor
from typing import ClassVar

import numpy as np

from leakcore._base import validate
from leakcore.bounds.methods.certified import dual_thresholds
from leakcore.bounds.methods.method import Kappa, Method, ReconstructionBound, SampledLimits, assumptions
from leakcore.bounds.methods.pairs import draw_all, mixture_pair
from leakcore.mechanisms import Poisson
from leakcore.numerics import AccuracyError, dot

_FEW = 100.0
"""Effective samples below which the standard error itself is not to be trusted."""


@dataclasses.dataclass(frozen=True)
class MonteCarlo(Method):
    """Every mechanism: an estimate from `num_samples` draws, with a standard error; memory 8 bytes for each.

    Args:
        num_samples: number of draws.
        seed: seed of the draws.
        device: where to draw: None, "cpu", "cuda" or "cuda:N" (in torch's or CuPy's memory).
        executor: maps shards of the draws; the answer has the same bits without it.
        under: "alternative" draws from μ and evaluates the dual min_t κe^t + E_μ(1 − e^{t−L})_+ at the sample's
            threshold. "null" is Algorithm 1 of Hayes et al. with erratum E1 (docs/explanation/bounds.md): it lies below
            the truth more often than not, and collapses where draws of ν miss the mass of μ.

    Example:
        >>> from leakcore import bounds
        >>> method = bounds.methods.MonteCarlo(num_samples=20_000)
        >>> estimate = bounds.reconstruction(1.0, 0.5, 10, kappa=0.1, method=method)
        >>> estimate.kind, 0 < estimate.standard_error < 0.01
        ('estimate', True)
    """

    name: ClassVar[str] = "monte-carlo"
    num_samples: int = 1_000_000
    seed: int = 0
    device: str | None = None
    executor: Executor | None = None
    under: str = "alternative"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.one_of("alternative", "null", under=self.under)

    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        log_value, error, effective = self._estimates(mechanism, prior.log)
        which = "Algorithm 1, erratum E1" if self.under == "null" else "equation (3) in dual form, samples of mu"
        return ReconstructionBound(
            kind="estimate",
            confidence=None,
            method=f"{self.name} ({self.under})",
            assumptions=assumptions("an estimate: it may lie below the truth"),
            seed=self.seed,
            provenance=f"Hayes, Mahloujifar and Balle (2023), {which}",
            standard_error=prior.shaped(error),
            effective_sample_size=prior.shaped(effective),
            num_samples=self.num_samples,
            warnings=_warnings(effective),
            **prior.fields(np.minimum(log_value, 0.0), None, None),
        )

    def _estimates(self, mechanism: Poisson, log_kappa: np.ndarray) -> tuple[np.ndarray, ...]:
        """Flat arrays over κ: log B̂, its standard error, and the effective sample size of the tail."""
        if len(log_kappa) == 0:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        pair = mixture_pair(mechanism, self.device)
        log_ratio = draw_all(pair, self.num_samples, self.under, self.seed, self.executor)
        single = _from_null if self.under == "null" else _from_alternative
        return tuple(np.array(x) for x in zip(*single(log_ratio, log_kappa), strict=True))


def _warnings(effective: np.ndarray) -> tuple[str, ...]:
    few = effective < _FEW
    if not few.any():
        return ()
    message = (
        f"the tail of {int(few.sum())} of {len(few)} values of kappa holds fewer than {_FEW:g} effective samples "
        f"(least {float(effective.min()):.3g}): the estimate and its standard error are unreliable there"
    )
    return (message,)


def _from_null(log_ratio: np.ndarray, log_kappa: np.ndarray) -> list[tuple[float, float, float]]:
    n = len(log_ratio)
    # N′ = ⌈κN⌉; the guard keeps a κN that is whole except for rounding (0.1 · 1e6) from being rounded up.
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
        error = spread * math.exp(min(peak, 700.0))
        out.append((max(peak + math.log(total / n), -math.inf), error, total**2 / dot(scaled, scaled)))
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


_MAX_SAMPLES = 1 << 26
"""All samples are in memory and sorted, half a gigabyte twice; `Certified` keeps none."""


@dataclasses.dataclass(frozen=True)
class DKW(SampledLimits):
    """σ > 0: the paper's own interval, by DKW for the threshold of Algorithm 1 and a Bennett-type bound for the mean.

    Nothing is done about the threshold having been chosen on the same samples, so the kind is "estimate", and the value
    is Algorithm 1's (E1). The interval is [κ, 1] where it says nothing. docs/explanation/bounds.md has the formulas.

    Args:
        num_samples: number of draws, from 2 to 2²⁶; all are held in memory and sorted.
        confidence: level of the interval, in (0, 1 − 1e-12].
        seed: seed of the draws.
        executor: maps shards of the draws; the answer has the same bits without it.

    Example:
        >>> from leakcore import bounds
        >>> estimate = bounds.reconstruction(1.0, 0.5, 10, kappa=0.1, method=bounds.methods.DKW(num_samples=20_000))
        >>> estimate.kind, estimate.interval[0] < estimate.value < estimate.interval[1]
        ('estimate', True)
    """

    name: ClassVar[str] = "dkw-bennett"
    executor: Executor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.integer(2, _MAX_SAMPLES, num_samples=self.num_samples)

    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        loss, count = mechanism.added_loss, self.num_samples
        if loss.log_no_escape != 0.0:
            raise ValueError(
                "`noise_multiplier` must be positive, got 0: the ratio has no variance; use method='exact'"
            )
        descending = np.sort(draw_all(mixture_pair(mechanism), count, "null", self.seed, self.executor))[::-1]
        with np.errstate(over="ignore"):
            mass = np.exp(np.logaddexp.accumulate(descending) - math.log(count))

        def mean_above(share: np.ndarray) -> np.ndarray:
            """γ̂ at the empirical quantile of each share."""
            size = np.clip(np.ceil(share * count * (1.0 - 1e-12)).astype(np.int64), 0, count)
            return np.where(size > 0, mass[np.maximum(size - 1, 0)], 0.0)

        tail = 1.0 - self.confidence
        eta = math.sqrt(math.log(4.0 / tail) / (2.0 * count))
        try:
            log_second = loss.cumulants(2.0).value if loss.groups or loss.gaussian_variance > 0.0 else 0.0
        except AccuracyError:
            log_second = math.inf
        scale = math.exp(min(0.5 * log_second, 700.0)) / math.sqrt(count)
        plain = prior.plain
        high = np.clip(mean_above(plain + eta) + scale * math.sqrt(2.0 * math.log(4.0 / tail)), plain, 1.0)
        high = np.where(plain + eta >= 1.0, 1.0, high)
        low = np.clip(mean_above(plain - eta) - scale * math.sqrt(4.0 / tail - 1.0), plain, 1.0)
        with np.errstate(divide="ignore"):
            value = np.log(np.clip(mean_above(plain), plain, 1.0))
            log_low, log_high = np.log(low), np.log(np.maximum(high, low))
        return ReconstructionBound(
            kind="estimate",
            confidence=self.confidence,
            method=self.name,
            assumptions=assumptions(
                "as the text does it: the threshold is chosen on the samples that are counted", f"eta={eta:.3g}"
            ),
            seed=self.seed,
            provenance="Hayes, Mahloujifar and Balle (2023), Section 3.3 after Proposition 4",
            num_samples=count,
            **prior.fields(value, log_low, log_high),
        )
