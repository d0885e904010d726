"""Layers of an Opacus module that keep inputs and output gradients in place of per-sample gradients."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN, RNNLinear
from torch import nn
from torch.nn import functional

from leakcore.dpsgd._opacus_errors import wrong_setting
from leakcore.dpsgd._row_gradients import Convolved, Dense, Gathered, Outer, Use, shorter, together

Detached = Callable[[str], Any]
Made = list[tuple[str, Use]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of layer. forward: the layer's output from parameters that get no gradient. uses: what its parameters'
    per-sample gradients are made of, given input and output gradient, rows first."""

    forward: Callable[[Any, torch.Tensor, Detached], torch.Tensor]
    uses: Callable[[Any, torch.Tensor, torch.Tensor], Made]
    suits: Callable[[Any], bool] = lambda layer: True


class KeptRows:
    """What stands in `p.grad_sample` for the rows of one backward pass. `factor`: by which a loss that is a mean makes
    them too small."""

    def __init__(self, use: Use, rows: int, factor: float) -> None:
        self._use: Use | None = use
        self.rows, self._factor = rows, factor

    def squared_norms(self) -> torch.Tensor:
        """(rows,), float64"""
        return self._padded(self._made().squared_norms() * self._factor**2)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Σ_i weights_i·g_i"""
        use = self._made()
        return use.weighted_sum(weights[: use.rows] * self._factor)

    def dense(self) -> torch.Tensor:
        """The rows, made now: (rows, *shape)."""
        return self._padded(self._made().dense(slice(None)) * self._factor)

    def forget(self) -> None:
        """Lets go of what the rows are made of."""
        self._use = None

    def _made(self) -> Use:
        if self._use is None:
            raise ValueError("grad_sample: these rows were used in a step, and are gone")
        return self._use

    def _padded(self, found: torch.Tensor) -> torch.Tensor:
        missing = self.rows - len(found)
        return torch.cat([found, found.new_zeros(missing, *found.shape[1:])]) if missing else found


def attach(module: nn.Module | GradSampleHooks, parameters: Sequence[nn.Parameter]) -> int:
    """Take over from Opacus's hooks every layer that is known and whose trained parameters are all among `parameters`.

    Other layers keep Opacus's hooks. Undone by Opacus's `remove_hooks`. Returns the number of layers that are kept.
    Raises TypeError for a module without hooks of `GradSampleModule`, or with those of ghost clipping, and ValueError
    for a layer left to Opacus whose rows are not autograd's there.
    """
    hooks = find_hooks(module)
    if hooks is None:
        raise TypeError(f"module is a {type(module).__name__} without the hooks of Opacus's GradSampleModule")
    if isinstance(hooks, GradSampleHooksFastGradientClipping):
        raise TypeError('module was made for ghost clipping: must be made with grad_sample_mode="hooks"')
    # Opacus hooks the linear layers inside its recurrent ones, which own the same parameters under other names.
    hooked = [m for m in hooks.iterate_submodules(hooks._module) if type(m) not in (DPRNN, DPLSTM, DPGRU)]
    ours = {id(p) for p in parameters}
    known = [m for m in hooked if _is_known(m) and all(id(p) in ours for p in _trained(m).values())]
    others = {id(p) for m in hooked if m not in known for p in m.parameters()}
    while shared := [m for m in known if any(id(p) in others for p in m.parameters())]:
        known = [m for m in known if m not in shared]
        others |= {id(p) for m in shared for p in m.parameters()}
    left = [m for m in hooked if m not in known and any(id(p) in ours for p in _trained(m).values())]
    for layer in left:
        if why := wrong_setting(layer):
            raise ValueError(
                f"{layer} has {why}, for which Opacus's per-sample gradients are wrong, and is left to Opacus: its "
                "parameters must be this optimizer's alone, and no other kind of layer's"
            )
    ledger = Ledger(hooks)
    fresh = [m for m in known if "forward" not in m.__dict__]
    for layer in fresh:
        gone = (layer._forward_hooks, layer._backward_hooks)
        for handle in [h for h in hooks.autograd_grad_sample_hooks if h.hooks_dict_ref() in gone]:
            if getattr(handle.hooks_dict_ref().get(handle.id), "__self__", hooks) is hooks:
                handle.remove()
        layer.forward = Watched(layer, ledger)
    hooks.autograd_grad_sample_hooks.append(_Restore(fresh))
    return len(known)


def find_hooks(module: nn.Module | GradSampleHooks) -> GradSampleHooks | None:
    """Opacus's hooks of a module: itself where it is wrapped, else the owner of a hook on one of its layers."""
    if isinstance(module, GradSampleHooks) or not isinstance(module, nn.Module):
        return module if isinstance(module, GradSampleHooks) else None
    for layer in module.modules():
        if isinstance(layer, GradSampleHooks):
            return layer
        if isinstance(own := layer.__dict__.get("forward"), Watched):
            return own.hooks
        for hook in layer._forward_hooks.values():
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, GradSampleHooks):
                return owner
    return None


class Ledger:
    """Uses of parameters by forward passes, and which of them have had their backward pass."""

    def __init__(self, hooks: GradSampleHooks) -> None:
        self.hooks = hooks
        self._waiting: dict[nn.Parameter, weakref.WeakSet[Entry]] = {}
        self._made: dict[nn.Parameter, list[tuple[int, Use, int]]] = {}
        self._unfinished: set[int] = set()

    def expect(self, p: nn.Parameter, entry: Entry) -> None:
        """A forward pass has used p. An entry whose graph is dropped without a backward pass is forgotten."""
        if self._unfinished and _backward_pass() == -1:
            self._forget_failed()
        self._waiting.setdefault(p, weakref.WeakSet()).add(entry)

    def arrived(self, p: nn.Parameter, entry: Entry, use: Use, rows: int) -> None:
        """Its backward pass. With the last of a parameter's entries its rows are complete."""
        waiting = self._waiting[p]
        waiting.discard(entry)
        this = _backward_pass()
        if this not in self._unfinished:
            self._unfinished.add(this)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._unfinished.discard(this))
        self._made.setdefault(p, []).append((this, use, rows))
        if len(waiting) == 0:
            made = self._made.pop(p)
            most = max(rows for _, _, rows in made)
            factor = float(most) if self.hooks.loss_reduction == "mean" else 1.0
            kept = KeptRows(together([use for _, use, _ in made], p.shape), most, factor)
            every = [*(getattr(p, "grad_sample", None) or []), kept]
            p.grad_sample = every  # type: ignore[attr-defined]  # where Opacus has it
            if not self.hooks.grad_accumulation_allowed and len(every) > 1:
                raise ValueError(
                    "Poisson sampling is not compatible with grad accumulation. You need to call optimizer.step() "
                    "after every forward/backward pass or consider using BatchMemoryManager"
                )

    def _forget_failed(self) -> None:
        """Drops what arrived in backward passes that an exception ended, as a loop that goes on expects."""
        for p, made in self._made.items():
            self._made[p] = [use for use in made if use[0] not in self._unfinished]
        self._unfinished.clear()


def _backward_pass() -> int:
    """The number of the backward pass that is going on in this thread; -1: none."""
    return int(torch._C._current_graph_task_id())


class Entry:
    """One forward pass of one layer, waiting for its output gradient."""

    def __init__(self, ledger: Ledger, layer: nn.Module, kind: Kind, a: torch.Tensor) -> None:
        self._ledger, self._layer, self._kind = ledger, layer, kind
        self._a: torch.Tensor | None = a.detach()
        self._version = a._version
        self._trained = _trained(layer)
        self._rows = getattr(layer, "max_batch_len", 0) if type(layer) is RNNLinear else 0
        for p in self._trained.values():
            ledger.expect(p, self)

    def arrive(self, delta: torch.Tensor) -> None:
        """The output gradient: the uses of the layer's parameters are known."""
        hooks, a = self._ledger.hooks, self._a
        if not hooks.hooks_enabled:
            return
        if a is None:
            raise ValueError(
                "a second backward pass through the same forward pass: the same samples would count twice; add the "
                "losses up and go back once"
            )
        if a._version != self._version:
            raise RuntimeError(
                f"the input of {self._layer} was changed in place after its forward pass: its per-sample gradients "
                "cannot be known"
            )
        self._a = None
        self._layer.__dict__.pop("max_batch_len", None)
        if not hooks.batch_first and type(self._layer) is not RNNLinear:
            a, delta = a.transpose(0, 1), delta.transpose(0, 1)
        rows = max(len(delta), self._rows)
        for name, use in self._kind.uses(self._layer, a, delta):
            if name in self._trained:
                self._ledger.arrived(self._trained[name], self, use, rows)


class Watched:
    """The forward pass of a layer in place of its own, while Opacus's hooks would have watched it."""

    def __init__(self, layer: nn.Module, ledger: Ledger) -> None:
        self._layer, self._ledger = layer, ledger
        self._parameters = {p for p in layer._parameters.values() if p is not None}

    @property
    def hooks(self) -> GradSampleHooks:
        return self._ledger.hooks

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        layer = self._layer
        trained = _trained(layer)
        watching = layer.training and torch.is_grad_enabled() and self._ledger.hooks.hooks_enabled
        if not watching or not trained or not self._parameters.issuperset(trained.values()):
            return type(layer).forward(layer, input)  # type: ignore[no-any-return]
        kind = KINDS[type(layer)]

        def detached(name: str) -> torch.Tensor | None:
            p = getattr(layer, name)
            return None if p is None else p.detach()

        output = kind.forward(layer, input, detached)
        entry = Entry(self._ledger, layer, kind, input)
        return _Tap.apply(output, next(iter(trained.values())), entry)  # type: ignore[no-any-return, no-untyped-call]


class _Tap(torch.autograd.Function):
    """Its output is its input, and needs a gradient: the layer's parameters are in the graph, but none is computed for
    them. Marked as changed in place, so that what follows may change it in place (a view could not be)."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, anchor: torch.Tensor, entry: Entry) -> torch.Tensor:
        ctx.entry = entry
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.entry.arrive(delta.detach())
        return delta, None, None


class _Restore:
    """Stands among the handles that Opacus's `remove_hooks` goes through."""

    id = -1

    def __init__(self, layers: list[nn.Module]) -> None:
        self._layers = layers

    def hooks_dict_ref(self) -> None:
        return None

    def remove(self) -> None:
        for layer in self._layers:
            layer.__dict__.pop("forward", None)


def _trained(layer: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in layer._parameters.items() if p is not None and p.requires_grad}


def _is_known(layer: nn.Module) -> bool:
    kind = KINDS.get(type(layer))
    mine = "forward" not in layer.__dict__ or isinstance(layer.__dict__["forward"], Watched)
    return kind is not None and mine and kind.suits(layer)


def _in_steps(rows: torch.Tensor) -> torch.Tensor:
    """(B, …, d) as (B, T, d)"""
    if rows.ndim < 2:
        raise ValueError(f"a layer's input has shape {tuple(rows.shape)}: must have a first dimension of samples")
    return rows.flatten(1, -2) if rows.ndim > 2 else rows[:, None]


def _linear_uses(layer: nn.Linear, a: torch.Tensor, delta: torch.Tensor) -> Made:
    a, delta = _in_steps(a), _in_steps(delta)
    return [("weight", shorter(Outer(a, delta))), ("bias", Dense(delta.sum(1) if delta.shape[1] > 1 else delta[:, 0]))]


def _convolution_uses(layer: Any, a: torch.Tensor, delta: torch.Tensor) -> Made:
    if a.ndim != len(layer.kernel_size) + 2:
        raise ValueError(
            f"{layer} has an input of shape {tuple(a.shape)}: must have a first dimension of samples and one of "
            "channels"
        )
    padding = layer._reversed_padding_repeated_twice
    if any(padding):
        a = functional.pad(a, padding, "constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    made = Convolved(a, delta, layer.weight, layer.stride, layer.dilation, layer.groups)
    return [("weight", shorter(made)), ("bias", Dense(delta.flatten(2).sum(2)))]


def _embedding_uses(layer: nn.Embedding, a: torch.Tensor, delta: torch.Tensor) -> Made:
    index = a.reshape(len(a), a[0].numel() if len(a) else 1)
    delta = delta.reshape(*index.shape, delta.shape[-1])
    if layer.padding_idx is not None:
        delta = delta.masked_fill((index == layer.padding_idx)[..., None], 0)
    return [("weight", Gathered(index, delta, layer.num_embeddings))]


def _normalised_uses(normalise: Callable[[Any, torch.Tensor], torch.Tensor], last: bool) -> Callable[..., Made]:
    """A normalisation's weight multiplies, its bias adds: over its last dimensions, or per channel (dimension 1)."""

    def uses(layer: Any, a: torch.Tensor, delta: torch.Tensor) -> Made:
        def total(values: torch.Tensor) -> torch.Tensor:
            if last:
                inner = tuple(range(1, values.ndim - len(layer.normalized_shape)))
                return values.sum(inner) if inner else values
            return values.flatten(2).sum(2) if values.ndim > 2 else values

        return [("weight", Dense(total(normalise(layer, a.to(delta.dtype)) * delta))), ("bias", Dense(total(delta)))]

    return uses


def _layer_norm(m: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, m.normalized_shape, eps=m.eps)


def _group_norm(m: nn.GroupNorm, x: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(x, m.num_groups, eps=m.eps)


def _instance_norm(m: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.instance_norm(x, eps=m.eps)


def _rms_norm(m: nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, m.normalized_shape, eps=m.eps)


_LINEAR = Kind(lambda m, x, p: functional.linear(x, p("weight"), p("bias")), _linear_uses)
_CONVOLUTION = Kind(lambda m, x, p: m._conv_forward(x, p("weight"), p("bias")), _convolution_uses)
_INSTANCE_NORM = Kind(
    lambda m, x, p: functional.instance_norm(x, weight=p("weight"), bias=p("bias"), eps=m.eps),
    _normalised_uses(_instance_norm, last=False),
    lambda m: m.running_mean is None,
)
KINDS: dict[type, Kind] = {
    nn.Linear: _LINEAR,
    RNNLinear: _LINEAR,
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.Embedding: Kind(
        lambda m, x, p: functional.embedding(x, p("weight"), m.padding_idx),
        _embedding_uses,
        lambda m: m.max_norm is None and not m.scale_grad_by_freq and not m.sparse,
    ),
    nn.LayerNorm: Kind(
        lambda m, x, p: functional.layer_norm(x, m.normalized_shape, p("weight"), p("bias"), m.eps),
        _normalised_uses(_layer_norm, last=True),
    ),
    nn.RMSNorm: Kind(
        lambda m, x, p: functional.rms_norm(x, m.normalized_shape, p("weight"), m.eps),
        _normalised_uses(_rms_norm, last=True),
    ),
    nn.GroupNorm: Kind(
        lambda m, x, p: functional.group_norm(x, m.num_groups, p("weight"), p("bias"), m.eps),
        _normalised_uses(_group_norm, last=False),
    ),
    nn.InstanceNorm1d: _INSTANCE_NORM,
    nn.InstanceNorm2d: _INSTANCE_NORM,
    nn.InstanceNorm3d: _INSTANCE_NORM,
}
