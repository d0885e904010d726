"""The gradient that an attacker sees, by parameter, in any form in which one is released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from leakcore._base import validate
from leakcore.attacks.stored_precision import coarsest_roundoff
from leakcore.gradients import FlatModule, tensor


def gradient_by_name(model: Any, gradient: Any, noise_std: float) -> tuple[dict[str, torch.Tensor], float]:
    """{parameter: float64 gradient}, and the unit roundoff of the coarsest of gradient, its numbers and the model.

    gradient: (D,), a list of tensors, one per parameter that requires grad, a dictionary by name that may hold some
    parameters only, or what `defenses.release` returned. noise_std: as the attack was told; where it is not 0 it stands
    for rounding as well, as of a change of weights, whose numbers show few bits.
    """
    flat = FlatModule(model)
    gradient = getattr(gradient, "gradient", gradient)
    shapes = dict(zip(flat.names, flat.shapes, strict=True))
    if isinstance(gradient, Mapping):
        parts = {str(name): tensor(part, f"gradient[{name!r}]") for name, part in gradient.items()}
        unknown = [name for name in parts if name not in shapes]
        if unknown or not parts:
            raise ValueError(f"`gradient` must hold parameters of the model that require grad, got {unknown[:3]}")
    elif isinstance(gradient, list | tuple):
        listed = [tensor(part, f"gradient[{i}]") for i, part in enumerate(gradient)]
        if len(listed) != len(shapes):
            raise ValueError(f"`gradient` must hold {len(shapes)} tensors, one per parameter, got {len(listed)}")
        parts = dict(zip(flat.names, listed, strict=True))
    else:
        vector = tensor(gradient, "gradient")
        if tuple(vector.shape) != (len(flat),):
            raise ValueError(
                f"`gradient` must have shape ({len(flat)},), one number for each of the model's parameters, got "
                f"{tuple(vector.shape)}"
            )
        parts = flat.split(vector)
    for name, part in parts.items():
        if tuple(part.shape) != shapes[name]:
            raise ValueError(
                f"`gradient[{name!r}]` must have the parameter's shape, {shapes[name]}, got {tuple(part.shape)}"
            )
        if not part.is_floating_point() or not bool(part.isfinite().all()):
            raise ValueError(f"`gradient[{name!r}]` must hold finite floating numbers")
    unit = max(validate.roundoff(flat.theta), *(validate.roundoff(part) for part in parts.values()))
    doubles = {name: part.double() for name, part in parts.items()}
    if noise_std > 0:
        return doubles, unit
    return doubles, coarsest_roundoff([part.cpu().numpy() for part in doubles.values()], unit)
