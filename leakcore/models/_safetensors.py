"""Weights as safetensors files: a header in JSON and raw numbers, nothing that could run."""

from __future__ import annotations

import itertools
import json
import math
import operator
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakcore._writing import write_atomically

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
_LARGEST_HEADER = 100_000_000


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, by name, on the CPU.

    ValueError, naming the file and what is wrong, where it is not one: a header that is no JSON, too long, of unknown
    types, or whose offsets do not fit the shapes or the file.
    """
    where = Path(path)
    raw = where.read_bytes()
    if len(raw) < 8:
        raise ValueError(f"{where}: {len(raw)} bytes are no safetensors file")
    (length,) = struct.unpack("<Q", raw[:8])
    if length > min(_LARGEST_HEADER, len(raw) - 8):
        raise ValueError(f"{where}: its header claims {length} bytes of {len(raw)}: no safetensors file, or cut short")
    try:
        header = json.loads(raw[8 : 8 + length])
        entries = {str(name): entry for name, entry in header.items() if name != "__metadata__"}
    except (UnicodeDecodeError, ValueError, AttributeError, RecursionError) as why:
        raise ValueError(f"{where}: its header is not a JSON object ({why})") from None
    data = memoryview(raw)[8 + length :]
    found = {name: _tensor(where, name, entry, data) for name, entry in entries.items()}
    # The format forbids overlaps, by which a small file could claim any amount of memory.
    spans = sorted(tuple(entry["data_offsets"]) for entry in entries.values())
    for (_, end), (begin, _) in itertools.pairwise(spans):
        if begin < end:
            raise ValueError(f"{where}: tensors overlap at byte {begin}")
    return {name: read() for name, read in found.items()}


def _tensor(where: Path, name: str, entry: Any, data: memoryview) -> Callable[[], torch.Tensor]:
    """What makes the tensor, once all entries are known to be good."""
    try:
        kind, shape = _TYPES[entry["dtype"]], [operator.index(n) for n in entry["shape"]]
        begin, end = (operator.index(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        shown = str(entry)[:200]
        raise ValueError(f"{where}: {name}: entry {shown} has no known dtype, shape and data_offsets") from None
    size = math.prod(shape) * kind.itemsize
    if min([*shape, begin], default=0) < 0 or end - begin != size or end > len(data) or max(shape, default=0) >= 2**63:
        raise ValueError(f"{where}: {name}: offsets [{begin}, {end}] do not hold {shape} of {entry['dtype']}"[:1000])

    def read() -> torch.Tensor:
        if size == 0:
            return torch.from_numpy(np.zeros(0, np.uint8)).to(kind).reshape(_empty(where, name, shape))
        # Offsets need not be aligned, so the numbers are copied out.
        return torch.frombuffer(bytearray(data[begin:end]), dtype=kind).reshape(shape)

    return read


def _empty(where: Path, name: str, shape: list[int]) -> list[int]:
    """torch multiplies the sizes of an empty tensor, too."""
    if math.prod(n for n in shape if n) >= 2**63:
        raise ValueError(f"{where}: {name}: {shape} is beyond what a tensor may be")
    return shape


def load_safetensors(module: torch.nn.Module, path: str | os.PathLike[str]) -> None:
    """Load a module's weights from a safetensors file, in place, all or nothing.

    The file must hold exactly the names of `module.state_dict()` with equal shapes; floating types are converted to the
    module's. ValueError lists the names that are missing, unexpected, of another shape or kind of type, or hold a
    number beyond what the module's type does.
    """
    found, wanted = read_safetensors(path), module.state_dict()
    wrong = [f"missing {name}" for name in sorted(wanted.keys() - found.keys())]
    wrong += [f"unexpected {name}" for name in sorted(found.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & found.keys()):
        ours, theirs = wanted[name], found[name]
        if ours.shape != theirs.shape:
            wrong.append(f"{name} has shape {tuple(theirs.shape)}, must be {tuple(ours.shape)}")
        elif ours.is_floating_point() != theirs.is_floating_point():
            wrong.append(f"{name} is {theirs.dtype}, must be {ours.dtype}")
        elif ours.is_floating_point() and bool((theirs.isfinite() & ~theirs.to(ours.dtype).isfinite()).any()):
            wrong.append(f"{name} holds numbers beyond {ours.dtype}")
    if wrong:
        shown = "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        raise ValueError(f"{Path(path)}: does not fit {type(module).__name__}: {shown}")
    module.load_state_dict(found)


def save_safetensors(tensors: torch.nn.Module | Mapping[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Write a module's state dict, or tensors by name, as a safetensors file; replaced only once it is complete."""
    given = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else dict(tensors)
    if "__metadata__" in given:
        raise ValueError("tensors['__metadata__']: must have another name: the format keeps this one for itself")
    names = {kind: name for name, kind in _TYPES.items()}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    start = 0
    for name, tensor in sorted(given.items()):
        if tensor.dtype not in names:
            raise TypeError(f"tensors[{name!r}].dtype={tensor.dtype}: must be one of {', '.join(map(str, names))}")
        flat = tensor.detach().cpu().contiguous().flatten()
        parts.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        end = start + len(parts[-1])
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_atomically(Path(path), struct.pack("<Q", len(text)) + text + b"".join(parts))
