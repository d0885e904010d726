"""Progress of an audit as bars on a terminal."""

from __future__ import annotations

import sys
from typing import Any

from leakcore._base.progress import Progress
from leakcore._base.text import printable


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
        try:
            if visible:
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
