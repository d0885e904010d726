"""Progress bars of a command, where a person watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leakcore.cli.terminal import Drawing

if TYPE_CHECKING:
    from leakcore._base.progress import Progress


def bars(quiet: bool) -> Progress | None:
    """Progress bars for a terminal; in a log or a pipe they would be kilobytes of control characters."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        return None
    from leakcore._base.progress import progress_bars

    return progress_bars(Drawing(sys.stderr))
