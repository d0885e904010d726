"""Where Fano's bound takes the mutual information from: a Rényi divergence, a closed form, or samples."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from concurrent.futures import Executor
from typing import ClassVar, NamedTuple

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.results import Kind
from leakcore._base.workers import answers
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
    """Where I comes from, the mutual information between the candidate and the outputs.

    name: by which `fano_advantage(information=)` finds it. kind: of the bound that follows.
    """

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
        """See `Information`."""
        return Nats(loss.cumulants(1.0).mean if loss.groups or loss.gaussian_variance > 0.0 else 0.0)

    def check(self, loss: PrivacyLoss) -> None:
        """Everything is covered."""


@dataclasses.dataclass(frozen=True)
class _FullBatches(Information):
    separation: float = math.sqrt(2.0)

    def __post_init__(self) -> None:
        apart = validate.positive(separation=self.separation)
        if apart > 2.0:
            raise ValueError(
                f"`separation` must be in (0, 2], got {self.separation!r}: clipped gradients are at most 2 norms apart"
            )
        object.__setattr__(self, "separation", apart)

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

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

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
        """See `Information`."""
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
        separation: Δ as in `AnalyticInformation`.
        num_samples: draws, at least 2; each takes a number for every candidate, at most 2²² candidates.
        seed: of the samples.
        executor: its workers take blocks of 2¹⁴ draws (of 2²² numbers where candidates are many); the answer is the
            same for any number of workers and none.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

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
        """See `Information`."""
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
