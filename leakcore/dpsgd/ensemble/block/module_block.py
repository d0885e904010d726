"""Any torch module instead of the MLP: per-sample gradients by torch.func, one run after the other.

It has the same buffers and calls as `ParameterLayout` and `Pass`, so that one training loop serves both. Parameters are
one (slots, 1, parameters) matrix. Per-sample gradients exist for one run and `_GRADIENTS` numbers at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch.func import grad, vmap

from leakcore.dpsgd.ensemble.block.forward_backward import RowGroup
from leakcore.gradients import evaluate

_GRADIENTS = 2**23
"""Numbers in one chunk of per-sample gradients: 32 MB in float32. The chunks, and with them the order of additions,
depend on the numbers of rows and parameters alone."""


class FlatLayout:
    """Moves between (slots, parameters) and the one matrix that holds it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._shapes = [tuple(p.shape) for p in module.parameters()]
        self.size = sum(math.prod(shape) for shape in self._shapes)

    def empty(self, slots: int, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
        return [torch.zeros((slots, 1, self.size), dtype=dtype, device=device)]

    def glorot(self) -> np.ndarray:
        """(parameters,): √(2/(fan_in + fan_out)) where a parameter has two axes or more, as torch.nn.init counts
        fans; 0 for biases and scales."""
        parts = []
        for shape in self._shapes:
            field = math.prod(shape[2:])
            spread = (2 / ((shape[0] + shape[1]) * field)) ** 0.5 if len(shape) > 1 else 0.0
            parts.append(np.full(math.prod(shape), spread))
        return np.concatenate(parts)

    def write(self, flat: torch.Tensor, into: list[torch.Tensor]) -> None:
        into[0][:, 0] = flat

    def add(self, flat: torch.Tensor, scale: float, into: list[torch.Tensor], *, bias_scale: float) -> None:
        """into += scale·flat; bias_scale·flat for parameters with one axis."""
        start = 0
        for shape in self._shapes:
            part = slice(start, start + math.prod(shape))
            into[0][:, 0, part].add_(flat[:, part], alpha=scale if len(shape) > 1 else bias_scale)
            start = part.stop

    def read(self, matrices: list[torch.Tensor]) -> torch.Tensor:
        return matrices[0][:, 0].clone()


class ModulePass:
    """Per-sample gradients of the runs in `used` slots, on `rows` samples."""

    def __init__(
        self,
        module: torch.nn.Module,
        input_shape: tuple[int, ...],
        slots: int,
        rows: int,
        max_grad_norm: float,
        slack: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._module = copy.deepcopy(module).to(device=device, dtype=dtype)
        self._names = [(name, p.shape) for name, p in self._module.named_parameters()]
        self._input_shape = input_shape
        size = sum(shape.numel() for _, shape in self._names)
        self._chunk = max(1, _GRADIENTS // size)
        self._slots = slots
        self._max_grad_norm, self._slack = max_grad_norm, slack
        self._weights = torch.zeros(0)
        self.used = range(slots)
        self.norms = torch.zeros((slots, rows), dtype=dtype, device=device)
        self._gradients = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def _loss(self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = evaluate(self._module, parameters, x.unsqueeze(0))
        if out.shape[1] == 1:
            return torch.nn.functional.binary_cross_entropy_with_logits(out[0, 0], y)
        return torch.nn.functional.cross_entropy(out, y.unsqueeze(0))

    def run(self, rows: RowGroup, weights: list[torch.Tensor]) -> None:
        """Store the parameters. Gradients are computed on request."""
        self._weights = weights[0][:, 0]

    def logits(self, rows: RowGroup, weights: list[torch.Tensor]) -> torch.Tensor:
        """(slots, outputs, rows); zeros for slots that are not used."""
        out = self.norms.new_zeros((self._slots, rows.targets.shape[-2], rows.count))
        with torch.no_grad():
            for slot in self.used:
                x, _ = self._samples(rows, slot, slice(None))
                out[slot] = evaluate(self._module, self._parameters(weights[0][slot, 0]), x).T
        return out

    def add_clipped_sum(
        self, rows: RowGroup, into: list[torch.Tensor], *, mask: torch.Tensor | None, fresh: bool
    ) -> None:
        """into (+)= Σ_b mask_b·clip_C(∇ℓ_b)."""
        if fresh:
            into[0].zero_()
        for slot in self.used:
            for part, gradients in self._per_sample(rows, slot):
                factors = self._factors(torch.linalg.vector_norm(gradients, dim=1))
                if mask is not None:
                    factors = factors * mask[slot, part]
                into[0][slot, 0] += factors @ gradients

    def scores(self, rows: RowGroup, gradients: list[torch.Tensor]) -> torch.Tensor:
        """(slots, rows): ⟨clip_C(∇ℓ_b), gradients⟩ for one gradient per slot; fills `norms`."""
        dots = torch.zeros_like(self.norms)
        for slot in self.used:
            for part, own_gradients in self._per_sample(rows, slot):
                self.norms[slot, part] = torch.linalg.vector_norm(own_gradients, dim=1)
                dots[slot, part] = own_gradients @ gradients[0][slot, 0]
        return dots.mul_(self._factors(self.norms))

    def clipped_norms(self) -> torch.Tensor:
        """(slots, rows): ‖clip_C(∇ℓ_b)‖; exactly C, in this dtype, where the gradient was clipped to it."""
        if self._slack == 0:
            return self.norms.clamp(max=self._max_grad_norm)
        return self.norms * self._factors(self.norms)

    def nearest_cosine(self, rows: RowGroup) -> torch.Tensor:
        """(slots,): mean over rows of the largest cosine of a row's gradient with another's."""
        out = self.norms.new_zeros(self._slots)
        for slot in self.used:
            whole = torch.cat([gradients for _, gradients in self._per_sample(rows, slot)])
            unit = torch.nn.functional.normalize(whole, dim=1, eps=torch.finfo(whole.dtype).tiny)
            gram = unit @ unit.T
            gram.fill_diagonal_(-1.0)
            out[slot] = gram.amax(1).mean()
        return out

    def _factors(self, norms: torch.Tensor) -> torch.Tensor:
        # As in `Pass.run`: a zero gradient is not divided by, and an overflowed norm becomes NaN.
        return (self._max_grad_norm / (norms + self._slack)).clamp(max=1.0) + 0.0 * norms

    def _parameters(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = torch.split(flat, [shape.numel() for _, shape in self._names])
        return {name: part.view(shape) for (name, shape), part in zip(self._names, parts, strict=True)}

    def _samples(self, rows: RowGroup, slot: int, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        own = rows.inputs.dim() == 3
        x = (rows.inputs[slot] if own else rows.inputs)[part, :-1].reshape(-1, *self._input_shape)
        targets = (rows.targets[slot] if own else rows.targets)[:, part]
        return x, targets[0] if len(targets) == 1 else targets.argmax(0)

    def _per_sample(self, rows: RowGroup, slot: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """(rows, parameters) gradients, chunk by chunk."""
        parameters = self._parameters(self._weights[slot])
        for start in range(0, rows.count, self._chunk):
            part = slice(start, min(start + self._chunk, rows.count))
            by_name = self._gradients(parameters, *self._samples(rows, slot, part))
            yield part, torch.cat([by_name[name].flatten(1) for name, _ in self._names], 1)
