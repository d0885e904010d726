"""The network's weights as the tensor method reads them: in blocks, from memory or drawn again from a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate

_BLOCK = 2**21
"""Numbers of one block's largest array: 16 MiB."""


@dataclasses.dataclass(frozen=True)
class GaussianWeights:
    """Weights w_j ~ N(0, I_d), drawn again from the seed wherever they are read, so that they take no memory.

    Row j depends on (seed, j) alone; the generator is that of `kernels.standard_normal`.

    Args:
        num_neurons: m ≥ 1.
        num_inputs: d ≥ 1.
        seed: of the weights.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

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

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic for a machine and its number of BLAS threads.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import tensor
        >>> tensor.output_gradient(np.eye(2), [1.0, -1.0], np.array([[3.0, 1.0], [-2.0, 2.0]]), "relu").tolist()
        [2.0, -2.0]
    """
    from leakcore.attacks.tensor.orders import read_activation

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
