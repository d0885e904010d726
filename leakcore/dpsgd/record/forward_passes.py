"""Forward passes of the model between two steps, and which of them are in the sum that a step releases."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizerFastGradientClipping
from torch.utils._pytree import tree_leaves

from leakcore.dpsgd.rows.hooks import Arguments, BatchSource, UsedRows, number_of, rows_of
from leakcore.dpsgd.rows.unsupported_layers import samples_of

Autocast = tuple[str, bool, torch.dtype]


def autocast_now(outputs: Any) -> Autocast:
    """The autocast that is on for the device of these outputs."""
    tensors = (v for v in tree_leaves(outputs) if isinstance(v, torch.Tensor))
    kind = next((t.device.type for t in tensors), "cpu")
    return kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


class Output:
    """A tensor that a forward pass returned, as it was then. Its graph is not kept alive, so that a loop may drop it.

    `leaf`: which of several tensors it is, in the order of torch's trees. `is_loss`: it is a single number, `value`, as
    a loss is that the model computes itself; the loop went back from `root`, if that is one number, in which its factor
    is `arrived` (None: it did not), and at once from more of the outputs if `part`.
    """

    def __init__(self, tensor: torch.Tensor, leaf: int | None, of: ForwardPass) -> None:
        self.of, self.leaf = of, leaf
        self._values, self._version = tensor.detach(), tensor._version
        self.number = number_of(tensor)
        self.is_loss = tensor.ndim == 0 and tensor.requires_grad
        self.arrived: float | None = None
        self.part = False
        self.root: float | None = None
        if self.is_loss:
            self.value = float(tensor.detach())
            tensor.register_hook(self._arrive)  # type: ignore[no-untyped-call]

    def _arrive(self, gradient: torch.Tensor) -> None:
        if self.arrived is None:
            self.arrived = float(gradient)

    def is_given(self, value: torch.Tensor) -> bool:
        """Whether a tensor holds the same numbers in the same order."""
        own = self._values
        if own._version != self._version or value.numel() != own.numel():
            return False
        return torch.equal(value.detach().reshape(-1).to(own.dtype), own.reshape(-1))

    def led_to(self, value: torch.Tensor) -> bool:
        """Whether the graph leads from that tensor back to this output. Nodes are numbered as they are created."""
        todo, known = [value.grad_fn], set()
        while todo and self.number >= 0:
            node = todo.pop()
            if node is None or node in known or node._sequence_nr() < self.number:
                continue
            if node._sequence_nr() == self.number:
                return True
            known.add(node)
            todo += [n for n, _ in node.next_functions]
        return False


class ForwardPass:
    """One call of the model in training, with its arguments as they were before the model could change them.

    Attributes: rows: the first tensor among these, whose first dimension is the rows; None if there is none. went_back:
    whether a loss went back through this pass since the last gradient that was noted, or `is_opaque`: the model
    returned something that torch cannot look into. targets: what the loss received for these rows; None if unknown.
    use: the rows of a loader's draw that these are; None if unknown.
    """

    def __init__(self, arguments: Arguments, output: Any, use: UsedRows | None = None, *, drew: bool = False) -> None:
        self.args, self.kwargs = arguments
        self.drew = drew
        self.rows, self.use = rows_of(arguments), use
        self.targets: torch.Tensor | None = None
        self.autocast = autocast_now(output)
        tensors = [(k, t) for k, t in enumerate(tree_leaves(output)) if isinstance(t, torch.Tensor)]
        single = isinstance(output, torch.Tensor)
        self.outputs = [Output(t, None if single else k, self) for k, t in tensors]
        came = [t for _, t in tensors if t.requires_grad]
        self.is_opaque = not came  # of a kind that torch cannot look into
        self.went_back = self.is_opaque
        for tensor in came:
            tensor.register_hook(self._go_back)  # type: ignore[no-untyped-call]

    @property
    def source(self) -> BatchSource | None:
        """The loader from which the rows came."""
        return None if self.use is None else self.use.source

    def _go_back(self, _: torch.Tensor) -> None:
        self.went_back = True


Entries = Sequence[tuple[ForwardPass, ...]]
"""What each summed gradient was computed from: the forward passes of one backward pass."""


class Sums:
    """The tensors that hold the clipped sum of an optimizer, so that a sum is recognised."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._known: list[weakref.ref[torch.Tensor]] = []

    @property
    def are_empty(self) -> bool:
        """Whether nothing is summed."""
        return not self._now()

    @property
    def are_spent(self) -> bool:
        """Whether Opacus released the sum already, and refuses to do so again."""
        return any(hasattr(s, "_processed") for s in self._now())

    @property
    def are_known(self) -> bool:
        """Whether the sum is the one that was there when `know` was called."""
        now = self._now()
        return len(now) == len(self._known) and all(r() is s for r, s in zip(self._known, now, strict=True))

    def know(self) -> None:
        """Recognise the present sum from now on."""
        self._known = [weakref.ref(s) for s in self._now()]

    def _now(self) -> list[torch.Tensor]:
        return [s for p in self._optimizer.params if (s := getattr(p, "summed_grad", None)) is not None]


class SummedPasses:
    """Which forward passes are in the sum of an optimizer: the ones whose gradients it clipped since it was empty.

    A gradient is known by its tensor, a sum by the tensors that hold it. So it does not matter who clears which of
    them, when, and how often. `passes` are those since the last step.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.passes: list[ForwardPass] = []
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._gradients: dict[int, tuple[weakref.ref[Any], tuple[ForwardPass, ...]]] = {}
        self._clipped: list[tuple[ForwardPass, ...]] | None = []
        """Of ghost clipping, which are in `p.grad`; None: others are, too."""
        self._summed: list[tuple[ForwardPass, ...]] | None = []
        self._sums = Sums(optimizer)
        self._coming: list[tuple[ForwardPass, ...]] | None = []
        self._begun: list[ForwardPass] = []

    def before_backward(self) -> None:
        """A backward pass begins."""
        self._note()
        self._begun = list(self.passes)
        if self._ghost and all(p.grad is None or not bool(p.grad.any()) for p in self._optimizer.params):
            self._clipped = []

    def before_step(self) -> None:
        """The gradients that there are will be summed."""
        self._note()
        self._coming = self._clipped if self._ghost else self._of_gradients()
        if self._sums.are_empty:
            self._summed = []
        elif not self._sums.are_known:
            self._summed = None

    def after_step(self, released: bool | None) -> Entries | None:
        """They were summed. Gives what the sum holds, by gradients; None if it holds others, too."""
        if released is None:  # in the middle of summing, perhaps
            self._summed = None
        elif getattr(self._optimizer, "sum_is_fresh", False):
            self._summed = self._coming
        elif self._summed is not None:
            self._summed = None if self._coming is None else [*self._summed, *self._coming]
        self._sums.know()
        summed = self._summed
        if released:
            self._clipped = self._summed = None  # until both are cleared
        return summed

    @property
    def holds_others(self) -> bool:
        """Before a step: whether the sum holds rows already, which did not come of these passes, and is not spent."""
        return self._summed is None and not self._sums.are_spent

    def _note(self) -> None:
        """The gradients that are new belong to the passes that a loss went back through since the last call."""
        gone = tuple(p for p in self.passes if p.went_back and (not p.is_opaque or p in self._begun))
        if self._ghost:
            if gone and self._clipped is not None:
                self._clipped = [*self._clipped, gone]
        else:
            present = {id(g): g for p in self._optimizer.params for g in samples_of(p)}
            self._gradients = {k: v for k, v in self._gradients.items() if k in present and v[0]() is present[k]}
            for key, gradient in present.items():
                if key not in self._gradients and gone:
                    self._gradients[key] = weakref.ref(gradient), gone
        for one in gone:
            one.went_back = False

    def _of_gradients(self) -> list[tuple[ForwardPass, ...]] | None:
        most: collections.Counter[int] = collections.Counter()
        known: dict[int, tuple[ForwardPass, ...]] = {}
        for p in self._optimizer.params:
            own: collections.Counter[int] = collections.Counter()
            for gradient in samples_of(p):
                if id(gradient) not in self._gradients:
                    return None
                passes = self._gradients[id(gradient)][1]
                known[id(passes)] = passes
                own[id(passes)] += 1
            most |= own
        return [known[key] for key, count in most.items() for _ in range(count)]
