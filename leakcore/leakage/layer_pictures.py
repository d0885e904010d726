"""A model's leakage by layer as a text table, a heat map and a panel for each measure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from leakcore._base import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from leakcore.leakage.sensitivity import Sensitivity
    from leakcore.leakage.subspace_distance import SubspaceDistance
    from leakcore.leakage.v_information import VInformation
    from leakcore.leakage.v_information_original import OriginalInformation

_NOTES = (
    "sensitivity   mean ‖∂g/∂x‖_F; √p: divided by the root of the number of parameters",
    "original      score of inverting the layer's gradient with the next one's, less that against other inputs",
    "latent        nats that the family reads of the attribute, less the mean of its label-permutation null",
    "subspace      Grassmann distance of mean gradients with and without it, less the mean of its permutation null",
    "*             larger than every permutation: p at its smallest",
)


_WIDTH = 110
"""Characters of a line, at most, except for very long names."""
_PER_INCH = 17
"""Characters of the figure's caption: at 7.5 points they take less than 0.055 inches each, margins included."""


class Measured(Protocol):
    """The fields of a `LeakageByLayer` that a table or picture shows."""

    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> tuple[int, ...]: ...
    @property
    def sensitivity(self) -> Sensitivity: ...
    @property
    def original(self) -> OriginalInformation | None: ...
    @property
    def latent(self) -> Mapping[str, VInformation]: ...
    @property
    def subspace(self) -> Mapping[str, Mapping[str, SubspaceDistance]]: ...
    @property
    def samples(self) -> tuple[int, int]: ...
    def rows(self) -> list[dict[str, Any]]: ...


def _measures(report: Measured) -> list[tuple[str, list[tuple[float | None, bool]]]]:
    """(column's name, (value, marked) by layer)."""
    rows = report.rows()
    columns: list[tuple[str, list[tuple[float | None, bool]]]] = [
        ("sensitivity", [(r["sensitivity"], False) for r in rows]),
        ("sensitivity/√p", [(r["per_parameter"], False) for r in rows]),
    ]
    if report.original is not None:
        columns.append(("original", [(r["original"], False) for r in rows]))
    for kind in ("latent", "subspace"):
        for name in report.latent:
            cells = [r[kind][name] for r in rows]
            count = len(report.latent[name].null)
            least = 1 / (1 + count)
            above = [(v if math.isnan(n) else v - n, count > 0 and p <= least * (1 + 1e-9)) for v, n, p in cells]
            columns.append((f"{kind}: {name}", above))
    return columns


def render(report: Measured) -> str:
    """One line per layer, then what the columns mean."""
    measures = _measures(report)
    head = ["layer", "parameters", *(name for name, _ in measures)]
    lines = [
        [layer, f"{report.parameters[i]:,}", *(_shown(*values[i]) for _, values in measures)]
        for i, layer in enumerate(report.layers)
    ]
    widths = [max(len(row[k]) for row in (head, *lines)) for k in range(len(head))]

    def joined(row: list[str], chosen: list[int]) -> str:
        cells = [row[0].ljust(widths[0]), *(row[k].rjust(widths[k]) for k in chosen)]
        return "  ".join(cells).rstrip()

    out = []
    for chosen in _blocks(widths):
        rule = "  ".join("─" * widths[k] for k in (0, *chosen))
        out += [joined(head, chosen), rule, *(joined(line, chosen) for line in lines), ""]
    notes = [n for n in _NOTES if report.original is not None or not n.startswith("original")]
    out += notes if report.latent else notes[:2] + [n for n in notes[2:] if n.startswith("original")]
    exact = "exact" if not report.sensitivity.probes else f"Hutchinson, {report.sensitivity.probes} directions"
    out.append(
        f"{'samples':<14}{report.samples[0]} for sensitivity ({exact})"
        + (f", {report.samples[1]} inverted" if report.samples[1] else "")
    )
    for name, measured in report.latent.items():
        sizes = " and ".join(map(str, measured.set_sizes))
        out.append(
            f"{'attribute':<14}{name}: {sizes} rows without and with it, {measured.family}, at most "
            f"{measured.largest:.3f} nats"
        )
    out.append(f"{'kind':<14}estimates of this model on these data; no bound on any attack")
    return "\n".join(out)


def _blocks(widths: list[int]) -> list[list[int]]:
    """Columns after the first, as many in a block as fit a terminal; each block begins with the first again."""
    blocks: list[list[int]] = []
    used = _WIDTH
    for k, width in enumerate(widths[1:], 1):
        if used + 2 + width > _WIDTH:
            blocks.append([])
            used = widths[0]
        blocks[-1].append(k)
        used += 2 + width
    return blocks


def heat_map(report: Measured) -> Figure:
    """Layers down, measures across; colour relative to each measure's largest value, the number written in."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measures = _measures(report)
    numbers: Any = np.array([[math.nan if v is None else v for v, _ in values] for _, values in measures], float).T
    top = np.nan_to_num(np.where(np.isnan(numbers), -np.inf, numbers).max(axis=0), neginf=0.0)
    scaled = np.clip(numbers / np.where(top > 0, top, 1.0), 0.0, 1.0)
    width = 2.0 + 1.15 * len(measures)
    caption = textwrap.fill(_caption([name for name, _ in measures]), int(_PER_INCH * width))
    height = 1.9 + 0.46 * len(report.layers) + 0.14 * caption.count("\n")
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(np.ma.masked_invalid(scaled), cmap="YlOrRd", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(measures)), [plain(n).replace(": ", ":\n") for n, _ in measures], fontsize=8)
    axes.xaxis.tick_top()
    axes.set_yticks(
        range(len(report.layers)),
        [f"{plain(name)}  ({size:,})" for name, size in zip(report.layers, report.parameters, strict=True)],
        fontsize=8,
    )
    for j, (_, values) in enumerate(measures):
        for i, cell in enumerate(values):
            dark = np.isfinite(scaled[i, j]) and scaled[i, j] > 0.65
            axes.text(j, i, _shown(*cell), ha="center", va="center", fontsize=8, color="white" if dark else "#1f2430")
    axes.set_ylabel("layer (parameters)", fontsize=8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.suptitle("Where the leak sits", fontsize=11, fontweight="bold")
    figure.supxlabel(caption, fontsize=7.5)
    return figure


def _caption(columns: list[str]) -> str:
    """What colour and columns mean, for the columns that are there."""
    parts = ["estimates, no bounds", "colour: relative to the column's largest"]
    if "original" in columns:
        parts.append("original: together with the next layer, above its null")
    if any(name.startswith("latent: ") for name in columns):
        parts.append("latent, subspace: above their nulls, *: larger than every permutation")
    return "; ".join(parts)


def _shown(value: float | None, marked: bool) -> str:
    if value is None or math.isnan(value):
        return "–"
    text = f"{value:.3f}" if 1e-3 <= abs(value) < 100 or value == 0 else f"{value:.2g}"
    return text.replace("-", "−") + ("*" if marked else "")


def plain(name: str) -> str:
    """A user's name as text: matplotlib reads what is between dollar signs as mathematics."""
    return name.replace("$", r"\$")


_PANEL = 1.7
"""Inches across."""


class _Panel(NamedTuple):
    """A measure by layer, NaN where a layer has none. null: what its permutations, or other inputs, give on average."""

    title: str
    unit: str
    values: np.ndarray
    interval: tuple[Any, Any] | None = None
    null: np.ndarray | None = None


def draw(report: Measured, ax: Axes | None) -> Axes:
    """Draw every measure that was taken, from left to right in the place of `ax`, which keeps the sensitivity."""
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    panels = _panels(report)
    axes = ax
    if axes is None:
        from matplotlib import pyplot

        size = (1.4 + _PANEL * len(panels), 1.3 + 0.3 * len(report.layers))
        axes = pyplot.subplots(figsize=size, layout="constrained")[1]
    divider = make_axes_locatable(axes)
    places = [axes, *(divider.append_axes("right", size="100%", pad=0.12) for _ in panels[1:])]
    for place, panel in zip(places, panels, strict=True):
        pictures.bars(place, [plain(n) for n in report.layers], panel.values, panel.interval, label=panel.unit)
        place.set_ylim(len(report.layers) - 0.5, -0.5)
        # Two lines in every panel: the layout of a figure makes room for the first one's title alone.
        kind, _, attribute = panel.title.partition(": ")
        place.set_title(f"{kind}:\n{plain(attribute)}" if attribute else f"\n{kind}", fontsize=8)
        place.tick_params(labelsize=7, labelleft=place is axes)
        place.xaxis.label.set_fontsize(7)
        if panel.null is not None:
            marks = place.plot(panel.null, range(len(panel.null)), "|", color="0.3", markersize=10, label="null")
            if place is places[-1]:
                place.legend(handles=marks, fontsize=7, handletextpad=0.1)
    axes.set_ylabel("layer", fontsize=7)
    return axes


def _panels(report: Measured) -> list[_Panel]:
    moved = report.sensitivity
    mean, error = moved.means["F"], np.nan_to_num(moved.standard_errors["F"])
    panels = [_Panel("sensitivity", "mean ‖∂g/∂x‖_F", mean, (mean - error, mean + error))]
    if (original := report.original) is not None:
        ends = original.interval or (original.raw, original.raw)
        values, null, low, high = (_padded(x, len(report.layers)) for x in (original.raw, original.null, *ends))
        panels.append(_Panel("original", "score", values, (low, high), null))
    for name, read in report.latent.items():
        panels.append(
            _Panel(f"latent: {name}", "nats", np.asarray(read.value), read.interval, np.asarray(read.null_mean))
        )
    for name, by_layer in report.subspace.items():
        distances = [by_layer[layer] for layer in report.layers]
        values = np.array([float(d.value) for d in distances])
        panels.append(_Panel(f"subspace: {name}", "radians", values, None, np.array([d.null_mean for d in distances])))
    return panels


def _padded(values: Any, length: int) -> np.ndarray:
    """A pair of layers stands at the layer that it begins with."""
    out = np.full(length, np.nan)
    out[: len(values)] = values
    return out
