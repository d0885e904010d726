"""One block of runs, one group of rows: forward pass, backward pass, norms, clipped sums, scores. No per-sample
gradient.

Layout. Every buffer keeps the sample index last and contiguous: activations are (slots, units + 1, rows) with a last
unit of ones, so a layer's bias is one more weight, its gradient one more column of the same product, and the sample's
squared gradient norm in that layer is ‖(a, 1)‖²·‖δ‖² (Goodfellow 2015). A `RowGroup` that all runs share has no slot
axis: the first layer is then a single matrix product for all the block's runs.

Every product has a shape fixed by the number of slots and rows alone, because BLAS may round differently for another
shape; that is what makes a run's result independent of its neighbours.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from leakcore.dpsgd.ensemble.block.activations import InPlaceActivation


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """A group of samples: one for all slots, with `inputs` (rows, d + 1), or one per slot, (slots, rows, d + 1)."""

    inputs: torch.Tensor
    transposed: torch.Tensor
    squares: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(
        cls, features: np.ndarray, labels: np.ndarray, num_outputs: int, dtype: torch.dtype, device: torch.device
    ) -> RowGroup:
        """Read features (..., rows, d) and labels (..., rows). Labels become one-hot, or 0/1 for a single output, the
        logit.
        """
        inputs = torch.ones((*features.shape[:-1], features.shape[-1] + 1), dtype=dtype)
        inputs[..., :-1] = torch.from_numpy(np.ascontiguousarray(features))
        inputs = inputs.to(device)
        classes = torch.from_numpy(np.ascontiguousarray(labels)).unsqueeze(-2).to(device)
        levels = torch.ones(1, device=device) if num_outputs == 1 else torch.arange(num_outputs, device=device)
        return cls(
            inputs=inputs,
            transposed=inputs.transpose(-1, -2).contiguous(),
            squares=(inputs * inputs).sum(-1),
            targets=(classes == levels[:, None]).to(dtype),
        )

    @property
    def count(self) -> int:
        return self.inputs.shape[-2]


class Pass:
    """Buffers for `slots` runs of an MLP on `rows` samples, and the passes over them; one per thread and shape."""

    def __init__(
        self,
        slots: int,
        rows: int,
        layers: tuple[int, ...],
        activation: InPlaceActivation,
        max_grad_norm: float,
        slack: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def empty(*shape: int) -> torch.Tensor:
            return torch.empty((slots, *shape, rows), dtype=dtype, device=device)

        self._layers = layers
        self._activation = activation
        self._max_grad_norm = max_grad_norm
        self._slack = slack
        self._pre = [empty(size) for size in layers[1:]]
        self._post = [torch.ones((slots, size + 1, rows), dtype=dtype, device=device) for size in layers[1:-1]]
        self.deltas = [empty(size) for size in layers[1:]]
        self._square = empty(max(layers[1:]) + 1)
        self._part = empty()
        self._other = empty()
        self.norms = empty()
        self.factors = empty()

    def logits(self, rows: RowGroup, weights: list[torch.Tensor]) -> torch.Tensor:
        """(slots, outputs, rows), a buffer that the next call overwrites."""
        self._forward(rows, weights)
        return self._pre[-1]

    def run(self, rows: RowGroup, weights: list[torch.Tensor]) -> None:
        """Fill `deltas` (dℓ/dz of each layer, unclipped), `norms` (joint, of gradients), `factors` (min{1, C/norm})."""
        self._forward(rows, weights)
        self._backward(rows, weights)
        torch.sqrt(self._squared_norms(rows), out=self.norms)
        # A zero gradient divides to infinity, which the clamp makes 1: nothing to clip.
        torch.add(self.norms, self._slack, out=self.factors)
        torch.reciprocal(self.factors, out=self.factors).mul_(self._max_grad_norm).clamp_(max=1.0)
        # A norm that overflowed has factor 0 and would drop the sample silently; 0·∞ makes it NaN, and then an error.
        self.factors.add_(self.norms, alpha=0.0)

    def _forward(self, rows: RowGroup, weights: list[torch.Tensor]) -> None:
        slots = weights[0].shape[0]
        if rows.inputs.dim() == 2:
            torch.mm(weights[0].flatten(0, 1), rows.transposed, out=self._pre[0].view(-1, rows.count))
        else:
            torch.bmm(weights[0], rows.transposed, out=self._pre[0])
        for layer, size in enumerate(self._layers[1:-1]):
            self._activation.forward(self._pre[layer], self._post[layer][:, :size])
            torch.bmm(weights[layer + 1], self._post[layer], out=self._pre[layer + 1])
        last = self.deltas[-1]
        if self._layers[-1] == 1:
            torch.sigmoid(self._pre[-1], out=last)
        else:
            torch.softmax(self._pre[-1], 1, out=last)
        last.sub_(rows.targets.expand(slots, -1, -1))

    def _backward(self, rows: RowGroup, weights: list[torch.Tensor]) -> None:
        for layer in range(len(weights) - 1, 0, -1):
            size = self._layers[layer]
            below = self.deltas[layer - 1]
            torch.bmm(weights[layer][:, :, :size].transpose(1, 2), self.deltas[layer], out=below)
            self._activation.backward(below, self._pre[layer - 1], self._post[layer - 1][:, :size])

    def _squared_norms(self, rows: RowGroup) -> torch.Tensor:
        total = self._sum_of_squares(self.deltas[0], self._part).mul_(rows.squares)
        for post, delta in zip(self._post, self.deltas[1:], strict=True):
            self._sum_of_squares(post, self._other)
            self._sum_of_squares(delta, self.norms)
            total.addcmul_(self._other, self.norms)
        return total

    def _sum_of_squares(self, values: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        square = self._square[:, : values.shape[1]]
        torch.mul(values, values, out=square)
        return torch.sum(square, 1, out=out)

    def add_clipped_sum(
        self, rows: RowGroup, into: list[torch.Tensor], *, mask: torch.Tensor | None, fresh: bool
    ) -> None:
        """into (+)= Σ_b mask_b·clip_C(∇ℓ_b). Scales `deltas` in place, so it comes after `scores`."""
        scale = self.factors if mask is None else self.factors.mul_(mask)
        beta = 0.0 if fresh else 1.0
        for layer, delta in enumerate(self.deltas):
            delta.mul_(scale.unsqueeze(1))
            if layer > 0:
                into[layer].baddbmm_(delta, self._post[layer - 1].transpose(1, 2), beta=beta)
            elif rows.inputs.dim() == 2:
                into[0].view(-1, rows.inputs.shape[1]).addmm_(delta.view(-1, rows.count), rows.inputs, beta=beta)
            else:
                into[0].baddbmm_(delta, rows.inputs, beta=beta)

    def scores(self, rows: RowGroup, gradients: list[torch.Tensor]) -> torch.Tensor:
        """(slots, rows): ⟨clip_C(∇ℓ_b), gradients⟩ for one gradient per slot, as Σ_layers δᵀ G (a, 1)."""
        total = torch.zeros_like(self.factors)
        for layer, delta in enumerate(self.deltas):
            inputs = rows.transposed if layer == 0 else self._post[layer - 1]
            total += (delta * torch.matmul(gradients[layer], inputs)).sum(1)
        return total.mul_(self.factors)

    def clipped_norms(self) -> torch.Tensor:
        """(slots, rows): ‖clip_C(∇ℓ_b)‖; exactly C, in this dtype, where the gradient was clipped to it."""
        if self._slack == 0:
            return self.norms.clamp(max=self._max_grad_norm)
        return self.norms * self.factors

    def nearest_cosine(self, rows: RowGroup) -> torch.Tensor:
        """(slots,): mean over rows of the largest cosine of a row's gradient with another's (clipping changes none).

        ⟨∇ℓ_b, ∇ℓ_c⟩ = Σ_layers ⟨δ_b, δ_c⟩·⟨(a_b, 1), (a_c, 1)⟩. A zero gradient counts as orthogonal to all.
        """
        unit = torch.where(self.norms > 0, self.norms.reciprocal(), 0.0)
        gram = unit.new_zeros((len(unit), rows.count, rows.count))
        for layer, delta in enumerate(self.deltas):
            inputs = rows.inputs if layer == 0 else self._post[layer - 1].transpose(1, 2)
            gram += torch.bmm(delta.transpose(1, 2), delta) * torch.matmul(inputs, inputs.transpose(-1, -2))
        gram *= unit.unsqueeze(1) * unit.unsqueeze(2)
        gram.diagonal(dim1=1, dim2=2).fill_(-1.0)
        return gram.amax(2).mean(1)
