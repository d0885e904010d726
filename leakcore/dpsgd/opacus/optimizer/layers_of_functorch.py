"""Layers that nobody knows, whose rows Opacus computes by calling them again on their first input alone."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from torch import nn

from leakcore.dpsgd.rows.preserve_state import Uncopied


def require_one_input(layers: list[nn.Module], hooks: GradSampleHooks) -> list[Any]:
    """Refuse layers that Opacus cannot call again, now or in the forward pass that gives them more than one input.

    Returns:
        Handles of the hooks that watch the calls.

    Raises:
        ValueError: for a layer whose forward pass needs several inputs, and for parameters without a forward pass.
    """
    handles = []
    for layer in layers:
        if not hooks.force_functorch and type(layer) in (*hooks.GRAD_SAMPLERS, DPRNN, DPLSTM, DPGRU):
            continue
        if isinstance(layer, nn.MultiheadAttention):
            raise ValueError(
                "the model must be without nn.MultiheadAttention, which uses its weights without calling its layers: "
                "opacus.validators.ModuleValidator.fix(model) makes a DPMultiheadAttention of it"
            )
        if isinstance(layer, nn.ParameterDict | nn.ParameterList):
            names = ", ".join(f"{name} {tuple(p.shape)}" for name, p in layer.named_parameters() if p.requires_grad)
            raise ValueError(
                f"all trained parameters must be those of a layer that is called, but a {type(layer).__name__} holds "
                f"{names}: freeze them, as a LoRA adapter of an embedding, or make them a layer"
            )
        signature = _signature(layer)
        if signature is None:
            continue
        try:
            signature.bind(None)
        except TypeError:
            raise ValueError(
                f"a {type(layer).__name__} must take one input, since Opacus computes its rows by calling it with its "
                f"first one alone, but its forward pass is {type(layer).__name__}.forward{signature}: freeze it, or "
                "register a sampler with opacus.grad_sample.register_grad_sampler"
            ) from None
        handles.append(layer.register_forward_pre_hook(Uncopied(_Single(signature, hooks)), with_kwargs=True))
    return handles


class _Single:
    """A hook that refuses calls with more tensors than the first. Other arguments are for the row check."""

    def __init__(self, signature: inspect.Signature, hooks: GradSampleHooks) -> None:
        self._signature, self._hooks = signature, hooks

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (layer.training and torch.is_grad_enabled() and self._hooks.hooks_enabled):
            return
        bound = self._signature.bind(*args, **kwargs).arguments
        tensors = [name for name, value in bound.items() if isinstance(value, torch.Tensor)]
        if not args or tensors != [next(iter(bound))]:
            raise ValueError(
                f"a {type(layer).__name__} must be called with one tensor, by position, since Opacus computes its rows "
                f"by calling it with that alone, got {', '.join(tensors) or 'none'}{'' if args else ' by name'}"
            )


def _signature(layer: nn.Module) -> inspect.Signature | None:
    try:
        return inspect.signature(layer.forward)
    except (TypeError, ValueError):
        return None
