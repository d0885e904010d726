"""Results taken apart into numbers, and compared."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def leaves(result: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every number, array and text of a result, with its place."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(result, torch.Tensor):
        yield path, result
    elif torch is not None and isinstance(result, torch.nn.Module):
        for name, part in result.state_dict().items():
            yield f"{path}.{name}", part
    elif isinstance(result, (np.ndarray, np.generic, bool, int, float)):
        yield path, np.asarray(result)
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        if depth < 4:
            for field in dataclasses.fields(result):
                yield from leaves(getattr(result, field.name), f"{path}.{field.name}", depth + 1)
    elif isinstance(result, Mapping):
        for key, part in result.items():
            yield from leaves(part, f"{path}[{key!r}]", depth + 1)
    elif isinstance(result, (tuple, list)):
        for i, part in enumerate(result):
            yield from leaves(part, f"{path}[{i}]", depth + 1)
    elif hasattr(result, "__dlpack__"):
        yield path, np.from_dlpack(result)


def plain(x: Any) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return x.astype(np.float64) if x.dtype.kind in "biuf" else x
    out: np.ndarray = x.detach().double().numpy()
    return out


def difference(result: Any, wanted: Any, tolerance: float, but: tuple[str, ...] = ()) -> str | None:
    """Where two results differ; None if nowhere. but: names of fields that may; a report's wall time always may."""
    here, there = list(leaves(result)), list(leaves(wanted))
    if len(here) != len(there):
        return f"{len(here)} numbers and arrays, not {len(there)}"
    for (path, a), (_, b) in zip(here, there, strict=True):
        if path.rpartition(".")[2] in (*but, "seconds"):
            continue
        x, y = plain(a), plain(b)
        if x.shape != y.shape:
            return f"{path} has shape {x.shape}, not {y.shape}"
        if x.dtype.kind not in "f":
            if (x != y).any():
                return f"{path} is {x}, not {y}"
            continue
        scale = np.abs(y[np.isfinite(y)]).max(initial=1e-30)
        if not np.allclose(x, y, rtol=tolerance, atol=max(tolerance * scale, 1e-12), equal_nan=True):
            return f"{path} is {x.ravel()[:4]}, not {y.ravel()[:4]}"
    return None


def overclaim(result: Any, wanted: Any) -> str | None:
    """What labels claim of numbers in a narrow type that they do not of the same numbers in float64; None for nothing,
    and for results of other kinds."""
    if not hasattr(result, "determined"):
        return None
    more = result.determined & ~(wanted.determined & (result.labels == wanted.labels))
    if more.any():
        return f".labels are {result.labels}, not {wanted.labels}, or fewer"
    with np.errstate(invalid="ignore"):
        surer = result.tolerance * np.abs(wanted.residuals) < wanted.tolerance * np.abs(result.residuals)
    return f".tolerance is {result.tolerance}, finer than {wanted.tolerance}" if surer.any() else None
