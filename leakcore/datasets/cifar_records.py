"""Pixels and labels from CIFAR's two archives: binary records, and the Python version, read without running it."""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from leakcore._base.files.tar_file import read_tar
from leakcore._base.printable import printable

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
    """The same from the Python version: pickles, whose instructions are read one by one and never carried out."""
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
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "BINSTRING", "SHORT_BINSTRING", "STRING", "UNICODE",
    "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
)  # fmt: skip
