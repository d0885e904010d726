"""Settings that belong to the process, changed for a block that may overlap others: threads of libraries, warnings."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_limits_lock = threading.Lock()
_limits: list[Any] = []
"""The limits that are in force, once for each block that is at work."""


class _Torch(threading.local):
    """torch keeps a number for each calling thread: `before` the first of the blocks that are at work in it."""

    blocks, before = 0, 1


_torch = _Torch()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread per pool while the block runs. Blocks may overlap, in several threads: the last one lifts the limit. A
    library that is loaded inside the block is not limited: code that uses torch here imports it before."""
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own
    import threadpoolctl

    # By import, which waits for another thread that has just begun to.
    torch = importlib.import_module("torch") if sys.modules.get("torch") is not None else None
    if torch is not None and _torch.blocks == 0:
        _torch.before = torch.get_num_threads()  # asked under the limit, it would name the limit
    with _limits_lock:
        if not _limits:
            _take_control(threadpoolctl)
        _limits.append(_limits[0] if _limits else threadpoolctl.threadpool_limits(1))
    _torch.blocks += 1
    try:
        if torch is not None:
            torch.set_num_threads(1)
        yield
    finally:
        _torch.blocks -= 1
        with _limits_lock:
            limits = _limits.pop()
            if not _limits:
                _take_control(threadpoolctl)
                limits.restore_original_limits()
                _take_control(threadpoolctl)
        if torch is not None and _torch.blocks == 0:
            torch.set_num_threads(_torch.before)


def _take_control(threadpoolctl: Any) -> None:
    """Let the next thread that asks set OpenBLAS's limit. In threadpoolctl (3.8, for one) the first thread to ask is
    the only one that can, and what others ask is not done, without a word: a block in one thread would not be limited,
    or a limit outlive the last block, which ended in another."""
    controller = getattr(threadpoolctl, "OpenBLASController", None)
    clear = getattr(controller, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


_filters_lock = threading.Lock()
_filters: list[Any] = []
"""What restores the filters, once for each block that is at work."""


@contextlib.contextmanager
def quiet(message: str = "", category: type[Warning] = Warning) -> Iterator[None]:
    """Ignores warnings whose text `message` (a regular expression) matches from its beginning. Blocks may overlap, in
    several threads: the last one restores what there was before the first. Were each to restore what it found, that
    could be the filter of another, for good."""
    with _filters_lock:
        if not _filters:
            saved = warnings.catch_warnings()
            saved.__enter__()
        _filters.append(_filters[0] if _filters else saved)
        warnings.filterwarnings("ignore", message, category)
    try:
        yield
    finally:
        with _filters_lock:
            saved = _filters.pop()
            if not _filters:
                saved.__exit__(None, None, None)


def quiet_batching() -> contextlib.AbstractContextManager[None]:
    """torch's own rules for batches and forward derivatives use a deprecated part of torch."""
    return quiet(".*torch.jit.script", DeprecationWarning)
