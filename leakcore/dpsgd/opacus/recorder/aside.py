"""What this thread evaluates next to a training loop, and no recording is of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_thread = threading.local()


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Modules that are called in this thread meanwhile are no part of any loop that is watched."""
    before, _thread.aside = is_aside(), True
    try:
        yield
    finally:
        _thread.aside = before


def is_aside() -> bool:
    """Whether this thread is within `aside`."""
    return getattr(_thread, "aside", False)
