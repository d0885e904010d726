"""Warnings that no user can act on, in several threads: filters belong to the process."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()
_inside: list[Any] = []
"""What restores the filters, once for each block that is at work."""


@contextlib.contextmanager
def quiet(message: str = "", category: type[Warning] = Warning) -> Iterator[None]:
    """Ignores warnings whose text `message` (a regular expression) matches from its beginning.

    Blocks may overlap, in several threads: the last one restores what there was before the first. Were each to restore
    what it found, that could be the filter of another, for good.
    """
    with _lock:
        if not _inside:
            saved = warnings.catch_warnings()
            saved.__enter__()
        _inside.append(_inside[0] if _inside else saved)
        warnings.filterwarnings("ignore", message, category)
    try:
        yield
    finally:
        with _lock:
            saved = _inside.pop()
            if not _inside:
                saved.__exit__(None, None, None)


def quiet_batching() -> contextlib.AbstractContextManager[None]:
    """torch's own rules for batches and forward derivatives use a deprecated part of torch."""
    return quiet(".*torch.jit.script", DeprecationWarning)
