"""The flat parameter vector of an MLP (torch's order: W1, b1, W2, b2, ...) and the matrices the products use."""

from __future__ import annotations

import numpy as np
import torch


class ParameterLayout:
    """Moves between (slots, parameters) and one (slots, out, in + 1) matrix per layer, bias in the last column."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self._shapes = list(zip(layers[1:], layers[:-1], strict=True))
        self.size = sum((fan_in + 1) * fan_out for fan_out, fan_in in self._shapes)

    def empty(self, slots: int, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
        return [
            torch.zeros((slots, fan_out, fan_in + 1), dtype=dtype, device=device) for fan_out, fan_in in self._shapes
        ]

    def bounds(self) -> np.ndarray:
        """(parameters,): 1/√fan_in of each parameter's layer, the half-width of torch.nn.Linear's initial values."""
        parts = [np.full((fan_in + 1) * fan_out, fan_in**-0.5) for fan_out, fan_in in self._shapes]
        return np.concatenate(parts)

    def glorot(self) -> np.ndarray:
        """(parameters,): √(2/(fan_in + fan_out)) for weights, 0 for biases (Glorot and Bengio 2010)."""
        parts = []
        for fan_out, fan_in in self._shapes:
            parts += [np.full(fan_in * fan_out, (2 / (fan_in + fan_out)) ** 0.5), np.zeros(fan_out)]
        return np.concatenate(parts)

    def write(self, flat: torch.Tensor, into: list[torch.Tensor]) -> None:
        """into = flat."""
        for (weight, bias), matrix in zip(self._views(flat), into, strict=True):
            matrix[:, :, :-1] = weight
            matrix[:, :, -1] = bias

    def add(self, flat: torch.Tensor, scale: float, into: list[torch.Tensor], *, bias_scale: float) -> None:
        """into += scale·flat, biases: bias_scale·flat."""
        for (weight, bias), matrix in zip(self._views(flat), into, strict=True):
            matrix[:, :, :-1].add_(weight, alpha=scale)
            matrix[:, :, -1].add_(bias, alpha=bias_scale)

    def read(self, matrices: list[torch.Tensor]) -> torch.Tensor:
        """(slots, parameters) in the flat order."""
        parts = [part for m in matrices for part in (m[:, :, :-1].flatten(1), m[:, :, -1])]
        return torch.cat(parts, 1)

    def _views(self, flat: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        out, start = [], 0
        for fan_out, fan_in in self._shapes:
            middle = start + fan_out * fan_in
            end = middle + fan_out
            out.append((flat[:, start:middle].view(-1, fan_out, fan_in), flat[:, middle:end]))
            start = end
        return out
