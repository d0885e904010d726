"""matplotlib's settings belong to the process: changed for one figure at a time, and put back one by one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from leakcore._base.installed import need

_lock = threading.RLock()


@contextlib.contextmanager
def figure_style(style: Mapping[str, Any]) -> Iterator[None]:
    """matplotlib's `rcParams` with these values while the block runs.

    Blocks in several threads follow one another: were they to overlap, each would put back what the other had set. What
    the caller's own threads set meanwhile stays, unlike with `matplotlib.rc_context`, which puts back every setting.
    """
    need("matplotlib")
    import matplotlib

    with _lock:
        settings: Any = matplotlib.rcParams
        before = {name: settings[name] for name in style}
        try:
            settings.update(style)
            yield
        finally:
            settings.update(before)
