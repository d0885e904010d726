"""Where torch is tracing, the kernels' functions become their torch operators (leakcore.torch_ops).

A trace holds tensors without memory, so no address can be taken from them. The operators are registered when the first
traced call asks for them.
"""

from __future__ import annotations

import sys
from typing import Any

_HALF, _WHOLE = 2**63, 2**64


def traced(*given: Any) -> bool:
    """Whether torch is compiling or recording, or an argument (or one of a sequence) is a fake tensor, or a tensor of
    `vmap` or `functionalize`."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):
        return False
    if torch.compiler.is_compiling():
        return True
    tensors = []
    for x in given:
        for y in x if isinstance(x, (list, tuple)) else (x,):
            kind = type(y)
            if kind is torch.Tensor or issubclass(kind, torch.Tensor):  # the first says so in a tenth of the time
                tensors.append(y)
                if kind.__name__ == "FakeTensor":
                    return True
    # make_fx and torch.jit.trace hold real tensors, of which a kernel's result would be recorded as a constant.
    if tensors and (torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None):
        return True
    return _transformed(torch) and any(_without_memory(torch, x) for x in tensors)


def _transformed(torch: Any) -> bool:
    """Whether this call is made under one of torch.func's transforms."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _without_memory(torch: Any, x: Any) -> bool:
    return bool(torch._C._functorch.is_batchedtensor(x) or torch._is_functional_tensor(x))


def constant(x: Any) -> bool:
    """Whether this call is made under torch.func.grad or its like, which follow other tensors, but not this one.

    They follow the result of every operation, the one that `Tensor.numpy` begins with included.
    """
    torch = sys.modules["torch"]
    return _transformed(torch) and not bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def operators() -> Any:
    from leakcore import torch_ops  # a statement, which torch can trace; importlib it cannot

    return torch_ops


def in_forward_mode() -> bool:
    """Whether torch differentiates forwards (`torch.func.jvp`, `forward_ad.dual_level`) around this call."""
    forward = sys.modules.get("torch.autograd.forward_ad")
    return forward is not None and getattr(forward, "_current_level", -1) >= 0


def differentiated(x: Any) -> bool:
    """Whether a tensor has a forward-mode tangent."""
    if not in_forward_mode():
        return False
    return sys.modules["torch.autograd.forward_ad"].unpack_dual(x).tangent is not None


def signed(value: int | None, name: str = "seed") -> int | None:
    """A seed, or the index of a sample, as the 64-bit integer that an operator takes."""
    if value is None or value < _HALF:
        if value is not None and value < 0:
            raise ValueError(f"{name}={value}: must be an integer in [0, {_WHOLE - 1}]")
        return value
    return value - _WHOLE if value < _WHOLE else value


def unsigned(value: Any) -> Any:
    """The seed or index that an operator's integer stands for."""
    return value + _WHOLE if value is not None and value < 0 else value
