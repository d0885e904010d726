"""Pictures by matplotlib, imported when one is asked for: small ones of results, style, values under the pointer."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.version import need

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


_lock = threading.RLock()


@contextlib.contextmanager
def figure_style(style: Mapping[str, Any]) -> Iterator[None]:
    """matplotlib's `rcParams` with these values while the block runs. Blocks in several threads follow one another:
    were they to overlap, each would put back what the other had set. What the caller's own threads set meanwhile stays,
    unlike with `matplotlib.rc_context`, which puts back every setting."""
    need("matplotlib")
    import matplotlib

    with _lock:
        settings: Any = matplotlib.rcParams
        before = {name: settings[name] for name in style}
        try:
            settings.update(style)
            yield
        finally:
            settings.update(before)


_UNSEEN = 1e-6
"""Opacity of what only answers the pointer; matplotlib leaves out what has none at all."""


class Tips:
    """Values that appear under the pointer."""

    def __init__(self) -> None:
        self._texts: list[list[str]] = []

    def points(self, axes: Axes, x: Any, y: Any, texts: Iterable[str]) -> None:
        """Unseen circles at (x, y), each with its text; points outside the axes have none."""
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        inside = (x >= left) & (x <= right) & (y >= low) & (y <= high)
        visible = [text for text, drawn in zip(texts, inside, strict=True) if drawn]
        if not visible:
            return
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
        axes.plot(
            x[inside],
            y[inside],
            ls="",
            marker="o",
            ms=11,
            mew=0,
            alpha=_UNSEEN,
            zorder=10,
            gid=self._next(visible),
            clip_on=False,
        )

    def areas(self, axes: Axes, edges: Any, texts: Sequence[str]) -> None:
        """Unseen bars as high as the axes between neighbouring edges, each with its text."""
        for left, right, text in zip(edges[:-1], edges[1:], texts, strict=True):
            axes.axvspan(left, right, alpha=_UNSEEN, lw=0, zorder=10, gid=self._next([text]))

    def box(self, axes: Axes, corner: tuple[float, float], size: tuple[float, float], text: str) -> None:
        """An unseen rectangle with its text."""
        from matplotlib.patches import Rectangle

        axes.add_patch(Rectangle(corner, *size, alpha=_UNSEEN, lw=0, zorder=10, gid=self._next([text])))

    def _next(self, texts: list[str]) -> str:
        self._texts.append(texts)
        return f"tips-{len(self._texts)}"

    def written(self, svg: str) -> str:
        """The drawing with a `<title>` in each circle and rectangle."""
        for number, texts in enumerate(self._texts, 1):
            start = svg.index(f'<g id="tips-{number}"')
            end = _end_of_group(svg, start)
            svg = svg[:start] + _titled(svg[start:end], texts) + svg[end:]
        return svg


def _end_of_group(svg: str, start: int) -> int:
    depth = 0
    for tag in re.compile(r"<g\b|</g>").finditer(svg, start):
        depth += 1 if tag[0] == "<g" else -1
        if depth == 0:
            return tag.end()
    raise RuntimeError("the drawing has a group without an end")


def _titled(group: str, texts: list[str]) -> str:
    titles = iter(texts)

    def opened(element: re.Match[str]) -> str:
        return f"<{element[1]}{element[2]}><title>{escape(next(titles))}</title></{element[1]}>"

    tag = "use" if "<use " in group else "path"
    titled, count = re.subn(rf"<({tag})( [^>]*?)\s*/>", opened, group)
    if count != len(texts):
        raise RuntimeError(f"the drawing has {count} places for {len(texts)} texts")
    return titled
