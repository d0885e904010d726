"""One file of a run folder: a value under a name, with a checksum of both: a copy cannot pass for another piece.

Without arrays it is JSON, with arrays an npz file whose entry "facts" is that JSON. Written atomically, never changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from leakcore._base.codec import from_plain, to_plain
from leakcore._base.codec.npz import pack, unpack
from leakcore._base.digest import digest
from leakcore._base.files.json_file import read_json
from leakcore._base.files.writing import place_in, write_atomically
from leakcore._base.printable import printable, repr_of

SCHEMA = "leakcore.run/3"
MANIFEST = "run.json"


def seal(folder: Path, name: str, value: Any, kind: Any = None) -> Path:
    """Write the value to NAME.json, or to NAME.npz where it holds arrays; the path. `CannotWrite` where the system
    refuses, TypeError for what `to_plain` does not take."""
    arrays: dict[str, np.ndarray] = {}
    # As it will be read, so that the checksum is the reader's.
    plain = json.loads(json.dumps(to_plain(value, kind, arrays=arrays)))
    facts = {"schema": SCHEMA, "sha256": digest(name, plain, arrays), "piece": plain}
    path = place_in(folder, f"{name}.{'npz' if arrays else 'json'}")
    write_atomically(path, pack(facts, arrays) if arrays else json.dumps(facts), private=True)
    return path


def unseal(path: Path, kind: Any = Any) -> Any:
    """The value, which must be of type `kind`; ValueError where the file is not as it was written, with what to do."""
    try:
        plain, arrays = _opened(path)
        return from_plain(plain, kind, arrays=arrays)
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise ValueError(_damaged(path, why)) from why


def check_seal(path: Path) -> None:
    """ValueError, as `unseal`, where the file is not as it was written."""
    try:
        _opened(path)
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise ValueError(_damaged(path, why)) from why


def _opened(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    facts, arrays = unpack(path) if path.suffix == ".npz" else (read_json(path), {})
    if facts["schema"] != SCHEMA:
        raise ValueError(f"schema {repr_of(facts['schema'])}, not {SCHEMA!r}")
    if facts["sha256"] != digest(path.stem, facts["piece"], arrays):
        raise ValueError("its checksum is another's")
    return facts["piece"], arrays


def _damaged(path: Path, why: Exception) -> str:
    how = f"remove {printable(path.parent)}, which cannot be told to be this run's"
    if path.name != MANIFEST:
        how = "remove this file, and it is computed again"
    reason = str(why).removeprefix(f"{path}: ")
    return f"{printable(path)}: is damaged ({type(why).__name__}: {printable(reason, 200)}); {how}"
