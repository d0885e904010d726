"""Values that appear under the pointer in a figure of matplotlib: each an SVG `<title>`, which needs no script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
