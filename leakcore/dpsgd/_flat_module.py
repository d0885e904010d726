"""Any torch module as a function of one vector of parameters, and its gradients, of a batch or sample by sample."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore import _validate as check

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def mean_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean over rows; targets: classes (int64), or probabilities like the outputs. One output: a logit of label 1."""
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        wanted = targets.to(outputs.dtype).reshape(outputs.shape)
        return nn.functional.binary_cross_entropy_with_logits(outputs, wanted)
    return nn.functional.cross_entropy(outputs, targets)


def require_still(model: nn.Module) -> None:
    """ValueError where a layer, as its mode is, mixes samples, draws random numbers or changes buffers of its own."""
    for name, module in model.named_modules():
        what = None
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            what = "mixes samples"
        elif isinstance(module, nn.modules.dropout._DropoutNd | nn.RReLU):
            what = "is random"
        elif isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            what = "changes its running statistics"
        if what is not None and module.training:
            raise ValueError(f"model: layer {name} ({type(module).__name__}) {what}: call model.eval()")


def require_classes(targets: torch.Tensor, outputs: Any, name: str) -> None:
    """ValueError where one of the class numbers (n,) is none of the model, whose outputs for some rows are (..., K).

    Targets of another kind, which `mean_cross_entropy` takes too, or beside outputs of another shape, pass.
    """
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        return
    if targets.is_floating_point() or targets.ndim != 1 or not len(targets):
        return
    last = max(outputs.shape[1], 2) - 1
    wrong = (targets < 0) | (targets > last)
    if bool(wrong.any()):
        at = int(wrong.int().argmax())
        raise ValueError(f"{name}[{at}]={int(targets[at])}: must be a class of the model, in [0, {last}]")


@contextmanager
def quiet_batching() -> Iterator[None]:
    """torch's own batching rules use a deprecated part of torch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
        yield


def tensor(values: Any, name: str = "values") -> torch.Tensor:
    """What the caller gave, detached; a copy of a NumPy array, which may be read-only. TypeError names what holds no
    real numbers."""
    if not isinstance(values, torch.Tensor):
        array = check.plain_array(**{name: values})
        wide = np.dtype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.dtype
        # In this machine's byte order, and no wider than torch knows.
        values = torch.from_numpy(np.array(array, dtype=wide.newbyteorder("=")))
    if values.is_complex():
        raise TypeError(f"{name}: must be real numbers, not of {values.dtype}")
    if values.device.type == "meta":
        raise ValueError(f"{name}: is on the meta device, without data")
    out: torch.Tensor = values.detach()
    return out


class FlatModule:
    """parameters: names in order, those that require grad (or `names` of them); sizes: D numbers in all."""

    def __init__(self, model: Any, loss: Loss | None = None, names: Sequence[str] | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model={type(model).__name__}: must be a torch.nn.Module")
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("model: has no parameters that require grad, hence no gradient")
        require_still(model)
        wanted = tuple(trained) if names is None else (names,) if isinstance(names, str) else tuple(names)
        if not wanted or len(set(wanted)) != len(wanted) or not set(wanted) <= set(trained):
            raise ValueError(f"parameters={wanted}: must name parameters of the model, each once: {', '.join(trained)}")
        self.model = model
        self.loss = loss or mean_cross_entropy
        self.names = wanted
        self.shapes = [tuple(trained[name].shape) for name in wanted]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.theta = torch.cat([trained[name].detach().flatten() for name in wanted])
        self._fixed = {k: p.detach() for k, p in model.named_parameters() if k not in wanted} | dict(
            model.named_buffers()
        )

    def __len__(self) -> int:
        return sum(self.sizes)

    def split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """(..., D) → name → (..., *shape)."""
        parts = torch.split(flat, self.sizes, dim=-1)
        shapes = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(*flat.shape[:-1], *shape) for name, part, shape in shapes}

    def join(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A state dict (more names allowed) → (D,)."""
        missing = [name for name in self.names if name not in parts]
        if missing:
            raise ValueError(f"states: lack the parameter {missing[0]!r}")
        return torch.cat([torch.as_tensor(parts[name]).detach().flatten().to(self.theta) for name in self.names])

    def outputs(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The model's outputs at parameters (D,)."""
        try:
            out: torch.Tensor = torch.func.functional_call(self.model, {**self._fixed, **self.split(theta)}, (x,))
        except RuntimeError as why:
            if "shape" not in str(why) and "size" not in str(why):
                raise
            raise ValueError(f"inputs (shape {tuple(x.shape[1:])} each) do not fit the model: {why}") from why
        return out

    def gradient(self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """(D,) of the loss of the whole batch; differentiable in x and y."""
        found: torch.Tensor = torch.func.grad(lambda t: self.loss(self.outputs(t, x), y))(theta)
        return found

    def per_sample(self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """(B, D) of the loss of each row by itself; differentiable in x and y. What is random differs between rows."""
        found: torch.Tensor = torch.func.vmap(
            lambda a, b: self.gradient(theta, a[None], b[None]), randomness="different"
        )(x, y)
        return found
