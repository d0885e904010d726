"""The clipped sums of a block of runs by the native loops, which the CPU uses if they know the activation.

They read each run's batch in place, run by run, with no copy, no padding and no per-step passes over buffers. The
batched products of `forward_backward` do the same on other devices, and for activations that the loops do not know.
"""

from __future__ import annotations

import numpy as np
import torch

from leakcore.dpsgd.ensemble.arguments import Samples
from leakcore.dpsgd.ensemble.block.forward_backward import RowGroup
from leakcore.kernels import ACTIVATIONS, MAX_LAYERS, EnsembleRows, EnsembleSums, Taken


def known(layers: tuple[int, ...], activation: str) -> bool:
    """Whether the native loops know the activation and the number of layers."""
    return activation in ACTIVATIONS and len(layers) - 1 <= MAX_LAYERS


def shared_rows(common: Samples) -> EnsembleRows:
    """The common rows, padded once for all threads."""
    return EnsembleRows.of(common.features, common.labels)


class NativeSums:
    """One thread's sums over the rows that all runs share and over each run's own."""

    def __init__(
        self,
        slots: int,
        layers: tuple[int, ...],
        activation: str,
        dtype: str,
        common: EnsembleRows,
        *,
        clip_to: float,
        slack: float,
    ) -> None:
        self._sums = EnsembleSums(slots, layers, activation, dtype, max_grad_norm=clip_to, slack=slack)
        self._common = common
        self._extra: EnsembleRows | None = None

    @property
    def num_common(self) -> int:
        return self._common.count

    def begin(self, extra: RowGroup | None) -> None:
        """Begin a new block of runs, with these rows of their own."""
        if extra is None:
            self._extra = None
            return
        classes = extra.targets[:, 0] if extra.targets.shape[1] == 1 else extra.targets.argmax(1)
        self._extra = EnsembleRows.of(extra.inputs[..., :-1].numpy(), classes.numpy())

    def add(
        self,
        weights: list[torch.Tensor],
        taken: np.ndarray | None,
        known: list[torch.Tensor],
        private: list[torch.Tensor],
    ) -> None:
        """known = Σ over the common rows taken, private = Σ over the extra rows taken; taken (slots, rows) bool."""
        for sums, rows in ((known, self._common.count), (private, 0 if self._extra is None else self._extra.count)):
            if rows == 0:
                for matrix in sums:
                    matrix.zero_()
        common, extra = (None, None) if taken is None else (taken[:, : self.num_common], taken[:, self.num_common :])
        self._sums.add(
            _addresses(weights),
            self._common,
            self._extra,
            _addresses(known),
            _addresses(private),
            common_taken=None if common is None else Taken.of(common),
            extra_taken=None if extra is None or self._extra is None else Taken.of(extra),
        )


def _addresses(matrices: list[torch.Tensor]) -> list[int]:
    return [matrix.data_ptr() for matrix in matrices]
