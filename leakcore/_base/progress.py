"""What long work says of itself: how far it is, and in leakcore's log how long it took."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_LONG = 0.1
"""Seconds from which a computation inside another one is logged as well."""
_INSIDE: ContextVar[int] = ContextVar("leakcore_computations", default=0)
Progress = Callable[[str, int, int], object]
"""Called as progress(task, done, total)."""


def timed(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose calls are logged at INFO when they end, under the name of its package. A call inside another
    one is logged where it takes a tenth of a second or more, indented. Without anybody who listens at INFO nothing is
    measured."""
    package = ".".join(function.__module__.split(".")[:2])
    log, name = logging.getLogger(package), f"{package.partition('.')[2]}.{function.__name__}"

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not log.isEnabledFor(logging.INFO):
            return function(*args, **kwargs)
        depth = _INSIDE.get()
        token = _INSIDE.set(depth + 1)
        began = time.perf_counter()
        try:
            result = function(*args, **kwargs)
        finally:
            _INSIDE.reset(token)
        seconds = time.perf_counter() - began
        if depth == 0 or seconds >= _LONG:
            method = getattr(result, "method", None)
            log.info("%s%s: %.3f s%s", "  " * depth, name, seconds, f", method {method}" if method else "")
        return result

    return called
