"""Weights as safetensors files: a header in JSON and raw numbers, nothing that could run."""

from __future__ import annotations

import json
import math
import operator
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from leakcore._base.reading import open_regular, parse_json, size_of
from leakcore._base.text import name_of, printable, repr_of
from leakcore._base.writing import write_atomically

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LARGEST_HEADER = 2**24
"""Bytes: more than a hundred thousand tensors."""
_STEP = 2**20


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, by name, on the CPU.

    The peak of memory is the size of the tensors plus one megabyte.

    Args:
        path: path of the file.

    Returns:
        A dict of tensors in the file's own types: float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8
        or bool.

    Raises:
        ValueError: names the file and its fault: the header is not JSON, is too long, has an unknown type or a name
            twice, its offsets do not cover each byte of the file exactly once, or it cannot be read.
        FileNotFoundError: if it does not exist.

    Example:
        >>> import tempfile, torch
        >>> from leakcore import models
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     models.save_safetensors({"bias": torch.ones(3)}, f"{folder}/weights.safetensors")
        ...     models.read_safetensors(f"{folder}/weights.safetensors")
        {'bias': tensor([1., 1., 1.])}
    """
    where = Path(path)
    try:
        with open_regular(where) as stream:
            size = size_of(stream)
            entries, begin = _header(stream, size)
            spans = [(name, *_span(name, entry)) for name, entry in entries.items()]
            for name, _, shape, low, high in spans:
                if high > size - begin:
                    dtype = entries[name]["dtype"]
                    raise ValueError(f"{name_of(name)}: offsets [{low}, {high}] do not hold {shape} of {dtype}")
            _check_cover([(low, high) for _, _, _, low, high in spans], size - begin)
            return {name: _read(stream, kind, shape, begin + low) for name, kind, shape, low, _ in spans}
    except ValueError as why:
        raise ValueError(f"{printable(where)}: {printable(why, 1000)}") from None


def _header(stream: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """Entries by name, and where the tensors' bytes begin."""
    head = stream.read(8)
    if len(head) < 8:
        raise ValueError(f"{size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", head)
    if length > min(_LARGEST_HEADER, size - 8):
        raise ValueError(
            f"its header claims {length} bytes of {size} (at most {_LARGEST_HEADER}): not safetensors, or cut short"
        )
    try:
        header = parse_json(stream.read(length))
    except ValueError as why:
        raise ValueError(f"its header is not a JSON object ({why})") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(text, str) for text in notes.values()):
        raise ValueError("`__metadata__` must be texts by name")
    return header, 8 + length


def _span(name: str, entry: Any) -> tuple[torch.dtype, list[int], int, int]:
    """Type, shape, and the first byte and the end of a tensor, checked."""
    label = name_of(name)
    try:
        kind, shape = _TYPES[entry["dtype"]], [operator.index(n) for n in entry["shape"]]
        begin, end = (operator.index(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{label}: entry {repr_of(entry, 200)} has no known dtype, shape and data_offsets") from None
    size = math.prod(shape) * kind.itemsize
    if min([*shape, begin], default=0) < 0 or end - begin != size or max(shape, default=0) >= 2**63:
        raise ValueError(f"{label}: offsets [{begin}, {end}] do not hold {shape} of {entry['dtype']}")
    if math.prod(n for n in shape if n) >= 2**63:  # torch multiplies the sizes of an empty tensor, too
        raise ValueError(f"{label}: {shape} is too large for a tensor")
    return kind, shape, begin, end


def _check_cover(spans: list[tuple[int, int]], size: int) -> None:
    """Refuse overlaps, by which a small file could claim any amount of memory, and bytes that belong to no tensor."""
    at = 0
    for begin, end in sorted(spans):
        if begin < at:
            raise ValueError(f"tensors overlap at byte {begin}")
        if begin > at:
            raise ValueError(f"bytes {at} to {begin} belong to no tensor")
        at = end
    if at < size:
        raise ValueError(f"bytes {at} to {size} belong to no tensor")


def _read(stream: BinaryIO, kind: torch.dtype, shape: list[int], begin: int) -> torch.Tensor:
    flat = np.empty(math.prod(shape) * kind.itemsize, np.uint8)
    stream.seek(begin)
    rest = flat
    while len(rest):
        block = stream.read(min(len(rest), _STEP))
        if not block:
            raise ValueError("the file was cut short while it was read")
        rest[: len(block)] = np.frombuffer(block, np.uint8)
        rest = rest[len(block) :]
    return torch.from_numpy(flat).view(kind).reshape(shape) if flat.size else torch.empty(shape, dtype=kind)


def load_safetensors(module: torch.nn.Module, path: str | os.PathLike[str]) -> None:
    """Load the weights of a module from a safetensors file, in place.

    Either all tensors are loaded or none. Floating tensors are converted to the module's types.

    Args:
        module: a torch module. The file must hold exactly the names of its `state_dict()`, with equal shapes.
        path: path of the file.

    Returns:
        None.

    Raises:
        ValueError: lists the names that are missing or unexpected, that have another shape or kind of type, or that
            hold a number too large for the module's type; or says why the file cannot be read.

    Example:
        >>> import tempfile, torch
        >>> from leakcore import models
        >>> first, second = models.mlp((4, 2)), models.mlp((4, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     models.save_safetensors(first, f"{folder}/weights.safetensors")
        ...     models.load_safetensors(second, f"{folder}/weights.safetensors")
        >>> torch.equal(first[0].weight, second[0].weight)
        True
    """
    stored, wanted = read_safetensors(path), module.state_dict()
    wrong = [f"missing {name_of(name)}" for name in sorted(wanted.keys() - stored.keys())]
    wrong += [f"unexpected {name_of(name)}" for name in sorted(stored.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & stored.keys()):
        ours, theirs = wanted[name], stored[name]
        if ours.shape != theirs.shape:
            wrong.append(f"{name} must have shape {tuple(ours.shape)}, got {tuple(theirs.shape)}")
        elif ours.is_floating_point() != theirs.is_floating_point():
            wrong.append(f"{name} must be of type {ours.dtype}, got {theirs.dtype}")
        elif ours.is_floating_point() and bool((theirs.isfinite() & ~theirs.to(ours.dtype).isfinite()).any()):
            wrong.append(f"{name} holds numbers beyond {ours.dtype}")
    if wrong:
        reasons = "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        raise ValueError(f"{printable(path)}: does not fit {type(module).__name__}: {reasons}")
    module.load_state_dict(stored)


def save_safetensors(tensors: torch.nn.Module | Mapping[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Write a module's state dict, or tensors by name, as a safetensors file.

    An existing file is replaced only when the new one is complete.

    Args:
        tensors: a torch module, or a mapping from names to tensors.
        path: path of the file.

    Returns:
        None.

    Raises:
        ValueError: for a tensor named `__metadata__`, a name that the format reserves.
        TypeError: for a tensor of a type that the format does not have, such as complex64.

    Example:
        >>> import tempfile, torch
        >>> from leakcore import models
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     models.save_safetensors(models.mlp((4, 2)), f"{folder}/weights.safetensors")
        ...     sorted(models.read_safetensors(f"{folder}/weights.safetensors"))
        ['0.bias', '0.weight']
    """
    by_name = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else dict(tensors)
    if "__metadata__" in by_name:
        raise ValueError("`tensors` must have names other than '__metadata__', which the format reserves")
    names = {kind: name for name, kind in _TYPES.items()}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    start = 0
    for name, tensor in sorted(by_name.items()):
        if tensor.dtype not in names:
            raise TypeError(f"`tensors[{name!r}]` must be of type {', '.join(map(str, names))}, got {tensor.dtype}")
        flat = tensor.detach().cpu().contiguous().flatten()
        parts.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        end = start + len(parts[-1])
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_atomically(Path(path), struct.pack("<Q", len(text)) + text + b"".join(parts))
