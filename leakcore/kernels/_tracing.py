"""Where torch is tracing, the kernels' functions become their torch operators (leakcore.torch_ops).

A trace holds tensors without memory, so no address can be taken from them. The operators are registered when the first
traced call asks for them.
"""

from __future__ import annotations

import sys
from typing import Any

_HALF, _WHOLE = 2**63, 2**64


def traced(x: Any) -> bool:
    """Whether torch is compiling or recording, or `x` (or the first of a sequence) is a fake tensor or vmap's."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):
        return False
    if torch.compiler.is_compiling():
        return True
    first = x[0] if isinstance(x, (list, tuple)) and x else x
    if type(first).__name__ == "FakeTensor":
        return True
    # make_fx and torch.jit.trace hold real tensors, of which a kernel's result would be recorded as a constant.
    return isinstance(first, torch.Tensor) and (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.is_batchedtensor(first)
    )


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


def signed(seed: int | None) -> int | None:
    """A seed as the 64-bit integer that an operator takes."""
    if seed is None or seed < _HALF:
        if seed is not None and seed < 0:
            raise ValueError(f"seed={seed}: must be an integer in [0, {_WHOLE - 1}]")
        return seed
    return seed - _WHOLE if seed < _WHOLE else seed


def unsigned(seed: Any) -> Any:
    """The seed that an operator's integer stands for."""
    return seed + _WHOLE if seed is not None and seed < 0 else seed
