"""Where results go: checked before the work."""

from __future__ import annotations

from pathlib import Path

import click


def require_place(name: str, path: Path) -> None:
    """Fail before the work, not after it: a file that can be written, a device or a pipe."""
    from leakcore._base.files.writing import is_stream, try_writing

    try:
        if path.is_dir():
            raise OSError(None, "is a folder")
        existing = next((p for p in path.parents if p.exists()), None)
        if existing is not None and not existing.is_dir():
            raise OSError(None, f"{existing} is a file, not a folder")
        if not is_stream(path):
            try_writing(path)
    except OSError as error:
        raise click.UsageError(f"--{name} {path}: cannot be written ({error.strerror})") from None
