"""The public door of the kernels: here, and nowhere else, it is decided whether torch is tracing a call.

A trace holds tensors without memory, so no address can be taken from them: such a call becomes a torch operator. The
operators are registered when the first traced call asks for them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from leakcore._base import array_memory
from leakcore.kernels.allocation import allocation_log_ratio as _allocation_log_ratio
from leakcore.kernels.clip import clip_and_noise as _clip_and_noise
from leakcore.kernels.clip import clip_scores as _clip_scores
from leakcore.kernels.mixture import mixture_log_ratio as _mixture_log_ratio
from leakcore.kernels.solve_labels import solve_labels as _solve_labels

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _door(kernel: Callable[_P, _R], *arrays: str) -> Callable[_P, _R]:
    """The kernel, or its operator where one of these arguments is traced."""
    name = kernel.__name__
    operator = f"traced_{name}"
    places = [(a, list(inspect.signature(kernel).parameters).index(a)) for a in arrays]

    @functools.wraps(kernel)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if sys.modules.get("torch") is not None:
            named = {a: args[i] if i < len(args) else kwargs.get(a) for a, i in places}
            if named[arrays[0]] is not None and traced(name, **named):
                from leakcore.kernels import torch_operators  # a statement, which torch can trace; importlib it cannot

                return getattr(torch_operators, operator)(*args, **kwargs)  # type: ignore[no-any-return]
        return kernel(*args, **kwargs)

    call.__module__ = __name__  # where pickle finds it
    return call


clip_and_noise = _door(_clip_and_noise, "grads", "mask", "noise", "out")
clip_scores = _door(_clip_scores, "grads", "observed")
solve_labels = _door(_solve_labels, "jacobian", "gradient")
mixture_log_ratio = _door(_mixture_log_ratio, "like")
allocation_log_ratio = _door(_allocation_log_ratio, "like")


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
