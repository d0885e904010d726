"""Clipped sums of a block's gradients: by the native loops, by batched products, or by torch.func for any module."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch.func import grad, vmap

from leakcore.gradients import evaluate
from leakcore.kernels import ACTIVATIONS, MAX_LAYERS, EnsembleRows, EnsembleSums, Taken

_aten = torch.ops.aten
Matrices = list[torch.Tensor]
"""One (slots, out, in + 1) matrix per layer."""


class InPlaceActivation(NamedTuple):
    """An activation in two passes of torch's vectorised code, without allocation or graph.

    forward(z, out) writes φ(z); backward(grad, z, value) multiplies grad by φ′(z) in place, with value = φ(z).
    """

    forward: Callable[[torch.Tensor, torch.Tensor], object]
    backward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


IN_PLACE_ACTIVATIONS: dict[str, InPlaceActivation] = {
    "elu": InPlaceActivation(
        lambda z, out: _aten.elu.out(z, out=out),
        lambda grad, z, value: _aten.elu_backward.grad_input(grad, 1.0, 1.0, 1.0, True, value, grad_input=grad),
    ),
    "relu": InPlaceActivation(
        lambda z, out: torch.clamp(z, min=0, out=out),
        lambda grad, z, value: _aten.threshold_backward.grad_input(grad, value, 0.0, grad_input=grad),
    ),
    "leaky_relu": InPlaceActivation(
        lambda z, out: _aten.leaky_relu.out(z, 0.01, out=out),
        lambda grad, z, value: _aten.leaky_relu_backward.grad_input(grad, z, 0.01, False, grad_input=grad),
    ),
    "tanh": InPlaceActivation(
        lambda z, out: torch.tanh(z, out=out),
        lambda grad, z, value: _aten.tanh_backward.grad_input(grad, value, grad_input=grad),
    ),
    "sigmoid": InPlaceActivation(
        lambda z, out: torch.sigmoid(z, out=out),
        lambda grad, z, value: _aten.sigmoid_backward.grad_input(grad, value, grad_input=grad),
    ),
    "softplus": InPlaceActivation(
        lambda z, out: _aten.softplus.out(z, 1.0, 20.0, out=out),
        lambda grad, z, value: _aten.softplus_backward.grad_input(grad, z, 1.0, 20.0, grad_input=grad),
    ),
    "gelu": InPlaceActivation(
        # Not `_aten.gelu.out`: in float32 torch's oneDNN leaves a strided `out` as it was.
        lambda z, out: out.copy_(torch.nn.functional.gelu(z)),
        lambda grad, z, value: _aten.gelu_backward.grad_input(grad, z, approximate="none", grad_input=grad),
    ),
    "silu": InPlaceActivation(
        lambda z, out: _aten.silu.out(z, out=out),
        lambda grad, z, value: _aten.silu_backward.grad_input(grad, z, grad_input=grad),
    ),
    "identity": InPlaceActivation(lambda z, out: out.copy_(z), lambda grad, z, value: None),
}


class ParameterLayout:
    """Moves between (slots, parameters) and one (slots, out, in + 1) matrix per layer, bias in the last column."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self._shapes = list(zip(layers[1:], layers[:-1], strict=True))
        self.size = sum((fan_in + 1) * fan_out for fan_out, fan_in in self._shapes)

    def empty(self, slots: int, dtype: torch.dtype, device: torch.device) -> Matrices:
        return [
            torch.zeros((slots, fan_out, fan_in + 1), dtype=dtype, device=device) for fan_out, fan_in in self._shapes
        ]

    def bounds(self) -> np.ndarray:
        """(parameters,): 1/√fan_in of each parameter's layer, the half-width of torch.nn.Linear's initial values."""
        return np.concatenate([np.full((fan_in + 1) * fan_out, fan_in**-0.5) for fan_out, fan_in in self._shapes])

    def glorot(self) -> np.ndarray:
        """(parameters,): √(2/(fan_in + fan_out)) for weights, 0 for biases (Glorot and Bengio 2010)."""
        parts = []
        for fan_out, fan_in in self._shapes:
            parts += [np.full(fan_in * fan_out, (2 / (fan_in + fan_out)) ** 0.5), np.zeros(fan_out)]
        return np.concatenate(parts)

    def write(self, flat: torch.Tensor, into: Matrices) -> None:
        """into = flat."""
        for (weight, bias), matrix in zip(self._views(flat), into, strict=True):
            matrix[:, :, :-1] = weight
            matrix[:, :, -1] = bias

    def add(self, flat: torch.Tensor, scale: float, into: Matrices, *, bias_scale: float) -> None:
        """into += scale·flat, biases: bias_scale·flat."""
        for (weight, bias), matrix in zip(self._views(flat), into, strict=True):
            matrix[:, :, :-1].add_(weight, alpha=scale)
            matrix[:, :, -1].add_(bias, alpha=bias_scale)

    def read(self, matrices: Matrices) -> torch.Tensor:
        """(slots, parameters) in the flat order."""
        parts = [part for m in matrices for part in (m[:, :, :-1].flatten(1), m[:, :, -1])]
        return torch.cat(parts, 1)

    def _views(self, flat: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        out, start = [], 0
        for fan_out, fan_in in self._shapes:
            middle = start + fan_out * fan_in
            end = middle + fan_out
            out.append((flat[:, start:middle].view(-1, fan_out, fan_in), flat[:, middle:end]))
            start = end
        return out


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
        """Read features (..., rows, d) and labels (..., rows), which become one-hot, or 0/1 for a single output."""
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
    """Buffers for an MLP's runs, and batched products over them, for each thread and shape (slots, rows) of `norms`.

    Every buffer keeps the sample index last and contiguous: activations are (slots, units + 1, rows) with a last unit
    of ones, so a layer's bias is one more weight, and the sample's squared gradient norm in that layer is ‖(a,
    1)‖²·‖δ‖² (Goodfellow 2015). No per-sample gradient exists. A `RowGroup` that all runs share has no slot axis: the
    first layer is then one matrix product for all runs. Every product's shape is fixed by the numbers of slots and
    rows, because BLAS may round differently for another; that makes a run's result independent of its neighbours.
    """

    def __init__(
        self, norms: torch.Tensor, layers: tuple[int, ...], activation: InPlaceActivation, clip_to: float, slack: float
    ) -> None:
        slots, rows = norms.shape

        def empty(*shape: int) -> torch.Tensor:
            return norms.new_empty((slots, *shape, rows))

        self._layers, self._activation = layers, activation
        self._max_grad_norm, self._slack, self.norms = clip_to, slack, norms
        self._pre = [empty(size) for size in layers[1:]]
        self._post = [norms.new_ones((slots, size + 1, rows)) for size in layers[1:-1]]
        self.deltas = [empty(size) for size in layers[1:]]
        self._square = empty(max(layers[1:]) + 1)
        self._part, self._other, self.factors = (empty() for _ in range(3))

    def logits(self, rows: RowGroup, weights: Matrices) -> torch.Tensor:
        """(slots, outputs, rows), a buffer that the next call overwrites."""
        self._forward(rows, weights)
        return self._pre[-1]

    def run(self, rows: RowGroup, weights: Matrices) -> None:
        """Fill `deltas` (dℓ/dz of each layer, unclipped), `norms` (joint, of gradients), `factors` (min{1, C/norm})."""
        self._forward(rows, weights)
        self._backward(rows, weights)
        torch.sqrt(self._squared_norms(rows), out=self.norms)
        # A zero gradient divides to infinity, which the clamp makes 1: nothing to clip.
        torch.add(self.norms, self._slack, out=self.factors)
        torch.reciprocal(self.factors, out=self.factors).mul_(self._max_grad_norm).clamp_(max=1.0)
        # A norm that overflowed has factor 0 and would drop the sample silently; 0·∞ makes it NaN, and then an error.
        self.factors.add_(self.norms, alpha=0.0)

    def _forward(self, rows: RowGroup, weights: Matrices) -> None:
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

    def _backward(self, rows: RowGroup, weights: Matrices) -> None:
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

    def add_clipped_sum(self, rows: RowGroup, into: Matrices, *, mask: torch.Tensor | None, fresh: bool) -> None:
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

    def scores(self, rows: RowGroup, gradients: Matrices) -> torch.Tensor:
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


_GRADIENTS = 2**23
"""Numbers in one chunk of per-sample gradients: 32 MB in float32. The chunks, and with them the order of additions,
depend on the numbers of rows and parameters alone."""


class FlatLayout:
    """Moves between (slots, parameters) and the one matrix that holds it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._shapes = [tuple(p.shape) for p in module.parameters()]
        self.size = sum(math.prod(shape) for shape in self._shapes)

    def empty(self, slots: int, dtype: torch.dtype, device: torch.device) -> Matrices:
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

    def write(self, flat: torch.Tensor, into: Matrices) -> None:
        into[0][:, 0] = flat

    def add(self, flat: torch.Tensor, scale: float, into: Matrices, *, bias_scale: float) -> None:
        """into += scale·flat; bias_scale·flat for parameters with one axis."""
        start = 0
        for shape in self._shapes:
            part = slice(start, start + math.prod(shape))
            into[0][:, 0, part].add_(flat[:, part], alpha=scale if len(shape) > 1 else bias_scale)
            start = part.stop

    def read(self, matrices: Matrices) -> torch.Tensor:
        return matrices[0][:, 0].clone()


class ModulePass:
    """Per-sample gradients by torch.func, one run after the other, of the runs in `used` slots.

    It has the calls of `Pass`, so that one training loop serves both. Parameters are one (slots, 1, parameters) matrix.
    """

    def __init__(
        self, norms: torch.Tensor, module: torch.nn.Module, input_shape: tuple[int, ...], clip_to: float, slack: float
    ) -> None:
        self._module = copy.deepcopy(module).to(norms)
        self._names = [(name, p.shape) for name, p in self._module.named_parameters()]
        self._input_shape, self._slots = input_shape, len(norms)
        self._chunk = max(1, _GRADIENTS // sum(shape.numel() for _, shape in self._names))
        self._max_grad_norm, self._slack, self.norms = clip_to, slack, norms
        self._weights = torch.zeros(0)
        self.used = range(len(norms))
        self._gradients = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def _loss(self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = evaluate(self._module, parameters, x.unsqueeze(0))
        if out.shape[1] == 1:
            return torch.nn.functional.binary_cross_entropy_with_logits(out[0, 0], y)
        return torch.nn.functional.cross_entropy(out, y.unsqueeze(0))

    def run(self, rows: RowGroup, weights: Matrices) -> None:
        """Store the parameters. Gradients are computed on request."""
        self._weights = weights[0][:, 0]

    def logits(self, rows: RowGroup, weights: Matrices) -> torch.Tensor:
        """(slots, outputs, rows); zeros for slots that are not used."""
        out = self.norms.new_zeros((self._slots, rows.targets.shape[-2], rows.count))
        with torch.no_grad():
            for slot in self.used:
                x, _ = self._samples(rows, slot, slice(None))
                out[slot] = evaluate(self._module, self._parameters(weights[0][slot, 0]), x).T
        return out

    def add_clipped_sum(self, rows: RowGroup, into: Matrices, *, mask: torch.Tensor | None, fresh: bool) -> None:
        """into (+)= Σ_b mask_b·clip_C(∇ℓ_b)."""
        if fresh:
            into[0].zero_()
        for slot in self.used:
            for part, gradients in self._per_sample(rows, slot):
                factors = self._factors(torch.linalg.vector_norm(gradients, dim=1))
                if mask is not None:
                    factors = factors * mask[slot, part]
                into[0][slot, 0] += factors @ gradients

    def scores(self, rows: RowGroup, gradients: Matrices) -> torch.Tensor:
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


def has_native_sums(layers: tuple[int, ...], activation: str) -> bool:
    """Whether the native loops know the activation and the number of layers."""
    return activation in ACTIVATIONS and len(layers) - 1 <= MAX_LAYERS


class NativeSums:
    """One thread's sums over the rows that all runs share and over each run's own, by the native loops.

    They read each run's batch in place, run by run, with no copy, no padding and no per-step passes over buffers.
    `Pass` does the same on other devices, and for activations that the loops do not know.
    """

    def __init__(self, sums: EnsembleSums, common: EnsembleRows) -> None:
        self._sums, self._common, self.num_common = sums, common, common.count
        self._extra: EnsembleRows | None = None

    def begin(self, extra: RowGroup | None) -> None:
        """Begin a new block of runs, with these rows of their own."""
        if extra is None:
            self._extra = None
            return
        classes = extra.targets[:, 0] if extra.targets.shape[1] == 1 else extra.targets.argmax(1)
        self._extra = EnsembleRows.of(extra.inputs[..., :-1].numpy(), classes.numpy())

    def add(self, weights: Matrices, taken: np.ndarray | None, known: Matrices, private: Matrices) -> None:
        """known = Σ over the common rows taken, private = Σ over the extra rows taken; taken (slots, rows) bool."""
        for sums, rows in ((known, self.num_common), (private, 0 if self._extra is None else self._extra.count)):
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


def _addresses(matrices: Matrices) -> list[int]:
    return [matrix.data_ptr() for matrix in matrices]
