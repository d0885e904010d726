"""The batch whose parts a `FusedDPOptimizer` sums, from its first part to its release."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leakcore.dpsgd.opacus.trace.sampling import Sampling
from leakcore.dpsgd.rows.hooks import BatchSource, Deliveries, Draw, LoaderHook, Part, rows_of
from leakcore.dpsgd.rows.preserve_state import is_paused

_log = logging.getLogger(__name__)
_FROM = BatchSource(Sampling(), 0)


class LogicalBatch:
    """Follows the parts that Opacus's `BatchMemoryManager` hands out for one optimizer, from draw to release.

    Opacus gives each part a flag in a queue, and takes one in each step. A part without a step (an exception, a
    `break`) shifts them, so that rows of several draws come into one sum. Here a part keeps its own flag, and the part
    of a step is the one that its forward pass had. A batch with a part that was refused, left out or used twice is
    void: every further step on its parts is refused, and the next batch begins with an empty sum.

    Args:
        is_mine: whether an optimizer is the one that sums. It must not keep it alive.

    Attributes:
        is_fresh: whether the present step begins a sum.
    """

    def __init__(self, is_mine: Callable[[Any], bool]) -> None:
        self._is_mine = is_mine
        self._deliveries = Deliveries()
        self._drawing = LoaderHook(self._delivered)
        self._of_call: Part | None = None
        self._draw: Draw | None = None
        self._summed = 0
        self._void = ""
        self._elsewhere = False
        self.is_fresh = True

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called."""
        if not module.training or not torch.is_grad_enabled() or is_paused() or not self._deliveries.any:
            return
        use = self._deliveries.use_of(rows_of((args, kwargs)))
        self._of_call = self._deliveries.newest() if use is None else use.part

    def begin(self, is_skipped: Callable[[], bool]) -> bool:
        """A step begins; `is_skipped` takes a flag from Opacus's queue. Returns whether the step only sums."""
        part, self._of_call = self._of_call or self._deliveries.newest(), None
        elsewhere, self._elsewhere = self._elsewhere, False
        draw = None if part is None else part.draw
        if part is None and self._draw is not None and not elsewhere:
            draw, skip = self._draw, True
            self._void = self._void or "another step was made on the same part of it"
        else:
            skip = is_skipped() if part is None else not part.is_last
        self.is_fresh = self._summed == 0 or draw is not self._draw
        if draw is not self._draw:
            if self._summed:
                _log.warning(
                    "FusedDPOptimizer: a batch was broken off after %d of its parts. Their sum is dropped, so that it "
                    "is not released together with another batch.",
                    self._summed,
                )
            self._draw, self._summed, self._void = draw, 0, ""
        if part is not None and part.number != self._summed and not self._void:
            which = "was left out" if part.number > self._summed else "was used twice"
            self._void = f"a part of it {which}"
        return skip

    def require_whole(self) -> None:
        """ValueError if nothing of the batch may be released."""
        if self._void:
            raise ValueError(
                f"this batch is divided into parts, and {self._void}: nothing of it is released, its other parts are "
                "refused, and the next batch begins with an empty sum"
            )

    def end(self, *, only_summed: bool) -> None:
        """The step ended."""
        self._summed += 1
        if not only_summed:
            self._draw, self._summed, self._void = None, 0, ""

    def refuse(self, *, only_summed: bool) -> None:
        """The step was refused: the batch is void up to its last part."""
        self._void = self._void or "one was refused"
        self.end(only_summed=only_summed)

    def _delivered(self, iterator: Any, batch: Any, part: Part) -> None:
        if self._is_mine(part.draw.optimizer):
            self._deliveries.delivered(_FROM, part, batch)
        else:
            self._elsewhere = True
