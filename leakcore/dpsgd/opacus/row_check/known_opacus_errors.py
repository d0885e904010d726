"""Where the per-sample gradients of Opacus (1.5 and 1.6) are not autograd's."""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks
from opacus.layers.dp_rnn import DPRNNBase
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence


def no_rows(layer: Any) -> str:
    """The setting of a layer that leaves no row a gradient of its own, and why; or ""."""
    if type(layer) not in (nn.Embedding, nn.EmbeddingBag):
        return ""
    if layer.max_norm is not None:
        return f"max_norm={layer.max_norm}, which shortens the entries that a batch looks up, without noise"
    if type(layer) is nn.EmbeddingBag and layer.scale_grad_by_freq:
        return "scale_grad_by_freq=True, which divides a row's gradient by how often others look its entries up"
    return ""


def wrong_setting(layer: Any) -> str:
    """The setting of a layer that Opacus's sampler ignores, or ""."""
    if type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d) and layer.padding_mode != "zeros":
        return f"padding_mode={layer.padding_mode!r}"
    if type(layer) is nn.Embedding and layer.scale_grad_by_freq:
        return "scale_grad_by_freq=True"
    if type(layer) is nn.EmbeddingBag:
        return "bags, which may hold an index twice, weights or padding"
    return ""


def padding_setting(layer: Any) -> str:
    """The padding of an embedding, which Opacus's sampler ignores, or ""."""
    known = type(layer) is nn.Embedding and layer.padding_idx is not None
    return f"padding_idx={layer.padding_idx}" if known else ""


def padding_wrong(layer: Any) -> bool:
    """Whether Opacus's hooks give an embedding gradients at its padding, where autograd gives none."""
    return bool(padding_setting(layer)) and any(
        not getattr(owner, "force_functorch", False) for owner in _owners([layer])
    )


def _owners(layers: list[Any]) -> list[GradSampleHooks]:
    owners = [getattr(hook, "__self__", None) for m in layers for hook in m._forward_hooks.values()]
    return [o for o in owners if isinstance(o, GradSampleHooks)]


def may_be_wrong(layer: nn.Module) -> bool:
    """Whether `wrong_rows` knows this type of layer."""
    known = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.EmbeddingBag)
    return type(layer) in known or isinstance(layer, DPRNNBase)


def wrong_rows(layer: nn.Module, inputs: tuple[Any, ...], others: bool = True) -> str:
    """Why the per-sample gradients of Opacus's hooks, for this call of a layer, are not autograd's; "" if they are.

    Opacus's sampler of Conv2d takes the activations for contiguous, which channels_last activations are not. Its
    recurrent layers see packed rows by length, another order than that of the layers outside. `others`: whether there
    are such layers, trained too.
    """
    hooked = layer.modules() if isinstance(layer, DPRNNBase) else [layer] if may_be_wrong(layer) else []
    owners = _owners(list(hooked))
    if not owners:
        return ""
    x = inputs[0] if inputs else None
    if isinstance(layer, DPRNNBase):
        order = x.sorted_indices if isinstance(x, PackedSequence) else None
        if not others or order is None or torch.equal(order, torch.arange(len(order), device=order.device)):
            return ""
        return "a packed sequence whose rows are not in the order of their lengths (enforce_sorted=False)"
    if any(getattr(o, "force_functorch", False) for o in owners):
        return ""
    if why := wrong_setting(layer) or no_rows(layer):
        return why
    if type(layer) is nn.Conv2d and isinstance(x, torch.Tensor) and x.ndim == 4:
        shape = torch.empty_strided(x.shape, x.stride(), device="meta")
        padded = functional.pad(shape, layer._reversed_padding_repeated_twice)
        if padded.stride()[2:] != (padded.shape[3], 1):
            return "an input that is not contiguous, such as channels_last"
    return ""
