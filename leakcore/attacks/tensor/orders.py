"""Which Hermite orders an activation has, and which of them the tensor method uses."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore.numerics import ACTIVATIONS, Activation

MAX_ORDER = 4
VANISHING = 1e-8
"""An order whose share of E[σ(z)²], c_p²/(p! E[σ²]), is below this counts as absent: the quadrature is good to
1e-10.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Orders:
    """The Hermite orders of an activation σ, and those that the tensor method uses.

    Attributes:
        name: of the activation.
        function: σ on a float64 array, elementwise.
        coefficients: c_p = E[σ^{(p)}(z)] = E[σ(z) He_p(z)], z ~ N(0, 1), p = 0 … 4.
        shares: c_p²/(p! E[σ(z)²]), each order's part of the signal.
        used: (2, 3), (2, 4) or (3,): the order that gives the span and the order that is decomposed; 3 alone serves for
            both.
    """

    name: str
    function: Callable[[np.ndarray], np.ndarray]
    coefficients: tuple[float, ...]
    shares: tuple[float, ...]
    used: tuple[int, ...]


def read_activation(activation: Any) -> tuple[str, Callable[[np.ndarray], np.ndarray]]:
    """A name, an `Activation`, or any elementwise callable on torch tensors (a module, a function)."""
    if isinstance(activation, str):
        activation = ACTIVATIONS[validate.one_of(*ACTIVATIONS, activation=activation)]
    if isinstance(activation, Activation):
        if activation.function is None:
            raise ValueError(f"`activation` must have a function to evaluate, and {activation.name!r} has none")
        return activation.name, activation
    if not callable(activation):
        raise TypeError(f"`activation` must be a name, an Activation or callable on torch tensors, got {activation!r}")
    import torch

    name = getattr(activation, "__name__", type(activation).__name__)
    known = {"GELU": "gelu", "SiLU": "silu", "LeakyReLU": "leaky_relu"}.get(name, name.lower())
    plain = not isinstance(activation, torch.nn.Module) or not activation.extra_repr()
    if isinstance(activation, torch.nn.Module) and plain and known in ACTIVATIONS:
        return known, ACTIVATIONS[known]

    def evaluate(u: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            values = activation(torch.from_numpy(np.ascontiguousarray(u, dtype=np.float64)))
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != u.shape:
            raise ValueError(f"`activation` must return a tensor of its input's shape, which {name!r} does not")
        return np.asarray(values.double().numpy())

    return name, evaluate


def hermite_coefficients(activation: Any, *, max_order: int = MAX_ORDER) -> np.ndarray:
    """Hermite coefficients c_p = E[σ^{(p)}(z)] = E[σ(z) He_p(z)], z ~ N(0, 1) (Wang, Lee and Lei 2023, Section 4).

    They equal E[σ^{(p)}] also where σ has no p-th derivative (Stein). Gauss–Legendre quadrature on panels of width ¼
    over
    |z| ≤ 14 integrates kinks at multiples of ¼ (ReLU, hardtanh, ReLU6, hardswish) without loss.

    Args:
        activation: a name, an `Activation`, or an elementwise callable on torch tensors.
        max_order: the largest p, in [0, 12].

    Returns:
        (max_order + 1,) float64, accurate to about 1e-12 for smooth σ and for those kinks.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic.

    Example:
        >>> from leakcore.attacks import tensor
        >>> [f"{abs(c):.3f}" for c in tensor.hermite_coefficients("relu")]  # order 3 vanishes
        ['0.399', '0.500', '0.399', '0.000', '0.399']
    """
    highest = validate.integer(0, 12, max_order=max_order)
    _, function = read_activation(activation)
    return _coefficients(function, highest)[0]


@functools.cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(12)
    middles = np.arange(-14.0, 14.0, 0.25) + 0.125
    z = (middles[:, None] + 0.125 * nodes).ravel()
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return z, np.tile(0.125 * weights, len(middles)) * density


def _coefficients(function: Callable[[np.ndarray], np.ndarray], highest: int) -> tuple[np.ndarray, float]:
    z, weights = _quadrature()
    values = np.asarray(function(z), dtype=np.float64)
    if values.shape != z.shape or not np.isfinite(values).all():
        raise ValueError("`activation` must give finite values for |u| ≤ 14, elementwise")
    polynomial, before = np.ones_like(z), np.zeros_like(z)
    out = []
    for p in range(highest + 1):
        out.append(float((weights * values) @ polynomial))
        polynomial, before = z * polynomial - p * before, polynomial
    return np.array(out), float(weights @ values**2)


def read_orders(orders: Any) -> tuple[int, ...]:
    """Orders that a caller forces; ValueError or TypeError that names `orders`."""
    used = tuple(
        validate.integer(1, MAX_ORDER, **{f"orders[{i}]": p}) for i, p in enumerate(validate.sizes(orders=orders))
    )
    if used not in ((2, 3), (2, 4), (3,)):
        raise ValueError(f"`orders` must be (2, 3), (2, 4) or (3,), got {used}")
    return used


def choose(activation: Any, *, orders: Sequence[int] | None = None) -> Orders:
    """The Hermite orders that the tensor method uses for an activation.

    Of orders 3 and 4 it takes the one with the larger share, and order 2 for the span where that does not vanish. ReLU,
    leaky ReLU, softplus, GELU and SiLU have orders 2 and 4; order 3 vanishes for every σ with σ(u) − σ(−u) linear.
    Tanh, sigmoid and erf have order 3 and neither 2 nor 4. ELU and SELU have 2 and 3.

    Args:
        activation: a name, an `Activation`, or an elementwise callable on torch tensors.
        orders: None, or one of (2, 3), (2, 4), (3,) to force it.

    Returns:
        `Orders`, with every order's coefficient and share.

    Raises:
        ValueError: where a forced order vanishes (naming the orders to use), and where the activation has no usable
            order above 2. The gradient then holds only moments of first and second order; of a linear network, only Σ_i
            r_i x_i (Lecture 13, Section 4.4).
        TypeError: for an activation of another type.

    Guarantees:
        Deterministic. An order counts as absent where its share is below 1e-8.

    Example:
        >>> from leakcore.attacks import tensor
        >>> tensor.choose("relu").used, tensor.choose("tanh").used, tensor.choose("elu").used
        ((2, 4), (3,), (2, 3))
    """
    name, function = read_activation(activation)
    coefficients, energy = _coefficients(function, MAX_ORDER)
    factorials = np.array([math.factorial(p) for p in range(MAX_ORDER + 1)])
    shares = coefficients**2 / factorials / energy if energy > 0 else np.zeros(MAX_ORDER + 1)
    there = shares > VANISHING
    best: tuple[int, ...] | None = None
    if there[2] and (there[3] or there[4]):
        best = (2, 3) if shares[3] >= shares[4] else (2, 4)
    elif there[3]:
        best = (3,)
    if best is None:
        only = "Σ r_i x_i" if not there[2] else "Σ r_i x_i and Σ r_i x_i x_iᵀ"
        raise ValueError(
            f"`activation` must have an order 3, or 2 and 4, in its Hermite series, got {name!r}: its gradient "
            f"determines only {only}, no single input"
        )
    used = best
    if orders is not None:
        used = read_orders(orders)
        gone = [p for p in used if not there[p]]
        if gone:
            raise ValueError(
                f"`orders` must be ones that {name} has, such as {best}, got {used}: the coefficient of order "
                f"{gone[0]} is {coefficients[gone[0]]:.1e}"
            )
    return Orders(name, function, tuple(coefficients.tolist()), tuple(shares.tolist()), used)
