"""Where results go: places are checked before the work, and every command ends by `finish`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import click


class ToJson(Protocol):
    """A result that can be JSON."""

    def to_json(self, *, indent: int | None) -> str:
        """Its JSON as text."""


def as_json_text(content: Mapping[str, Any]) -> str:
    """JSON as files and the terminal have it."""
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)


def finish(
    result: ToJson | Mapping[str, Any],
    as_json: bool,
    text: Callable[[], str | Iterable[str]],
    written: Iterable[Path] = (),
) -> None:
    """Print a result: as JSON, or its text (or lines of it) and the files that were written."""
    if as_json:
        click.echo(as_json_text(result) if isinstance(result, Mapping) else result.to_json(indent=2))
        return
    lines = text()
    click.echo(lines if isinstance(lines, str) else "\n".join(lines))
    if files := [str(path) for path in written]:
        click.echo("\n" + "\n".join(files))


def require_place(called: str, path: Path) -> None:
    """Fail before the work, not after it: a file that can be written, a device or a pipe.

    called: what the user calls the place.
    """
    from leakcore._base.writing import is_stream, try_writing

    try:
        if path.is_dir():
            raise OSError(None, "is a folder")
        existing = next((p for p in path.parents if p.exists()), None)
        if existing is not None and not existing.is_dir():
            raise OSError(None, f"{existing} is a file, not a folder")
        if not is_stream(path):
            try_writing(path)
    except OSError as error:
        raise click.UsageError(f"`{called}` must be writable, got {path} ({error.strerror})") from None
