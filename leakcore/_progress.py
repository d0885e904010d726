"""How a long audit or experiment says how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Progress = Callable[[str, int, int], object]
"""Called as progress(task, done, total)."""


def progress_bars() -> Progress:
    """A progress callback that draws one tqdm bar per task on standard error, as long as somebody reads it."""
    from tqdm import tqdm

    bars: dict[str, Any] = {}
    shown = sys.stderr is not None

    def show(task: str, done: int, total: int) -> None:
        nonlocal shown
        if not shown:
            return
        try:
            draw(task, done, total)
        except (OSError, ValueError):  # closed, or its reader went away: no reason to end the work
            shown = False

    def draw(task: str, done: int, total: int) -> None:
        if task not in bars:
            for bar in bars.values():
                bar.close()
            bars.clear()
            # The first report may already hold restored pieces: they are no measure of speed.
            bars[task] = tqdm(total=total, desc=task, initial=0, unit="", leave=True, dynamic_ncols=True)
        bar = bars[task]
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return show
