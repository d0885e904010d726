"""Where the per-sample gradients of Opacus (1.5 and 1.6) are not autograd's."""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks
from torch import nn
from torch.nn import functional


def wrong_setting(layer: Any) -> str:
    """The setting of a layer that Opacus's sampler passes over, or ""."""
    if type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d) and layer.padding_mode != "zeros":
        return f"padding_mode={layer.padding_mode!r}"
    if type(layer) is nn.Embedding and layer.padding_idx is not None:
        return f"padding_idx={layer.padding_idx}"
    if type(layer) is nn.Embedding and layer.scale_grad_by_freq:
        return "scale_grad_by_freq=True"
    return ""


def wrong_rows(layer: nn.Module, inputs: tuple[Any, ...]) -> str:
    """Why the per-sample gradients that Opacus's hooks make of this call of a layer are not autograd's; "" if they are.

    Its sampler of Conv2d takes the activations for contiguous, which those in channels_last order are not.
    """
    if type(layer) not in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding):
        return ""
    owners = [getattr(hook, "__self__", None) for hook in layer._forward_hooks.values()]
    if not any(isinstance(o, GradSampleHooks) and not getattr(o, "force_functorch", False) for o in owners):
        return ""
    if why := wrong_setting(layer):
        return why
    x = inputs[0] if inputs else None
    if type(layer) is nn.Conv2d and isinstance(x, torch.Tensor) and x.ndim == 4:
        shape = torch.empty_strided(x.shape, x.stride(), device="meta")
        padded = functional.pad(shape, layer._reversed_padding_repeated_twice)
        if padded.stride()[2:] != (padded.shape[3], 1):
            return "an input that is not contiguous, such as channels_last"
    return ""
