"""Checks of the folder that a report goes to, made before the work and not after it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from leakcore._base.files.json_file import read_json
from leakcore._base.files.writing import CannotWrite, place_in, try_folder


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


def require_ours(folder: Path, report: str, schema: str = "leakcore.") -> None:
    """ValueError where a report of that name is there which must not be overwritten: it is not leakcore's, or it is
    read-only."""
    require_inside(folder, report)
    path = folder / report
    if not path.exists():
        return
    content = None
    with contextlib.suppress(OSError, ValueError):
        content = read_json(path, constants=True)
    if not isinstance(content, dict) or not str(content.get("schema", "")).startswith(schema):
        raise ValueError(
            f"{path}: is not a report of leakcore's and would be overwritten; move it, or choose another folder"
        )
    if not os.access(path, os.W_OK, effective_ids=True):
        raise ValueError(f"{path}: is read-only and would be overwritten; move it, or choose another folder")
