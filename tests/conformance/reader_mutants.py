"""Files that were changed by somebody who knows the format: what is inside is changed, and the wrapping is made again.

Pure functions of (data, random generator), so that a find is told by its member and its seed.
"""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.conformance.reader_files import DRAWING, as_json, npz_of

WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 3, 1.5, 1e308, -1e-320, 10**300, 2**63, 2**53 + 1, "", "x", "inf", "-inf", "nan", "0",
    "\x1b]0;x\x07\n::error::\u202e\ud800", "a" * 5000, [], {}, [[]], [None], [1, "x"], [[1], [2, 3]], [True, 1],
    {"array": ["a"], "dtype": "<U100000000", "shape": [1]}, {"array": [1], "dtype": "float64", "shape": [10**12]},
    {"array": [300], "dtype": "int8", "shape": [1]}, {"array": [1.5], "dtype": "int64", "shape": [1]},
    {"array": [], "dtype": "float64", "shape": [0, 2**40]}, {"array": "facts"},
    {"array": [[1]], "dtype": 3, "shape": 1},
    {"cells": [], "dtype": "int64", "shape": [2**26]}, {"cells": [[0, 1], [0, 2]], "dtype": "int64", "shape": [3]},
    {"cells": [[2.0, 1]], "dtype": "f4", "shape": ["3"]}, {"tuple": [1]}, {"tuple": 1}, {"text": 3}, {"text": "inf"},
    {"items": [[[], 1]]}, {"items": [[1, 1], [1.0, 2]]}, {"class": "Trace"}, {"class": ["x"]},
    {"class": "ReconstructionBound", "value": 1.0}, ["a" * 9000, *[""] * 500],
)  # fmt: skip
"""Values that stand where another is expected."""


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value, by its keys."""
    yield at
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*at, key))
    elif isinstance(tree, list):
        for number, value in enumerate(tree[:50]):
            yield from places(value, (*at, number))


def replaced(tree: Any, at: tuple[Any, ...], value: Any) -> Any:
    """The tree with another value in one place."""
    if not at:
        return value
    out = copy.deepcopy(tree)
    inside = out
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = value
    return out


def mutated_tree(tree: Any, rng: random.Random) -> Any:
    """One change of a JSON value by its structure."""
    at = rng.choice(list(places(tree)))
    kind = rng.randrange(8)
    outer = tree
    for key in at[:-1]:
        outer = outer[key]
    if at and kind == 0:
        out = replaced(tree, at[:-1], copy.deepcopy(outer))
        inside = out
        for key in at[:-1]:
            inside = inside[key]
        del inside[at[-1]]
        return out
    if kind == 1 and isinstance(outer, dict):
        return replaced(tree, at[:-1], {**outer, "no such key": rng.choice(WRONG)})
    if kind == 2 and isinstance(outer, list) and outer:
        return replaced(tree, at[:-1], [*outer, *outer])
    if kind == 3 and isinstance(outer, dict):
        return replaced(tree, at, rng.choice(list(outer.values())))
    return replaced(tree, at, copy.deepcopy(rng.choice(WRONG)))


def json_bytes(data: bytes, rng: random.Random) -> bytes:
    """A JSON file, changed by its structure, or now and then by its text."""
    kind = rng.randrange(16)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        return data + rng.choice((b"\0", b"{}", b"]", b"\xff", data))
    if kind == 2:
        return data.replace(b": ", rng.choice((b": 1e999, ", b": NaN, ", b": [" * 500, b": " + b"9" * 5000)), 1)
    if kind == 3:
        key = data.split(b'"')[1]
        return data.replace(b"{", b'{"%s": 0, ' % key, 1)
    return as_json(mutated_tree(json.loads(data), rng))


ARRAYS: tuple[Callable[[np.ndarray], Any], ...] = (
    lambda a: a.astype("f4"), lambda a: a.astype("i8"), lambda a: a.astype("?"), lambda a: a.astype("U8"),
    lambda a: a.astype(">f8"), lambda a: a.astype("c16"), lambda a: a.astype("S4"), lambda a: a.astype(object),
    lambda a: a.reshape(-1)[:1].reshape(()), lambda a: a[..., None], lambda a: a.T[::-1], lambda a: a[:0],
    lambda a: np.concatenate([a, a]), lambda a: a * np.nan, lambda a: a + np.inf, lambda a: -1 - a, lambda a: a * 1e300,
    lambda a: np.zeros_like(a), lambda a: np.array(3.0), lambda a: np.array("x" * 9), lambda a: np.zeros((0, 7)),
    lambda a: np.zeros(3, [("a", "f8")]), lambda a: np.zeros(2, "M8[s]"), lambda a: a.astype("f2"),
)  # fmt: skip
"""Arrays that stand where another is expected; some do not exist of every type."""


def npz_bytes(data: bytes, rng: random.Random) -> bytes:
    """An npz file, one entry changed: its array, its JSON, or its header."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(parts))
    kind = rng.randrange(6)
    if kind == 0:
        del parts[name]
    elif kind == 1:
        parts[rng.choice(("x.npy", name.replace(".npy", ""), "a/../b.npy", name.upper()))] = parts.pop(name)
    elif kind == 2:
        parts[name] = _header(parts[name], rng)
    else:
        array = np.load(io.BytesIO(parts[name]), allow_pickle=False)
        if array.dtype.kind == "U" and array.ndim == 0:
            array = np.array(json_bytes(str(array).encode(), rng).decode("utf-8", "replace"))
        else:
            try:
                with np.errstate(all="ignore"):
                    array = rng.choice(ARRAYS)(array)
            except (TypeError, ValueError, IndexError):
                array = np.zeros(1)
        buffer = io.BytesIO()
        np.save(buffer, array)
        parts[name] = buffer.getvalue()
    return zip_of(parts)


def _header(content: bytes, rng: random.Random) -> bytes:
    """Another word of the header's for what follows."""
    at = content.index(b"\n")
    text = rng.choice((
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '<U99999999', 'fortran_order': False, 'shape': (), }",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (16777216,), }",
        "{'descr': '<f8', 'fortran_order': 2, 'shape': (-1,), }", "{'descr': '|O', 'shape': (1,)}", "{" * 900,
        "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 0, 1180591620717411303424), }",
    ))  # fmt: skip
    header = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content[at + 1 :]


def zip_of(parts: dict[str, bytes]) -> bytes:
    """A zip archive of these files, compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


# Bombs: files of less than a megabyte that stand for gigabytes, by the ending of the name.

_TEXT = {"array": ["a"], "dtype": "<U100000000", "shape": [1]}
_QUADRATIC = ["a" * 8_000, *["0"] * 8_000]
_ZEROS = {"cells": [], "dtype": "int64", "shape": [2**26]}
_SMALL_ZEROS = {"cells": [], "dtype": "int64", "shape": [2**22]}
_MANY_TEXTS = [{"array": ["a"], "dtype": "<U2000000", "shape": [1]}] * 50
_BIG_VALUES = (_TEXT, _QUADRATIC, _ZEROS, _MANY_TEXTS, {"tuple": [_SMALL_ZEROS] * 40}, {"items": [["a", _TEXT]]})


def json_bombs(good: bytes) -> Iterator[bytes]:
    """A good file, with what unfolds in place of every number and list; and texts that unfold as they are."""
    tree = json.loads(good)
    for value in _BIG_VALUES:
        yield as_json(_poisoned(tree, value))
    yield b"[" * 200_000
    yield b"[" + b"{}," * 100_000 + b"{}]"
    yield b"[" + b'{"":0},' * 50_000 + b"0]"
    yield b'{"schema": "' + b"\\ud83d\\ude00" * 30_000 + b'"}'


def _poisoned(tree: Any, value: Any) -> Any:
    """Every result's number in the tree, or every leaf that is a number where there is no result."""
    if isinstance(tree, dict):
        results = str(tree.get("schema", "")).startswith("leakcore.result/")
        return {k: value if results and k in ("value", "interval") else _poisoned(v, value) for k, v in tree.items()}
    if isinstance(tree, list):
        return value if tree and all(isinstance(v, (int, float)) for v in tree) else [_poisoned(v, value) for v in tree]
    return tree


def npz_bombs(good: bytes) -> Iterator[bytes]:
    """Headers that claim, facts that unfold, a directory of many names."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for name in list(parts)[:2]:
        for kind in ("<U0", "<U99999999", "<f8"):
            shape = "()" if kind == "<U99999999" else "(268435456,)"
            header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
            yield zip_of({**parts, name: b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header})
    if "facts.npy" in parts:
        facts = json.loads(str(np.load(io.BytesIO(parts["facts.npy"]))))
        arrays = {n[:-4]: np.load(io.BytesIO(c)) for n, c in parts.items() if n != "facts.npy"}
        for value in _BIG_VALUES:
            poisoned = {k: value if k not in ("schema", "class") and k not in arrays else v for k, v in facts.items()}
            yield npz_of({**arrays, "facts": np.array(json.dumps(poisoned))})
    yield zip_of({f"{i}.npy": b"" for i in range(2000)})


def pickle_bombs() -> Iterator[bytes]:
    """Batches of CIFAR whose labels are pairs of pairs of pairs …, or whose keys are tuples half a million deep."""
    pairs = b"K\x00q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(25))
    yield b"\x80\x02}(U\x06labels" + pairs + b"U\x04dataK\x01u."
    deep = b"N" + b"\x85" * 500_000
    yield b"\x80\x02}(" + deep + b"K\x01u."
    yield b"\x80\x02" + deep + b"U\x01a\x93."
    yield b"\x80\x02U\x01a" + pairs + b"\x93."


def tar_bombs() -> Iterator[bytes]:
    """A chain of long names, each naming the next; and a name of 60 MB."""
    for count, length in ((3000, 1), (1, 60 << 20)):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
            info = tarfile.TarInfo("././@LongLink")
            info.type, info.size = tarfile.GNUTYPE_LONGNAME, length
            for _ in range(count):
                archive.addfile(info, io.BytesIO(b"a" * length))
        yield out.getvalue()


def svg_bombs() -> Iterator[bytes]:
    """Entities within entities, groups within groups."""
    entities = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(12))
    yield f'<!DOCTYPE svg [<!ENTITY e0 "aaaaaaaaaa">{entities}]><svg><title>&e12;</title></svg>'.encode()
    yield f'<svg><!DOCTYPE svg [<!ENTITY e0 "aaaaaaaaaa">{entities}]><title>&e12;</title></svg>'.encode()
    yield DRAWING.replace("<g ", "<g>" * 20_000 + "<g ").encode()


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """Changes of the bytes, now and then inside the archive that they are, as the fuzzer makes them."""
    import mutate

    return mutate.mutated(data, [], rng)


def facts_of(data: bytes) -> str:
    """The JSON of a file: its whole, or the entry `facts` of an npz file."""
    if not data.startswith(b"PK"):
        return data.decode()
    with np.load(io.BytesIO(data)) as file:
        return str(file["facts"])


def with_facts(data: bytes, tree: Any) -> bytes:
    """The file with other JSON."""
    if not data.startswith(b"PK"):
        return as_json(tree)
    with np.load(io.BytesIO(data)) as file:
        return npz_of({**{name: file[name] for name in file.files}, "facts": np.array(json.dumps(tree))})
