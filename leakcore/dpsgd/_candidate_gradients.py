"""Per-sample gradients of candidates at the parameters that an optimizer has just now."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore import kernels
from leakcore.dpsgd._called_loss import require_of_rows
from leakcore.dpsgd._functional import Functional
from leakcore.dpsgd._module_lock import lock_of

_ROWS_TO_TRY = 64

Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class CandidateGradients:
    """Per-sample gradients of the candidates at the optimizer's present parameters."""

    def __init__(
        self, optimizer: Any, model: nn.Module | None, criterion: Criterion | None, x: torch.Tensor, y: torch.Tensor,
        memory: int,
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

    def require_of_rows(self) -> None:
        """ValueError where the criterion, over candidates, is neither the mean nor the sum of what it is for each."""
        chosen = np.arange(min(len(self._x), _ROWS_TO_TRY))
        x, y = self._rows(chosen)
        with _bare(self._module):
            require_of_rows(self._criterion, self._module(x), y)

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
            norms[chosen] = scores.norms.cpu().numpy()
        return dots[0], norms, dots[1:]

    def _gradients(self, indices: np.ndarray) -> torch.Tensor:
        """(len(indices), D), parameters in the optimizer's order."""
        x, y = self._rows(indices)
        function = Functional(self._module, self._names)

        def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self._criterion(function(parameters, row[None]), target[None]).sum()

        with _bare(self._module):
            found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(function.own, x, y)
        return torch.cat([found[name].reshape(len(indices), -1) for name in self._names], dim=1)

    def _rows(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, where the model is and as it takes them."""
        like, chosen = self._parameters[0], torch.from_numpy(indices)
        x, y = (t[chosen].to(like.device) for t in (self._x, self._y))
        return (x.to(like.dtype) if x.is_floating_point() else x), y


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextlib.contextmanager
def _bare(model: nn.Module) -> Iterator[None]:
    """The module without its hooks (Opacus's collect per-sample gradients) and in evaluation mode, for a while."""
    with lock_of(model):
        modules = list(model.modules())
        kept = [({name: getattr(m, name) for name in _HOOKS}, m.training) for m in modules]
        try:
            for m in modules:
                for name in _HOOKS:
                    setattr(m, name, type(getattr(m, name))())
                m.training = False
            yield
        finally:
            for m, (hooks, training) in zip(modules, kept, strict=True):
                for name, value in hooks.items():
                    setattr(m, name, value)
                m.training = training
