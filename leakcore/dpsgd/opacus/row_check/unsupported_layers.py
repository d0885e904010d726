"""Parameters that have no per-sample gradients, or none that a clipping bounds: which, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """The last call of a layer in a loop: the dimensions of its input, and whether it was in training mode."""

    dimensions: int
    training: bool

    @classmethod
    def of(cls, layer: nn.Module, inputs: tuple[Any, ...]) -> LayerCall:
        """A call with these positional arguments."""
        first = next((x for x in inputs if isinstance(x, torch.Tensor)), None)
        return cls(0 if first is None else first.ndim, layer.training)


def names_of(module: nn.Module) -> dict[int, str]:
    """The name of each parameter by its id, without the wrapper that Opacus puts around a module."""
    return {id(p): name.removeprefix("_module.") for name, p in module.named_parameters()}


def require_real(parameters: Iterable[torch.Tensor], names: Mapping[int, str]) -> None:
    """ValueError for a parameter of complex numbers, or of integers."""
    for k, p in enumerate(parameters):
        if not p.is_floating_point():
            reason = (
                "for complex numbers Opacus's noise has the variance σ²C²/2 in each real direction, and its gradients "
                "lack the conjugate, so that its ε does not hold"
                if p.is_complex()
                else "no gradient exists for it"
            )
            raise ValueError(
                f"`optimizer` must train real floating-point parameters, got {_named(k, p, names)} of {p.dtype}: "
                f"{reason}. Keep the real and the imaginary part as two real parameters, or freeze it"
            )


def without_rows(
    parameters: Iterable[torch.Tensor],
    names: Mapping[int, str],
    attribute: str = "grad_sample",
    *,
    root: nn.Module | None = None,
    calls: Mapping[int, LayerCall] | None = None,
) -> str:
    """A message about parameters that have no rows where others do; "" if all have them, or none.

    Args:
        parameters: of the optimizer.
        names: of parameters, by id.
        attribute: that holds the rows, `_norm_sample` for ghost clipping.
        root: the model, in which the layers are looked up.
        calls: the last call of each layer, by its id; None: calls were not observed.
    """
    every = list(parameters)
    lack = [k for k, p in enumerate(every) if getattr(p, attribute, None) is None]
    if not lack or len(lack) == len(every):
        return ""
    causes: dict[str, list[str]] = {}
    for k in lack:
        owners = (
            [] if root is None else [m for m in root.modules() if any(p is every[k] for p in m._parameters.values())]
        )
        cause = _cause(owners, root, attribute == "_norm_sample", calls)
        causes.setdefault(cause, []).append(_named(k, every[k], names))
    return "; ".join(f"no row has a gradient of {_listed(whose)}: {cause}" for cause, whose in causes.items())


def _cause(owners: list[nn.Module], root: nn.Module | None, ghost: bool, calls: Mapping[int, LayerCall] | None) -> str:
    """Why a parameter of these layers has no rows, and what to do."""
    if owners and root is not None and not any(_is_hooked(layer, root) for layer in owners):
        return (
            "its layer has no hooks of Opacus, because it was frozen, or not yet there, when make_private "
            "(GradSampleModule) wrapped the model. Unfreeze it before make_private, or freeze it again "
            "(requires_grad_(False))"
        )
    called = [] if calls is None else [calls[id(layer)] for layer in owners if id(layer) in calls]
    deep = next((call.dimensions for call in called if call.dimensions > 3), 0)
    if ghost and deep and any(type(layer) is nn.Linear for layer in owners):
        return (
            f"Opacus's ghost clipping has no norms for a Linear whose input has more than 3 dimensions, got {deep}. "
            'Flatten the positions (x.flatten(1, -2)), or use grad_sample_mode="hooks"'
        )
    if owners and calls is not None and not called:
        return "its layer is never called. Freeze it (requires_grad_(False)), or leave it out of the optimizer"
    return (
        "the loss does not come from a layer that holds it (never called, called in evaluation mode or within a "
        "gradient checkpoint, or its output unused). Freeze it (requires_grad_(False)), or leave it out of the "
        "optimizer"
    )


def asleep(root: nn.Module | None, calls: Mapping[int, LayerCall]) -> str:
    """A message about layers that are called in evaluation mode while the model trains; "" if there are none."""
    layers = [] if root is None else list(root.named_modules())
    listed = [n.removeprefix("_module.") for n, m in layers if id(m) in calls and not calls[id(m)].training]
    if not listed:
        return ""
    which = "it is" if len(listed) == 1 else "they are"
    return (
        f"no row has a gradient of {_listed(listed)}: {which} called in evaluation mode, in which Opacus "
        "takes no gradients. Call train(), or freeze (requires_grad_(False)) before make_private"
    )


def _is_hooked(layer: nn.Module, root: nn.Module) -> bool:
    """Whether Opacus watches a layer, or takes it as a part of a module around it."""
    from opacus.grad_sample import GradSampleHooks

    around = [m for m in root.modules() if any(inside is layer for inside in m.modules())]
    return any(
        isinstance(getattr(hook, "__self__", None), GradSampleHooks)
        for m in around
        for hook in m._forward_hooks.values()
    ) or hasattr(layer.__dict__.get("forward"), "hooks")  # taken over by FusedDPOptimizer


def other_counts(parameters: Iterable[torch.Tensor], names: Mapping[int, str]) -> str:
    """A message about parameters whose number of rows is not that of most; "" if all have one number."""
    counts: dict[int, list[str]] = {}
    for k, p in enumerate(parameters):
        samples = getattr(p, "grad_sample", None)
        last = samples[-1] if isinstance(samples, list) and samples else samples
        if isinstance(last, torch.Tensor):
            counts.setdefault(len(last), []).append(_named(k, p, names))
    if len(counts) < 2:
        return ""
    usual = max(counts, key=lambda count: len(counts[count]))
    others = {count: listed for count, listed in counts.items() if count != usual}
    said = "; ".join(f"{count} of {', '.join(listed[:4])}" for count, listed in others.items())
    return (
        f"all parameters must have per-sample gradients of the rows of the batch, {usual}, got {said}: the layer sees "
        "another first dimension than the batch's (positions looked up once for all rows: pass position_ids with a row "
        "for each). Freeze it (requires_grad_(False)), or pass it a row for each"
    )


def _named(k: int, parameter: torch.Tensor, names: Mapping[int, str]) -> str:
    return names.get(id(parameter), f"parameter {k} of shape {tuple(parameter.shape)}")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
