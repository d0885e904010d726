"""The frozen network in front of an attacked model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakcore._base import validate
from leakcore.gradients import lock_of

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenEmbedding:
    """The frozen network on whose features a run was trained: `gradient` then searches for its input.

    Args:
        module: from points (rows, *shape) to (rows, inputs); used in evaluation mode, on a copy.
        shape: of one point, such as (3, 32, 32).

    Raises:
        ValueError: for a shape that is not allowed.
        TypeError: for anything but a torch module.

    Example:
        >>> import torch
        >>> from leakcore import attacks
        >>> attacks.FrozenEmbedding(torch.nn.Flatten(), (1, 4, 4)).shape
        (1, 4, 4)
    """

    module: torch.nn.Module
    shape: Sequence[int]

    def __post_init__(self) -> None:
        import torch

        validate.instance(torch.nn.Module, module=self.module)
        object.__setattr__(self, "shape", validate.sizes(shape=self.shape))

    def frozen(self, inputs: int, dtype: str) -> torch.nn.Module:
        """A copy, so that no gradient of the search reaches the caller's parameters."""
        import torch

        with lock_of(self.module):
            copied = copy.deepcopy(self.module)
        module = copied.eval().requires_grad_(False).to(getattr(torch, dtype))
        try:
            out = tuple(module(torch.zeros((1, *self.shape), dtype=getattr(torch, dtype))).shape)
        except RuntimeError as why:
            raise ValueError(f"`embedding` must take inputs of shape {self.shape}: {why}") from why
        if out != (1, inputs):
            raise ValueError(f"`embedding` must map one point of shape {self.shape} to shape (1, {inputs}), got {out}")
        return module
