"""What a recorded loop must have scored, from the releases that a hook of the test sees and gradients row by row."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine

from leakcore.dpsgd import FusedDPOptimizer
from leakcore.dpsgd.rows.preserve_state import is_paused


class Witness:
    """Wraps `make_private`: notes every release and every batch of the runs that it prepares, and a plain model.

    Args:
        fused: whether FusedDPOptimizer makes the steps.

    Attributes:
        model: the module before Opacus took it.
        steps: for each step, the parameters before it, its noise, and the first inputs of its batches.
        releases: for each step, what the wrapped optimizer received, as a sum over rows.
    """

    def __init__(self, fused: bool) -> None:
        self._fused = fused
        self.steps: list[tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]] = []
        self.releases: list[torch.Tensor] = []
        self._batches: list[torch.Tensor] = []
        self._original = PrivacyEngine.make_private

    def private(self, engine: Any, *, module: Any, optimizer: Any, **settings: Any) -> Any:
        self.model = copy.deepcopy(module)
        self.norm = settings["max_grad_norm"]
        module.register_forward_pre_hook(self._fed, with_kwargs=True)
        optimizer.register_step_pre_hook(self._released)
        private = self._original(engine, module=module, optimizer=optimizer, **settings)
        self._optimizer = private[1]
        if self._fused:
            self._optimizer = FusedDPOptimizer.replace(private[1], private[0])
        return private[0], self._optimizer, *private[2:]

    def clear(self) -> None:
        self.steps, self.releases, self._batches = [], [], []

    def _fed(self, module: Any, args: Any, kwargs: Any) -> None:
        if module.training and torch.is_grad_enabled() and not is_paused():
            first = args[0] if args else next(iter(kwargs.values()))
            self._batches.append(first.detach().clone())

    def _released(self, *_: Any) -> None:
        optimizer = self._optimizer
        unit = optimizer.expected_batch_size * optimizer.accumulated_iterations
        release = torch.cat([p.grad.flatten() for p in optimizer.params]).double() * unit
        total = torch.cat([p.summed_grad.flatten() for p in optimizer.params]).double()
        self.releases.append(release)
        self.steps.append(([p.detach().clone() for p in optimizer.params], release - total, self._batches))
        self._batches = []

    def expected(
        self, count: int, loss: Callable[[Any, int], torch.Tensor], row: Callable[[int], torch.Tensor]
    ) -> dict[str, np.ndarray]:
        """The sums of scores and the sightings of candidates: their loss under a model, and their first input."""
        model = self.model.eval()
        trained = [p for p in model.parameters() if p.requires_grad]
        pairs, times_seen = np.zeros((count, count)), np.zeros(count, dtype=np.int64)
        sums = np.zeros(count)
        for parameters, noise, batches in self.steps:
            for p, value in zip(trained, parameters, strict=True):
                p.data.copy_(value)
            rows = []
            for i in range(count):
                gradients = torch.autograd.grad(loss(model, i), trained, allow_unused=True)
                flat = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, gradients, strict=True)]
                g = torch.cat([part.flatten() for part in flat]).double()
                rows.append(g * min(1.0, self.norm / float(g.norm())))
            clipped = torch.stack(rows)
            inside = [i for i in range(count) if any(_holds(batch, row(i)) for batch in batches)]
            times_seen[inside] += 1
            alone = torch.stack([noise + (clipped[i] if i in inside else 0) for i in range(count)])
            pairs += (alone @ clipped.T).numpy() / self.norm**2
            sums += (clipped @ (noise + clipped[inside].sum(0))).numpy() / self.norm**2
        return {"pair_sum": pairs, "membership_sum": sums, "times_seen": times_seen}


def _holds(batch: torch.Tensor, row: torch.Tensor) -> bool:
    """Whether a batch has this row; rows of words end with zeros."""
    if batch.is_floating_point():
        return bool((batch == row).flatten(1).all(1).any())
    return any(torch.equal(other[other > 0], row) for other in batch)
