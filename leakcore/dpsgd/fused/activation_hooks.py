"""Layers of an Opacus module that store inputs and output gradients instead of per-sample gradients."""

from __future__ import annotations

import copy
import functools
import inspect
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
from opacus.layers import DPMultiheadAttention
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN, DPRNNBase, RNNLinear
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from leakcore.dpsgd.fused.layer_kinds import Kind, kind_of
from leakcore.dpsgd.fused.row_gradients import EmbeddingBagRows, Use, padded
from leakcore.dpsgd.fused.shared_parameters import together
from leakcore.dpsgd.rows.preserve_state import Uncopied
from leakcore.dpsgd.rows.unsupported_layers import no_rows, padding_setting, wrong_setting


class LazyRowGradients:
    """What `p.grad_sample` holds for the rows of one backward pass; `factor` scales rows whose loss is a mean."""

    def __init__(self, use: Use, rows: int, factor: float) -> None:
        self._use: Use | None = use
        self.rows, self._factor = rows, factor

    def squared_norms(self) -> torch.Tensor:
        """(rows,), float64"""
        return self._padded(self._live().squared_norms() * self._factor**2)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Σ_i weights_i·g_i"""
        use = self._live()
        return use.weighted_sum(weights[: use.rows] * self._factor)

    def dense(self) -> torch.Tensor:
        """(rows, *shape), the rows, computed now."""
        return self._padded(self._live().dense(slice(None)) * self._factor)

    def row(self, index: int) -> torch.Tensor:
        """One row, (*shape)."""
        use = self._live()
        one = use.dense(slice(index, index + 1)) * self._factor
        return one[0] if len(one) else one.new_zeros(one.shape[1:])

    def forget(self) -> None:
        """Drop the inputs and output gradients from which the rows are computed."""
        self._use = None

    def _live(self) -> Use:
        if self._use is None:
            raise ValueError("grad_sample: these rows were used in a step, and no longer exist")
        return self._use

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        missing = self.rows - len(rows)
        return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows


def attach(module: nn.Module | GradSampleHooks, parameters: Sequence[nn.Parameter]) -> int:
    """Take over from Opacus's hooks every known layer whose trained parameters are all among `parameters`; return their
    number.

    Other layers keep Opacus's hooks, whose `remove_hooks` undoes it. TypeError for a module without hooks of
    `GradSampleModule`, or with the hooks of ghost clipping. ValueError for a layer left to Opacus whose rows are not
    autograd's there, or that Opacus cannot compute.
    """
    hooks = find_hooks(module)
    if hooks is None:
        raise TypeError(
            f"`module` must have the hooks of Opacus's GradSampleModule, got a {type(module).__name__} without"
        )
    if isinstance(hooks, GradSampleHooksFastGradientClipping):
        raise TypeError('`module` must be created with grad_sample_mode="hooks", got one for ghost clipping')
    # Opacus hooks the linear layers inside its recurrent ones, which own the same parameters under other names.
    hooked = [m for m in hooks.iterate_submodules(hooks._module) if type(m) not in (DPRNN, DPLSTM, DPGRU)]
    ours = {id(p) for p in parameters}
    known = [m for m in hooked if _is_known(m) and all(id(p) in ours for p in _trained(m).values())]
    others = {id(p) for m in hooked if m not in known for p in m.parameters()}
    while shared := [m for m in known if any(id(p) in others for p in m.parameters())]:
        known = [m for m in known if m not in shared]
        others |= {id(p) for m in shared for p in m.parameters()}
    for layer in hooked:
        if any(id(p) in ours for p in _trained(layer).values()) and (why := no_rows(layer)):
            raise ValueError(f"{layer} must be without {why}")
    left = [m for m in hooked if m not in known and any(id(p) in ours for p in _trained(m).values())]
    for layer in left:
        if why := wrong_setting(layer) or padding_setting(layer):
            raise ValueError(
                f"{layer} has {why}, for which Opacus's per-sample gradients are wrong, and is left to Opacus: "
                f"{_why_left(layer, hooks._module, left, ours)}"
            )
    watching = require_one_input(left, hooks)
    passes = BackwardPasses(hooks)
    fresh = [m for m in known if not isinstance(m.__dict__.get("forward"), WatchedForward)]
    second = _rows_second(hooks._module)
    for layer in fresh:
        gone = (layer._forward_hooks, layer._backward_hooks)
        for handle in [h for h in hooks.autograd_grad_sample_hooks if h.hooks_dict_ref() in gone]:
            if getattr(handle.hooks_dict_ref().get(handle.id), "__self__", hooks) is hooks:
                handle.remove()
        layer.forward = WatchedForward(layer, passes, second.get(layer))
    hooks.autograd_grad_sample_hooks += [*_order_hooks(hooks._module), *watching]
    hooks.autograd_grad_sample_hooks.append(_Restore(fresh))
    return len(known)


def _why_left(layer: nn.Module, module: nn.Module, left: list[nn.Module], ours: set[int]) -> str:
    """Why a layer of a known kind is left to Opacus, and what to do."""
    own = {id(p): name for name, p in _trained(layer).items()}
    for name, other in module.named_modules():
        shared = [key for key, p in other.named_parameters() if id(p) in own]
        if other is layer or not shared or not any(other is m for m in left) or kind_of(other) is not None:
            continue
        path, kind = name.removeprefix("_module."), type(other).__name__
        stored = [key for key, p in other._parameters.items() if p is not None]
        inside = [
            key for key in stored if any(p is other._parameters[key] for m in other.children() for p in m.parameters())
        ]
        remedy = (
            f"{path}.{inside[0]} is also a parameter of a layer inside it: delete the attribute (del model.{path}"
            f".{inside[0]}), so that Opacus looks at the layers inside"
            if inside
            else "give it parameters of its own, or move the parameters that it holds into a layer of torch"
        )
        return (
            f"its {', '.join(sorted(set(own.values())))} is also used in {path} ({kind}), which holds "
            f"{', '.join(stored)} itself and has no rule here; {remedy}"
        )
    if not set(own) <= ours:
        return "its parameters must all belong to this optimizer"
    return "its kind of layer has no rule here: use torch's own class, without a forward of its own"


def _rows_second(module: nn.Module) -> dict[nn.Module, bool]:
    """Whether rows are the second dimension in the layers of Opacus's attention, which knows it of its inputs."""
    return {
        layer: not attention.batch_first
        for attention in module.modules()
        if isinstance(attention, DPMultiheadAttention)
        for layer in (attention.qlinear, attention.klinear, attention.vlinear, attention.out_proj)
    }


def _order_hooks(module: nn.Module) -> list[Any]:
    """Hooks that note, before each pass of Opacus's recurrent networks, in what order packed rows are: by length."""

    def note_order(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = args[0] if args else kwargs.get("input")
        order = inputs.unsorted_indices if isinstance(inputs, PackedSequence) else None
        for layer in network.modules():
            if isinstance(own := layer.__dict__.get("forward"), WatchedForward):
                own.order = order

    networks = [m for m in module.modules() if isinstance(m, DPRNNBase)]
    return [network.register_forward_pre_hook(Uncopied(note_order), with_kwargs=True) for network in networks]


def find_hooks(module: nn.Module | GradSampleHooks) -> GradSampleHooks | None:
    """Opacus's hooks of a module: the module itself if it is the wrapper, else the owner of a hook on a layer."""
    if isinstance(module, GradSampleHooks) or not isinstance(module, nn.Module):
        return module if isinstance(module, GradSampleHooks) else None
    for layer in module.modules():
        if isinstance(layer, GradSampleHooks):
            return layer
        if isinstance(own := layer.__dict__.get("forward"), WatchedForward):
            return own.hooks
        for hook in layer._forward_hooks.values():
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, GradSampleHooks):
                return owner
    return None


class BackwardPasses:
    """Uses of parameters by forward passes, and which of these have had their backward pass."""

    def __init__(self, hooks: GradSampleHooks) -> None:
        self.hooks = hooks
        self._waiting: dict[nn.Parameter, weakref.WeakSet[PendingBackward]] = {}
        self._finished: dict[nn.Parameter, list[tuple[int, Use, int]]] = {}
        self._unfinished: set[int] = set()

    def expect(self, p: nn.Parameter, pending: PendingBackward) -> None:
        """A forward pass has used p. One whose graph is dropped without a backward pass is forgotten."""
        if self._unfinished and _backward_pass() == -1:  # an exception ended these, and the loop continues
            for q, uses in self._finished.items():
                self._finished[q] = [use for use in uses if use[0] not in self._unfinished]
            self._unfinished.clear()
        self._waiting.setdefault(p, weakref.WeakSet()).add(pending)

    def add(self, p: nn.Parameter, pending: PendingBackward, use: Use, rows: int) -> None:
        """Note that a backward pass reached a layer. With the last one of a parameter its rows are complete."""
        waiting = self._waiting[p]
        waiting.discard(pending)
        this = _backward_pass()
        if this not in self._unfinished:
            self._unfinished.add(this)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._unfinished.discard(this))
        self._finished.setdefault(p, []).append((this, use, rows))
        if len(waiting) == 0:
            uses = self._finished.pop(p)
            most = max(rows for _, _, rows in uses)
            if any(rows != most for _, _, rows in uses):
                counts = sorted({rows for _, _, rows in uses})
                raise ValueError(
                    f"a parameter of {pending.layer} must be used with batches of one size in a backward pass, got "
                    f"{counts} rows"
                )
            factor = float(most) if self.hooks.loss_reduction == "mean" else 1.0
            rows_of_pass = LazyRowGradients(together([use for _, use, _ in uses], p.shape), most, factor)
            before = getattr(p, "grad_sample", None) or []
            if before and not self.hooks.grad_accumulation_allowed:  # which leaves the rows before as they are
                raise ValueError(
                    "Poisson sampling is not compatible with grad accumulation. You need to call optimizer.step() "
                    "after every forward/backward pass or consider using BatchMemoryManager"
                )
            p.grad_sample = [*before, rows_of_pass]  # type: ignore[attr-defined]  # where Opacus has it


def _backward_pass() -> int:
    """The number of the present backward pass of this thread; -1: none."""
    return int(torch._C._current_graph_task_id())


class PendingBackward:
    """One forward pass of one layer, waiting for its output gradient; for `second` and `order` see `WatchedForward`."""

    def __init__(
        self, passes: BackwardPasses, layer: nn.Module, kind: Kind, a: Any, second: bool, order: torch.Tensor | None
    ) -> None:
        self._passes, self.layer, self._kind = passes, layer, kind
        self._a = a.detach() if isinstance(a, torch.Tensor) else a
        self._versions = [(t, t._version) for t in (a.tensors if isinstance(a, EmbeddingBagRows) else [self._a])]
        self._second, self._order = second, order
        self._trained = _trained(layer)
        self._rows = getattr(layer, "max_batch_len", 0) if type(layer) is RNNLinear else 0
        for p in self._trained.values():
            passes.expect(p, self)

    def on_backward(self, delta: torch.Tensor) -> None:
        """The output gradient: the uses of the layer's parameters are known."""
        a = self._a
        if not self._passes.hooks.hooks_enabled:
            return
        if a is None:
            raise ValueError(
                "a second backward pass through the same forward pass: the same samples would count twice; add the "
                "losses and go back once"
            )
        if any(tensor._version != version for tensor, version in self._versions):
            raise RuntimeError(
                f"the input of {self.layer} was changed in place after its forward pass: its per-sample gradients "
                "cannot be computed"
            )
        self._a, self._versions = None, []
        self.layer.__dict__.pop("max_batch_len", None)
        least = self._kind.second(self.layer)
        if self._second and least is not None and a.ndim >= least:
            a, delta = a.transpose(0, 1), delta.transpose(0, 1)
        if self._order is not None:
            rows = max(len(delta), self._rows)
            a, delta = (padded(x, rows).index_select(0, self._order) for x in (a, delta))
        for name, use in self._kind.uses(self.layer, a, delta):
            if name in self._trained:
                self._passes.add(self._trained[name], self, use, max(use.rows, self._rows))


class WatchedForward:
    """The forward pass of a layer, in place of its own, where Opacus's hooks would have watched it.

    `second`: whether rows are the second dimension; None: as the hooks assume. `order` is the (rows,) position of each
    row of the batch among the layer's rows; None if it is the same.
    """

    def __init__(self, layer: nn.Module, passes: BackwardPasses, second: bool | None) -> None:
        self._layer, self._passes, self._second = layer, passes, second
        self._parameters = {p for p in layer._parameters.values() if p is not None}
        self.order: torch.Tensor | None = None

    @property
    def hooks(self) -> GradSampleHooks:
        return self._passes.hooks

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the layer has its class's forward pass: nobody watches it."""
        return types.MethodType(type(self._layer).forward, copy.deepcopy(self._layer, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """Likewise for a pickle, which is loaded without leakcore: the layer has no other attribute yet by then."""
        return getattr, (self._layer, "forward")

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        layer, hooks = self._layer, self._passes.hooks
        trained = _trained(layer)
        watching = layer.training and torch.is_grad_enabled() and hooks.hooks_enabled
        if not watching or not trained or not self._parameters.issuperset(trained.values()):
            return type(layer).forward(layer, *args, **kwargs)  # type: ignore[no-any-return]
        kind = kind_of(layer)
        assert kind is not None
        inputs = kind.read(layer, *args, **kwargs)

        def detached(name: str) -> torch.Tensor | None:
            p = getattr(layer, name)
            return None if p is None else p.detach()

        output = kind.forward(layer, inputs, detached)
        second = not hooks.batch_first if self._second is None else self._second
        pending = PendingBackward(self._passes, layer, kind, inputs, second, self.order)
        return _Tap.apply(output, next(iter(trained.values())), pending)  # type: ignore[no-any-return, no-untyped-call]


class _Tap(torch.autograd.Function):
    """The identity, whose output needs a gradient: the layer's parameters are in the graph, but get no gradient.

    The output is marked as changed in place, so that later layers may change it in place, which a view would not allow.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, anchor: torch.Tensor, pending: PendingBackward) -> torch.Tensor:
        ctx.pending = pending
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.pending.on_backward(delta.detach())
        return delta, None, None


class _Restore:
    """Stands among the handles that Opacus's `remove_hooks` removes."""

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
    kind = kind_of(layer)
    own = layer.__dict__.get("forward")
    mine = own is None or isinstance(own, WatchedForward) or getattr(own, "__func__", None) is type(layer).forward
    return kind is not None and mine and kind.suits(layer)


def require_one_input(layers: list[nn.Module], hooks: GradSampleHooks) -> list[Any]:
    """Refuse layers that Opacus cannot call again, now or in the forward pass that gives them more than one input.

    Returns the handles of the hooks that watch the calls. ValueError for a layer whose forward pass needs several
    inputs, and for parameters without a forward pass.
    """
    handles = []
    for layer in layers:
        if not hooks.force_functorch and type(layer) in (*hooks.GRAD_SAMPLERS, DPRNN, DPLSTM, DPGRU):
            continue
        if isinstance(layer, nn.MultiheadAttention):
            raise ValueError(
                "the model must be without nn.MultiheadAttention, which uses its weights without calling its layers: "
                "opacus.validators.ModuleValidator.fix(model) makes a DPMultiheadAttention of it"
            )
        if isinstance(layer, nn.ParameterDict | nn.ParameterList):
            names = ", ".join(f"{name} {tuple(p.shape)}" for name, p in layer.named_parameters() if p.requires_grad)
            raise ValueError(
                f"all trained parameters must be those of a layer that is called, but a {type(layer).__name__} holds "
                f"{names}: freeze them, as a LoRA adapter of an embedding, or make them a layer"
            )
        try:
            signature = inspect.signature(layer.forward)
        except (TypeError, ValueError):
            continue
        try:
            signature.bind(None)
        except TypeError:
            raise ValueError(
                f"a {type(layer).__name__} must take one input, since Opacus computes its rows by calling it with its "
                f"first one alone, but its forward pass is {type(layer).__name__}.forward{signature}: freeze it, or "
                "register a sampler with opacus.grad_sample.register_grad_sampler"
            ) from None
        check = Uncopied(functools.partial(_require_one_tensor, signature, hooks))
        handles.append(layer.register_forward_pre_hook(check, with_kwargs=True))
    return handles


def _require_one_tensor(
    signature: inspect.Signature,
    hooks: GradSampleHooks,
    layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """A hook that refuses calls with more tensors than the first. Other arguments are for the row check."""
    if not (layer.training and torch.is_grad_enabled() and hooks.hooks_enabled):
        return
    bound = signature.bind(*args, **kwargs).arguments
    tensors = [name for name, value in bound.items() if isinstance(value, torch.Tensor)]
    if not args or tensors != [next(iter(bound))]:
        raise ValueError(
            f"a {type(layer).__name__} must be called with one tensor, by position, since Opacus computes its rows "
            f"by calling it with that alone, got {', '.join(tensors) or 'none'}{'' if args else ' by name'}"
        )
