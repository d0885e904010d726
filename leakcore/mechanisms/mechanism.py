"""What a mechanism is: for each neighbouring relation a pair of laws (μ, ν) that dominates what a training releases."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Adjacency, Record, parse_adjacency
from leakcore.numerics import (
    Bounded,
    Capped,
    DominatingLaws,
    ExactCurve,
    LatticeCurve,
    PrivacyLoss,
    dominating_laws,
    repeated,
)

DIRECTIONS = ("remove", "add")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Mechanism(Record, abc.ABC):
    """What a training releases, as far as privacy is concerned. Noise is in units of the clipping norm.

    `a @ b` is the mechanism that releases both. Accountants and bounds take a mechanism as their first argument.

    Attributes:
        adjacency: the neighbouring relation that is meant where none is asked for.
        adjacencies: every relation for which something is proved.
    """

    _relations: ClassVar[tuple[Adjacency, ...]]

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """Every neighbouring relation for which something is proved, the usual one first."""
        return self._relations

    @property
    def adjacency(self) -> Adjacency:
        """The relation that is meant where none is asked for."""
        return self.adjacencies[0]

    def relation(self, adjacency: str | None) -> Adjacency:
        """The relation that is asked for, or the mechanism's own; ValueError where nothing is proved under it."""
        if adjacency is None:
            return self.adjacency
        asked = parse_adjacency(adjacency)
        if asked not in self.adjacencies:
            allowed = " or ".join(repr(name) for name in self.adjacencies)
            raise ValueError(f"`adjacency` must be {allowed} for {type(self).__name__}, got {adjacency!r}")
        return asked

    @abc.abstractmethod
    def proof(self, adjacency: str | None = None) -> str:
        """What is proved of the mechanism under this relation, and where."""

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        """The loss, where the mechanism's pair is one of sampled Gaussian steps; else None."""
        return None

    @abc.abstractmethod
    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        """Step laws that dominate the mechanism, and step laws that it dominates."""

    def curve(self, adjacency: Adjacency) -> Bounded:
        """The privacy profile and B_κ, each with a low and a high limit."""
        loss = self.steps_loss(adjacency)
        return self.lattice_curve(adjacency) if loss is None else ExactCurve(loss)

    def lattice_curve(self, adjacency: Adjacency) -> Bounded:
        """The same from the step laws, and from the Gaussian pair that leaks at least as much."""
        return Capped(LatticeCurve(self.dominating_laws(adjacency)), self.separation(adjacency))

    def is_exact(self, adjacency: Adjacency) -> bool:
        """Whether the limits of `curve` differ by numerical error alone."""
        return True

    def is_exact_composed(self, adjacency: Adjacency) -> bool:
        """Whether the limits would still differ by numerical error alone with other releases next to it: one pair of
        neighbours reaches the profile at every ε at once."""
        return self.is_exact(adjacency)

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        """Whether both directions have one profile."""
        loss = self.steps_loss(adjacency)
        return loss is not None and not loss.groups and loss.log_no_escape == 0.0

    def separation(self, adjacency: Adjacency) -> float:
        """μ of a Gaussian mechanism that leaks at least as much; ∞ where none is known."""
        loss = self.steps_loss(adjacency)
        return math.inf if loss is None else loss.full_batch_separation()

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        """How rows come to be in batches, and how tight the limits are: notes of a result."""
        return ()

    @property
    def poisson_claim(self) -> Mechanism | None:
        """Poisson sampling that is often claimed in its place, where it is not what runs."""
        return None

    def loss(self, direction: str = "remove", *, adjacency: str | None = None) -> Loss:
        """The privacy loss L = log μ/ν in one direction.

        Args:
            direction: "remove": μ is the law with the row; "add": the law without it.
            adjacency: one of `adjacencies`; None: the mechanism's own.

        Returns:
            `Loss`, which gives δ(ε), ε(δ) and B_κ with limits.

        Raises:
            ValueError: for a value that is not allowed.
        """
        side = validate.one_of(*DIRECTIONS, direction=direction)
        return Loss(self, self.relation(adjacency), side)

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """log μ(x)/ν(x) of samples first_sample, first_sample + 1, … of the mechanism's own pair.

        Args:
            num_samples: number of samples.
            under: "null": x ~ ν; "alternative": x ~ μ.
            seed: seed of the random numbers; sample i depends on it, on `under` and on i only.
            first_sample: number of the first sample.

        Returns:
            (num_samples,) float64.

        Raises:
            NotImplementedError: where the mechanism has no sampler.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sampler: use its exact loss")

    def fingerprint(self) -> str:
        """A text that two mechanisms share only if they are equal."""
        return f"{type(self).__name__} {self.to_dict()}"

    def with_noise(self, noise_multiplier: float) -> Mechanism:
        """The same scheme with another noise multiplier.

        Args:
            noise_multiplier: σ ≥ 0.

        Returns:
            A mechanism of the same type.

        Raises:
            TypeError: for a mechanism without noise to change, such as a bare claim.
        """
        if "noise_multiplier" not in {field.name for field in dataclasses.fields(self)}:
            raise TypeError(f"`mechanism` must have a noise_multiplier that can be changed, got {self!r}")
        changed: Mechanism = dataclasses.replace(self, noise_multiplier=noise_multiplier)  # type: ignore[call-arg]
        return changed

    def _set(self, **values: Any) -> None:
        """Set fields while the object is made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __matmul__(self, other: Any) -> Composition:
        if not isinstance(other, Mechanism):
            return NotImplemented
        parts = [part for one in (self, other) for part in (one.parts if isinstance(one, Composition) else (one,))]
        return Composition(tuple(parts))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Loss:
    """A mechanism's privacy loss in one direction, as `Mechanism.loss` returns it.

    Attributes:
        mechanism: the mechanism.
        adjacency: the neighbouring relation.
        direction: "remove" or "add".
    """

    mechanism: Mechanism
    adjacency: Adjacency
    direction: str

    @one_thread()
    def delta(self, epsilon: float) -> tuple[float, float]:
        """(low, high) of δ(ε) = E_μ(1 − e^{ε−L})_+, any real ε."""
        low, high = self.mechanism.curve(self.adjacency).log_delta(validate.real(epsilon=epsilon), self.direction)
        return math.exp(low), math.exp(high)

    @one_thread()
    def epsilon(self, delta: float) -> tuple[float, float]:
        """(low, high) of the smallest ε with δ(ε) ≤ delta, a number in (0, 1); it may be negative."""
        asked = math.log(validate.open_probability(delta=delta))
        return self.mechanism.curve(self.adjacency).epsilon(asked, self.direction)

    def __repr__(self) -> str:
        return f"Loss({self.mechanism!r}, {self.adjacency!r}, {self.direction!r})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Composition(Mechanism):
    """Several mechanisms that are released together. Each may depend on what the ones before it released.

    Adaptive composition multiplies dominating pairs (Zhu, Dong and Wang 2022, Theorem 10).

    Attributes:
        parts: the mechanisms.

    Raises:
        ValueError: for no parts, or parts without a common neighbouring relation.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> two = mechanisms.Poisson(1.0, 0.01, 500) @ mechanisms.FullBatch(20.0, 10)
        >>> f"{accounting.epsilon(two, delta=1e-5).value:.3f}"
        '1.450'
    """

    parts: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple | list) or not all(isinstance(part, Mechanism) for part in self.parts):
            raise TypeError(f"`parts` must be a tuple of mechanisms, got {self.parts!r}")
        self._set(parts=tuple(self.parts))
        if not self.parts:
            raise ValueError("`parts` must hold at least one mechanism, got none")
        if not self.adjacencies:
            listed = "; ".join(f"{type(part).__name__}: {', '.join(part.adjacencies)}" for part in self.parts)
            raise ValueError(f"`parts` must have a neighbouring relation in common, got {listed}")

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """The relations under which something is proved of every part."""
        return tuple(name for name in self.parts[0].adjacencies if all(name in part.adjacencies for part in self.parts))

    def proof(self, adjacency: str | None = None) -> str:
        relation = self.relation(adjacency)
        each = "; ".join(dict.fromkeys(part.proof(relation) for part in self.parts))
        return f"adaptive composition multiplies dominating pairs (Zhu, Dong and Wang 2022, Theorem 10); {each}"

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        whole: list[PrivacyLoss] = []
        for part, times in _counted(self.parts):
            loss = part.steps_loss(adjacency)
            if loss is None:
                return None
            whole += [loss] * times
        return PrivacyLoss(
            tuple(group for loss in whole for group in loss.groups),
            math.fsum(loss.gaussian_variance for loss in whole),
            math.fsum(loss.log_no_escape for loss in whole),
        )

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        every = [(part.dominating_laws(adjacency), times) for part, times in _counted(self.parts)]
        return DominatingLaws(
            tuple(repeated(law, times) for one, times in every for law in one.upper),
            tuple(repeated(law, times) for one, times in every for law in one.lower),
        )

    def is_exact(self, adjacency: Adjacency) -> bool:
        if len(self.parts) == 1:
            return self.parts[0].is_exact(adjacency)
        return all(part.is_exact_composed(adjacency) for part in self.parts)

    def is_exact_composed(self, adjacency: Adjacency) -> bool:
        return all(part.is_exact_composed(adjacency) for part in self.parts)

    def is_symmetric(self, adjacency: Adjacency) -> bool:
        return all(part.is_symmetric(adjacency) for part in self.parts)

    def separation(self, adjacency: Adjacency) -> float:
        return math.hypot(*(part.separation(adjacency) for part in self.parts))

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for part in self.parts for note in part.notes(adjacency)))

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        from leakcore.kernels import Stream, subseed

        out = np.zeros(num_samples)
        for i, part in enumerate(self.parts):
            own = subseed(seed, Stream.COMPOSITION_PART, row=i)
            out += part.sample_log_ratio(num_samples, under, own, first_sample)
        return out

    def __repr__(self) -> str:
        return " @ ".join(repr(part) for part in self.parts)


def _counted(parts: tuple[Mechanism, ...]) -> list[tuple[Mechanism, int]]:
    """The parts, each with how often it is among them; the same object is the same release again."""
    once: dict[int, list[Any]] = {}
    for part in parts:
        once.setdefault(id(part), [part, 0])[1] += 1
    return [(part, times) for part, times in once.values()]


def gaussian_laws(loss: PrivacyLoss) -> DominatingLaws:
    """The step laws of sampled Gaussian steps; ValueError without noise, whose loss is infinite."""
    if loss.log_no_escape != 0.0:
        raise ValueError("`noise_multiplier` must be positive where a mechanism is composed with others, got 0")
    return dominating_laws(loss)
