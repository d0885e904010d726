"""What a reconstructor's network sees of a model's parameters, and the network."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from leakcore import kernels, models

if TYPE_CHECKING:
    import torch

_PRINCIPAL_ROWS = 1024
"""Rows that principal components are computed from: more change them little, and a square matrix of all is large."""
_MIXTURES = 4
"""How many mixtures of the first layer's rows the network makes."""


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """From flat parameters to the network's input.

    Without `basis` the input is every parameter less its mean. With it, it is their principal components; with
    `columns`, behind those, the first layer's rows (units, inputs) on theirs, flattened.
    """

    mean: np.ndarray
    basis: np.ndarray | None
    columns: np.ndarray | None
    units: int

    @classmethod
    def of(cls, values: np.ndarray, components: int, first_layer: tuple[int, int] | None) -> View:
        """The view that these models' parameters (models, parameters) suggest."""
        mean = values.mean(axis=0, dtype=np.float64)
        if not components:
            return cls(mean, None, None, 0)
        centred = (values[:_PRINCIPAL_ROWS] - mean).astype(np.float32)
        basis = principal(centred, components)
        if first_layer is None:
            return cls(mean, basis, None, 0)
        units, inputs = first_layer
        rows = centred[:, : units * inputs].reshape(-1, inputs)
        return cls(mean, basis, principal(rows, components), units)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """(models, network inputs) float64, not yet scaled."""
        centred = values - self.mean
        if self.basis is None:
            return np.asarray(centred)
        parts = [centred @ self.basis.T]
        if self.columns is not None:
            rows = centred[:, : self.units * self.columns.shape[1]].reshape(len(values), self.units, -1)
            parts.append((rows @ self.columns.T).reshape(len(values), -1))
        return np.concatenate(parts, axis=1)

    def scale(self, inputs: np.ndarray, noise: float) -> np.ndarray:
        """By which the input is divided: its standard deviation with the noise; one number for all of the rows."""
        total = np.sqrt(inputs.var(axis=0) + noise**2)
        if self.columns is not None and self.basis is not None:
            rows = slice(len(self.basis), None)
            total[rows] = np.sqrt(np.mean(np.square(inputs[:, rows])) + noise**2)
        total[total == 0] = 1
        return np.asarray(total)


def principal(rows: np.ndarray, components: int) -> np.ndarray:
    """(components or fewer, columns) orthonormal rows: the leading right singular vectors of rows (n, columns)."""
    count = min(components, *rows.shape)
    wide = rows.shape[0] < rows.shape[1]
    gram = (rows @ rows.T if wide else rows.T @ rows).astype(np.float64)
    _, vectors = linalg.eigh(gram, subset_by_index=(len(gram) - count, len(gram) - 1))
    leading = vectors[:, ::-1]
    # Orthonormal again: the product with rows loses it where singular values are small.
    basis = np.linalg.qr(rows.T.astype(np.float64) @ leading)[0] if wide else leading
    return np.ascontiguousarray(basis.T)


def num_weights(layers: tuple[int, ...], units: int, columns: int) -> int:
    """Of `network`."""
    if not units:
        return models.num_parameters(layers)
    mixing, reading, out = _sizes(layers, units, columns)
    return sum(map(models.num_parameters, (mixing, reading, (_MIXTURES * columns, columns), out)))


def network(layers: tuple[int, ...], units: int, columns: int) -> torch.nn.Module:
    """A perceptron of these layers, or, with units, one whose first layer mixes the attacked network's rows.

    The gradient of a first layer is an outer product: each of its rows is the training point times a number that
    depends on label and weights. A perceptron would have to learn to divide by that number for each feature; here a
    small network reads from the components by which numbers the rows are added, the same for all features.
    """
    import torch

    # Initial values are overwritten; drawing them must not move the caller's generator.
    with torch.random.fork_rng(devices=[]):
        if not units:
            return models.mlp(layers, "relu")
        return _mixing_network(layers, units, columns)


def _sizes(layers: tuple[int, ...], units: int, columns: int) -> tuple[tuple[int, ...], ...]:
    components, hidden = layers[0] - units * columns, layers[1:-1]
    return (
        (components, *hidden, _MIXTURES * units),
        (components + _MIXTURES * columns, *hidden, columns),
        (columns, layers[-1]),
    )


def _mixing_network(layers: tuple[int, ...], units: int, columns: int) -> torch.nn.Module:
    import torch

    mixing, reading, out = _sizes(layers, units, columns)

    class Mixing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixing = models.mlp(mixing, "relu")
            self.reading = models.mlp(reading, "relu")
            self.straight = torch.nn.Linear(_MIXTURES * columns, columns)
            self.out = torch.nn.Linear(out[0], out[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            components = x[:, : mixing[0]]
            rows = x[:, mixing[0] :].view(-1, units, columns)
            mixed = torch.bmm(self.mixing(components).view(-1, _MIXTURES, units), rows).flatten(1)
            read = self.straight(mixed) + self.reading(torch.cat([components, mixed], dim=1))
            point: torch.Tensor = self.out(read)
            return point

    return Mixing()


def initialise(module: torch.nn.Module, points: np.ndarray, seed: int, *, mixing: bool) -> None:
    """torch.nn.Linear's default distribution, from our own generator; a mixing network's last layer begins as the mean
    and the principal components of the points."""
    import torch

    linear = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    number = sum(p.numel() for layer in linear for p in layer.parameters())
    draws = kernels.uniform((1, number), seed=seed, purpose=kernels.Stream.RECONSTRUCTOR_INIT)[0]
    start = 0
    with torch.no_grad():
        for layer in linear:
            for parameter in (layer.weight, layer.bias):
                part = draws[start : start + parameter.numel()].reshape(parameter.shape)
                parameter.copy_(torch.from_numpy((2 * part - 1) * layer.in_features**-0.5))
                start += parameter.numel()
        if mixing:
            mean = points.mean(axis=0, dtype=np.float64)
            basis = principal((points - mean).astype(np.float32), linear[-1].in_features)
            linear[-1].weight[:, : len(basis)] = torch.from_numpy(basis.T.astype(np.float32))
            linear[-1].bias.copy_(torch.from_numpy(mean.astype(np.float32)))
