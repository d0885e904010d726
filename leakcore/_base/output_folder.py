"""Checks of the folder that a report goes to, made before the work and not after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from leakcore._base.archives import opened_zip
from leakcore._base.reading import open_regular, read_json
from leakcore._base.text import printable
from leakcore._base.writing import CannotWrite, place_in, try_folder

_GENERATOR = b'<meta name="generator" content="leakcore">'
_HEAD = 2000
"""Bytes of a page in which it says who wrote it."""


def require_writable(folder: Path, *, name: str = "folder") -> None:
    """ValueError where the folder does not take files."""
    try:
        try_folder(folder)
    except OSError as error:
        raise ValueError(f"`{name}` must be writable, got {str(folder)!r} ({error.strerror})") from error


def require_inside(folder: Path, *names: str) -> None:
    """ValueError where a file of that name, which is written at the end, would be written outside the folder."""
    for name in names:
        try:
            place_in(folder, name)
        except CannotWrite as error:
            raise ValueError(f"{error.filename}: cannot be written ({error.strerror}); remove it") from error


def require_ours(folder: Path, *names: str, schema: str = "leakcore.", arrays: Collection[str] = ()) -> None:
    """ValueError where a file of such a name is there that must not be overwritten: it is not leakcore's, or read-only.
    JSON is leakcore's by its schema, a page if it says so, an npz file by the names of its arrays; any other file if
    the first one is there."""
    require_inside(folder, *names)
    for name in names:
        path = folder / name
        if not path.exists():
            continue
        kind, ours = "file", (folder / names[0]).exists()
        if path.suffix == ".json":
            kind, ours = "report", _schema_of(path).startswith(schema)
        elif path.suffix == ".html":
            kind, ours = "page", is_our_page(path)
        elif path.suffix == ".npz":
            ours = _names_of_arrays(path) == set(arrays)
        if not ours:
            raise ValueError(
                f"{printable(path)}: is not a {kind} of leakcore's and would be overwritten; move it, or choose "
                "another folder"
            )
        if not os.access(path, os.W_OK, effective_ids=True):
            raise ValueError(
                f"{printable(path)}: is read-only and would be overwritten; move it, or choose another folder"
            )


def is_our_page(path: Path) -> bool:
    """Whether an HTML file says that leakcore wrote it. False where it cannot be read."""
    with contextlib.suppress(OSError, ValueError), open_regular(path) as stream:
        return _GENERATOR in stream.read(_HEAD)
    return False


def _schema_of(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        content = read_json(path, constants=True)
        return str(content.get("schema", "")) if isinstance(content, dict) else ""
    return ""


def _names_of_arrays(path: Path) -> set[str]:
    with contextlib.suppress(OSError, ValueError), opened_zip(path) as (archive, _):
        return {name.removesuffix(".npy") for name in archive.namelist()}
    return set()
