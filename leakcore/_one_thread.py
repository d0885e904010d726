"""Sums of torch and of the linear algebra behind NumPy depend on how many threads share them: here one does."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()
_inside: list[Any] = []
"""The limits that are in force, once for each block that is at work."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread per pool while the block runs. Blocks may overlap, in several threads: the last one lifts the limit.

    A library that is loaded inside the block is not limited: whoever uses torch here imports it before.
    """
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own
    from threadpoolctl import threadpool_limits

    with _lock:
        _inside.append(_inside[0] if _inside else threadpool_limits(1))
    # torch keeps a number for each calling thread.
    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    try:
        if torch is not None:
            torch.set_num_threads(1)
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)
        with _lock:
            limits = _inside.pop()
            if not _inside:
                limits.restore_original_limits()
