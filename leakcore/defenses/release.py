"""The gradient of a batch as it leaves a client: through all stages of a defence."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from leakcore import kernels
from leakcore._base.process_wide import quiet_batching
from leakcore.defenses.transforms import Defense, Dropout, LocalSteps, need_seed, through
from leakcore.gradients import FlatModule, lock_of, require_classes, tensor


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Release:
    """What leaves the client.

    Attributes:
        gradient: (D,) tensor.
        parts: the same gradient by parameter's name, each of its parameter's shape.
        defense: the defence that was applied, or None.

    Example:
        >>> import torch
        >>> from leakcore import defenses
        >>> released = defenses.release(torch.nn.Linear(3, 2), torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))
        >>> released.gradient.shape, list(released.parts)
        (torch.Size([8]), ['weight', 'bias'])
    """

    gradient: torch.Tensor
    parts: Mapping[str, torch.Tensor]
    defense: Defense | None


def release(
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    *,
    defense: Defense | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    seed: int | None = None,
    step: int = 0,
) -> Release:
    """The mean gradient of a batch as it leaves a client under a defence.

    Args:
        model: torch module in eval mode (dropout is the defence `Dropout` here); its parameters do not change.
        inputs: (B, ...), finite.
        targets: (B,) classes, or what the loss takes.
        defense: None: the gradient itself.
        loss: loss(outputs, targets), mean over rows; None: cross-entropy (of a logit, where there is one output).
        seed: required where anything is random.
        step: the training's step, in [0, 2²⁴); each step has noise of its own.

    Returns:
        `Release`, which attacks take as a gradient.

    Raises:
        ValueError, TypeError: for a value or shape that is not allowed; the text names the argument.

    Guarantees:
        Deterministic; the same seed and step give the same noise.

    Example:
        >>> import torch
        >>> from leakcore import defenses
        >>> model = torch.nn.Linear(2, 2)
        >>> _ = torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
        >>> released = defenses.release(model, [[1.0, 2.0]], [0], defense=defenses.Prune(keep_fraction=0.34))
        >>> released.gradient.tolist()  # the 3 largest of 6 entries
        [-0.5, -1.0, 0.0, 1.0, 0.0, 0.0]
    """
    if defense is not None and not isinstance(defense, Defense):
        raise TypeError(f"`defense` must be a leakcore.defenses.Defense, got {type(defense).__name__}")
    flat = FlatModule(model, loss)
    x, y = tensor(inputs, "inputs").to(flat.theta.device), tensor(targets, "targets").to(flat.theta.device)
    if x.is_floating_point() or not any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules()):
        x = x.to(flat.theta.dtype)
    if x.ndim < 2 or len(x) == 0 or y.ndim == 0 or len(y) != len(x):
        raise ValueError(
            f"`inputs` and `targets` must have shapes (B, ...) and (B,), B at least 1, got {tuple(x.shape)} "
            f"and {tuple(y.shape)}"
        )
    for name, values in (("inputs", x), ("targets", y)):
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"`{name}` must be finite")
    y = y.to(flat.theta.dtype) if y.is_floating_point() else y.long()
    flat.require_no_draws(x[:1])
    if loss is None:
        with torch.no_grad():
            outputs = flat.outputs(flat.theta, x[:1])
        if y.ndim == 1 and y.is_floating_point() and outputs.shape[-1] > 1:
            raise TypeError(f"`targets` must be integer class numbers for cross-entropy, got {y.dtype}")
        require_classes(y, outputs, "targets")
    parts = () if defense is None else defense.parts
    local = next((p for p in parts if isinstance(p, LocalSteps)), LocalSteps(1, 1.0))
    dropout = next((p for p in parts if isinstance(p, Dropout)), None)
    within = tuple(p for p in parts if p.stage in ("samples", "sum"))
    after = tuple(p for p in parts if p.stage == "release")
    size = len(x)
    if local.minibatches:
        size, rest = divmod(len(x), local.steps)
        if rest or size == 0:
            raise ValueError(
                f"`inputs` must have a number of rows that LocalSteps(steps={local.steps}, minibatches=True) "
                f"divides, got {len(x)}"
            )
    batches = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
    theta, total = flat.theta, torch.zeros_like(flat.theta)
    hidden = () if dropout is None else _hidden(flat, x[:1])
    with quiet_batching(), torch.no_grad():
        for k in range(local.steps):
            a, b = batches[k % len(batches)]
            with _dropped(model, hidden, dropout, size, seed, step, k) as mask:
                if not within:
                    mean = flat.gradient(theta, a, b)
                else:
                    rows = _each(flat, theta, a, b, mask)
                    mean = through(within, rows, _local_seed(seed, k), step, True)
            total = total + mean
            theta = theta - local.learning_rate * mean
        if not bool(torch.isfinite(total).all()):
            what = f" after {local.steps} steps of {local.learning_rate:g} (LocalSteps)" if local.steps > 1 else ""
            raise ValueError(f"model: its gradient is not finite{what}")
        out = through(after, total / local.steps, seed, step, False)
    return Release(gradient=out, parts=flat.split(out), defense=defense)


def _local_seed(seed: int | None, local_step: int) -> int | None:
    return None if seed is None else kernels.subseed(seed, kernels.Stream.DEFENSE_LOCAL_STEPS, step=local_step)


def _each(flat: FlatModule, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mask: _Mask | None) -> torch.Tensor:
    """(B, D) gradients, each row with its own mask."""
    if mask is None or not mask.dropout.per_sample:
        return flat.per_sample(theta, x, y)
    rows = []
    for i in range(len(x)):
        mask.row = i
        rows.append(flat.gradient(theta, x[i : i + 1], y[i : i + 1]))
    return torch.stack(rows)


class _Mask:
    """Multiplies the inputs of a layer; row: the number of the sample, None: of the whole batch."""

    def __init__(self, dropout: Dropout, batch: int, seed: int, step: int, local_step: int) -> None:
        self.dropout = dropout
        self.row: int | None = None
        self._batch, self._seed, self._step, self._local_step = batch, seed, step, local_step
        self._drawn: dict[int, torch.Tensor] = {}

    def hook(self, number: int) -> Callable[..., Any]:
        def masked(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden = args[0]
            fed = self._batch if self.row is None else 1
            if self.dropout.per_sample and len(hidden) != fed:
                raise ValueError(
                    f"Dropout: hidden layer {number} receives {len(hidden)} rows for a batch of {fed}, so no row has "
                    "a mask of its own; per_sample=False draws one for all"
                )
            if number not in self._drawn:
                rows = self._batch if self.dropout.per_sample else 1
                size = math.prod(hidden.shape[1:])
                draws = kernels.uniform(
                    (rows, size),
                    seed=kernels.subseed(self._seed, kernels.Stream.DEFENSE_DROPOUT, step=self._local_step, row=number),
                    purpose=kernels.Stream.DEFENSE_MASKS,
                    step=self._step,
                )
                keep = self.dropout.keep_probability
                mask = torch.from_numpy((draws < keep) / keep).reshape(rows, *hidden.shape[1:])
                self._drawn[number] = mask.to(dtype=hidden.dtype, device=hidden.device)
            mask = self._drawn[number]
            chosen = mask if self.row is None else mask[self.row : self.row + 1]
            return (hidden * chosen, *args[1:])

        return masked


def _hidden(flat: FlatModule, x: torch.Tensor) -> tuple[nn.Module, ...]:
    """All linear layers except the first layer with parameters, in the order in which the model calls them."""
    order = dict.fromkeys(module for module, _ in flat.calls(x))
    hidden = tuple(module for module in list(order)[1:] if isinstance(module, nn.Linear))
    if not hidden:
        raise ValueError("Dropout: the model has no linear layer with hidden units before it")
    return hidden


@contextlib.contextmanager
def _dropped(
    model: nn.Module,
    hidden: tuple[nn.Module, ...],
    dropout: Dropout | None,
    batch: int,
    seed: int | None,
    step: int,
    local_step: int,
) -> Iterator[_Mask | None]:
    if dropout is None:
        yield None
        return
    mask = _Mask(dropout, batch, need_seed("Dropout", seed), step, local_step)
    with lock_of(model):
        handles = [module.register_forward_pre_hook(mask.hook(i)) for i, module in enumerate(hidden)]
        try:
            yield mask
        finally:
            for handle in handles:
                handle.remove()
