"""One lock per torch module, for evaluating it: `functional_call` puts other parameters into the caller's own module.

Two threads that do so at once may each restore the other's parameters, which would damage the module for good. Code
that swaps parameters, registers hooks, or reads parameters that another thread may have swapped holds the lock.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_locks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def lock_of(model: Any) -> Any:
    """The reentrant lock of this module, created on first use; an object without identity gets a lock of its own."""
    try:
        with _guard:
            lock = _locks.get(model)
            if lock is None:
                lock = _locks[model] = threading.RLock()
            return lock
    except TypeError:  # no weak references, or no hash: the caller says what is wrong with it
        return threading.RLock()


def locked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a function of `model`, its first argument, under that model's lock."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with lock_of(args[0] if args else kwargs.get("model")):
            return function(*args, **kwargs)

    return run


def _forked() -> None:
    """Reset the locks in a child process: it has none of its parent's threads, so nothing would ever release a lock."""
    global _locks, _guard
    _locks, _guard = weakref.WeakKeyDictionary(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
