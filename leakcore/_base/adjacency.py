"""Audits ask for the adjacency by name: what was in and out decides it, so no default can be right."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

HOW_TO_CHOOSE = "was a row left out ('add-remove'), or replaced by another one ('replace')?"


def asks_adjacency(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function without an `adjacency` say how to choose one, instead of Python's bare "missing argument"."""

    @functools.wraps(function)
    def asking(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if "adjacency" not in kwargs:
            raise TypeError(f"`adjacency` must be given to {function.__name__}: {HOW_TO_CHOOSE}")
        return function(*args, **kwargs)

    return asking
