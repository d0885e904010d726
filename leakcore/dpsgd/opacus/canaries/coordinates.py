"""Coordinates of a model's parameters, taken together as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


class Coordinates:
    """Some coordinates of parameters.

    Args:
        parameters: whose coordinates count one after the other.
        chosen: (n,) their numbers, distinct.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], chosen: np.ndarray) -> None:
        ends = np.cumsum([p.numel() for p in parameters])
        self.owner = np.searchsorted(ends, chosen, side="right")
        self.offset = chosen - (ends - [p.numel() for p in parameters])[self.owner]
        self._parts = [
            (slots := np.flatnonzero(self.owner == i), torch.from_numpy(self.offset[slots]))
            for i in range(len(parameters))
        ]

    def read(self, tensors: Sequence[torch.Tensor]) -> np.ndarray:
        """(n,) float64, the values there of tensors shaped as the parameters."""
        out = np.empty(len(self.owner))
        for tensor, (slots, offsets) in zip(tensors, self._parts, strict=True):
            if len(slots):
                out[slots] = tensor.detach().reshape(-1)[offsets.to(tensor.device)].double().cpu().numpy()
        return out
