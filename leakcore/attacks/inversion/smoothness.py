"""Which operations of a model are not twice differentiable, which hampers inverting its gradient."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch
from torch import nn

from leakcore.gradients import locked

_KINKED = {
    "Relu": "ReLU",
    "LeakyRelu": "LeakyReLU",
    "Prelu": "PReLU",
    "RreluWithNoise": "RReLU",
    "Threshold": "Threshold",
    "Hardtanh": "Hardtanh, ReLU6",
    "Hardsigmoid": "Hardsigmoid",
    "Hardswish": "Hardswish",
    "Hardshrink": "Hardshrink",
    "Softshrink": "Softshrink",
    "Clamp": "clamp",
    "Abs": "abs",
    "Sign": "sign",
    "Maximum": "maximum",
    "MaxPool": "max-pooling",
    "AdaptiveMaxPool": "max-pooling",
}
"""torch's name of the backward operation, without "Backward0" and dimensions. ELU and CELU are not here: their second
derivative jumps at 0, but is there and not zero, which suffices in practice."""


@locked
def kinked(model: nn.Module, x: torch.Tensor) -> tuple[str, ...]:
    """Piecewise linear operations between x (B, ...) and the model's output.

    Each is named "ReLU (layer 1)", or "ReLU" where it is a function and not a module.
    """
    with torch.enable_grad():
        out: Any = model(x.detach().clone().requires_grad_())
    met: dict[str, None] = {}
    visited, waiting = set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        kind = re.sub(r"(\d+D(WithIndices)?)?Backward\d+$", "", node.name())
        if kind in _KINKED:
            met[_KINKED[kind]] = None
        waiting += [parent for parent, _ in node.next_functions]
    names = []
    for what in sorted(met):
        aliases = [alias.lower() for alias in what.replace("max-pooling", "MaxPool").split(", ")]
        places = [
            name
            for name, module in model.named_modules()
            if any(alias in type(module).__name__.lower() for alias in aliases)
            and not (aliases == ["relu"] and type(module).__name__ != "ReLU")
        ]
        names.append(f"{what} (layer {', '.join(places)})" if places else what)
    return tuple(names)


def warn_if_kinked(model: nn.Module, x: torch.Tensor) -> tuple[str, ...]:
    """Warn (UserWarning) with the names, which are returned."""
    names = kinked(model, x)
    if names:
        warnings.warn(
            f"model: {'; '.join(names)} not twice differentiable: the search follows the derivative of the gradient, "
            "which is zero or jumps there, and is expected to fail more often (softplus, GELU or sigmoid in its place "
            "would not hamper it)",
            UserWarning,
            stacklevel=4,
        )
    return names
