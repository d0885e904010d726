"""Small pictures of results. matplotlib is imported when one is asked for; the caller owns the figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.installed import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes_of(ax: Axes | None) -> Axes:
    """These axes, or the axes of a new pyplot figure, which a notebook shows."""
    if ax is not None:
        return ax
    need("matplotlib")
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def curve(ax: Axes | None, x: Any, y: Any, interval: tuple[Any, Any] | None, *, label: str) -> Axes:
    """A line through the values in the order of x, with their intervals; a single value is a point."""
    axes = axes_of(ax)
    at = np.atleast_1d(np.asarray(x, dtype=float)).reshape(-1)
    order = np.argsort(at, kind="stable")
    line = axes.plot(at[order], _flat(y, at)[order], marker="." if len(at) < 20 else "", label=label)[0]
    if interval is not None:
        low, high = (_flat(end, at)[order] for end in interval)
        if len(at) == 1:
            axes.vlines(at, low, high, color=line.get_color())
        else:
            axes.fill_between(at[order], low, high, color=line.get_color(), alpha=0.25, linewidth=0)
    return axes


def bars(ax: Axes | None, names: Sequence[str], values: Any, interval: tuple[Any, Any] | None, *, label: str) -> Axes:
    """A horizontal bar for each name, from above down, with its interval."""
    axes = axes_of(ax)
    places = np.arange(len(names))
    heights = np.asarray(values, dtype=float).reshape(-1)
    errors = None
    if interval is not None:
        low, high = (np.broadcast_to(np.asarray(end, dtype=float), heights.shape) for end in interval)
        errors = np.maximum(np.stack([heights - low, high - heights]), 0.0)
    axes.barh(places, heights, xerr=errors, label=label)
    axes.set_yticks(places, [str(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    return axes


def _flat(values: Any, like: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, dtype=float), like.shape).reshape(-1)
