"""Per-sample gradients of candidates at the parameters that an optimizer has just now."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore import kernels
from leakcore.dpsgd.opacus.recorder.forward_passes import ForwardPass
from leakcore.dpsgd.opacus.recorder.loss_of_the_loop import require_of_rows
from leakcore.dpsgd.opacus.row_check.left_alone import left_alone
from leakcore.gradients import Criterion, Functional, RowByRow, RowError, State, first_line, lock_of

_log = logging.getLogger(__name__)
_ROWS_TO_TRY = 64
_DIFFERENCE = 1e-3
"""Largest relative difference in float32 between the two ways to a row's gradient that rounding explains."""


@dataclasses.dataclass
class Route:
    """How the candidates' gradients are computed. `checked`: computing them together agrees with one by one."""

    one_by_one: bool = False
    checked: bool = False


class CandidateGradients:
    """Per-sample gradients of the candidates at the optimizer's present parameters.

    All are computed together by torch's vmap. If that fails, or differs from plain autograd, they are computed one by
    one from then on. The model and all random generators are left unchanged: what the model draws for candidate i in a
    step depends on these two numbers alone.
    """

    def __init__(
        self, optimizer: Any, model: nn.Module | None, criterion: Criterion | None, x: torch.Tensor, y: torch.Tensor,
        memory: int, route: Route | None = None, step: int = 0,
    ) -> None:  # fmt: skip
        if model is None:
            raise ValueError("model: no module that holds the optimizer's parameters was called: pass model=")
        if criterion is None:
            raise ValueError(
                "criterion: no loss of torch.nn was called in the loop: pass criterion=, a function (outputs, targets)"
            )
        self._module = getattr(model, "_module", model)
        self._criterion = criterion
        with lock_of(self._module):
            names = {id(p): name for name, p in self._module.named_parameters()}
        self._parameters = list(optimizer.params)
        missing = [i for i, p in enumerate(self._parameters) if id(p) not in names]
        if missing:
            raise ValueError(f"model: does not hold {len(missing)} of the optimizer's parameters")
        self._names = [names[id(p)] for p in self._parameters]
        self._x, self._y = x, y
        columns = sum(p.numel() for p in self._parameters)
        self._portion = max(1, memory // (columns * self._parameters[0].element_size()))
        self._route, self._step = route or Route(), step
        self._short = float(optimizer.max_grad_norm) / 100
        self._alone = RowByRow(self._module, criterion, self._parameters, optimizer.loss_reduction == "mean")

    def require_of_rows(self) -> None:
        """ValueError unless the criterion over candidates is the mean or the sum of its values for each."""
        x, y = self._rows(np.arange(min(len(self._x), _ROWS_TO_TRY)))
        with left_alone(self._module, self._criterion, evaluating=True) as state:
            state.seed(self._step)
            try:
                outputs = self._module(x)
                self._criterion(outputs, y.clone())
            except Exception as error:  # of the model: its rows may still go one by one
                _log.warning(
                    "record: whether the criterion mixes rows is unknown, because it does not accept several "
                    "candidates at once (%s)", first_line(error),
                )  # fmt: skip
                return
            require_of_rows(self._criterion, outputs, y)

    def products(
        self, noise: torch.Tensor, inside: np.ndarray, norm: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """⟨c_j, noise⟩ and ‖c_j‖, (n,), and ⟨c_i, c_j⟩ for i in `inside`, (len(inside), n); float64."""
        n = len(self._x)
        whole = self._gradients(np.arange(n)) if n <= self._portion else None
        observed = [noise[None].to(self._parameters[0].dtype)]
        for start in range(0, len(inside), self._portion):
            some = inside[start : start + self._portion]
            rows = self._gradients(some) if whole is None else whole[torch.from_numpy(some)]
            lengths = torch.linalg.vector_norm(rows.double(), dim=1, keepdim=True)
            observed.append(rows * (norm / lengths.clamp(min=norm)).to(rows.dtype))
        targets = torch.cat(observed) if len(observed) > 1 else observed[0]
        dots, norms = np.empty((len(targets), n)), np.empty(n)
        for start in range(0, n, self._portion):
            chosen = slice(start, min(n, start + self._portion))
            rows = self._gradients(np.arange(n)[chosen]) if whole is None else whole
            scores = kernels.clip_scores(rows, targets, norm)
            dots[:, chosen] = scores.dots.cpu().numpy()
            norms[chosen] = scores.clipped_norms.cpu().numpy()
        return dots[0], norms, dots[1:]

    def misfit(self, error: Exception, passes: Sequence[ForwardPass]) -> str:
        """Which part of the candidates the model or the criterion refuses, after that error.

        It is "" if the reason is another, because a row of the batch is refused as well.
        """
        i = error.row if isinstance(error, RowError) else 0
        x, y = self._rows(np.array([i]))
        what, why = self._refused(x, y)
        if not what:
            return ""
        batch = next((p for p in passes if p.rows is not None and len(p.rows)), None)
        if batch is not None and batch.rows is not None:
            known = batch.targets is not None and len(batch.targets) == len(batch.rows)
            theirs = batch.targets[:1] if known and batch.targets is not None else y
            if self._refused(batch.rows[:1], theirs)[0] == what and (known or what == "inputs"):
                return ""
        passed, taker = (self._x, "model") if what == "inputs" else (self._y, "criterion")
        kind = f"{what} of shape {tuple(passed.shape)} and type {passed.dtype}"
        return f"candidates: {kind} do not fit the {taker} ({why})"

    def _refused(self, x: torch.Tensor, y: torch.Tensor) -> tuple[str, str]:
        """Which of a row's "inputs" and "targets" is refused, alone and twice, and why; ("", "") if neither is."""
        first = ("", "")
        for rows, targets in ((x.clone(), y.clone()), (torch.cat([x, x]), torch.cat([y, y]))):
            what = "inputs"
            with left_alone(self._module, self._criterion, evaluating=True), torch.no_grad():
                try:
                    outputs = self._module(rows)
                    what = "targets"
                    self._criterion(outputs, targets)
                    return "", ""
                except Exception as error:
                    first = first if first[0] else (what, first_line(error))
        return first

    def _gradients(self, indices: np.ndarray) -> torch.Tensor:
        """(len(indices), D), parameters in the optimizer's order. Raises RowError, with the candidate's number."""
        x, y = self._rows(indices)
        with left_alone(self._module, self._criterion, evaluating=True) as state:
            why = ""
            if not self._route.one_by_one:
                try:
                    rows = self._together(x, y)
                    due = (self._step + 1) & self._step == 0  # steps 1, 2, 4, 8, …
                    if (self._route.checked and not due) or self._is_autograd(rows, indices, x, y, state):
                        return rows
                    why = "its gradients differ from plain autograd's"
                except Exception as error:
                    why = first_line(error)
                self._route.one_by_one = True
                state.restore()
            start = time.perf_counter()
            rows = self._one_by_one(indices, x, y, state)
            if why:
                _log.warning(
                    "record: torch's vmap does not accept this model or criterion (%s). The candidates' gradients are "
                    "computed one by one, which takes about %.2g s in each step for %d candidates",
                    why, (time.perf_counter() - start) / len(indices) * len(self._x), len(self._x),
                )  # fmt: skip
            return rows

    def _together(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        function = Functional(self._module, self._names)

        def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self._criterion(function(parameters, row[None]), target[None]).sum()

        rows = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(function.own, x.clone(), y.clone())
        return torch.cat([rows[name].reshape(len(x), -1) for name in self._names], dim=1)

    def _one_by_one(self, indices: np.ndarray, x: torch.Tensor, y: torch.Tensor, state: State) -> torch.Tensor:
        try:
            return self._alone.gradients(x, y, [(self._step, int(i)) for i in indices], state)
        except RowError as error:
            error.row = int(indices[error.row])
            raise

    def _is_autograd(
        self, rows: torch.Tensor, indices: np.ndarray, x: torch.Tensor, y: torch.Tensor, state: State
    ) -> bool:
        """Whether the first and the last of these rows agree with plain autograd."""
        some = sorted({0, len(indices) - 1}) if len(indices) else []
        state.restore()
        alone = self._one_by_one(indices[some], x[some], y[some], state).double()
        scale = torch.linalg.vector_norm(alone, dim=1).clamp(min=self._short)
        far = torch.linalg.vector_norm(rows[some].double() - alone, dim=1)
        self._route.checked = bool((far <= max(_DIFFERENCE, 16 * torch.finfo(rows.dtype).eps) * scale).all())
        return self._route.checked

    def _rows(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets on the model's device, in the form that it takes."""
        like, chosen = self._parameters[0], torch.from_numpy(indices)
        x, y = (t[chosen].to(like.device) for t in (self._x, self._y))
        return (x.to(like.dtype) if x.is_floating_point() else x), y
