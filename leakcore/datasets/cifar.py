"""CIFAR-10 and CIFAR-100 from their authors' archives, in either version, and small local extracts.

Pixels are divided by 255, so features lie in [0, 1]; rows keep the file's order and are flattened channels first, so
`features.reshape(len(data), *data.shape)` is what a convolution takes. float32. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
import os
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.archives import read_npz, read_tar
from leakcore._base.text import printable
from leakcore.datasets.dataset import Dataset, RemoteFile, find

Folder = str | os.PathLike[str]

_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_CIFAR = {
    ("cifar10", "all"): RemoteFile(
        "cifar10",
        "cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        (_CIFAR_URL + "cifar-10-binary.tar.gz",),
    ),
    ("cifar10", "python"): RemoteFile(
        "cifar10",
        "cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        (_CIFAR_URL + "cifar-10-python.tar.gz",),
    ),
    ("cifar10", "airplane-automobile"): RemoteFile(
        "cifar10", "cifar10_airplane_automobile.npz", "291409a0649ee187ed09e46dfd19cb9c74479af882d8e6b59fe4face0dba3b99"
    ),
    ("cifar100", "all"): RemoteFile(
        "cifar100",
        "cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        (_CIFAR_URL + "cifar-100-binary.tar.gz",),
    ),
    ("cifar100", "python"): RemoteFile(
        "cifar100",
        "cifar-100-python.tar.gz",
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        (_CIFAR_URL + "cifar-100-python.tar.gz",),
    ),
    ("cifar100", "subset"): RemoteFile(
        "cifar100", "cifar100_subset.npz", "67fafe9c5a0f218e260427849a60823ea51f328f002e867acae6327896a3154b"
    ),
}
_KRIZHEVSKY = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009"
_PIXELS = "pixels 0..255 divided by 255"


def cifar10(split: str = "train", *, part: str = "all", path: Folder | None = None, download: bool = True) -> Dataset:
    """CIFAR-10: colour photographs of 3×32×32 pixels, ten classes.

    Pixels are divided by 255, so features lie in [0, 1]; rows keep the file's order, flattened channels first.

    Args:
        split: "train" for 50,000 rows, or "test" for 10,000 rows.
        part: "all", or "airplane-automobile" for a local extract, cifar10_airplane_automobile.npz, of 2,000 train and
            500 test rows of these two classes (labels 0 and 1). The extract cannot be downloaded and never stands in
            for the whole.
        path: a folder that holds the file (for "all" cifar-10-binary.tar.gz, or cifar-10-python.tar.gz), directly or in
            its subfolder `cifar10`. None searches LEAKCORE_DATA, then the user's cache, then the authors' site.
        download: whether the site may be asked when `path` is None.

    Returns:
        A `Dataset` of (rows, 3072) float32 features, with `shape` (3, 32, 32).

    Raises:
        FileNotFoundError: says where the file was looked for.
        ValueError: if the SHA-256 of the file is not the canonical one, or for another `split` or `part`.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.cifar10("train", path=folder)
        Traceback (most recent call last):
        FileNotFoundError: cifar-10-binary.tar.gz of cifar10 was not found; ...
    """
    validate.one_of("all", "airplane-automobile", part=part)
    return _cifar("cifar10", split, part, path, download, classes=10 if part == "all" else 2)


def cifar100(
    split: str = "train", *, part: str = "all", labels: str = "fine", path: Folder | None = None, download: bool = True
) -> Dataset:
    """CIFAR-100: colour photographs of 3×32×32 pixels, 100 fine or 20 coarse classes.

    Pixels are divided by 255, so features lie in [0, 1]; rows keep the file's order, flattened channels first.

    Args:
        split: "train" for 50,000 rows, or "test" for 10,000 rows.
        part: "all", or "subset" for a local extract, cifar100_subset.npz, of 20 train and 5 test rows of each fine
            class. The extract cannot be downloaded.
        labels: "fine" for 100 classes, or "coarse" for 20 superclasses.
        path: a folder that holds the file (for "all" cifar-100-binary.tar.gz, or cifar-100-python.tar.gz), directly or
            in its subfolder `cifar100`. None searches LEAKCORE_DATA, then the user's cache, then the authors' site.
        download: whether the site may be asked when `path` is None.

    Returns:
        A `Dataset` of (rows, 3072) float32 features, with `shape` (3, 32, 32).

    Raises:
        FileNotFoundError: says where the file was looked for.
        ValueError: if the SHA-256 of the file is not the canonical one, or for another `split`, `part` or `labels`.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.cifar100("train", path=folder)
        Traceback (most recent call last):
        FileNotFoundError: cifar-100-binary.tar.gz of cifar100 was not found; ...
    """
    validate.one_of("all", "subset", part=part)
    kind = validate.one_of("fine", "coarse", labels=labels)
    return _cifar(
        "cifar100", split, part, path, download, classes=100 if kind == "fine" else 20, coarse=kind == "coarse"
    )


def _cifar(
    name: str, split: str, part: str, path: Folder | None, download: bool, *, classes: int, coarse: bool = False
) -> Dataset:
    which = validate.one_of("train", "test", split=split)
    if part == "all":
        images, labels = _whole(name, which, coarse, path, download)
    else:
        stored = read_npz(find(_CIFAR[name, part], path, download), {f"x_{which}", f"y_{which}", "coarse_of_fine"})
        images = stored[f"x_{which}"].transpose(0, 3, 1, 2).reshape(-1, math.prod(SHAPE))
        labels = stored[f"y_{which}"]
        if coarse:
            labels = stored["coarse_of_fine"][labels]
    return Dataset(
        features=np.divide(images, np.float32(255), dtype=np.float32),
        labels=labels.astype(np.int64),
        num_classes=classes,
        name=f"{name} {which}" + ("" if part == "all" else f" ({part})"),
        scaling=_PIXELS,
        source=_KRIZHEVSKY,
        licence="none stated; research use",
        shape=SHAPE,
    )


def _whole(name: str, split: str, coarse: bool, path: Folder | None, download: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels from the binary or the Python version, whichever is there; the binary one is downloaded."""
    binary, python = _CIFAR[name, "all"], _CIFAR[name, "python"]
    for file, read in ((binary, read_binary), (python, read_python)):
        try:
            where = find(file, path, False)
        except FileNotFoundError:
            continue
        return read(where, name, split, coarse)
    try:
        where = find(binary, path, download)
    except FileNotFoundError as why:
        raise FileNotFoundError(
            f"{why}. The Python version, {python.name}, is read as well{_extract(name, path)}"
        ) from None
    return read_binary(where, name, split, coarse)


def _extract(name: str, path: Folder | None) -> str:
    """A local extract that is there where the whole is not, in words; empty if there is none."""
    for (of, part), file in _CIFAR.items():
        if of == name and part not in ("all", "python"):
            try:
                return f". An extract is here, {find(file, path, False)}: part={part!r} reads it"
            except (FileNotFoundError, ValueError):
                continue
    return ""


SHAPE = (3, 32, 32)
_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def read_binary(path: Path, name: str, split: str, coarse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Records of the label bytes (CIFAR-100: coarse, fine) and 3,072 pixels, channels first."""
    if name == "cifar10":
        wanted = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
        heads, label = 1, 0
    else:
        wanted, heads, label = [f"{split}.bin"], 2, 0 if coarse else 1
    size = heads + math.prod(SHAPE)
    try:
        members = read_tar(path, set(wanted))
        if odd := [base for base in members if len(members[base]) % size]:
            raise ValueError(f"{odd[0]} has {len(members[odd[0]])} bytes, which is not a multiple of {size}")
    except ValueError as why:
        raise ValueError(f"{printable(path)}: not an archive of CIFAR's records ({why})") from why
    if missing := [base for base in wanted if base not in members]:
        raise ValueError(f"{printable(path)}: holds no {', '.join(missing)}")
    records = np.concatenate([np.frombuffer(members[base], np.uint8).reshape(-1, size) for base in wanted])
    return records[:, heads:], records[:, label]


def read_python(path: Path, name: str, split: str, coarse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels from the Python version: pickles, whose instructions are read but never carried out."""
    wanted = _BATCHES[split] if name == "cifar10" else [split]
    label = "labels" if name == "cifar10" else "coarse_labels" if coarse else "fine_labels"
    try:
        members = read_tar(path, set(wanted))
        if missing := [base for base in wanted if base not in members]:
            raise ValueError(f"holds no {', '.join(missing)}")
        parts = [_batch(members[base], label) for base in wanted]
    except ValueError as why:
        raise ValueError(f"{printable(path)}: not an archive of CIFAR's batches ({why})") from why
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _batch(content: bytes, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (rows, 3072) and labels of one pickled dictionary."""
    try:
        batch = _values(content)
        rows, classes = batch["data"], batch[label]
        if not isinstance(classes, list) or not all(type(k) is int and 0 <= k <= 99 for k in classes):
            raise ValueError(f"`{label}` must be a list, one class of 0 to 99 for each row")
        labels = np.array(classes, np.int64)
        _, shape, kind, by_columns, pixels = rows["state"]
        if isinstance(pixels, dict):  # as Python 3 writes bytes for Python 2
            pixels = pixels["arguments"][0]
        if kind["arguments"][0] not in ("u1", "|u1") or by_columns:
            raise ValueError("pixels are not bytes in rows")
        images = np.frombuffer(pixels.encode("latin-1") if isinstance(pixels, str) else pixels, np.uint8)
        images = images.reshape(shape)
    except Exception as why:  # whatever the instructions are, what they describe is a batch or is none
        raise ValueError(f"a batch that cannot be read: {printable(why) or type(why).__name__}") from why
    if images.ndim != 2 or images.shape[1] != math.prod(SHAPE):
        raise ValueError(f"pixels of shape {images.shape}, not (rows, {math.prod(SHAPE)})")
    if labels.shape != images.shape[:1]:
        raise ValueError(f"`{label}` must be one class of 0 to 99 for each of {len(images)} rows")
    return images, labels


def _values(content: bytes) -> Any:
    """The value that a pickle describes, of dictionaries, lists, tuples, texts and numbers.

    What a pickle would call becomes a dictionary with the name, the arguments and the state: nothing is called.
    ValueError for any other instruction. A few instructions may describe a value without end, or one that contains
    itself a billion times: keys and names must be texts, and nothing here goes through a value.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        first = marks.pop()
        taken = stack[first:]
        del stack[first:]
        return taken

    def several(count: int) -> tuple[Any, ...]:
        taken = tuple(stack[-count:])
        del stack[-count:]
        return taken

    def called(_: Any) -> None:
        name, arguments = several(2)
        stack.append({"name": name, "arguments": arguments})

    def built(_: Any) -> None:
        state = stack.pop()
        stack[-1]["state"] = state

    def paired(_: Any) -> None:
        items = since_mark()
        stack[-1].update(zip(map(_text, items[::2]), items[1::2], strict=True))

    def one_paired(_: Any) -> None:
        key, value = several(2)
        stack[-1][_text(key)] = value

    def extended(_: Any) -> None:
        items = since_mark()
        stack[-1].extend(items)

    def put(key: Any) -> None:
        memo[len(memo) if key is None else key] = stack[-1]

    def constant(value: Any) -> Callable[[Any], None]:
        return lambda _: stack.append(value)

    do: dict[str, Callable[[Any], object]] = {
        "MARK": lambda _: marks.append(len(stack)),
        "EMPTY_DICT": lambda _: stack.append({}),
        "EMPTY_LIST": lambda _: stack.append([]),
        "EMPTY_TUPLE": constant(()),
        "NONE": constant(None),
        "NEWTRUE": constant(True),
        "NEWFALSE": constant(False),
        "APPEND": lambda _: stack[-2].append(stack.pop()),
        "APPENDS": extended,
        "SETITEM": one_paired,
        "SETITEMS": paired,
        "TUPLE": lambda _: stack.append(tuple(since_mark())),
        "GLOBAL": stack.append,
        "STACK_GLOBAL": lambda _: stack.append(" ".join(map(_text, several(2)))),
        "REDUCE": called,
        "BUILD": built,
        **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), put),
        **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda key: stack.append(memo[key])),
        "TUPLE1": lambda _: stack.append(several(1)),
        "TUPLE2": lambda _: stack.append(several(2)),
        "TUPLE3": lambda _: stack.append(several(3)),
        **dict.fromkeys(_LITERALS, stack.append),
        **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _: None),
    }
    for instruction, argument, _ in pickletools.genops(content):
        if instruction.name not in do:
            raise ValueError(f"the instruction {instruction.name} is not read")
        do[instruction.name](argument)
    (value,) = stack
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a name or a key that is a {type(value).__name__}, not a text")
    return value


_LITERALS = (
    "BININT BININT1 BININT2 INT LONG LONG1 BINSTRING SHORT_BINSTRING STRING UNICODE BINUNICODE SHORT_BINUNICODE "
    "BINBYTES SHORT_BINBYTES"
).split()
