"""Record an Opacus training run as the adversary sees it, reduced to scores of candidates on the fly."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_leaves

from leakcore import _validate as check
from leakcore.dpsgd._called_loss import CalledLoss, aside, is_aside
from leakcore.dpsgd._candidate_gradients import CandidateGradients, Criterion, _bare
from leakcore.dpsgd._recorded_rows import RecordedRows
from leakcore.dpsgd._run_steps import RunSteps
from leakcore.dpsgd._sample_rate import rate_of_block, rate_of_hook, rate_of_step
from leakcore.dpsgd._trace import Trace
from leakcore.dpsgd._trace_file import TraceFile
from leakcore.numerics._step_ratio import step_log_ratio

_MEMORY = 1 << 28
_AUTOSAVE = 100


def record(
    optimizer: Any,
    *,
    candidates: Any,
    members: Any = None,
    model: nn.Module | None = None,
    criterion: Criterion | None = None,
    sample_rate: float | None = None,
    out: str | Path | None = None,
    memory: int = _MEMORY,
) -> Recorder:
    """Watch an Opacus run: `with leakcore.record(optimizer, candidates=(x, y)) as trace:` around the training loop.

    At every step, after Opacus has clipped, summed and noised and before it moves the parameters, the gradients of the
    candidates at the present parameters are computed, clipped, and multiplied with what the step releases; only these
    products are kept (see `Trace`). The run itself is not changed: no random number is drawn, no gradient touched.

    Args:
        optimizer: what `PrivacyEngine.make_private` returned (flat or ghost clipping), or `FusedDPOptimizer`.
        candidates: (inputs, targets), n rows in the form the model takes them: training rows and others that were not
            trained on. Equal inputs are refused.
        members: (n,) bool, which of them are training rows. None: those that turn up in a batch (so a row that sampling
            never picks counts as no member). Where inputs are transformed on the way into the model rows cannot be
            recognised, and `members` is needed; the scores of pairs are then those of noise alone.
        model: None: the module called in the loop that holds the optimizer's parameters.
        criterion: loss of outputs and targets, mean or sum over rows. None: the `torch.nn` loss that the loop goes back
            from; a loop that calls a function (`functional.cross_entropy`), or adds to a loss, must name it here. One
            that mixes rows, as a mean by class weights does, is refused: no ε is proved for it.
        sample_rate: q of the Poisson sampling. None: as in Opacus's accounting hook, where one is attached; of a step
            that accumulates batches then 1, if together they are all rows, or a ValueError. The loop must sample so
            (Opacus's default); `Trace.not_poisson` says where the batches show that it does not.
        out: npz file for the trace, written at the end, also after an exception, and every 100 steps. ValueError where
            it is there already: each part of a run has its own (`audit.join`).
        memory: bytes for candidates' gradients at a time; more candidates than fit are computed in parts, each step
            anew.

    Returns a context manager; `as trace` gives the `Recorder`, whose `.trace()` is the `Trace`, and which
    `leakcore.audit.from_trace` takes as it is. Steps of the run outside the block are counted, too: by the accountant
    that the optimizer's hook tells, else (as "at least") by the optimizer that it wraps. Dropout is off in the
    candidates' gradients (the adversary does not know the mask). Cost: one forward and backward pass over the
    candidates per step.

    Raises TypeError or ValueError that names the argument, at the latest in the first step.
    """
    return Recorder(optimizer, candidates, members, model, criterion, sample_rate, out, memory)


class Recorder:
    """The context manager of `record`."""

    def __init__(
        self,
        optimizer: Any,
        candidates: Any,
        members: Any,
        model: nn.Module | None,
        criterion: Criterion | None,
        sample_rate: float | None,
        out: str | Path | None,
        memory: int,
    ) -> None:
        for name in ("step_hook", "noise_multiplier", "max_grad_norm", "params"):
            if not hasattr(optimizer, name):
                raise TypeError(
                    f"optimizer is a {type(optimizer).__name__} without {name}: must be Opacus's DPOptimizer"
                )
        _require_known(optimizer)
        self._optimizer = optimizer
        self._x, self._y = _read_candidates(candidates)
        n = len(self._x)
        self._given = None if members is None else _read_members(members, n)
        self._model, self._criterion = model, criterion
        self._loss = CalledLoss(self._holds_all) if criterion is None else None
        self._rate = None if sample_rate is None else check.probability(sample_rate=sample_rate)
        self._rate_of_batch = rate_of_hook(optimizer.step_hook) if self._rate is None else None
        self._out = None if out is None else TraceFile(out)
        self._run = RunSteps(optimizer, (self._x, self._y))
        self._memory = check.integer(1, memory=memory)
        self._own = {id(p) for p in optimizer.params}
        self._recorded = RecordedRows(optimizer)
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._batch: list[torch.Tensor] = []
        self._schedule: list[tuple[float, float, int]] = []
        self._seen = np.zeros(n, dtype=np.int64)
        self._clipped = np.zeros(n)
        self._membership_sum, self._membership_likelihood = np.zeros(n), np.zeros(n)
        self._pair_sum, self._pair_likelihood = np.zeros((n, n)), np.zeros((n, n))
        self._rows: dict[bytes, int] | None = None
        self._handles: list[Any] = []
        self._outer_hook: Any = None

    def __enter__(self) -> Recorder:
        if self._handles:
            raise ValueError("record: this recorder is in use already")
        if self._out is not None:
            self._out.require_free()
        self._outer_hook = self._optimizer.step_hook
        if self._rate_of_batch is not None:
            self._rate_of_batch = rate_of_block(self._outer_hook, self._rate_of_batch, begun=bool(self._schedule))
        self._run.enter(self._outer_hook)
        self._optimizer.attach_step_hook(self._step)
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._before_forward),
            torch_module.register_module_forward_hook(self._after_forward, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._optimizer.attach_step_hook(self._outer_hook)
        self._recorded.stop()
        self._run.leave()
        if self._out is not None and self._schedule:
            self._out.save(self.trace())
        if unused := self._recorded.unused(error):
            raise ValueError(f"model: {unused}") from error

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return len(self._schedule)

    def trace(self) -> Trace:
        """What was recorded so far, and what else the run did until now. ValueError before the first step."""
        if not self._schedule:
            raise ValueError("record: no step was recorded: did optimizer.step() run inside the with block?")
        sigma, norm, rows = (np.array(column) for column in zip(*self._schedule, strict=True))
        known = bool(self._rate) and (sigma > 0).all()
        size = self._optimizer.expected_batch_size
        unrecorded, complete = self._run.unrecorded(sigma, self._rate)
        return Trace(
            noise_multiplier=sigma.astype(np.float64), max_grad_norm=norm.astype(np.float64),
            batch_rows=rows.astype(np.int64), sample_rate=self._rate,
            expected_batch_size=None if size is None else float(size),
            members=self._seen > 0 if self._given is None else self._given.copy(),
            members_given=self._given is not None, times_seen=self._seen.copy(),
            clipped_share=self._clipped / len(sigma),
            membership_sum=self._membership_sum.copy(), pair_sum=self._pair_sum.copy(),
            membership_likelihood=np.where(known, self._membership_likelihood, np.nan),
            pair_likelihood=np.where(known, self._pair_likelihood, np.nan),
            unrecorded=unrecorded, complete=complete, origin=self._run.origin(),
        )  # fmt: skip

    def _holds_all(self, module: nn.Module) -> bool:
        return self._own <= {id(p) for p in module.parameters()}

    def _before_forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if is_aside():
            return
        if self._loss is not None:
            self._loss.before(module)
        if not torch.is_grad_enabled():
            return
        if self._model is None and self._holds_all(module):
            self._model = module
        self._recorded.before(module, inputs, self._model)

    def _after_forward(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if is_aside():
            return
        if self._loss is not None:
            self._loss.after(module, inputs, output)
        if module is self._model and module.training and torch.is_grad_enabled() and output is not None:
            self._await_backward(inputs, output)

    def _await_backward(self, inputs: tuple[Any, ...], output: Any) -> None:
        """The rows that went into the model are of the step's batch if a loss goes back through what came out."""
        assert self._model is not None
        self._versions = [(p, p._version) for p in self._model.parameters()]
        rows = inputs[0].detach() if inputs and isinstance(inputs[0], torch.Tensor) else None
        if self._loss is not None and isinstance(output, torch.Tensor):
            self._loss.gave(output, rows)
        if rows is None:
            return
        waiting = [rows]

        def went_back(_: torch.Tensor) -> None:  # ghost clipping goes back twice
            self._batch += waiting
            waiting.clear()

        came = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        for tensor in came:
            tensor.register_hook(went_back)  # type: ignore[no-untyped-call]
        if not came:  # of a kind that torch cannot look into
            self._batch += waiting

    def _step(self, optimizer: Any) -> None:
        place = self._run.account()
        try:
            with aside(), torch.no_grad():
                self._score(optimizer)
        finally:
            self._batch = []
        self._run.take(place)
        if self._out is not None and len(self._schedule) % _AUTOSAVE == 0:
            self._out.save(self.trace())

    def _score(self, optimizer: Any) -> None:
        if hasattr(optimizer, "_adjusted_noise_multiplier"):  # Opacus's adaptive ghost clipping sets it going back
            raise TypeError("optimizer clips adaptively: record knows clipping by a norm that is given")
        self._recorded.require()
        if any(p._version != version for p, version in self._versions):
            raise ValueError(
                "model: its parameters were changed between its forward pass and this step (by another optimizer's "
                "step?), so the candidates' gradients where the batch's were taken can no longer be known: step this "
                "one first"
            )
        if self._loss is not None:
            loss, pairs = self._loss.take(optimizer.loss_reduction)
            self._criterion = loss or self._criterion
            for rows, targets in pairs:
                self._require_targets(rows, targets)
        gradients = CandidateGradients(optimizer, self._model, self._criterion, self._x, self._y, self._memory)
        sigma, norm = float(optimizer.noise_multiplier), float(optimizer.max_grad_norm)
        inside = self._recognise()
        unit, batches = 1.0, int(optimizer.accumulated_iterations)
        if optimizer.loss_reduction == "mean":
            unit = float(optimizer.expected_batch_size) * batches
        if self._rate_of_batch is not None:
            self._rate = rate_of_step(self._rate_of_batch, batches, self._rate)
        release = torch.cat([p.grad.flatten() for p in optimizer.params]) * unit
        noise = release - torch.cat([p.summed_grad.flatten() for p in optimizer.params])
        try:
            if self._loss is None and not self._schedule:
                gradients.require_of_rows()
            noise_dots, norms, crossed = gradients.products(noise, inside, norm)
        except Exception as error:
            if misfit := self._misfit():
                raise ValueError(misfit) from error
            raise
        together = noise_dots + crossed.sum(axis=0)
        alone = noise_dots + crossed
        self._membership_sum += together / norm**2
        self._pair_sum += noise_dots / norm**2
        self._pair_sum[inside] += crossed / norm**2
        if sigma > 0 and self._rate:
            base = step_log_ratio(noise_dots, norms, sigma * norm, self._rate)
            self._membership_likelihood += step_log_ratio(together, norms, sigma * norm, self._rate)
            self._pair_likelihood += base
            self._pair_likelihood[inside] += step_log_ratio(alone, norms, sigma * norm, self._rate) - base
        self._clipped += norms >= norm * (1 - 1e-6)
        self._seen[inside] += 1
        self._schedule.append((sigma, norm, sum(len(b) for b in self._batch)))

    def _misfit(self) -> str:
        """What of the candidates the model, or the criterion, does not take; "" where one row goes through both."""
        assert self._model is not None
        assert self._criterion is not None
        module = getattr(self._model, "_module", self._model)
        like = self._optimizer.params[0]
        x, y = self._x[:1].to(like.device), self._y[:1].to(like.device)
        what, given, taker = "inputs", self._x, "model"
        with _bare(module):
            try:
                outputs = module(x.to(like.dtype) if x.is_floating_point() else x)
                what, given, taker = "targets", self._y, "criterion"
                self._criterion(outputs, y)
            except Exception as error:
                why = str(error).strip().partition("\n")[0]
                kind = f"{what} of shape {tuple(given.shape)} and type {given.dtype}"
                return f"candidates: {kind} do not fit the {taker} ({why})"
        return ""

    def _recognise(self) -> np.ndarray:
        """Indices of the candidates that the step's batch holds."""
        found = {i for rows in self._batch for i in self._numbers(rows) if i is not None}
        return np.array(sorted(found), dtype=np.int64)

    def _numbers(self, rows: torch.Tensor) -> list[int | None]:
        """Which candidate each row is, None for others."""
        if self._rows is None:
            known = _row_bytes(self._x.to(rows.dtype))
            self._rows = {row: i for i, row in enumerate(known)}
            if len(self._rows) < len(known):
                twin = next(i for i, row in enumerate(known) if self._rows[row] != i)
                raise ValueError(f"candidates: rows {twin} and {self._rows[known[twin]]} have equal inputs")
        return [self._rows.get(row) for row in _row_bytes(rows)]

    def _require_targets(self, rows: torch.Tensor, targets: torch.Tensor) -> None:
        """ValueError where a candidate went into the loss with another target than was given for it."""
        both = [(k, i) for k, i in enumerate(self._numbers(rows)) if i is not None]
        if len(rows) != len(targets) or not both:
            return
        seen = targets[[k for k, _ in both]].cpu().reshape(len(both), -1)
        given = self._y[[i for _, i in both]].to(seen.dtype).cpu().reshape(len(both), -1)
        if torch.equal(seen, given):
            return
        wrong = next(n for n, (a, b) in enumerate(zip(seen, given, strict=True)) if not torch.equal(a, b))
        raise ValueError(
            f"candidates: the target of row {both[wrong][1]} is {self._y[both[wrong][1]].tolist()}, and the loop gives "
            f"the loss {targets[both[wrong][0]].tolist()} for it: pass the targets as the loss is given them"
        )


def _require_known(optimizer: Any) -> None:
    """TypeError for an optimizer whose release the scores would not be of."""
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    from leakcore.dpsgd._fused_optimizer import FusedDPOptimizer, require_type

    allowed = "Opacus's DPOptimizer, with flat or ghost clipping, or FusedDPOptimizer"
    require_type(optimizer, (DPOptimizer, DPOptimizerFastGradientClipping, FusedDPOptimizer), allowed)


def _row_bytes(rows: torch.Tensor) -> list[bytes]:
    if rows.numel() == 0:
        return [b""] * len(rows)
    flat = rows.detach().cpu().contiguous().reshape(len(rows), -1)
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()]


def _read_candidates(candidates: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(candidates, (tuple, list)) or len(candidates) != 2:
        raise TypeError(f"candidates is a {type(candidates).__name__}: must be a pair (inputs, targets)")
    x, y = (_as_tensor(c, what) for c, what in zip(candidates, ("inputs", "targets"), strict=True))
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or len(x) == 0:
        raise ValueError(
            f"candidates: {tuple(x.shape)} inputs and {tuple(y.shape)} targets: must be one or more rows, equally many"
        )
    return x, y


def _as_tensor(given: Any, what: str) -> torch.Tensor:
    try:
        return torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError) as why:
        raise TypeError(f"candidates: its {what} must be a tensor or an array of numbers ({why})") from None


def _read_members(members: Any, count: int) -> np.ndarray:
    flags = np.asarray(members.cpu() if isinstance(members, torch.Tensor) else members)
    if flags.shape != (count,) or flags.dtype != np.bool_:
        raise ValueError(f"members has shape {flags.shape} and type {flags.dtype}: must be ({count},) bool")
    return flags
