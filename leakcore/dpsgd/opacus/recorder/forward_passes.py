"""Forward passes of the model between two steps: their rows, their outputs, and whether a loss used these."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from leakcore.dpsgd.opacus.recorder.candidates.given_rows import leaves_of, mapped
from leakcore.dpsgd.opacus.recorder.sampling.deliveries import Source, Use

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments and keywords of a call."""
Autocast = tuple[str, bool, torch.dtype]


def copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments with copies of their tensors."""
    both = mapped(lambda _, v: v.detach().clone() if isinstance(v, torch.Tensor) else v, (args, kwargs))
    return both[0], both[1]


def rows_of(arguments: Arguments) -> torch.Tensor | None:
    """The first tensor of a call that has dimensions."""
    return next((v for _, v in leaves_of(arguments) if isinstance(v, torch.Tensor) and v.ndim), None)


def autocast_now(outputs: Any) -> Autocast:
    """The autocast that is on for the device of these outputs."""
    tensors = (v for v in tree_leaves(outputs) if isinstance(v, torch.Tensor))
    kind = next((t.device.type for t in tensors), "cpu")
    return kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


class Output:
    """A tensor that a forward pass returned, as it was then. Its graph is not kept alive, so that a loop may drop it.

    Attributes:
        leaf: which of several tensors it is, in the order of torch's trees; None if the model returned one tensor.
        is_loss: whether it is a single number, as a loss is that the model computes itself.
        arrived: the factor of that number in what the loop went back from first; None if it did not.
        part: whether the loop went back from more of the outputs at once.
        value: of that number.
        root: what the loop went back from; None if that is not one number.
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
    """One call of the model in training.

    Attributes:
        args: positional arguments, as they were before the model could change them.
        kwargs: keywords, likewise.
        rows: the first tensor among them, whose first dimension is the rows; None if there is none.
        went_back: whether a loss went back through this pass since the last gradient that was noted.
        is_opaque: whether the model returned something that torch cannot look into; such a pass counts as gone back.
        targets: what the loss received for these rows; None if unknown.
        use: the rows of a loader's draw that these are; None if unknown.
        autocast: the device, whether autocast is on, and its type.
        drew: whether the model drew random numbers.
    """

    def __init__(self, arguments: Arguments, output: Any, use: Use | None = None, *, drew: bool = False) -> None:
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
    def source(self) -> Source | None:
        """The loader from which the rows came."""
        return None if self.use is None else self.use.source

    def _go_back(self, _: torch.Tensor) -> None:
        self.went_back = True


def number_of(tensor: torch.Tensor) -> int:
    """The number, in autograd's order, of the node that created the tensor; -1 if none did."""
    return -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()
