"""A model's leakage by layer, as a table and as a heat map."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
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
    """What a table or picture shows: a `LeakageByLayer`, whose fields these are."""

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
            above = [
                (v if math.isnan(n) else v - n, count > 0 and p <= least * (1 + 1e-9)) for v, n, p in cells
            ]  # fmt: skip
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
    out.append(f"{'samples':<14}{report.samples[0]} for sensitivity ({exact})"
               + (f", {report.samples[1]} inverted" if report.samples[1] else ""))  # fmt: skip
    for name, measured in report.latent.items():
        sizes = " and ".join(map(str, measured.set_sizes))
        out.append(f"{'attribute':<14}{name}: {sizes} rows without and with it, {measured.family}, at most "
                   f"{measured.largest:.3f} nats")  # fmt: skip
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
