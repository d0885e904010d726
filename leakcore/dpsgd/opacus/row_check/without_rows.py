"""Which parameters a backward pass left without per-sample gradients, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


def names_of(module: nn.Module) -> dict[int, str]:
    """The name of each parameter by its id, without the wrapper that Opacus puts around a module."""
    return {id(p): name.removeprefix("_module.") for name, p in module.named_parameters()}


def without_rows(parameters: Iterable[torch.Tensor], names: Mapping[int, str], attribute: str = "grad_sample") -> str:
    """A message about parameters that have no rows where others do; "" if all have them, or none."""
    every: list[Any] = list(parameters)
    lack = [k for k, p in enumerate(every) if getattr(p, attribute, None) is None]
    if not lack or len(lack) == len(every):
        return ""
    called = [names.get(id(every[k]), f"parameter {k} of shape {tuple(every[k].shape)}") for k in lack]
    listed = ", ".join(called[:8]) + (f" and {len(called) - 8} more" if len(called) > 8 else "")
    return (
        f"no row has a gradient of {listed}: the loss does not come from a layer that holds it (never called, called "
        "in evaluation mode or within a gradient checkpoint, or its output unused). Freeze it "
        "(requires_grad_(False)), or leave it out of the optimizer"
    )


def other_counts(parameters: Iterable[torch.Tensor], names: Mapping[int, str]) -> str:
    """A message about parameters whose number of rows is not that of most; "" if all have one number."""
    counts: dict[int, list[str]] = {}
    for k, p in enumerate(parameters):
        samples = getattr(p, "grad_sample", None)
        last = samples[-1] if isinstance(samples, list) and samples else samples
        if isinstance(last, torch.Tensor):
            counts.setdefault(len(last), []).append(names.get(id(p), f"parameter {k} of shape {tuple(p.shape)}"))
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
