"""Sums of torch and of the linear algebra behind NumPy depend on how many threads share them: here one does."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()
_inside: list[Any] = []
"""The limits that are in force, once for each block that is at work."""


class _Torch(threading.local):
    """torch keeps a number for each calling thread: `before` the first of the blocks that are at work in it."""

    blocks, before = 0, 1


_torch = _Torch()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread per pool while the block runs. Blocks may overlap, in several threads: the last one lifts the limit.

    A library that is loaded inside the block is not limited: code that uses torch here imports it before.
    """
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own
    import threadpoolctl

    # By import, which waits for another thread that has just begun to.
    torch = importlib.import_module("torch") if sys.modules.get("torch") is not None else None
    if torch is not None and _torch.blocks == 0:
        _torch.before = torch.get_num_threads()  # asked under the limit, it would name the limit
    with _lock:
        if not _inside:
            _take_control(threadpoolctl)
        _inside.append(_inside[0] if _inside else threadpoolctl.threadpool_limits(1))
    _torch.blocks += 1
    try:
        if torch is not None:
            torch.set_num_threads(1)
        yield
    finally:
        _torch.blocks -= 1
        with _lock:
            limits = _inside.pop()
            if not _inside:
                _take_control(threadpoolctl)
                limits.restore_original_limits()
                _take_control(threadpoolctl)
        if torch is not None and _torch.blocks == 0:
            torch.set_num_threads(_torch.before)


def _take_control(threadpoolctl: Any) -> None:
    """Let the next thread that asks set OpenBLAS's limit.

    In threadpoolctl (3.8, for one) the first thread to ask is the only one that can, and what others ask is not done,
    without a word: a block in one thread would not be limited, or a limit outlive the last block, which ended in
    another.
    """
    controller = getattr(threadpoolctl, "OpenBLASController", None)
    clear = getattr(controller, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
