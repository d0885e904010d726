"""How matplotlib's figures become drawings inside a page: its colours are the page's, and points show their values.

A drawing is an SVG element with its text as paths (it looks the same everywhere and loads nothing). Its colours are the
page's CSS variables, so that it follows the dark scheme and print.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from leakcore._base.pictures import Tips, figure_style

INK, BOUND, RDP, MIDDLE, ATTACK = "#1f2430", "#b3261e", "#c2615b", "#5f6b7a", "#0b57a4"
_VARIABLES = {INK: "--ink", BOUND: "--upper", RDP: "--rdp", MIDDLE: "--middle", ATTACK: "--estimate"}
"""CSS variables of page.css by the colour that they have in the light scheme."""
_STYLE = {
    "svg.hashsalt": "leakcore",
    "svg.fonttype": "path",
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.facecolor": "none",
    "grid.color": MIDDLE,
}


@contextmanager
def drawing_style() -> Iterator[None]:
    """matplotlib's settings for a drawing inside a page."""
    with figure_style(_STYLE):
        yield


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
