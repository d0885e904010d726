"""Families of trade-off curves that guesses at coins refute. Each has one parameter: the larger it is, the more
leaks."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from leakcore import accounting
from leakcore._base.results import Adjacency
from leakcore.bounds.audited_epsilon.guess_tail import Tangents
from leakcore.mechanisms import GDP, ApproximateDP, Mechanism
from leakcore.numerics import Precision, gaussian_pair, gaussian_pair_epsilon

_GAUSSIAN_LINES, _MECHANISM_LINES = 48, 12
_FAR = 6.0
"""Standard deviations of the log ratio; values further out do not change the answer."""


class CurveFamily(abc.ABC):
    """Trade-off curves by one parameter.

    Attributes:
        largest: no larger parameter is tried.
        precision: relative error of the largest parameter that is refuted.
    """

    largest: ClassVar[float]
    precision: ClassVar[float] = 1e-9

    @abc.abstractmethod
    def lines(self, parameter: float) -> Tangents:
        """Lines above the curve."""

    @abc.abstractmethod
    def epsilon(self, parameter: float) -> float:
        """The smallest ε at δ of a mechanism with this curve, from below."""

    @abc.abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What must be true of the mechanism."""

    def largest_refuted(self, refutes: Callable[[Tangents], bool]) -> float:
        """The largest parameter that is refuted, from below; 0 if none is. All smaller ones are refuted with it."""
        if not refutes(Tangents(np.zeros(1), np.zeros(1))):
            return 0.0
        low, high = 0.0, 1.0
        while refutes(self.lines(high)):
            if high >= self.largest:
                return high
            low, high = high, min(2.0 * high, self.largest)
        while low < (middle := 0.5 * (low + high)) < high and high - low > self.precision * high:
            low, high = (middle, high) if refutes(self.lines(middle)) else (low, middle)
        return low


@dataclasses.dataclass(frozen=True)
class ApproximateFamily(CurveFamily):
    """(ε, δ)-privacy of one row. The parameter is ε.

    Attributes:
        delta: δ.
        k: rows that a coin changes; group privacy makes of (ε, δ) the line (kε, δ(1 + e^ε + … + e^((k−1)ε))).
    """

    largest: ClassVar[float] = 700.0  # e^ε overflows above it
    delta: float
    k: int = 1

    def lines(self, parameter: float) -> Tangents:
        """See `CurveFamily`."""
        apart = min(self.largest, self.k * parameter)
        times = float(self.k) if parameter == 0 else math.expm1(apart) / math.expm1(apart / self.k)
        return Tangents(np.array([apart]), np.array([self.delta * (times if self.k > 1 else 1.0)]))

    def epsilon(self, parameter: float) -> float:
        """See `CurveFamily`."""
        return parameter

    def notes(self) -> tuple[str, ...]:
        """See `CurveFamily`."""
        return ()


@dataclasses.dataclass(frozen=True)
class GaussianFamily(CurveFamily):
    """μ-GDP of one row. The parameter is μ.

    Attributes:
        delta: δ of `epsilon`.
        k: rows that a coin changes; their release is kμ-GDP.
    """

    largest: ClassVar[float] = 30.0
    delta: float
    k: int = 1

    def lines(self, parameter: float) -> Tangents:
        """See `CurveFamily`."""
        apart = self.k * parameter
        epsilons = log_ratios(apart, _GAUSSIAN_LINES)
        return Tangents(epsilons, np.exp(gaussian_pair.log_profile(epsilons, apart)))

    def epsilon(self, parameter: float) -> float:
        """See `CurveFamily`."""
        return float(gaussian_pair_epsilon(parameter, delta=self.delta))

    def notes(self) -> tuple[str, ...]:
        """See `CurveFamily`."""
        return ("the mechanism is μ-GDP for some μ (full-batch DP-SGD is, subsampled is not)",)


@dataclasses.dataclass(frozen=True)
class ScaledNoise(CurveFamily):
    """A mechanism with its noise multiplier divided by the parameter; 1 is the mechanism itself.

    Attributes:
        mechanism: the claimed one.
        adjacency: what a coin changes.
        delta: δ of `epsilon`.
        epsilons: where lines touch the curve. Any choice is valid; it matters for power alone.
    """

    largest: ClassVar[float] = 1024.0
    precision: ClassVar[float] = 5e-3
    mechanism: Mechanism
    adjacency: Adjacency
    delta: float
    epsilons: np.ndarray

    def lines(self, parameter: float) -> Tangents:
        """See `CurveFamily`."""
        curve = self._scaled(parameter).curve(self.adjacency)
        precision = Precision() if self.mechanism.steps_loss(self.adjacency) is not None else Precision(bits=13)
        directions = ("remove",) if self.mechanism.is_symmetric(self.adjacency) else ("remove", "add")
        deltas = [
            [math.exp(curve.log_delta(float(e), direction, precision=precision)[1]) for e in self.epsilons]
            for direction in directions
        ]
        return Tangents(self.epsilons, np.mean(deltas, axis=0))

    def epsilon(self, parameter: float) -> float:
        """See `CurveFamily`."""
        spent = accounting.epsilon(self._scaled(parameter), delta=self.delta, adjacency=self.adjacency)
        return float(spent.value if spent.interval is None else spent.interval[0])

    def noise_multiplier(self, parameter: float) -> float:
        """σ at this parameter."""
        return float(np.max(self._noise())) / parameter

    def notes(self) -> tuple[str, ...]:
        """See `CurveFamily`."""
        return (f"the mechanism is {self.mechanism!r} with some noise multiplier",)

    def _noise(self) -> np.ndarray:
        return np.asarray(vars(self.mechanism)["noise_multiplier"], dtype=np.float64)

    def _scaled(self, parameter: float) -> Mechanism:
        sigma = self._noise() / parameter
        return self.mechanism.with_noise(float(sigma) if sigma.ndim == 0 else sigma)  # type: ignore[arg-type]


def log_ratios(separation: float, count: int = _MECHANISM_LINES) -> np.ndarray:
    """Log likelihood ratios that decide between Gaussians this far apart."""
    return np.linspace(0.0, 0.5 * separation * separation + _FAR * separation, count)


def claimed_lines(family: Any, k: int) -> Tangents | None:
    """Lines above the curve of a bare claim about one row, for k rows; None for anything else."""
    if isinstance(family, GDP):
        return GaussianFamily(0.0, k).lines(family.mu)
    return ApproximateFamily(family.delta, k).lines(family.epsilon) if isinstance(family, ApproximateDP) else None
