"""Fano's bound on naming a candidate (Guo et al. 2022b), and where it takes the mutual information from."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from concurrent.futures import Executor
from typing import Any, ClassVar, NamedTuple

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.results import Assumptions, Kind, Result
from leakcore._base.workers import answers
from leakcore.bounds.methods.method import ATTACKER
from leakcore.bounds.reconstruction.kappa import parse_prior
from leakcore.mechanisms import Poisson
from leakcore.numerics import PrivacyLoss, dot

_CHUNK = 1 << 14
_MAX_CANDIDATES = 1 << 22
"""Most candidates of a sampled estimate, which draws one number for each in every sample."""
_MAX_DRAWS = 1 << 42
"""Numbers of a sampled estimate: about a day of one core."""


class Candidates(NamedTuple):
    """`times` candidates of each of these probabilities: equally likely ones are one question, however many."""

    weights: np.ndarray
    times: int

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.weights) * self.times

    @property
    def entropy(self) -> float:
        """H(π) in nats."""
        return math.log(self.times) if self.times > 1 else -dot(self.weights, np.log(self.weights))


class Nats(NamedTuple):
    """Mutual information in nats, with its standard error and seed where it was sampled; notes: on the candidates."""

    value: float
    error: float | None = None
    seed: int | None = None
    notes: tuple[str, ...] = ()


class Information(abc.ABC):
    """Where I comes from, the mutual information between the candidate and the outputs. `name` is what
    `fano_advantage(information=)` calls it, `kind` that of the bound that follows."""

    name: ClassVar[str]
    kind: ClassVar[Kind]

    @abc.abstractmethod
    def nats(self, loss: PrivacyLoss, candidates: Candidates) -> Nats:
        """I for steps of finite noise and more than one candidate."""

    @abc.abstractmethod
    def check(self, loss: PrivacyLoss) -> None:
        """ValueError for a mechanism that it does not cover."""


@dataclasses.dataclass(frozen=True)
class RenyiInformation(Information):
    """I ≤ KL(μ‖ν) = E_μ[log r], the Rényi divergence at order 1 of the dominating pair, for any σ, q and T.

    Σ1/(2σ²) at q = 1. Kind "upper".

    Example:
        >>> from leakcore import bounds
        >>> bounds.fano_advantage(4.0, num_candidates=10, information=bounds.RenyiInformation()).kind
        'upper'
    """

    name: ClassVar[str] = "rdp"
    kind: ClassVar[Kind] = "upper"

    def nats(self, loss: PrivacyLoss, candidates: Candidates) -> Nats:
        return Nats(loss.cumulants(1.0).mean if loss.groups or loss.gaussian_variance > 0.0 else 0.0)

    def check(self, loss: PrivacyLoss) -> None:
        """Everything is covered."""


@dataclasses.dataclass(frozen=True)
class _FullBatches(Information):
    separation: float = math.sqrt(2.0)

    def __post_init__(self) -> None:
        separation = validate.positive(separation=self.separation)
        if separation > 2.0:
            raise ValueError(
                f"`separation` must be in (0, 2], got {self.separation!r}: clipped gradients are at most 2 norms apart"
            )
        object.__setattr__(self, "separation", separation)

    def check(self, loss: PrivacyLoss) -> None:
        """ValueError where batches are sampled."""
        if loss.groups or (math.isfinite(loss.log_no_escape) and loss.log_no_escape != 0.0):
            raise ValueError(f"`information` must be 'rdp' for sample_rate < 1, got {self.name!r}")


@dataclasses.dataclass(frozen=True)
class AnalyticInformation(_FullBatches):
    """Full batches (q = 1): I ≤ −Σ_i p_i log(p_i + (1−p_i) exp(−Δ²T/(2σ²))) for candidates at most Δ apart.

    Kind "upper", for that Δ.

    Attributes:
        separation: Δ in (0, 2], the distance of candidates' clipped gradients in units of the clipping norm; √2 for
            one-hot (orthogonal) ones, with which the paper's table is reproduced.

    Example:
        >>> from leakcore import bounds
        >>> far = bounds.fano_advantage(4.0, num_candidates=10, information=bounds.AnalyticInformation(separation=2.0))
        >>> near = bounds.fano_advantage(4.0, num_candidates=10, information=bounds.AnalyticInformation(separation=0.5))
        >>> near.value < far.value
        True
    """

    name: ClassVar[str] = "analytic"
    kind: ClassVar[Kind] = "upper"

    def nats(self, loss: PrivacyLoss, candidates: Candidates) -> Nats:
        weights = candidates.weights
        shrink = math.exp(-0.5 * self.separation**2 * loss.gaussian_variance)
        return Nats(
            -candidates.times * dot(weights, np.log(weights + (1.0 - weights) * shrink)),
            notes=(f"for candidates whose clipped gradients are at most {self.separation:.6g} clipping norms apart",),
        )


@dataclasses.dataclass(frozen=True)
class SampledInformation(_FullBatches):
    """Full batches (q = 1): I = E log p(w|z)/p(w) for w ~ N(Δe_z/√2, σ²I_n), from `num_samples` draws. Kind "estimate".

    Attributes:
        separation: Δ in (0, 2], as in `AnalyticInformation`.
        num_samples: number of draws, at least 2; each takes a number for every candidate, at most 2²² candidates.
        seed: seed of the draws.
        executor: its workers take blocks of 2¹⁴ draws (of 2²² numbers where candidates are many); the answer is the
            same for any number of workers and none.

    Example:
        >>> from leakcore import bounds
        >>> source = bounds.SampledInformation(num_samples=2000)
        >>> sampled = bounds.fano_advantage(4.0, num_candidates=10, information=source)
        >>> sampled.kind, sampled.standard_error < 0.01
        ('estimate', True)
    """

    name: ClassVar[str] = "monte-carlo"
    kind: ClassVar[Kind] = "estimate"
    num_samples: int = 100_000
    seed: int = 0
    executor: Executor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "num_samples", validate.integer(2, num_samples=self.num_samples))
        object.__setattr__(self, "seed", validate.seed(seed=self.seed))
        validate.executor(executor=self.executor)

    def nats(self, loss: PrivacyLoss, candidates: Candidates) -> Nats:
        n, count = candidates.number, self.num_samples
        if n > _MAX_CANDIDATES or count * n > _MAX_DRAWS:
            raise ValueError(
                f"`num_candidates` must be at most {_MAX_CANDIDATES}, and times num_samples at most {_MAX_DRAWS}, with "
                f"information='monte-carlo', got {n} and num_samples={count}; use 'analytic'"
            )
        scale = self.separation * math.sqrt(0.5 * loss.gaussian_variance)
        mean, error = self._gain(np.repeat(candidates.weights, candidates.times), scale)
        note = f"for one-hot gradients, {self.separation:.6g} clipping norms apart; a sampled estimate"
        return Nats(mean, error, self.seed, (note,))

    def _gain(self, weights: np.ndarray, scale: float) -> tuple[float, float]:
        """(mean, standard error) of log p(w|z)/p(w), w = scale·e_z + N(0, I_n): a mixture of one-hot Gaussians."""
        count = self.num_samples
        rows = max(1, min(_CHUNK, 2**22 // len(weights)))
        jobs = (
            (start, functools.partial(_gain_sums, weights, scale, min(rows, count - start), self.seed, start))
            for start in range(0, count, rows)
        )
        # Summed in the order of draws, whichever worker drew them first.
        sums = np.array([part for _, part in sorted(answers(jobs, self.executor, ahead=256))])
        total, squares = (math.fsum(column) for column in sums.T)
        mean = total / count
        return mean, math.sqrt(max(squares / count - mean * mean, 0.0) / count)


def _gain_sums(weights: np.ndarray, scale: float, size: int, seed: int, first: int) -> tuple[float, float]:
    """(Σ g, Σ g²) of `size` draws from draw number `first` on."""
    rng = kernels.generator(seed, kernels.Stream.FANO, row=first)
    z = np.minimum(np.searchsorted(np.cumsum(weights), rng.random(size), side="right"), len(weights) - 1)
    logs = scale * rng.standard_normal((size, len(weights)))
    logs[np.arange(size), z] += scale * scale
    own = logs[np.arange(size), z]
    # log p(w|j) = scale·w_j + what all j share.
    logs += np.log(weights)
    peak = logs.max(axis=1)
    gain = own - peak - np.log(np.exp(logs - peak[:, None]).sum(axis=1))
    # Not a dot product, whose order is the linear algebra's own.
    return float(gain.sum()), float(np.square(gain).sum())


INFORMATION = {kind.name: kind for kind in (RenyiInformation, AnalyticInformation, SampledInformation)}
"""Sources of information by the name that `fano_advantage(information=)` takes."""


_ROUNDING = 2.0**-48
"""Relative rounding of sums and exponentials."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FanoBound(Result):
    """Fano's bound on the advantage, as `fano_advantage` returns it.

    Attributes:
        value: bound of the advantage (success − p_max)/(1 − p_max).
        success: bound of the success probability itself.
        mutual_information: the bound (or estimate) of I(Z; outputs) from which it follows, in nats.
        standard_error: standard error of the mutual information where it was sampled, else None.
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
        sample_rate: q in [0, 1], a number or an array of length `steps`; 1 for full batches.
        steps: T ≥ 0.
        num_candidates: n ≥ 1 equally likely candidates. Exactly one of num_candidates and prior.
        prior: probabilities of the candidates, (n,).
        information: where I comes from: "rdp" (`bounds.RenyiInformation`: any σ, q, T), "analytic"
            (`bounds.AnalyticInformation`: q = 1) or "monte-carlo" (`bounds.SampledInformation`: q = 1), or one of these
            objects, which holds its options. The last two reproduce Table 2 of Hayes et al. to the last digit with
            candidates √2 apart, which their text does not state.

    Returns:
        `FanoBound` of kind "upper" ("estimate" for "monte-carlo"), without interval. σ = 0 gives 1, one candidate 0.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
    loss = Poisson(noise_multiplier, sample_rate, steps).added_loss
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
