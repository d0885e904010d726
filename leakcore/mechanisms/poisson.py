"""Batches that each row joins with a probability of its own, and batches of all rows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._base.results import Adjacency, Number
from leakcore.mechanisms.mechanism import Mechanism, gaussian_laws
from leakcore.numerics import (
    AtomLaw,
    DominatingLaws,
    PrivacyLoss,
    ReplacementStep,
    SampledStep,
    StepGroup,
    StepLaw,
    dominating_laws,
    parse_schedule,
)

_SUMS = "Hayes, Mahloujifar and Balle (2023), Corollary 4; Zhu, Dong and Wang (2022), Theorem 11"
_REPLACED = (
    "the pair ((1-q)N(0, s^2) + qN(1, s^2), (1-q)N(0, s^2) + qN(-1, s^2)): joint convexity over the other rows' sample "
    "leaves one row's mixture; that opposite gradients of full length are the worst of all pairs in the plane was "
    "searched, not proved; dp-accounting's REPLACE_ONE is the same pair"
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Poisson(Mechanism):
    """Each step's batch takes each row with probability q, independently (Opacus: `poisson_sampling=True`).

    Add-remove and zero-out: μ = Π_t [(1−q_t)N(0, σ_t²) + q_tN(1, σ_t²)], ν = N(0, σ²I) (Hayes et al. 2023, Corollary
    4). Replace: per step (1−q)N(0, σ²) + qN(±1, σ²).

    Attributes:
        noise_multiplier: σ_t in [0, ∞]; a number, or an array of length `steps`.
        sample_rate: q_t in [0, 1]; likewise.
        steps: T ≥ 0.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> training = mechanisms.Poisson(1.0, 0.01, 1000)
        >>> f"{accounting.epsilon(training, delta=1e-5).value:.3f}"
        '1.828'
        >>> f"{accounting.epsilon(training, delta=1e-5, adjacency='replace').value:.3f}"
        '2.843'
    """

    _relations: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out", "replace")

    noise_multiplier: Number
    sample_rate: Number
    steps: int

    def __post_init__(self) -> None:
        sigma, rate, count = parse_schedule(self.noise_multiplier, self.sample_rate, self.steps)
        self._set(noise_multiplier=_plain(sigma), sample_rate=_plain(rate), steps=count)

    def proof(self, adjacency: str | None = None) -> str:
        if self.relation(adjacency) != "replace":
            return f"Poisson-sampled Gaussian steps: {_SUMS}"
        if not self.added_loss.groups:
            return "two Gaussians 2/sigma apart in each step: rows are in every batch"
        return f"Poisson-sampled Gaussian steps under replacement: {_REPLACED}"

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        loss = self.added_loss
        if adjacency != "replace":
            return loss
        return None if loss.groups or -math.inf < loss.log_no_escape < 0.0 else double_separation(loss)

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        loss = self.steps_loss(adjacency)
        if loss is not None:
            return gaussian_laws(loss)
        return replaced(self.added_loss)

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        return adjacency == "replace" or super().is_symmetric(adjacency)

    def separation(self, adjacency: Adjacency) -> float:
        return (2.0 if adjacency == "replace" else 1.0) * self.added_loss.full_batch_separation()

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        return ("Poisson sampling; independent steps",)

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        # The add-remove pair, by the native kernel.
        from leakcore import kernels

        sigma, rate = self.finite_steps()
        out: np.ndarray = kernels.mixture_log_ratio(
            num_samples,
            noise_multiplier=sigma,
            sample_rate=rate,
            steps=self.steps,
            under=under,
            seed=seed,
            first_sample=first_sample,
        )
        return out

    def finite_steps(self) -> tuple[Any, Any]:
        """(σ, q) as the sampler takes them: a step with infinite noise says nothing, nor does one at rate 0."""
        silent = np.isinf(self.noise_multiplier)
        rate = np.where(silent, 0.0, self.sample_rate) if silent.any() else np.asarray(self.sample_rate)
        return _plain(np.where(silent, 1.0, self.noise_multiplier)), _plain(rate)

    @property
    def added_loss(self) -> PrivacyLoss:
        """The privacy loss of adding or removing a row, its steps grouped by equal (σ, q)."""
        return PrivacyLoss.of_steps(np.asarray(self.noise_multiplier), np.asarray(self.sample_rate), self.steps)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FullBatch(Mechanism):
    """Every step's batch is the whole data set: a Gaussian mechanism, μ-GDP with μ = √(Σσ_t⁻²).

    Attributes:
        noise_multiplier: σ_t in [0, ∞]; a number, or an array of length `steps`.
        steps: T ≥ 0.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> f"{accounting.epsilon(mechanisms.FullBatch(10.0, 100), delta=1e-5).value:.3f}"
        '4.377'
    """

    _relations: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out", "replace")

    noise_multiplier: Number
    steps: int

    def __post_init__(self) -> None:
        self._set(noise_multiplier=self._poisson.noise_multiplier, steps=self._poisson.steps)

    def proof(self, adjacency: str | None = None) -> str:
        apart = 2 if self.relation(adjacency) == "replace" else 1
        return f"two Gaussians {apart}/sigma apart in each step: Dong, Roth and Su (2022), Corollary 3.3"

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        return ("every row is in every batch",)

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        return self._poisson.steps_loss(adjacency)

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        return self._poisson.dominating_laws(adjacency)

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        return self._poisson.sample_log_ratio(num_samples, under, seed, first_sample)

    @property
    def _poisson(self) -> Poisson:
        return Poisson(self.noise_multiplier, 1.0, self.steps)


def double_separation(loss: PrivacyLoss) -> PrivacyLoss:
    """Full batches under replacement: clipped gradients are up to 2C apart."""
    return PrivacyLoss((), 4.0 * loss.gaussian_variance, loss.log_no_escape)


def replaced(loss: PrivacyLoss) -> DominatingLaws:
    """Poisson-sampled steps under replacement, from the add-remove loss of the same steps."""
    more: list[AtomLaw] = []
    if loss.log_no_escape != 0.0:
        # With σ = 0 a sampled row is seen for certain, whichever of the two it is.
        revealed = math.log(-math.expm1(loss.log_no_escape))
        rest = np.array([loss.log_no_escape])
        more.append(AtomLaw.of(rest, rest, (revealed, revealed)))
    both = dominating_laws(PrivacyLoss(loss.groups, loss.gaussian_variance))
    upper, lower = (
        (*(ReplacementStep(g.sigma, g.rate, count=g.count) for g in _groups(laws)), *more)
        for laws in (both.upper, both.lower)
    )
    return DominatingLaws(upper, upper if both.upper == both.lower else lower)


def _groups(laws: tuple[StepLaw, ...]) -> list[StepGroup]:
    return [law.group for law in laws if isinstance(law, SampledStep)]


def _plain(array: Any) -> Any:
    return float(array) if np.ndim(array) == 0 else array


def as_mechanism(noise_multiplier: Any, sample_rate: Any = None, steps: Any = None) -> Mechanism:
    """A mechanism as it is, or Poisson sampling from its three numbers; errors name what is missing or too much."""
    if isinstance(noise_multiplier, Mechanism):
        for name, value in (("sample_rate", sample_rate), ("steps", steps)):
            if value is not None:
                raise TypeError(f"`{name}` must be left out where a mechanism is passed, got {value!r}")
        return noise_multiplier
    if not might_be_numbers(noise_multiplier):
        raise no_mechanism("noise_multiplier", noise_multiplier)
    for name, value in (("sample_rate", sample_rate), ("steps", steps)):
        if value is None:
            raise TypeError(f"`{name}` must be passed next to `noise_multiplier`, unless that is a mechanism")
    return Poisson(noise_multiplier, sample_rate, steps)


def might_be_numbers(value: Any) -> bool:
    """Whether a value may be meant for a number, or for several; whether it is one is checked where it is read."""
    if value is None or isinstance(value, str | bytes | type | dict):
        return value is None
    return isinstance(value, list | tuple) or any(
        hasattr(value, way) for way in ("__float__", "__array__", "__dlpack__", "__array_interface__", "__index__")
    )


def no_mechanism(name: str, value: Any) -> TypeError:
    """The error to raise for an argument that is neither a number nor a mechanism."""
    kind = type(value).__name__
    hint = "; mechanisms.from_event makes one of an event of dp-accounting" if kind.endswith("DpEvent") else ""
    if isinstance(value, type) and issubclass(value, Mechanism):
        hint = f"; call {value.__name__}(...) to make one"
    text = repr(value)
    text = text if len(text) <= 100 else f"{text[:97]}..."
    return TypeError(
        f"`{name}` must be a number, an array of numbers or a Mechanism of leakcore.mechanisms, got {text} of type "
        f"{kind}{hint}"
    )
