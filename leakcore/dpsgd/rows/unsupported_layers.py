"""Parameters without per-sample gradients, or with ones that are not autograd's: which, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
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


def _owners(layers: list[Any]) -> list[Any]:
    """Opacus's hooks on these layers."""
    from opacus.grad_sample import GradSampleHooks

    owners = [getattr(hook, "__self__", None) for m in layers for hook in m._forward_hooks.values()]
    return [o for o in owners if isinstance(o, GradSampleHooks)]


def may_be_wrong(layer: nn.Module) -> bool:
    """Whether `wrong_rows` knows this type of layer."""
    from opacus.layers.dp_rnn import DPRNNBase

    known = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.EmbeddingBag)
    return type(layer) in known or isinstance(layer, DPRNNBase)


def wrong_rows(layer: nn.Module, inputs: tuple[Any, ...], others: bool = True) -> str:
    """Why the per-sample gradients of Opacus's hooks, for this call of a layer, are not autograd's; "" if they are.

    Opacus's sampler of Conv2d takes the activations for contiguous, which channels_last activations are not. Its
    recurrent layers see packed rows by length, unlike `others` outside that are trained, too.
    """
    from opacus.layers.dp_rnn import DPRNNBase

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


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """The last call of a layer in a loop: the dimensions of its input, and whether it was in training mode."""

    dimensions: int
    training: bool


def samples_of(parameter: Any) -> list[Any]:
    """Opacus's per-sample gradients of a parameter, one entry for each backward pass since they were cleared."""
    samples = getattr(parameter, "grad_sample", None)
    return samples if isinstance(samples, list) else [] if samples is None else [samples]


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


def unsupported_layers(
    parameters: Iterable[torch.Tensor],
    names: Mapping[int, str],
    attribute: str = "grad_sample",
    *,
    root: nn.Module | None = None,
    calls: Mapping[int, LayerCall] | None = None,
) -> str:
    """A message about parameters that have no rows where others do; "" if all have them, or none.

    `attribute` holds the rows (`_norm_sample` for ghost clipping), `names` the parameters' names by id, and `calls` the
    last call of each layer by its id; None: calls were not observed. Layers are looked up in the model, `root`.
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


def layers_in_evaluation(root: nn.Module | None, calls: Mapping[int, LayerCall]) -> str:
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
    """Whether Opacus watches a layer, or takes it as a part of a module around it, or FusedDPOptimizer took it over."""
    around = [m for m in root.modules() if any(inside is layer for inside in m.modules())]
    return bool(_owners(around)) or hasattr(layer.__dict__.get("forward"), "hooks")


def unequal_row_counts(parameters: Iterable[torch.Tensor], names: Mapping[int, str]) -> str:
    """A message about parameters whose number of rows is not that of most; "" if all have one number."""
    counts: dict[int, list[str]] = {}
    for k, p in enumerate(parameters):
        samples = samples_of(p)
        if samples and isinstance(samples[-1], torch.Tensor):
            counts.setdefault(len(samples[-1]), []).append(_named(k, p, names))
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
