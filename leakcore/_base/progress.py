"""What long work says of itself: how far it is, and in leakcore's log how long it took."""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from leakcore._base.text import printable

P = ParamSpec("P")
R = TypeVar("R")
_LONG = 0.1
"""Seconds from which a computation inside another one is logged as well."""
_INSIDE: ContextVar[int] = ContextVar("leakcore_computations", default=0)
Progress = Callable[[str, int, int], object]
"""Called as progress(task, done, total)."""


def progress_bars(stream: Any = None) -> Progress:
    """A progress callback that draws one tqdm bar for each task.

    It stops drawing, without an error, when the stream is closed.

    Args:
        stream: a text stream; None: standard error.

    Returns:
        A function `progress(task, done, total)`, for every `progress=` of leakcore.

    Example:
        >>> import io
        >>> from leakcore import audit
        >>> stream = io.StringIO()
        >>> show = audit.progress_bars(stream)
        >>> show("train", 3, 3)
        >>> "train: 100%" in stream.getvalue()
        True
    """
    from tqdm import tqdm

    bars: dict[str, Any] = {}
    visible = sys.stderr is not None

    def show(task: str, done: int, total: int) -> None:
        nonlocal visible
        if not visible:
            return
        try:
            draw(task, done, total)
        except (OSError, ValueError):  # closed, or its reader went away: no reason to end the work
            visible = False

    def draw(task: str, done: int, total: int) -> None:
        if task not in bars:
            for bar in bars.values():
                bar.close()
            bars.clear()
            # The first report may already hold restored pieces: they say nothing about speed.
            bars[task] = tqdm(
                total=total, desc=printable(task, 60), initial=0, unit="", leave=True, dynamic_ncols=True, file=stream
            )
        bar = bars[task]
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return show


def timed(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose calls are logged at INFO when they end, under the name of its package.

    A call inside another one is logged where it takes a tenth of a second or more, indented. Without anybody who
    listens at INFO nothing is measured.
    """
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
