"""Forward passes of the model between two steps: the rows that went in, what came out, and whether a loss used it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Output:
    """A tensor that a forward pass gave, as it was then. Its graph is not kept: a loop may drop it.

    leaf: which of several tensors it is, in the order of torch's trees; None for a model that returns one tensor.
    """

    def __init__(self, tensor: torch.Tensor, leaf: int | None, of: ForwardPass) -> None:
        self.of, self.leaf = of, leaf
        self._values, self._version = tensor.detach(), tensor._version
        self.number = number_of(tensor)

    def is_given(self, value: torch.Tensor) -> bool:
        """Whether these are its numbers, in its order."""
        own = self._values
        if own._version != self._version or value.numel() != own.numel():
            return False
        return torch.equal(value.detach().reshape(-1).to(own.dtype), own.reshape(-1))

    def led_to(self, value: torch.Tensor) -> bool:
        """Whether the graph leads back from there: its nodes are numbered as they are made."""
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

    rows: what went in, before the model could change it; None where that is no tensor. went_back: whether a loss went
    back through it, so that its rows are of the step's batch. targets: what the loss was given for these rows; None
    where that is unknown.
    """

    def __init__(self, rows: torch.Tensor | None, output: Any) -> None:
        self.rows = rows
        self.targets: torch.Tensor | None = None
        tensors = [(k, t) for k, t in enumerate(tree_leaves(output)) if isinstance(t, torch.Tensor)]
        single = isinstance(output, torch.Tensor)
        self.outputs = [Output(t, None if single else k, self) for k, t in tensors]
        came = [t for _, t in tensors if t.requires_grad]
        self.went_back = not came  # of a kind that torch cannot look into
        for tensor in came:
            tensor.register_hook(self._go_back)  # type: ignore[no-untyped-call]

    def _go_back(self, _: torch.Tensor) -> None:
        self.went_back = True


def number_of(tensor: torch.Tensor) -> int:
    """Of the node that made it, in autograd's order; -1: none did."""
    return -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()
