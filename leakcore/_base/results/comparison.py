"""Which numbers may be compared: those of one quantity, under one adjacency, at one δ."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore._base.results.table import short


def require_comparable(first: Any, second: Any) -> None:
    """ValueError that says why two results must not be compared."""
    what = f"cannot compare {first.quantity} ({first.method}) with {second.quantity} ({second.method})"
    if first.quantity != second.quantity:
        raise ValueError(f"{what}: these are two quantities")
    if first.adjacency != second.adjacency:
        raise ValueError(
            f"{what}: one holds under {first.adjacency} adjacency, the other under {second.adjacency} adjacency; "
            "convert one of them first"
        )
    at = getattr(first, "delta", None), getattr(second, "delta", None)
    if at[0] != at[1]:
        raise ValueError(f"{what}: one is at δ = {_named(at[0])}, the other at δ = {_named(at[1])}")
    names = first.compared_at if first.compared_at == second.compared_at else ()
    for name in names:
        one, other = np.asarray(getattr(first, name)), np.asarray(getattr(second, name))
        if one.shape != other.shape or not np.allclose(one, other, rtol=1e-12, atol=0.0):
            raise ValueError(f"{what}: one is at {name} = {short(one)}, the other at {name} = {short(other)}")


def _named(delta: Any) -> str:
    return "none" if delta is None else f"{delta:g}"
