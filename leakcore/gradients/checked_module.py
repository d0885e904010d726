"""Checks that the gradients of a torch module's rows are well defined: it is trained, in memory, and at rest."""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from leakcore._base import array_memory


def trained_parameters(model: Any, mixing: bool = False) -> dict[str, nn.Parameter]:
    """{name: parameter} of the parameters that require grad, at least one. `mixing` allows batch norms to mix samples.

    Raises:
        ValueError: if there are none, or as `require_still`.
        TypeError: if the model is not a torch module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("`model` must have parameters that require grad, or there is no gradient")
    require_still(model, mixing)
    return trained


def require_memory(model: nn.Module, argument: str = "model") -> None:
    """Require that every parameter and buffer has values to compute with.

    Raises:
        ValueError: if one was freed, or not created yet.
        TypeError: if one has another type.
    """
    for name, values in itertools.chain(model.named_parameters(), model.named_buffers()):
        array_memory.plain_tensor(f"{argument}.{name}", values)


def require_still(model: nn.Module, mixing: bool = False) -> None:
    """Require that no layer, in its present mode, mixes samples, draws random numbers or changes its own buffers.

    `mixing` allows it to batch norms: the gradient of a whole batch needs no rows of its own.

    Raises:
        ValueError: names the layer and what to do; or as `require_memory`.
    """
    require_memory(model)
    for name, module in model.named_modules():
        if mixing and isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if (what := unrest(module)) is not None:
            cure = "call model.eval()" if module.training else "build it with track_running_stats=True"
            raise ValueError(f"model: layer {name} ({type(module).__name__}) {what}: {cure}")


def unrest(module: nn.Module) -> str | None:
    """What a layer does, in its present mode, apart from computing each row's output from that row; None: nothing."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        if not module.training and module.running_mean is None:
            return "mixes samples even in eval mode, because it has no running statistics"
        return "mixes samples" if module.training else None
    if not module.training:
        return None
    if isinstance(module, nn.modules.dropout._DropoutNd | nn.RReLU):
        return "is random, and no seed here controls it"
    rate = 0.0
    if isinstance(module, nn.RNNBase) and module.num_layers > 1:  # it drops between its layers
        rate = module.dropout
    elif isinstance(module, nn.MultiheadAttention):
        rate = float(module.dropout)
    if rate > 0:
        return f"is random (dropout={rate}), and no seed here controls it"
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        return "changes its running statistics"
    hooks = module._forward_pre_hooks.values()
    if any(isinstance(hook, SpectralNorm) for hook in hooks) or (
        isinstance(module, _SpectralNorm) and hasattr(module, "_u")  # a vector's norm needs no iteration
    ):
        return "changes the vectors of its spectral norm"
    return None
