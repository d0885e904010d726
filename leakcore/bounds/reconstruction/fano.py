"""Fano's inequality: others' bound of the advantage (Guo et al. 2022b), next to the blow-up bound."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result
from leakcore.bounds.reconstruction.arguments import ATTACKER, SampledGaussian
from leakcore.bounds.reconstruction.information import INFORMATION, Candidates, Information, Nats
from leakcore.bounds.reconstruction.kappa import parse_prior

_ROUNDING = 2.0**-48
"""Relative rounding of sums and exponentials."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FanoBound(Result):
    """Fano's bound on the advantage, as `fano_advantage` returns it.

    Attributes:
        value: bound of the advantage (success − p_max)/(1 − p_max).
        success: bound of the success probability itself.
        mutual_information: the bound (or estimate) of I(Z; outputs) from which it follows, in nats.
        standard_error: of the mutual information where it was sampled, else None.
        num_candidates: number of candidates of positive probability.
    """

    quantity: str = "advantage"
    success: float
    mutual_information: float
    standard_error: float | None
    num_candidates: int


def fano_advantage(
    noise_multiplier: Any,
    sample_rate: Any = 1.0,
    steps: int = 1,
    *,
    num_candidates: int | None = None,
    prior: Any = None,
    information: str | Information = "rdp",
) -> FanoBound:
    """Fano's bound on the advantage of identifying which candidate of a discrete prior was trained on.

    With H(π) the prior's entropy and I the mutual information between the candidate and the outputs, the attacker's
    error is at least the smallest t in [0, 1] with H(π) − I + t log t + (1−t) log(1−t) − t log(n−1) ≤ 0 (Guo et al.
    2022b; Hayes et al. 2023, Section 5), so success ≤ 1 − t.

    Args:
        noise_multiplier: as in `reconstruction`, schedules allowed.
        sample_rate: q, likewise; 1 for full batches.
        steps: T.
        num_candidates: n ≥ 1 equally likely candidates. Exactly one of num_candidates and prior.
        prior: n probabilities.
        information: where I comes from: "rdp" (`bounds.RenyiInformation`: any σ, q, T), "analytic"
            (`bounds.AnalyticInformation`: q = 1) or "monte-carlo" (`bounds.SampledInformation`: q = 1), or one of these
            objects, which holds its options. The last two reproduce Table 2 of Hayes et al. to the last digit with
            candidates √2 apart, which their text does not state.

    Returns:
        `FanoBound` of kind "upper" ("estimate" for "monte-carlo"), without interval. σ = 0 gives 1, one candidate 0.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic given the seed, for any number of workers and none.

    Example:
        >>> from leakcore import bounds
        >>> fano = bounds.fano_advantage(4.0, num_candidates=10)
        >>> f"{fano.value:.3f}", f"{bounds.reconstruction(4.0, 1.0, 1, kappa=0.1).advantage:.3f}"
        ('0.092', '0.057')
    """
    if (num_candidates is None) == (prior is None):
        raise ValueError(
            f"exactly one of `num_candidates` and `prior` must be given, got num_candidates={num_candidates!r} and "
            f"prior={prior!r}"
        )
    if prior is None:
        n = validate.integer(1, 2**63 - 1, num_candidates=num_candidates)
        candidates = Candidates(np.array([1.0 / n]), n)
    else:
        candidates = Candidates(parse_prior(prior), 1)
        n = candidates.number
    if isinstance(information, Information):
        source = information
    else:
        source = INFORMATION[validate.one_of(*INFORMATION, information=information)]()
    loss = SampledGaussian.parse(noise_multiplier, sample_rate, steps).loss()
    source.check(loss)
    entropy = candidates.entropy
    certain = n == 1 or loss.log_no_escape != 0.0 or math.isinf(loss.gaussian_variance)
    nats = Nats(entropy) if certain else source.nats(loss, candidates)
    kind = "upper" if certain else source.kind
    # What rounding may have taken from the information, or added to the entropy.
    steps_rounded = loss.num_mixture_steps if kind == "upper" else 0
    slack = _ROUNDING * (1.0 + entropy + steps_rounded) if nats.value != 0.0 else 0.0
    success = 1.0 - _least_error(max(entropy - min(max(nats.value, 0.0), entropy) - slack, 0.0), n)
    blind = float(candidates.weights.max())
    success = max(success, blind)
    return FanoBound(
        value=0.0 if n == 1 else (success - blind) / (1.0 - blind),
        kind=kind,
        confidence=None,
        interval=None,
        method=f"fano ({source.name})",
        assumptions=Assumptions(adjacency="add-remove", attacker=ATTACKER, notes=nats.notes),
        seed=nats.seed,
        provenance="Guo, Sablayrolles and Sanjabi (2022), Fano's inequality; Hayes et al. (2023), Section 5, Table 2",
        success=success,
        mutual_information=nats.value,
        standard_error=nats.error,
        num_candidates=n,
    )


def _least_error(equivocation: float, n: int) -> float:
    """Smallest t in [0, 1 − 1/n] with log 2-ary entropy h(t) + t·log(n−1) ≥ equivocation; 0 at n = 1."""
    if n == 1 or equivocation <= 0.0:
        return 0.0

    def enough(t: float) -> bool:
        return -t * math.log(t) - (1.0 - t) * math.log1p(-t) + t * math.log(n - 1) >= equivocation

    # The left side rises up to t = 1 − 1/n, where it is log n.
    low, high = 0.0, 1.0 - 1.0 / n
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (low, middle) if enough(middle) else (middle, high)
    # The smaller end: success is rounded up.
    return low
