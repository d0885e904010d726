"""What an attacker who holds the model recomputes: the inputs of the last linear layer and its single logit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, eq=False)
class LastLayer:
    """activations: (N, d) inputs of the last linear layer; weight: (d,); bias: (1,) or None."""

    activations: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None


def last_linear(model: torch.nn.Module, inputs: Any) -> LastLayer:
    """Run `model` once on `inputs` without gradient and capture what enters its last `Linear` layer.

    The forward pass runs in the model's present mode on copies of its buffers, so nothing about the model changes.
    Raises ValueError when there is no linear layer, when the last one has more than one output, when dropout is
    active (the attacker cannot know its mask), or when the model's output is neither that layer's output nor its
    sigmoid.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model={type(model).__name__}: must be a torch.nn.Module")
    random_layers = (torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU)
    for name, module in model.named_modules():
        if module.training and isinstance(module, random_layers):
            raise ValueError(
                f"model: layer {name!r} is random in training mode, so its output is not known; use eval()"
            )

    calls: list[tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]] = []

    def record(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        assert isinstance(module, torch.nn.Linear)
        calls.append((module, args[0], output))

    hooks = [m.register_forward_hook(record) for m in model.modules() if isinstance(m, torch.nn.Linear)]
    try:
        with torch.no_grad():
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            prediction = torch.func.functional_call(model, buffers, (torch.as_tensor(inputs),))
    finally:
        for hook in hooks:
            hook.remove()
    if not calls:
        raise ValueError("model: has no torch.nn.Linear layer; pass activations= instead")
    layer, entering, logits = calls[-1]
    if layer.out_features != 1:
        raise ValueError(f"model: its last linear layer has {layer.out_features} outputs, must be 1 (one logit)")
    if not isinstance(prediction, torch.Tensor) or not (
        _same(prediction, logits) or _same(prediction, logits.sigmoid())
    ):
        raise ValueError(
            "model: its output is neither the output of its last linear layer nor the sigmoid of it, so that layer's "
            "inputs are not dZ/dW; pass activations= instead"
        )
    bias = None if layer.bias is None else layer.bias.detach()
    return LastLayer(entering.detach().flatten(0, -2), layer.weight.detach()[0], bias)


def _same(prediction: torch.Tensor, expected: torch.Tensor) -> bool:
    import torch

    return prediction.numel() == expected.numel() and torch.allclose(prediction.flatten(), expected.flatten())
