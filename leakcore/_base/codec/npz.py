"""A value as one npz file: its arrays by their place in it, all else as JSON next to them; nothing is pickled."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from leakcore._base.codec import from_plain, to_plain
from leakcore._base.files.json_file import parse_json
from leakcore._base.files.limits import allowed
from leakcore._base.files.npz_file import read_npz

FACTS = "facts"
"""The entry that holds the JSON."""


def to_npz(value: Any, kind: Any = None, *, compressed: bool = False) -> bytes:
    """The file's bytes. compressed: unless it became so small that `from_npz` would not unfold it."""
    arrays: dict[str, np.ndarray] = {}
    facts = to_plain(value, kind, arrays=arrays)
    return pack(facts, arrays, compressed=compressed)


def from_npz(source: str | Path | BinaryIO, kind: Any, *, classes: Iterable[type] = ()) -> Any:
    """The value; ValueError says what is wrong with any other file, FileNotFoundError where there is none."""
    facts, arrays = unpack(source)
    return from_plain(facts, kind, classes=classes, arrays=arrays)


def pack(facts: Any, arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> bytes:
    """JSON and arrays as one file."""
    whole = {FACTS: np.array(json.dumps(facts, allow_nan=False)), **arrays}
    buffer = io.BytesIO()
    if compressed:
        np.savez_compressed(buffer, allow_pickle=False, **whole)
        if sum(np.asarray(a).nbytes for a in whole.values()) <= allowed(buffer.tell()) // 2:
            return buffer.getvalue()
        buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **whole)
    return buffer.getvalue()


def unpack(source: str | Path | BinaryIO, names: Collection[str] | None = None) -> tuple[Any, dict[str, np.ndarray]]:
    """What `pack` was given; all of its entries, or the ones in `names`."""
    arrays = read_npz(source, names, text=True)
    if FACTS not in arrays:
        raise ValueError(f"holds no entry {FACTS!r}")
    return parse_json(_text(arrays.pop(FACTS))), arrays


def _text(array: np.ndarray) -> str:
    """The text of an array; NumPy makes a string of code points that Unicode does not have, and nobody reads it."""
    if array.dtype.kind == "U" and array.size:
        points = np.frombuffer(array.tobytes(), np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if points.max(initial=0) > sys.maxunicode:
            raise ValueError(f"entry `{FACTS}` must be text, got code points beyond Unicode's")
    return str(array)
