"""Where torch is tracing, the kernels' functions become their torch operators (leakcore.torch_ops).

A trace holds tensors without memory, so no address can be taken from them. The operators are registered when the first
traced call asks for them.
"""

from __future__ import annotations

import sys
from typing import Any


def traced(x: Any) -> bool:
    """Whether torch is compiling, or `x` is a fake tensor (or a sequence that starts with one)."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):
        return False
    if torch.compiler.is_compiling():
        return True
    first = x[0] if isinstance(x, (list, tuple)) and x else x
    return type(first).__name__ == "FakeTensor"


def operators() -> Any:
    from leakcore import torch_ops  # a statement, which torch can trace; importlib it cannot

    return torch_ops
