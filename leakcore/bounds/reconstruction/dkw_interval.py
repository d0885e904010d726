"""The confidence interval of Hayes et al. (2023), Section 3.3, for comparison with the certificate's."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Assumptions
from leakcore.bounds.reconstruction.arguments import ATTACKER, Kappa, ReconstructionBound, SampledGaussian
from leakcore.bounds.reconstruction.certified import draw_all
from leakcore.bounds.reconstruction.reconstruction import _pair
from leakcore.numerics import AccuracyError

_MAX_SAMPLES = 1 << 26
"""All of them are held and sorted, half a gigabyte twice; the certificate of `reconstruction` holds none."""


def reconstruction_dkw(
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    *,
    kappa: Any = None,
    log_kappa: Any = None,
    num_samples: int = 1_000_000,
    confidence: float = 0.999,
    seed: int = 0,
    executor: Executor | None = None,
) -> ReconstructionBound:
    """The interval that the paper puts around Algorithm 1: DKW for the threshold, a Bennett-type bound for the mean.

    N samples of ν. With probability 1 − α/2 (α = 1 − confidence) all empirical quantiles are right within η =
    √(log(4/α)/(2N)) (Dvoretzky, Kiefer and Wolfowitz 1956, Massart's constant), so B_κ lies between μ(E) at the
    empirical quantiles of κ − η and κ + η. The text states no formula for the mean's error: here, with v = E_ν[r²] =
    e^{K(2)} known exactly, μ(E) ≤ mean + √(2v·log(4/α)/N) (r ≥ 0: the lower tail of a sum of non-negative variables)
    and, since r has no bound that Bennett's inequality could use, mean − √(v(4/α − 1)/N) by Cantelli's. As in the text
    nothing is done about the threshold having been chosen on the same samples, so the kind is "estimate".

    Arguments as in `reconstruction`; num_samples at most 2²⁶, which are held and sorted; executor maps shards of
    samples, with the same answer. The interval is [κ, 1] where it says nothing: κ < η, or r of large variance.
    Returns a `ReconstructionBound`, method "dkw-bennett", value = Algorithm 1's estimate (E1). Raises as
    `reconstruction`; ValueError for noise_multiplier=0.
    """
    mechanism = SampledGaussian.parse(noise_multiplier, sample_rate, steps)
    prior = Kappa.parse(kappa, log_kappa)
    count = validate.integer(2, _MAX_SAMPLES, num_samples=num_samples)
    level = validate.confidence(confidence=confidence)
    key = validate.seed(seed=seed)
    validate.executor(executor=executor)
    loss = mechanism.loss()
    if loss.log_no_escape != 0.0:
        raise ValueError("noise_multiplier=0: must be positive, the ratio has no variance; use method='exact'")
    pair = _pair(mechanism)
    descending = np.sort(draw_all(pair, count, "null", key, executor))[::-1]
    with np.errstate(over="ignore"):
        mass = np.exp(np.logaddexp.accumulate(descending) - math.log(count))

    def mean_above(share: np.ndarray) -> np.ndarray:
        """γ̂ at the empirical quantile of each share."""
        size = np.clip(np.ceil(share * count * (1.0 - 1e-12)).astype(np.int64), 0, count)
        return np.where(size > 0, mass[np.maximum(size - 1, 0)], 0.0)

    tail = 1.0 - level
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
        confidence=level,
        method="dkw-bennett",
        assumptions=Assumptions(
            adjacency="add-remove",
            attacker=ATTACKER,
            notes=("as the text does it: the threshold is chosen on the samples that are counted", f"eta={eta:.3g}"),
        ),
        seed=key,
        provenance="Hayes, Mahloujifar and Balle (2023), Section 3.3 after Proposition 4",
        num_samples=count,
        **prior.fields(value, log_low, log_high),
    )
