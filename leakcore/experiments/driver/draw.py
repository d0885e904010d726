"""How a result looks: one style for every figure, so that a colour means the same thing everywhere."""

from __future__ import annotations

import io
import math
import re
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.pictures import Tips, figure_style
from leakcore.experiments.driver.result import ExperimentResult, Panel, Pictures, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES: dict[str, dict[str, Any]] = {
    "bound": {"color": "#b3261e", "lw": 2.2},
    "rdp": {"color": "#d98a86", "ls": "--", "lw": 1.6},
    "orthogonal": {"color": "#5f6b7a", "ls": "-.", "lw": 1.5},
    "simplex": {"color": "#8d6bb0", "ls": ":", "lw": 1.7},
    "baseline": {"color": "#8a8f98", "ls": "--", "lw": 1.3},
    "chance": {"color": "#1f2430", "ls": ":", "lw": 1.0},
    "accountant": {"color": "#7a4b2a", "ls": "-", "lw": 1.3},
    # No line between the points: a straight one would cross a curved bound that no point lies above.
    "attack": {"color": "#0b57a4", "marker": "o", "ms": 5, "lw": 0, "elinewidth": 1.2, "capsize": 3},
    "attack-2": {"color": "#1b8a5a", "marker": "s", "ms": 5, "lw": 0, "elinewidth": 1.2, "capsize": 3},
    "attack-3": {"color": "#c77700", "marker": "^", "ms": 5.5, "lw": 0, "elinewidth": 1.2, "capsize": 3},
    "attack-4": {"color": "#6a3fa0", "marker": "D", "ms": 4.5, "lw": 0, "elinewidth": 1.2, "capsize": 3},
    "attack-5": {"color": "#00838f", "marker": "v", "ms": 5.5, "lw": 0, "elinewidth": 1.2, "capsize": 3},
    "attack-6": {"color": "#ad3a78", "marker": "P", "ms": 5.5, "lw": 0, "elinewidth": 1.2, "capsize": 3},
    "attack-7": {"color": "#6b7a1e", "marker": "X", "ms": 5.5, "lw": 0, "elinewidth": 1.2, "capsize": 3},
    "null": {"color": "#8a8f98", "marker": "_", "ms": 7, "lw": 0, "elinewidth": 1.2, "capsize": 3},
}
ROLES = tuple(_LINES)
_COLUMNS = 3
_MOST_TICKS = 8
_DODGE = 7.0
"""Points of print between the markers of several attacks at one place."""


def clashes(result: ExperimentResult) -> list[str]:
    """Colours that mean two things in one figure, and things that have two colours, in words."""
    drawn = [s for panel in result.panels for s in panel.series if s.colour is None]
    names: dict[str, set[str]] = {}
    roles: dict[str, set[str]] = {}
    for series in drawn:
        names.setdefault(series.role, set()).add(series.name)
        roles.setdefault(series.name, set()).add(series.role)
    return [f"{key}: {', '.join(sorted(of))}" for group in (names, roles) for key, of in group.items() if len(of) > 1]


def draw(result: ExperimentResult) -> tuple[bytes, str]:
    """(PNG, SVG) of all panels and pictures, with the conclusion as caption."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {"svg.hashsalt": "leakcore", "svg.fonttype": "path", "font.size": 9.5, "axes.titlesize": 10}
    with figure_style(style):
        # Four in two rows of two, not three and one.
        columns = 2 if len(result.panels) == 4 else min(_COLUMNS, max(len(result.panels), 1))
        rows = math.ceil(len(result.panels) / columns)
        width = max(4.6 * columns, 7.6)
        names = _names(result)
        legend_columns = max(1, min(len(names), int(width // 2.5)))
        legend = [0.12 + 0.2 * math.ceil(len(names) / legend_columns)] if names else []
        heights = [3.4] * rows + legend + [0.35 + 0.95 * len(p.row_names) for p in result.pictures]
        caption = textwrap.fill(result.caption, int(width * 13))
        title = textwrap.fill(f"{result.name}: {result.title}", int(width * 10))
        text = 0.21 * (caption.count("\n") + 1) + 0.3
        head = 0.22 * (title.count("\n") + 1) + 0.15
        figure = Figure(figsize=(width, sum(heights) + text + head), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=12, fontweight="bold")
        figure.supxlabel(caption, fontsize=9.5, x=0.02, ha="left")
        grid: Any = figure.subfigures(len(heights) or 1, 1, height_ratios=heights or [1])
        parts = np.atleast_1d(grid)
        drawn = []
        for row in range(rows):
            axes = np.atleast_1d(parts[row].subplots(1, columns))
            for place, ax in enumerate(axes):
                index = row * columns + place
                if index < len(result.panels):
                    _panel(figure, ax, result.panels[index])
                    drawn.append((ax, result.panels[index]))
                else:
                    ax.set_axis_off()
        if names:
            _legend(parts[rows], names, legend_columns)
        for part, pictures in zip(parts[rows + len(legend) :], result.pictures, strict=True):
            _pictures(part, pictures)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=110, metadata={"Software": None})
        tips = Tips()
        for ax, panel in drawn:
            _values(tips, ax, panel)
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return png.getvalue(), _named(tips.written(svg.getvalue()), result)


def _values(tips: Tips, axes: Axes, panel: Panel) -> None:
    """Every point of the panel with its values under the pointer."""
    for series in panel.series:
        points = zip(series.x, series.y, strict=True)
        texts = [f"{series.name}: {panel.x_label} {x:.4g}, {panel.y_label} {y:.4g}" for x, y in points]
        if series.low is not None and series.high is not None:
            ends = zip(texts, series.low, series.high, strict=True)
            texts = [f"{text} [{low:.4g}, {high:.4g}]" for text, low, high in ends]
        tips.points(axes, series.x, series.y, texts)


def _named(svg: str, result: ExperimentResult) -> str:
    """The SVG as a picture with a name and a description, for screen readers."""
    title, caption = (escape(text) for text in (f"{result.name}: {result.title}", result.caption))
    attributes = ' role="img" aria-labelledby="figure-title figure-description"'
    names = f'<title id="figure-title">{title}</title>\n <desc id="figure-description">{caption}</desc>'
    opened = re.sub(r"<svg\b", lambda tag: tag[0] + attributes, svg, count=1)
    return re.sub(r"(<svg\b[^>]*>)", lambda tag: f"{tag[0]}\n {names}", opened, count=1)


def _names(result: ExperimentResult) -> dict[str, str]:
    """Names of all lines and points with their roles, in the order of appearance: one legend serves all panels."""
    return {s.name: s.role for panel in result.panels for s in panel.series if s.colour is None}


def _legend(part: Any, names: dict[str, str], columns: int) -> None:
    from matplotlib.lines import Line2D

    keys = ("color", "ls", "lw", "marker", "ms")
    handles = [Line2D([], [], label=n, **{k: v for k, v in _LINES[r].items() if k in keys}) for n, r in names.items()]
    part.legend(handles=handles, loc="center", ncols=columns, fontsize=8.5, frameon=False)


def _panel(figure: Figure, axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    attacks = [s for s in panel.series if "capsize" in _LINES[s.role] and s.colour is None]
    for series in panel.series:
        place = attacks.index(series) - 0.5 * (len(attacks) - 1) if series in attacks else 0.0
        _series(figure, axes, panel, series, place * _DODGE)
    if panel.log_x:
        axes.set_xscale("log")
        _label_points(axes, panel)
    elif all((s.x == np.round(s.x)).all() for s in panel.series):
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    if panel.log_y:
        axes.set_yscale("log")
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    axes.margins(x=0.08)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _label_points(axes: Axes, panel: Panel) -> None:
    """Ticks where attacks were played, or at the few values of a sweep: a power of ten says less than the ε itself."""
    at = sorted({float(v) for s in panel.series if "capsize" in _LINES[s.role] for v in s.x})
    if not at:
        few = sorted({float(v) for s in panel.series for v in s.x})
        at = few if len(few) <= _MOST_TICKS else []
    if at:
        axes.set_xticks(at, [f"{v:g}" for v in at])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)


def _series(figure: Figure, axes: Axes, panel: Panel, series: Series, shift: float) -> None:
    from matplotlib.transforms import ScaledTranslation

    style = dict(_LINES[series.role])
    if series.colour is not None:
        points = axes.scatter(series.x, series.y, c=series.colour, cmap="viridis", s=34)
        axes.plot(series.x, series.y, color="#b9bec6", lw=0.8, zorder=0)
        figure.colorbar(points, ax=axes, label=panel.colour_label or "")
        return
    if "capsize" not in style:
        axes.plot(series.x, series.y, label=series.name, **style)
        return
    error = None
    if series.low is not None and series.high is not None:
        error = np.maximum([series.y - series.low, series.high - series.y], 0.0)
    # Artists with a transform of their own do not count when the axes choose their limits.
    for y in (series.y, series.low, series.high):
        if y is not None:
            axes.update_datalim(np.stack([series.x, y], axis=1))
    aside = ScaledTranslation(shift / 72.0, 0.0, figure.dpi_scale_trans)
    axes.errorbar(series.x, series.y, yerr=error, label=series.name, transform=axes.transData + aside, **style)


def _pictures(part: Any, pictures: Pictures) -> None:
    rows, columns = pictures.images.shape[:2]
    part.suptitle(pictures.title, fontsize=10)
    axes = part.subplots(rows, columns, squeeze=False)
    for i in range(rows):
        for j in range(columns):
            ax = axes[i][j]
            ax.imshow(pictures.images[i, j], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            if j == 0:
                ax.set_ylabel(pictures.row_names[i], rotation=0, ha="right", va="center", fontsize=8)
            if i == 0 and pictures.column_names:
                ax.set_title(pictures.column_names[j], fontsize=8)
