"""What a recording refuses, and what of it failed."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from opacus import optimizers
from torch import nn

from leakcore.dpsgd.fused.activation_hooks import find_hooks
from leakcore.dpsgd.fused.fused_optimizer import DistributedFusedDPOptimizer, FusedDPOptimizer, require_type
from leakcore.dpsgd.fused.row_gradients import Dense
from leakcore.dpsgd.rows.distributed import WrongRowsError, behind_wrappers
from leakcore.dpsgd.rows.row_check import Norms, RowCheck, RowsOfParameter
from leakcore.dpsgd.rows.unsupported_layers import (
    LayerCall,
    layers_in_evaluation,
    may_be_wrong,
    names_of,
    padding_wrong,
    require_real,
    samples_of,
    unequal_row_counts,
    unsupported_layers,
    wrong_rows,
)

_log = logging.getLogger(__name__)
_IN_A_ROW = 3
"""The recording ends after this many steps in a row that cannot be recorded."""


class Failures:
    """The failures of a recording, which end it and not the loop that is recorded. `last` is what failed last.

    `of_step`: the present step is left out; `is_over`: all further ones are; `has_ended`: the step that ended the
    recording is over, too, so that steps are only counted; `is_lost`: what was recorded before may be wrong, too.
    """

    def __init__(self) -> None:
        self.last = ""
        self.of_step = self.is_over = self.has_ended = self.is_lost = False
        self._in_a_row, self.step = 0, 1

    def add(self, error: Exception, *, warn: bool = True) -> None:
        """Leave out this step; after several in a row, leave out all further steps."""
        message = str(error) or type(error).__name__
        is_known, self.last = message in self.last, f"step {self.step}: {message}"
        self._in_a_row += not self.of_step
        self.is_lost = self.is_lost or isinstance(error, WrongRowsError)
        self.is_over = self.is_lost or self._in_a_row == _IN_A_ROW
        self.of_step = True
        if warn and (self.is_over or not is_known):
            what = "it and what comes after it are" if self.is_over else "it is"
            _log.warning("record: %s. The training continues, and %s not recorded", self.last, what)

    def end_step(self) -> bool:
        """The step ended. Returns whether it is left out."""
        failed, self.of_step, self.has_ended = self.of_step, False, self.is_over
        self.step += 1
        self._in_a_row = self._in_a_row if failed else 0
        return failed


class RecordedRows:
    """`before` every forward pass, `require` in every step, `stop` at the end."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._own = {id(p) for p in optimizer.params}
        self._model: nn.Module | None = None
        self._check: RowCheck | None = None
        self._wrong = ""
        self._calls: dict[int, LayerCall] = {}

    def before(self, module: nn.Module, inputs: tuple[Any, ...], model: nn.Module | None) -> None:
        """A module is called while gradients are recorded. `model` holds the optimizer's parameters, once known."""
        if self._model is None and model is not None:
            self._model = model
            if not isinstance(self._optimizer, FusedDPOptimizer):  # which checks its rows itself
                hooks = find_hooks(model) or model
                self._check = RowCheck(behind_wrappers(model), self._optimizer.params, hooks)
                self._check.start(module, inputs)
        if any(id(p) in self._own for p in module._parameters.values()):
            first = next((x for x in inputs if isinstance(x, torch.Tensor)), None)
            self._calls[id(module)] = LayerCall(0 if first is None else first.ndim, module.training)
        if module.training and not self._wrong and may_be_wrong(module):
            self._wrong = self._what_is_wrong(module, inputs)

    def after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """A module returned. An embedding's padding matters if the loss goes back to where it occurs."""
        if self._wrong or not inputs or not isinstance(output, torch.Tensor) or not output.requires_grad:
            return
        if not padding_wrong(module) or id(module.weight) not in self._own:
            return
        padded = inputs[0] == module.padding_idx
        if not bool(padded.any()):
            return

        def arrived(gradient: torch.Tensor) -> None:
            if bool(gradient[padded].any()):
                self._wrong = (
                    f"model: {module} gets gradients at positions with its padding_idx, for which Opacus's per-sample "
                    "gradients are wrong: it clips and releases them, and autograd leaves them out. Mask these "
                    "positions, or use FusedDPOptimizer.replace(optimizer), which leaves them out"
                )

        output.register_hook(arrived)  # type: ignore[no-untyped-call]

    def require(self) -> None:
        """ValueError, with the layer's name, if the step did not clip the rows of the batch."""
        if self._wrong:
            raise ValueError(self._wrong)
        if self._check is None or (rows := self._last_rows()) is None:
            return
        ghost = isinstance(rows[0], Norms)
        self._check.step(self._optimizer.params, rows, self._optimizer.loss_reduction == "mean", ghost)

    def norm(self, row: int) -> float | None:
        """‖g‖ of a row of the step's last batch; None where Opacus does not have it."""
        rows = None if self._check is None else self._last_rows()
        if rows is None or any(r.rows <= row for r in rows):
            return None
        return math.sqrt(sum(float(r.squared_norms()[row]) for r in rows))

    def _last_rows(self) -> list[RowsOfParameter] | None:
        """The rows of the step's last batch, of each parameter."""
        parameters = self._optimizer.params
        ghost = all(isinstance(getattr(p, "_norm_sample", None), torch.Tensor) for p in parameters)
        rows: list[RowsOfParameter] = []
        for p in parameters:
            samples = [p._norm_sample] if ghost else samples_of(p)
            if not samples or not isinstance(samples[-1], torch.Tensor):
                return None
            rows.append(Norms(samples[-1].detach()) if ghost else Dense(samples[-1].detach()))
        return rows or None

    def stop(self) -> None:
        if self._check is not None:
            self._check.stop()

    def unused(self, error: BaseException | None) -> str:
        """Which parameters have no rows, or others than the batch, if an error of Opacus is about that; else ""."""
        names = {} if self._model is None else names_of(self._model)
        if str(error).startswith("No activations detected for"):
            return layers_in_evaluation(self._model, self._calls)
        if str(error).startswith("stack expects each tensor to be equal size"):
            return unequal_row_counts(self._optimizer.params, names)
        attribute = "_norm_sample" if "'_norm_sample'" in str(error) else "grad_sample"
        if attribute == "grad_sample" and not str(error).startswith("Per sample gradient is not initialized"):
            return ""
        root = None if self._model is None else behind_wrappers(self._model)
        return unsupported_layers(self._optimizer.params, names, attribute, root=root, calls=self._calls)

    def _what_is_wrong(self, module: nn.Module, inputs: tuple[Any, ...]) -> str:
        inside = {id(p) for p in module.parameters()} & self._own
        if not inside:
            return ""
        if type(module) is nn.EmbeddingBag:
            return (
                f"model: record does not take {module}: Opacus's rows of a bag are wrong where it holds an index "
                "twice, and for the candidates' torch has no batching rule; an Embedding and a sum over its words do "
                "the same"
            )
        if why := wrong_rows(module, inputs, others=inside != self._own):
            layer = type(module).__name__ if next(module.children(), None) is not None else str(module)
            return (
                f"model: {layer} has {why}, for which Opacus's per-sample gradients are wrong: what it clips and "
                "releases are others than the rows'. FusedDPOptimizer.replace(optimizer) does it right (and "
                "grad_sample_mode='functorch', for convolutions and embeddings)"
            )
        return ""


def require_known(optimizer: Any) -> None:
    """TypeError for an optimizer with another release than the scores assume."""
    if type(optimizer) is getattr(optimizers, "FSDPOptimizerFastGradientClipping", None):
        raise TypeError(
            "`optimizer` must leave the parameters whole in each process (DistributedDataParallel), got "
            "FSDPOptimizerFastGradientClipping, whose processes have a shard of each parameter: no process can compute "
            "a candidate's gradient"
        )
    kinds = (
        optimizers.DPOptimizer,
        optimizers.DPOptimizerFastGradientClipping,
        optimizers.DistributedDPOptimizer,
        optimizers.DistributedDPOptimizerFastGradientClipping,
        FusedDPOptimizer,
        DistributedFusedDPOptimizer,
    )
    allowed = "Opacus's DPOptimizer, with flat or ghost clipping, in one process or several, or FusedDPOptimizer"
    require_type(optimizer, kinds, allowed)
    require_real(optimizer.params, {})
