"""How matplotlib's figures become drawings inside a page: its colours are the page's, and points show their values.

A drawing is an SVG element with its text as paths (it looks the same everywhere and loads nothing). Its colours are the
page's CSS variables, so that it follows the dark scheme and print. A value that appears under the pointer is an SVG
`<title>`, which needs no script.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.figure_style import figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, BOUND, RDP, MIDDLE, ATTACK = "#1f2430", "#b3261e", "#c2615b", "#5f6b7a", "#0b57a4"
_VARIABLES = {INK: "--ink", BOUND: "--upper", RDP: "--rdp", MIDDLE: "--middle", ATTACK: "--estimate"}
"""CSS variables of report.css by the colour that they have in the light scheme."""
_STYLE = {
    "svg.hashsalt": "leakcore", "svg.fonttype": "path", "font.size": 10.5, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "figure.facecolor": "none", "axes.facecolor": "none",
    "savefig.facecolor": "none", "legend.facecolor": "none", "grid.color": MIDDLE,
}  # fmt: skip


_UNSEEN = 1e-6
"""Opacity of what only answers the pointer; matplotlib leaves out what has none at all."""


@contextmanager
def drawing_style() -> Iterator[None]:
    """matplotlib's settings for a drawing inside a page."""
    with figure_style(_STYLE):
        yield


class Tips:
    """Values that appear under the pointer."""

    def __init__(self) -> None:
        self._texts: list[list[str]] = []

    def points(self, axes: Axes, x: Any, y: Any, texts: Iterable[str]) -> None:
        """Unseen circles at (x, y), each with its text; points outside the axes have none."""
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        inside = (x >= left) & (x <= right) & (y >= low) & (y <= high)
        shown = [text for text, drawn in zip(texts, inside, strict=True) if drawn]
        if not shown:
            return
        axes.plot(
            x[inside], y[inside], ls="", marker="o", ms=11, mew=0, alpha=_UNSEEN, color=INK, zorder=10,
            gid=self._next(shown), clip_on=False,
        )  # fmt: skip

    def areas(self, axes: Axes, edges: Any, texts: Sequence[str]) -> None:
        """Unseen bars as high as the axes between neighbouring edges, each with its text."""
        for left, right, text in zip(edges[:-1], edges[1:], texts, strict=True):
            axes.axvspan(left, right, alpha=_UNSEEN, lw=0, color=INK, zorder=10, gid=self._next([text]))

    def box(self, axes: Axes, corner: tuple[float, float], size: tuple[float, float], text: str) -> None:
        """An unseen rectangle with its text."""
        from matplotlib.patches import Rectangle

        axes.add_patch(Rectangle(corner, *size, alpha=_UNSEEN, lw=0, color=INK, zorder=10, gid=self._next([text])))

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


def svg_of(figure: Any, tips: Tips | None = None, *, opaque: bool = False) -> str:
    """The figure as an SVG element. opaque: keeps its own colours and a white ground, as a heat map must."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    if tips is not None:
        svg = tips.written(svg)
    if opaque:
        return svg.replace("<svg", '<svg class="opaque"', 1)
    return re.sub("|".join(_VARIABLES), lambda colour: f"var({_VARIABLES[colour[0]]}, {colour[0]})", svg)
