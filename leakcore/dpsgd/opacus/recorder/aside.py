"""Evaluations of this thread that belong to no recorded training loop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_thread = threading.local()


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Within the block, modules that this thread calls belong to no recorded loop."""
    before, _thread.aside = is_aside(), True
    try:
        yield
    finally:
        _thread.aside = before


def is_aside() -> bool:
    """Whether this thread is within `aside`."""
    return getattr(_thread, "aside", False)
