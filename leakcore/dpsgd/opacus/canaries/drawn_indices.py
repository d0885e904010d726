"""Which rows the batches of a planted data set hold, and which of these batches a clipping is of."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from leakcore.dpsgd.opacus.recorder.aside import is_aside
from leakcore.dpsgd.opacus.recorder.forward_passes import Arguments, rows_of
from leakcore.dpsgd.opacus.recorder.model_calls import ModelCalls
from leakcore.dpsgd.opacus.recorder.sampling.deliveries import Deliveries, Source
from leakcore.dpsgd.opacus.recorder.sampling.drawn_batches import Drawing, Part
from leakcore.dpsgd.trace.trace import Sampling

_PLANTED = Source(Sampling(), 0)


class DrawnIndices:
    """The batches of a planted data set on which the model's forward passes train, until `stop`.

    Args:
        planted: the data set.
        parameters: of the optimizer: the model is the first module called that holds all of them.
    """

    def __init__(self, planted: Any, parameters: Sequence[torch.Tensor]) -> None:
        self._planted, self._own = planted, {id(p) for p in parameters}
        self._deliveries = Deliveries()
        self._passes: collections.deque[Part | None] = collections.deque()
        self._calls = ModelCalls(self._returned)
        self._is_watched = False
        self._handle = torch_module.register_module_forward_pre_hook(self._before)
        self._drawing = Drawing(self._came)

    def stop(self) -> None:
        """Watch no longer."""
        self._handle.remove()
        self._calls.stop()
        self._drawing.remove()

    def of_batch(self, rows: int) -> Part | None:
        """The batch of the first forward pass with this number of rows; None if no batch is known to be that pass's.

        Passes before it did not come to be clipped.
        """
        while self._passes:
            part = self._passes.popleft()
            if part is None or len(part.indices or ()) == rows:
                return part
        return None

    def clear(self) -> None:
        """A step ended: forward passes before it belong to no later one."""
        self._passes.clear()

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._is_watched or not torch.is_grad_enabled() or is_aside():
            return
        if self._own <= {id(p) for p in module.parameters()}:
            self._is_watched = True
            self._calls.watch(module, inputs)

    def _returned(self, module: nn.Module, arguments: Arguments, output: Any, drew: bool) -> None:
        """The model returned."""
        if module.training and torch.is_grad_enabled() and output is not None:
            use = self._deliveries.use_of(rows_of(arguments))
            whole = use is not None and (use.start, use.stop) == (0, None)
            self._passes.append(use.part if use is not None and whole else None)

    def _came(self, iterator: Any, batch: Any, part: Part) -> None:
        if iterator._dataset is self._planted and part.indices is not None:
            self._deliveries.delivered(_PLANTED, part, batch)
