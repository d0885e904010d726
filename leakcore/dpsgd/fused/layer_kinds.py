"""For each type of layer, its forward pass without gradients of parameters, and the sources of its rows."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from opacus.layers.dp_multihead_attention import SequenceBias
from opacus.layers.dp_rnn import RNNLinear
from torch import nn
from torch.nn import functional

from leakcore.dpsgd.fused.row_gradients import (
    Convolved,
    Dense,
    EmbeddingBagRows,
    Gathered,
    Outer,
    Use,
    shorter,
    wide_type,
)

Detached = Callable[[str], Any]
Uses = list[tuple[str, Use]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of layer.

    `forward` gives its output from parameters that get no gradient, `uses` what its parameters' per-sample gradients
    are computed from, given input and output gradient, rows first, and `read` its input from a call's arguments.
    `second` is the fewest dimensions of an input whose second one can be the rows (`batch_first=False`); None: rows are
    always first.
    """

    forward: Callable[[Any, Any, Detached], torch.Tensor]
    uses: Callable[[Any, Any, torch.Tensor], Uses]
    suits: Callable[[Any], bool] = lambda layer: True
    read: Callable[..., Any] = lambda layer, input: input
    second: Callable[[Any], int | None] = lambda layer: None


def _in_steps(rows: torch.Tensor) -> torch.Tensor:
    """(B, …, d) as (B, T, d)"""
    if rows.ndim < 2:
        raise ValueError(f"a layer's input must have a first dimension of samples, got shape {tuple(rows.shape)}")
    return rows.flatten(1, -2) if rows.ndim > 2 else rows[:, None]


def _linear_uses(layer: Any, a: torch.Tensor, delta: torch.Tensor, transposed: bool = False) -> Uses:
    a, delta = _in_steps(a), _in_steps(delta)
    weight = Outer(delta, a) if transposed else Outer(a, delta)
    return [("weight", shorter(weight)), ("bias", Dense(_over_steps(delta)))]


def _over_steps(delta: torch.Tensor) -> torch.Tensor:
    return delta.sum(1, dtype=wide_type(delta)) if delta.shape[1] > 1 else delta[:, 0]


def _convolution_uses(layer: Any, a: torch.Tensor, delta: torch.Tensor) -> Uses:
    if a.ndim != len(layer.kernel_size) + 2:
        raise ValueError(
            f"the input of {layer} must have a first dimension of samples and one of channels, got shape "
            f"{tuple(a.shape)}"
        )
    padding = layer._reversed_padding_repeated_twice
    if any(padding):
        a = functional.pad(a, padding, "constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    convolved = Convolved(a, delta, layer.weight, layer.stride, layer.dilation, layer.groups)
    return [("weight", shorter(convolved)), ("bias", Dense(delta.flatten(2).sum(2, dtype=wide_type(delta))))]


def _embedding_uses(layer: nn.Embedding, a: torch.Tensor, delta: torch.Tensor) -> Uses:
    index = a.reshape(len(a), a[0].numel() if len(a) else 1)
    delta = delta.reshape(*index.shape, delta.shape[-1])
    if layer.padding_idx is not None:
        delta = delta.masked_fill((index == layer.padding_idx)[..., None], 0)
    return [("weight", Gathered(index, delta, layer.num_embeddings))]


def _normalising(forward: Callable[[Any, Any, Detached], torch.Tensor], *, last: bool, **more: Any) -> Kind:
    """A normalisation, whose weight multiplies and whose bias adds: over its last dimensions, or per channel (1)."""

    def uses(layer: Any, a: torch.Tensor, delta: torch.Tensor) -> Uses:
        lowest = 1 + (len(layer.normalized_shape) if last else 1)
        if a.ndim < lowest:
            raise ValueError(f"the input of {layer} must have a first dimension of samples, got shape {tuple(a.shape)}")

        def total(values: torch.Tensor) -> torch.Tensor:
            if last:
                inner = tuple(range(1, values.ndim - len(layer.normalized_shape)))
                return values.sum(inner) if inner else values
            return values.flatten(2).sum(2) if values.ndim > 2 else values

        a, delta = a.to(wide_type(delta)), delta.to(wide_type(delta))
        normalised = forward(layer, a, lambda name: None)
        return [("weight", Dense(total(normalised * delta))), ("bias", Dense(total(delta)))]

    if last:
        more["second"] = lambda layer: len(layer.normalized_shape) + 2
    return Kind(forward, uses, **more)


def _sequence_bias(m: SequenceBias, x: torch.Tensor, p: Detached) -> torch.Tensor:
    shape = (len(x), 1) if m.batch_first else (1, x.shape[1])
    return torch.cat([x, p("bias").expand(*shape, -1)], 1 if m.batch_first else 0)


def _sequence_bias_uses(layer: SequenceBias, a: torch.Tensor, delta: torch.Tensor) -> Uses:
    return [("bias", Dense(delta[:, -1] if layer.batch_first else delta[-1]))]


_LINEAR = Kind(lambda m, x, p: functional.linear(x, p("weight"), p("bias")), _linear_uses, second=lambda layer: 3)
_CONVOLUTION = Kind(lambda m, x, p: m._conv_forward(x, p("weight"), p("bias")), _convolution_uses)
_INSTANCE_NORM = _normalising(
    lambda m, x, p: functional.instance_norm(x, weight=p("weight"), bias=p("bias"), eps=m.eps),
    last=False,
    suits=lambda m: m.running_mean is None,
)
KINDS: dict[type, Kind] = {
    nn.Linear: _LINEAR,
    RNNLinear: Kind(_LINEAR.forward, _linear_uses),
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.Embedding: Kind(
        lambda m, x, p: functional.embedding(x, p("weight"), m.padding_idx),
        _embedding_uses,
        lambda m: m.max_norm is None and not m.scale_grad_by_freq and not m.sparse,
        second=lambda layer: 2,
    ),
    nn.EmbeddingBag: Kind(
        lambda m, bags, p: bags.looked_up(p("weight")),
        lambda layer, bags, delta: [("weight", bags.use(delta))],
        lambda m: m.max_norm is None and not m.scale_grad_by_freq,
        EmbeddingBagRows.of,
    ),
    nn.LayerNorm: _normalising(
        lambda m, x, p: functional.layer_norm(x, m.normalized_shape, p("weight"), p("bias"), m.eps), last=True
    ),
    nn.RMSNorm: _normalising(
        lambda m, x, p: functional.rms_norm(x, m.normalized_shape, p("weight"), m.eps),
        last=True,
        read=lambda layer, x: x,
    ),
    nn.GroupNorm: _normalising(
        lambda m, x, p: functional.group_norm(x, m.num_groups, p("weight"), p("bias"), m.eps), last=False
    ),
    nn.InstanceNorm1d: _INSTANCE_NORM,
    nn.InstanceNorm2d: _INSTANCE_NORM,
    nn.InstanceNorm3d: _INSTANCE_NORM,
    SequenceBias: Kind(_sequence_bias, _sequence_bias_uses, read=lambda layer, x: x),
}

_TRANSPOSED_LINEAR = Kind(
    lambda m, x, p: functional.linear(x, p("weight").T, p("bias")),
    functools.partial(_linear_uses, transposed=True),
    read=lambda layer, x: x,
    second=lambda layer: 3,
)


def kind_of(layer: nn.Module) -> Kind | None:
    """How this layer is taken over; None for a type that is not known, such as a subclass of a known one."""
    if type(layer) in KINDS:
        return KINDS[type(layer)]
    # GPT-2's linear layer, whose weight is (inputs, outputs). Nobody has such a layer without the module.
    gpt2 = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    return _TRANSPOSED_LINEAR if gpt2 is not None and type(layer) is gpt2 else None
