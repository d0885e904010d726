"""The arguments of an ensemble, checked before any work: names, shapes, ranges, and which runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import array_memory, validate


@dataclasses.dataclass(frozen=True)
class Samples:
    """Features (..., rows, dimensions) in the ensemble's dtype and integer labels (..., rows)."""

    features: np.ndarray
    labels: np.ndarray

    @property
    def rows(self) -> int:
        return int(self.labels.shape[-1])


def samples(
    features: Any, labels: Any, *, name: str, layers: tuple[int, ...], dtype: str, leading: tuple[int, ...] = ()
) -> Samples:
    """Checked samples. `leading` is the shape before (rows, dimensions), to which arrays are broadcast; errors name
    `name`.
    """
    x_name, y_name = f"{name}features", f"{name}labels"
    array_memory.refuse_transforms(x_name)
    raw = _read(x_name, features)
    if raw.dtype.kind not in "fiu":
        raise TypeError(f"`{x_name}` must be of a real floating or integer type, got {raw.dtype}")
    x = _cast(raw, dtype)
    y = _read(y_name, labels)
    if y.dtype.kind not in "iu":
        raise TypeError(f"`{y_name}` must be of an integer type, got {y.dtype}")
    if y.dtype.kind == "u" or not y.dtype.isnative:  # a type that torch does not combine with others
        y = y.astype(np.int64)
    shape = "(rows, " if not leading else f"{(*leading, 'rows')} or (rows, "
    if x.ndim not in {2, 2 + len(leading)} or x.shape[-1] != layers[0]:
        wanted = f"{shape}{layers[0]}) (first of layers={layers})"
        raise ValueError(f"`{x_name}` must have shape {wanted}, got {x.shape}")
    if y.ndim not in {1, 1 + len(leading)} or y.shape[-1:] != x.shape[-2:-1]:
        raise ValueError(f"`{y_name}` must give one label to each row of {x_name}, {x.shape}, got shape {y.shape}")
    rows = x.shape[-2]
    own, own_labels = x, y  # what runs share is checked once
    try:
        x = np.broadcast_to(x, (*leading, rows, layers[0]))
        y = np.broadcast_to(y, (*leading, rows))
    except ValueError:
        raise ValueError(
            f"`{x_name}` and `{y_name}` must have shapes that start with runs={leading[0]}, got {x.shape} and {y.shape}"
        ) from None
    classes = max(2, layers[-1])
    if not np.isfinite(own).all():
        where = (0,) * (x.ndim - own.ndim) + tuple(int(i) for i in np.argwhere(~np.isfinite(own))[0])
        value = np.broadcast_to(raw, x.shape)[where]
        raise ValueError(f"`{x_name}{list(where)}` must be finite in {dtype}, got {value}")
    if own_labels.size and not (own_labels.min() >= 0 and own_labels.max() < classes):
        bad = own_labels[(own_labels < 0) | (own_labels >= classes)].flat[0]
        raise ValueError(f"`{y_name}` must be in [0, {classes - 1}] (last of layers={layers}), got {bad}")
    return Samples(x, y)


def injected(
    value: Any, *, name: str, shape: tuple[int, ...], dtype: str, kinds: str, allowed: str
) -> np.ndarray | None:
    """A ready-made array of exactly `shape`, or None. Errors name it."""
    if value is None:
        return None
    out = _read(name, value)
    if out.dtype.kind not in kinds:
        raise TypeError(f"`{name}` must be of {allowed}, got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {out.shape}")
    out = _cast(out, dtype)
    if kinds == "f" and not np.isfinite(out).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(out))[0])
        raise ValueError(f"`{name}{list(where)}` must be finite in {dtype}, got {_read(name, value)[where]}")
    return out


def _read(name: str, value: Any) -> np.ndarray:
    """`value` as a NumPy array: lists, NumPy and torch CPU tensors; the error names the argument."""
    try:
        return validate.even_array(**{name: value})
    except ValueError as why:
        raise TypeError(str(why)) from None


def _cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` in `dtype`. What overflows becomes infinite, which the caller then reports."""
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


def run_range(runs: int | range, *, name: str = "runs", most: int = 2**62) -> tuple[int, int]:
    """(first, stop) of the absolute run numbers, with `first` at most `most`. Errors name `name`."""
    if isinstance(runs, range):
        if runs.step != 1 or len(runs) == 0:
            raise ValueError(f"`{name}` must be a range of consecutive numbers, at least one, got {runs!r}")
        if not 0 <= runs.start <= most:
            raise ValueError(f"`{name}` must start in [0, {most}], got {runs!r}")
        return runs.start, runs.stop
    return 0, validate.integer(1, None, **{name: runs})
