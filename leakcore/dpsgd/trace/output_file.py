"""The file of one recording: it is written repeatedly, and replaces no file but its own."""

from __future__ import annotations

import itertools
import os
import warnings
from pathlib import Path

from leakcore._base.writing import is_stream
from leakcore.dpsgd.trace.trace import Trace

_Mark = tuple[int, int, int, int]


class TraceFile:
    """Where `record(out=)` writes. ValueError for an existing file, which may be another part of the run.

    A file that appears there during the recording is not replaced either: the trace then goes to the next free name,
    with a warning that says so.
    """

    def __init__(self, out: str | Path) -> None:
        self.path = Path(out)
        self._mine: _Mark | None = None
        if not is_stream(self.path) and self.path.is_file() and not self.path.stat().st_size:
            self._mine = _mark(self.path)  # an empty file that was created to reserve the name
        self.require_free()

    def require_free(self) -> None:
        """ValueError if there is a file that this recording did not write."""
        if self._is_taken(self.path):
            raise ValueError(
                f"`out` must not exist already, unless this recording wrote it, got {str(self.path)!r}: each part of a "
                "run needs a file of its own (audit.join joins them): choose another name, or move that file away"
            )

    def save(self, trace: Trace) -> None:
        """Write the trace over what this recording wrote before."""
        if not is_stream(self.path) and not self._claim(self.path):
            asked = self.path
            names = (asked.with_name(f"{asked.stem}.{n}{asked.suffix}") for n in itertools.count(2))
            self.path = next(path for path in names if self._claim(path))
            warnings.warn(
                f"another file has appeared at `out`, {str(asked)!r}, and stays; this recording is in {self.path}",
                stacklevel=4,
            )
        trace.save(self.path)
        if not is_stream(self.path):
            self._mine = _mark(self.path)

    def _is_taken(self, path: Path) -> bool:
        return not is_stream(path) and path.exists() and _mark(path) != self._mine

    def _claim(self, path: Path) -> bool:
        """Whether the name belongs to this recording: it did already, or it was free."""
        if self._is_taken(path):
            return False
        target = Path(os.path.realpath(path))
        if target.exists():
            return True
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        except OSError:
            return True  # writing the trace says why it cannot be written
        self._mine = _mark(target)
        return True


def _mark(path: Path) -> _Mark:
    """What distinguishes a file from another that replaces it."""
    facts = path.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
