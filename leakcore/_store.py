"""Finished pieces of an interrupted audit or experiment, so that it loses nothing: a JSON file each, written
atomically.

The folder is bound to one configuration and version by a digest; pieces of any other are refused by being ignored. It
is removed when the report has been written.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str | bytes) -> None:
    """Write `text` (as UTF-8; bytes as they are) to `path`: a reader (or Ctrl-C) sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a report is meant to be read as any new file of the user's.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class PartialResults:
    """Pieces of one audit or experiment by name; `folder=None` keeps nothing."""

    def __init__(self, folder: Path | None, digest: str) -> None:
        self._folder = None if folder is None else folder / digest[:16]

    def get_or_run(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The stored piece, or `run()` stored under `name`. A piece is a JSON-ready dict."""
        if self._folder is None:
            return run()
        path = self._folder / f"{name}.json"
        if path.exists():
            loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return loaded
        piece = run()
        write_atomically(path, json.dumps(piece))
        return piece

    def has(self, name: str) -> bool:
        """Whether the piece is already there."""
        return self._folder is not None and (self._folder / f"{name}.json").exists()

    def remove(self) -> None:
        """Forget the pieces (the report that they were for exists now)."""
        if self._folder is not None and self._folder.exists():
            shutil.rmtree(self._folder)
            parent = self._folder.parent
            if not any(parent.iterdir()):
                parent.rmdir()
