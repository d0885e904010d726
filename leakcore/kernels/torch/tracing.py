"""Whether torch is tracing: compiling, recording, or holding tensors without values."""

from __future__ import annotations

import sys
from typing import Any

from leakcore._base import array_memory


def traced(kernel: str, **arrays: Any) -> bool:
    """Whether torch is compiling or recording, or an argument (or one of a sequence) is a fake tensor, or a tensor of
    `vmap` or `functionalize`. TypeError for a tensor with values next to a fake one, which torch cannot combine."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):
        return False
    if torch.compiler.is_compiling():
        return True
    tensors: list[tuple[str, Any]] = []
    fake: list[tuple[str, Any]] = []
    for name, x in arrays.items():
        for y in x if isinstance(x, (list, tuple)) else (x,):
            kind = type(y)
            if kind is torch.Tensor or issubclass(kind, torch.Tensor):  # the first says so in a tenth of the time
                (fake if kind.__name__ == "FakeTensor" else tensors).append((name, y))
    if fake:
        if tensors and not fake[0][1].fake_mode.allow_non_fake_inputs:
            raise TypeError(f"{kernel}: `{fake[0][0]}` and `{tensors[0][0]}` must both be fake tensors, or neither")
        return True
    # make_fx and torch.jit.trace hold real tensors, so a kernel's result would be recorded as a constant.
    if tensors and (torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None):
        return True
    return array_memory.transformed() and any(_without_memory(torch, x) for _, x in tensors)


def _without_memory(torch: Any, x: Any) -> bool:
    return bool(torch._C._functorch.is_batchedtensor(x) or torch._is_functional_tensor(x))
