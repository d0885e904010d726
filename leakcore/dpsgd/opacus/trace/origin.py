"""By what traces of one run are known: digests of its candidates and parameters."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any

import torch

_HEX = frozenset("0123456789abcdef")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """candidates: digest of inputs and targets. shapes: of the parameters. before, after: digests of the parameters
    before the first recorded step and after the last; None where they were not seen then.
    """

    candidates: str
    shapes: tuple[tuple[int, ...], ...]
    before: str | None
    after: str | None


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """SHA-256 of shapes, types and values."""
    summed = hashlib.sha256()
    for tensor in tensors:
        summed.update(f"{tuple(tensor.shape)} {tensor.dtype};".encode())
        if tensor.numel():
            flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            summed.update(flat.view(torch.uint8).numpy().data)
    return summed.hexdigest()


def read_origin(where: str, value: Any) -> Origin | None:
    """What a trace's file says of its origin, None where nothing. ValueError where that is damaged."""
    if value is None:
        return None
    try:
        shapes = tuple(tuple(shape) for shape in value["shapes"])
        origin = Origin(
            candidates=value["candidates"], shapes=shapes, before=value["before"], after=value["after"]
        )  # fmt: skip
        digests = [d for d in (origin.candidates, origin.before, origin.after) if d is not None]
        good = origin.candidates is not None and all(len(d) == 64 and _HEX.issuperset(d) for d in digests)
        good = good and all(type(size) is int and 0 <= size < 2**63 for shape in shapes for size in shape)
    except (TypeError, KeyError, AttributeError):
        good = False
    if not good:
        raise ValueError(f"{where}: origin: must be digests of candidates and parameters, and shapes: damaged")
    return origin
