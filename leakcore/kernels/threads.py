"""How many threads the kernels and ensembles use. It changes the time, never a result.

In this order: `thread_limit` or `set_num_threads`; LEAKCORE_NUM_THREADS; torch's own setting if torch has been
imported; OMP_NUM_THREADS; the processors this process may run on.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
from collections.abc import Iterator

from leakcore import _C
from leakcore._base import validate

_MOST = 4096
_chosen: int | None = None
_limit: contextvars.ContextVar[int | None] = contextvars.ContextVar("leakcore_threads", default=None)
_chunk: contextvars.ContextVar[int] = contextvars.ContextVar("leakcore_chunk", default=0)


def num_threads() -> int:
    """The number of threads that the next kernel may use; small inputs use fewer.

    In this order: `thread_limit`, `set_num_threads`, LEAKCORE_NUM_THREADS, torch's setting if torch has been imported,
    OMP_NUM_THREADS, the processors that this process may run on.

    Returns:
        At least 1.

    Raises:
        ValueError: if LEAKCORE_NUM_THREADS is not a positive integer of at most 4096.

    Example:
        >>> from leakcore import kernels
        >>> with kernels.thread_limit(2):
        ...     kernels.num_threads()
        2
    """
    limit = _limit.get()
    if limit is not None:
        return limit
    if _chosen is not None:
        return _chosen
    # Not from `os.environ`, which would take a microsecond of a call that may be short.
    if text := (_C.environment("LEAKCORE_NUM_THREADS") or "").strip():
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"`LEAKCORE_NUM_THREADS` must be a positive integer, got {text!r}")
        if int(text) > _MOST:
            raise ValueError(f"`LEAKCORE_NUM_THREADS` must be at most {_MOST}, got {text!r}")
        return int(text)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return min(int(torch.get_num_threads()), _MOST)
    first = (_C.environment("OMP_NUM_THREADS") or "").split(",")[0].strip()
    if first.isdecimal() and int(first) >= 1:
        return min(int(first), _MOST)
    return usable_cores()


def usable_cores() -> int:
    """Processors that the process's affinity allows; all of them where the system knows no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_num_threads(count: int | None) -> None:
    """Fix the number of threads for this process. It changes the time, never a result.

    Args:
        count: a positive integer, or None to return to the automatic choice.

    Returns:
        None.

    Raises:
        ValueError: unless `count` is in [1, 4096].
        TypeError: if `count` is not an integer.

    Example:
        >>> from leakcore import kernels
        >>> kernels.set_num_threads(2)
        >>> kernels.num_threads()
        2
        >>> kernels.set_num_threads(None)
    """
    global _chosen
    _chosen = None if count is None else validate.integer(1, _MOST, count=count)


@contextlib.contextmanager
def thread_limit(count: int) -> Iterator[None]:
    """Within the block, kernels called from this thread or task use `count` threads.

    Args:
        count: a positive integer.

    Returns:
        A context manager.

    Raises:
        ValueError: unless `count` is in [1, 4096].
        TypeError: if `count` is not an integer.

    Example:
        >>> from leakcore import kernels
        >>> with kernels.thread_limit(1):
        ...     kernels.num_threads()
        1
    """
    token = _limit.set(validate.integer(1, _MOST, count=count))
    try:
        yield
    finally:
        _limit.reset(token)


@contextlib.contextmanager
def schedule(threads: int, chunk: int) -> Iterator[None]:
    """For tests: force threads and the number of work items a worker takes at a time."""
    token = _chunk.set(chunk)
    try:
        with thread_limit(threads):
            yield
    finally:
        _chunk.reset(token)


def schedule_now() -> _C.Schedule:
    """The schedule of a native call; chunk 0 lets the kernel choose."""
    return _schedule(num_threads(), _chunk.get())


@functools.lru_cache(maxsize=16)
def _schedule(threads: int, chunk: int) -> _C.Schedule:
    return _C.Schedule.of(num_threads=threads, chunk=chunk)
