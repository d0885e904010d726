"""The outermost calls of a module in a training loop: input, output, and the gradient that came back."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from leakcore.dpsgd.rows.hooks import number_of
from leakcore.dpsgd.rows.preserve_state import Randomness, Uncopied, is_paused
from leakcore.gradients import BackwardHook, around

_thread = threading.local()


@dataclasses.dataclass
class Call:
    """One call: the generators' state before it, the versions of tensors that went in and came out, the leaves of what
    came out, as they were, and the gradients: {backward pass: {place of an output: its gradient}}.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    randomness: Randomness
    autocast: tuple[str, bool, torch.dtype]
    versions: list[tuple[torch.Tensor, int]]
    outputs: list[Any] = dataclasses.field(default_factory=list)
    gradients: dict[int, dict[int, torch.Tensor]] = dataclasses.field(default_factory=dict)

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing has been written since into what went in or came out."""
        return all(tensor._version == version for tensor, version in self.versions)

    def precision(self) -> torch.dtype:
        """The narrowest type of what came out, and of autocast."""
        types = [values_of(leaf).dtype for leaf in self.outputs if is_rows(leaf)]
        if self.autocast[1]:
            types.append(self.autocast[2])
        return max(types, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def output_leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, also of dictionaries and data classes of any type; a packed sequence is one leaf."""
    if isinstance(tree, (torch.Tensor, PackedSequence)):
        return [tree]
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in output_leaves(value)]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in output_leaves(value)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [leaf for field in dataclasses.fields(tree) for leaf in output_leaves(getattr(tree, field.name))]
    return [tree]


def is_rows(leaf: Any) -> bool:
    """Whether an output is one that a gradient can come back to."""
    return isinstance(leaf, (torch.Tensor, PackedSequence)) and values_of(leaf).is_floating_point()


def values_of(leaf: Any) -> torch.Tensor:
    values: torch.Tensor = leaf.data if isinstance(leaf, PackedSequence) else leaf
    return values


class ForwardLog:
    """Hooks on every module under `root`, from `start` to `stop`.

    `last` are the calls of the last backward pass. `is_around`: a loss also goes back to parameters (`own`: their ids)
    around the outputs of these calls, through layers.
    """

    def __init__(self, root: nn.Module, own: set[int]) -> None:
        self._root, self._own = root, own
        self._outputs: list[int] = []
        self.is_around = False
        self._device = next((p.device.type for p in root.parameters()), "cpu")
        self._handles: list[Any] = []
        self._begun: nn.Module | None = None
        self._pass = -1
        self.last: list[Call] = []

    def start(self, called: nn.Module | None = None, args: tuple[Any, ...] = ()) -> None:
        """Begin to watch. `called` is a module under `root` whose call is under way, with its arguments."""
        if self._handles:
            return
        for module in self._root.modules():
            self._handles += [
                module.register_forward_pre_hook(Uncopied(self._before), prepend=True, with_kwargs=True),
                module.register_forward_hook(Uncopied(self._after), with_kwargs=True, always_call=True),
            ]
        self._handles.append(BackwardHook(self._go_back))
        _thread.depth = 0
        if called is not None and any(m is called for m in self._root.modules()):
            self._before(called, args, {})
            self._begun = called

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self.last, self._begun = [], [], None
        self._outputs, self.is_around = [], False

    def _go_back(self, roots: list[torch.Tensor]) -> None:
        if not is_paused() and not self.is_around:
            nodes = [t.grad_fn for t in roots if t.grad_fn is not None]
            self.is_around = around(nodes, self._outputs, self._own)[0] == "layers"

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._begun is module:  # `start` has counted it
            self._begun = None
            return
        if not self._counts():
            return
        _thread.depth = getattr(_thread, "depth", 0) + 1
        if _thread.depth > 1:
            return
        tensors = [leaf for leaf in output_leaves((args, kwargs)) if isinstance(leaf, (torch.Tensor, PackedSequence))]
        versions = [((values := values_of(leaf)), values._version) for leaf in tensors]
        kind = self._device
        autocast = (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        _thread.call = Call(module, args, kwargs, Randomness.now(), autocast, versions)

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self._begun is module:
            self._begun = None
        if not self._counts() or not getattr(_thread, "depth", 0):
            return
        _thread.depth -= 1
        if _thread.depth or output is None:
            return
        call: Call = _thread.call
        _thread.call = None
        if not module.training:
            return
        call.kwargs = call.kwargs or kwargs
        leaves = output_leaves(output)
        known: list[torch.Tensor] = []
        for place, leaf in enumerate(leaves):
            if not is_rows(leaf):
                continue
            values = values_of(leaf)
            if values.grad_fn is not None and not any(values is v for v in known):
                known.append(values)
                self._outputs.append(number_of(values))
                # The hook and its graph keep the call alive, which is deleted with them.
                values.register_hook(functools.partial(self._arrived, call, place))  # type: ignore[no-untyped-call]
                if values.ndim:  # a loop may scale in place the loss that the model returned
                    call.versions.append((values.detach(), values._version))
        call.outputs = [_detached(leaf) for leaf in leaves]

    @staticmethod
    def _counts() -> bool:
        """Whether the pass counts: it needs a gradient, and no checkpoint repeats it in a backward pass."""
        return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1

    def _arrived(self, call: Call, place: int, gradient: torch.Tensor) -> None:
        if not self._handles:
            return
        this = int(torch._C._current_graph_task_id())
        if this != self._pass:
            self._pass, self.last = this, []
        if not any(c is call for c in self.last):
            self.last.append(call)
        call.gradients.setdefault(this, {})[place] = gradient.detach()


def _detached(leaf: Any) -> Any:
    if isinstance(leaf, PackedSequence):
        return PackedSequence(leaf.data.detach(), leaf.batch_sizes, leaf.sorted_indices, leaf.unsorted_indices)
    if isinstance(leaf, torch.Tensor):
        return leaf.detach() if leaf.ndim else leaf.detach().clone()
    return None
