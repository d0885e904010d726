"""The public door of the kernels: here, and nowhere else, it is decided whether torch is tracing a call.

A trace holds tensors without memory, so no address can be taken from them: such a call becomes a torch operator. The
operators are registered when the first traced call asks for them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from leakcore.kernels.allocation import allocation_log_ratio as _allocation_log_ratio
from leakcore.kernels.clip import clip_and_noise as _clip_and_noise
from leakcore.kernels.clip import clip_scores as _clip_scores
from leakcore.kernels.mixture import mixture_log_ratio as _mixture_log_ratio
from leakcore.kernels.solve_labels import solve_labels as _solve_labels
from leakcore.kernels.torch.tracing import traced

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _door(kernel: Callable[_P, _R], *arrays: str) -> Callable[_P, _R]:
    """The kernel, or its operator where one of these arguments is traced."""
    name = kernel.__name__
    places = [(a, list(inspect.signature(kernel).parameters).index(a)) for a in arrays]

    @functools.wraps(kernel)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if sys.modules.get("torch") is not None:
            named = {a: args[i] if i < len(args) else kwargs.get(a) for a, i in places}
            if named[arrays[0]] is not None and traced(name, **named):
                from leakcore.kernels.torch import calls  # a statement, which torch can trace; importlib it cannot

                return getattr(calls, name)(*args, **kwargs)  # type: ignore[no-any-return]
        return kernel(*args, **kwargs)

    call.__module__ = __name__  # where pickle finds it
    return call


clip_and_noise = _door(_clip_and_noise, "grads", "mask", "noise", "out")
clip_scores = _door(_clip_scores, "grads", "observed")
solve_labels = _door(_solve_labels, "jacobian", "gradient")
mixture_log_ratio = _door(_mixture_log_ratio, "like")
allocation_log_ratio = _door(_allocation_log_ratio, "like")
