"""Activations by name: their values, and the constants that bound them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation function σ with the constants that bound it.

    Attributes:
        name: what errors and results call it.
        lipschitz: ℓ ≥ 0 with |σ(u) − σ(v)| ≤ ℓ|u − v|.
        at_zero: |σ(0)|.
        bound: S with |σ(u)| ≤ S; ∞ for an unbounded σ.
        function: σ of a float64 array, elementwise; None where only the constants matter.

    Raises:
        ValueError: for constants that are not allowed; the text names the argument.

    Example:
        >>> from leakcore.bounds import laplace
        >>> hard_tanh = laplace.Activation("hard_tanh", lipschitz=1.0, bound=1.0)
        >>> laplace.two_layer([[1.0, 0.0]], [1.0], activation=hard_tanh).residual_bound
        2.0
    """

    name: str
    lipschitz: float
    at_zero: float = 0.0
    bound: float = math.inf
    function: Callable[[np.ndarray], np.ndarray] | None = None

    def __post_init__(self) -> None:
        validate.non_negative(lipschitz=self.lipschitz)
        validate.non_negative(at_zero=self.at_zero)
        if not validate.real(bound=self.bound) >= self.at_zero:
            raise ValueError(f"`bound` must be at least at_zero={self.at_zero!r}, got {self.bound!r}")

    def __call__(self, u: Any) -> np.ndarray:
        if self.function is None:
            raise ValueError(f"`activation` must have a function to evaluate, but {self.name!r} has none")
        return np.asarray(self.function(np.asarray(u, dtype=np.float64)))


_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


_ALL = (
    Activation("identity", 1.0, function=lambda u: u),
    Activation("relu", 1.0, function=lambda u: np.maximum(u, 0.0)),
    Activation("leaky_relu", 1.0, function=lambda u: np.where(u > 0, u, 0.01 * u)),
    Activation("elu", 1.0, function=lambda u: np.where(u > 0, u, np.expm1(np.minimum(u, 0.0)))),
    Activation(
        "selu",
        _SELU_SCALE * _SELU_ALPHA,
        function=lambda u: _SELU_SCALE * np.where(u > 0, u, _SELU_ALPHA * np.expm1(np.minimum(u, 0.0))),
    ),
    Activation("softplus", 1.0, math.log(2.0), function=lambda u: np.logaddexp(0.0, u)),
    # The largest slopes of GELU (at √2) and SiLU (near 2.4), rounded up.
    Activation("gelu", 1.12891, function=lambda u: u * special.ndtr(u)),
    Activation("silu", 1.09984, function=lambda u: u * special.expit(u)),
    Activation("tanh", 1.0, bound=1.0, function=np.tanh),
    Activation("sigmoid", 0.25, 0.5, 1.0, function=special.expit),
    Activation("erf", 2.0 / math.sqrt(math.pi), bound=1.0, function=special.erf),
)
ACTIVATIONS = {a.name: a for a in _ALL}


def activation(value: Activation | str) -> Activation:
    """An activation by name, as torch names it in lower case; or one's own `Activation`."""
    if isinstance(value, Activation):
        return value
    if not isinstance(value, str):
        raise TypeError(f"`activation` must be a name or an Activation, got {value!r}")
    return ACTIVATIONS[validate.one_of(*ACTIVATIONS, activation=value)]
