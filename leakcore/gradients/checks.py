"""What the user's tensors, module, targets and loss must be for gradients to be well defined; the default loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from leakcore._base import array_memory, validate


def tensor(values: Any, name: str = "values") -> torch.Tensor:
    """The caller's values as a detached tensor; a copy of a NumPy array, which may be read-only.

    Raises:
        TypeError: if they are not real numbers.
    """
    if not isinstance(values, torch.Tensor):
        array = validate.plain_array(**{name: values})
        wide = np.dtype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.dtype
        # In this machine's byte order, and no wider than torch knows.
        values = torch.from_numpy(np.array(array, dtype=wide.newbyteorder("=")))
    array_memory.refuse_transforms(name)
    return numbers(name, values).detach()


_INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def numbers(name: str, values: torch.Tensor) -> torch.Tensor:
    """A tensor of torch's own class that torch can compute with; TypeError or ValueError names it."""
    values = array_memory.plain_tensor(name, values).resolve_neg()
    kind = str(values.dtype).removeprefix("torch.")
    if kind not in (*validate.FLOATING, *_INTEGERS):
        raise TypeError(f"`{name}` must be real numbers of 16 bits or more, or integers, got {values.dtype}")
    if kind in ("uint16", "uint32", "uint64"):  # which torch combines with no other type
        values = values.to(torch.int64)
        if bool((values < 0).any()):
            raise ValueError(f"`{name}` must be within int64, got a larger integer")
    return values.clone() if values.is_inference() and not torch.is_inference_mode_enabled() else values


def trained_parameters(model: Any, mixing: bool = False) -> dict[str, nn.Parameter]:
    """{name: parameter} of the parameters that require grad; `mixing` allows batch norms to mix samples. ValueError if
    there are none, or as `require_still`; TypeError if the model is not a torch module."""
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


def mean_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy over rows.

    Args:
        outputs: (rows, classes) logits, or (rows, 1), the logit of label 1.
        targets: classes (int64), or probabilities shaped like the outputs.

    Raises:
        ValueError: if the outputs have no axis of classes, because cross-entropy would then take the rows for it.
    """
    if outputs.ndim < 2:
        raise ValueError(
            "`loss` must be given for outputs of another shape than (rows, classes) or (rows, 1), got None and "
            f"{tuple(outputs.shape)}"
        )
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        wanted = targets.to(outputs.dtype).reshape(outputs.shape)
        return nn.functional.binary_cross_entropy_with_logits(outputs, wanted)
    return nn.functional.cross_entropy(outputs, targets)


def require_classes(targets: torch.Tensor, outputs: Any, name: str) -> None:
    """Require that class numbers (n,) are classes of the model, whose outputs for some rows are (..., K).

    Targets of another kind, which `mean_cross_entropy` accepts as well, and outputs of another shape pass.

    Raises:
        ValueError: for a class that the model does not have.
    """
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        return
    if targets.is_floating_point() or targets.ndim != 1 or not len(targets):
        return
    last = max(outputs.shape[1], 2) - 1
    wrong = (targets < 0) | (targets > last)
    if bool(wrong.any()):
        at = int(wrong.int().argmax())
        raise ValueError(f"`{name}[{at}]` must be a class of the model, in [0, {last}], got {int(targets[at])}")


def criterion(loss: Any) -> Callable[[Any, Any], Any]:
    """The loss, or cross-entropy if it is None; TypeError if it is not callable."""
    if loss is None:
        return mean_cross_entropy
    if not callable(loss):
        raise TypeError(f"`loss` must be a function of outputs and targets or None, got {type(loss).__name__}")
    return loss  # type: ignore[no-any-return]


def as_classes(loss: Any, targets: torch.Tensor) -> torch.Tensor:
    """Targets as cross-entropy needs them if the loss is None: class numbers in 64 bits, or probabilities."""
    if loss is not None:
        return targets
    if targets.ndim == 1 and (targets.is_floating_point() or targets.dtype == torch.bool):
        raise ValueError(f"`targets` must be class numbers, integers, for cross-entropy, got {targets.dtype}")
    return targets if targets.is_floating_point() else targets.long()


def targets_of(loss: Any, targets: torch.Tensor, outputs: Any) -> torch.Tensor:
    """`as_classes`, and ValueError for a class that the model, with these outputs (or None), does not have."""
    wanted = as_classes(loss, targets)
    if loss is None:
        require_classes(wanted, outputs, "targets")
    return wanted
