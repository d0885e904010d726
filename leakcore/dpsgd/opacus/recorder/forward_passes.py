"""Forward passes of the model between two steps: their rows, their outputs, and whether a loss used these."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from leakcore.dpsgd.opacus.recorder.sampling_of_steps import Source


class Output:
    """A tensor that a forward pass returned, as it was then. Its graph is not kept alive, so that a loop may drop it.

    Attributes:
        leaf: which of several tensors it is, in the order of torch's trees; None if the model returned one tensor.
    """

    def __init__(self, tensor: torch.Tensor, leaf: int | None, of: ForwardPass) -> None:
        self.of, self.leaf = of, leaf
        self._values, self._version = tensor.detach(), tensor._version
        self.number = number_of(tensor)

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
        rows: the input, before the model could change it; None if it was not a tensor.
        went_back: whether a loss went back through this pass, so that its rows belong to the batch of the step.
        targets: what the loss received for these rows; None if unknown.
        source: the loader from which the rows came; None if unknown.
    """

    def __init__(self, rows: torch.Tensor | None, output: Any, source: Source | None = None) -> None:
        self.rows, self.source = rows, source
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
    """The number, in autograd's order, of the node that created the tensor; -1 if none did."""
    return -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()
