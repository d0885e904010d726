"""One digest of values: arrays, tensors and what JSON holds, each with its type and shape."""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from leakcore._base import array_memory

_Update = Callable[[Any], object]


def digest(*parts: Any) -> str:
    """SHA-256 of the parts, 64 hexadecimal digits; equal for equal values only (others agree with probability 2⁻²⁵⁶).

    Parts are None, truth values, numbers, text, bytes, arrays of NumPy's and tensors of torch's (any dtype without
    objects, any strides, any device), and lists, tuples and mappings of these; TypeError for others. A list and a tuple
    of equal values are one value, and so are mappings in any order, as in JSON; 1, 1.0 and True are three.
    """
    whole = hashlib.sha256()
    for part in parts:
        _feed(whole.update, part)
    return whole.hexdigest()


def _feed(update: _Update, value: Any) -> None:
    """A letter for the type, the length and the content of each value, so that no two sequences look alike."""
    if value is None:
        update(b"N")
    elif isinstance(value, (bool, np.bool_)):
        update(b"T" if value else b"F")
    elif isinstance(value, str):
        _block(update, b"s", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes):
        _block(update, b"b", value)
    elif isinstance(value, int):
        _block(update, b"i", str(int(value)).encode())
    elif isinstance(value, float):
        _block(update, b"f", struct.pack("<d", value))
    elif isinstance(value, (np.ndarray, np.generic)):
        _feed_array(update, np.asarray(value))
    elif array_memory.is_torch(value):
        _feed_tensor(update, value)
    elif isinstance(value, (list, tuple)):
        update(b"l" + len(value).to_bytes(8, "little"))
        for part in value:
            _feed(update, part)
    elif isinstance(value, Mapping):
        # By digests, since keys of several types have no order.
        update(b"m" + len(value).to_bytes(8, "little"))
        for line in sorted(digest(key, inside) for key, inside in value.items()):
            update(line.encode())
    else:
        raise TypeError(f"a digest is of numbers, text, arrays, or lists of these, got {type(value).__name__}")


def _block(update: _Update, letter: bytes, content: Any) -> None:
    update(letter + len(content).to_bytes(8, "little"))
    update(content)


def _feed_array(update: _Update, array: np.ndarray) -> None:
    if array.dtype.hasobject or array.dtype.names:
        raise TypeError(f"a digest is of arrays of numbers or text, got an array of {array.dtype}")
    _block(update, b"a", f"{array.dtype.str} {array.shape}".encode())
    flat = np.ascontiguousarray(array).reshape(-1)
    _block(update, b"v", flat.view(np.uint8).data if flat.nbytes else b"")


def _feed_tensor(update: _Update, tensor: Any) -> None:
    torch = sys.modules["torch"]
    _block(update, b"t", f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    _block(update, b"v", flat.view(torch.uint8).numpy().data if flat.numel() else b"")
