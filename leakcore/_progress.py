"""How a long audit or experiment says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[str, int, int], object]
"""Called as progress(task, done, total)."""


def progress_bars() -> Progress:
    """A progress callback that draws one tqdm bar per task on standard error."""
    from tqdm import tqdm

    bars: dict[str, Any] = {}

    def show(task: str, done: int, total: int) -> None:
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
