"""The Hermite orders of an activation, and the network's weights in blocks, from memory or drawn again from a seed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore.numerics import ACTIVATIONS, Activation

MAX_ORDER = 4
VANISHING = 1e-8
"""An order of a smaller share of E[σ(z)²], c_p²/(p! E[σ²]), counts as absent: the quadrature is good to 1e-10."""


@dataclasses.dataclass(frozen=True, eq=False)
class Orders:
    """The Hermite orders of an activation σ, and those that the tensor method uses.

    Attributes:
        name: name of the activation.
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
    over |z| ≤ 14 integrates kinks at multiples of ¼ (ReLU, hardtanh, ReLU6, hardswish) without loss.

    Args:
        activation: a name, an `Activation`, or an elementwise callable on torch tensors.
        max_order: the largest p, in [0, 12].

    Returns:
        (max_order + 1,) float64, accurate to about 1e-12 for smooth σ and for those kinks.

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

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


_BLOCK = 2**21
"""Numbers of one block's largest array: 16 MiB."""


@dataclasses.dataclass(frozen=True)
class GaussianWeights:
    """Weights w_j ~ N(0, I_d), drawn again from the seed wherever they are read, so that they take no memory.

    Row j depends on (seed, j) alone; the generator is that of `kernels.standard_normal`.

    Args:
        num_neurons: m ≥ 1.
        num_inputs: d ≥ 1.
        seed: seed of the weights.

    Example:
        >>> from leakcore.attacks import tensor
        >>> tensor.GaussianWeights(num_neurons=1_000_000, num_inputs=20, seed=0).rows(5, 8).shape
        (3, 20)
    """

    num_neurons: int
    num_inputs: int
    seed: int

    def __post_init__(self) -> None:
        validate.integer(1, num_neurons=self.num_neurons)
        validate.integer(1, num_inputs=self.num_inputs)
        validate.seed(seed=self.seed)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Weights of the neurons start … stop − 1, (stop − start, d) float64."""
        draws = kernels.standard_normal(
            (stop - start, self.num_inputs), seed=self.seed, purpose=kernels.Stream.TENSOR_WEIGHTS, first_row=start
        )
        return np.asarray(draws)


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """m, d and how to read rows."""

    num_neurons: int
    num_inputs: int
    rows: Callable[[int, int], np.ndarray]

    @classmethod
    def read(cls, weights: Any) -> Weights:
        """Read `GaussianWeights` or an (m, d) array, NumPy or CPU torch."""
        if isinstance(weights, GaussianWeights):
            return cls(weights.num_neurons, weights.num_inputs, weights.rows)
        array, _ = validate.host_array(weights=weights)
        if array.ndim != 2 or 0 in array.shape:
            raise ValueError(
                f"`weights` must have shape (m, d), both at least 1, or GaussianWeights, got {array.shape}"
            )
        return cls(array.shape[0], array.shape[1], lambda start, stop: array[start:stop])

    def blocks(self, width: int, limit: int | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """(rows, their weights), as many rows at a time as fit a block with `width` numbers each; at most `limit`."""
        size = max(64, _BLOCK // max(width, self.num_inputs))
        end = self.num_neurons if limit is None else min(limit, self.num_neurons)
        for start in range(0, end, size):
            part = slice(start, min(start + size, end))
            yield part, self.rows(part.start, part.stop)


def output_gradient(inputs: Any, residuals: Any, weights: Any, activation: Any) -> np.ndarray:
    """Gradient g_j = Σ_i r_i σ(w_jᵀx_i) of the output weights of a two-layer network (Lecture 13, eq. 4.4; ∝ dL/da_j).

    Args:
        inputs: (B, d), B ≥ 1.
        residuals: (B,), the r_i.
        weights: `GaussianWeights` or an (m, d) array. They are read in blocks, so memory grows with m only for the
            result.
        activation: a name, an `Activation`, or an elementwise callable on torch tensors.

    Returns:
        (m,) float64.

    Guarantees:
        Deterministic for a machine and its number of BLAS threads. ValueError or TypeError names an argument that does
        not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import tensor
        >>> tensor.output_gradient(np.eye(2), [1.0, -1.0], np.array([[3.0, 1.0], [-2.0, 2.0]]), "relu").tolist()
        [2.0, -2.0]
    """

    x, _ = validate.host_array(inputs=inputs)
    r, _ = validate.host_array(residuals=residuals)
    source = Weights.read(weights)
    if x.ndim != 2 or len(x) == 0 or x.shape[1] != source.num_inputs:
        raise ValueError(f"`inputs` must have shape (B, {source.num_inputs}), B at least 1, got {x.shape}")
    if r.shape != (len(x),):
        raise ValueError(f"`residuals` must have shape ({len(x)},), one per input, got {r.shape}")
    _, sigma = read_activation(activation)
    out = np.empty(source.num_neurons)
    for part, w in source.blocks(len(x)):
        out[part] = sigma(w @ x.T) @ r
    return out
