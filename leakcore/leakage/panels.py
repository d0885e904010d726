"""A model's leakage by layer as small multiples: a panel for each measure, layers down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from leakcore._base.results import picture
from leakcore.leakage import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL = 1.7
"""Inches across."""


class _Panel(NamedTuple):
    """A measure by layer, NaN where a layer has none. null: what its permutations, or other inputs, give on average."""

    title: str
    unit: str
    values: np.ndarray
    interval: tuple[Any, Any] | None = None
    null: np.ndarray | None = None


def draw(report: table.Measured, ax: Axes | None) -> Axes:
    """Draw every measure that was taken, from left to right in the place of `ax`, which keeps the sensitivity."""
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    panels = _panels(report)
    axes = _new(len(panels), len(report.layers)) if ax is None else ax
    divider = make_axes_locatable(axes)
    places = [axes, *(divider.append_axes("right", size="100%", pad=0.12) for _ in panels[1:])]
    for place, panel in zip(places, panels, strict=True):
        picture.bars(place, [table.plain(n) for n in report.layers], panel.values, panel.interval, label=panel.unit)
        place.set_ylim(len(report.layers) - 0.5, -0.5)
        # Two lines in every panel: the layout of a figure makes room for the first one's title alone.
        kind, _, attribute = panel.title.partition(": ")
        place.set_title(f"{kind}:\n{table.plain(attribute)}" if attribute else f"\n{kind}", fontsize=8)
        place.tick_params(labelsize=7, labelleft=place is axes)
        place.xaxis.label.set_fontsize(7)
        if panel.null is not None:
            marks = place.plot(panel.null, range(len(panel.null)), "|", color="0.3", markersize=10, label="null")
            if place is places[-1]:
                place.legend(handles=marks, fontsize=7, handletextpad=0.1)
    axes.set_ylabel("layer", fontsize=7)
    return axes


def _new(panels: int, layers: int) -> Axes:
    """The axes of a new pyplot figure that is wide enough for so many panels."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(1.4 + _PANEL * panels, 1.3 + 0.3 * layers), layout="constrained")[1]


def _panels(report: table.Measured) -> list[_Panel]:
    moved = report.sensitivity
    mean, error = moved.means["F"], np.nan_to_num(moved.standard_errors["F"])
    panels = [_Panel("sensitivity", "mean ‖∂g/∂x‖_F", mean, (mean - error, mean + error))]
    if (original := report.original) is not None:
        values, null, low, high = (
            _padded(x, len(report.layers)) for x in (original.raw, original.null, *_ends(original))
        )
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


def _ends(result: Any) -> tuple[Any, Any]:
    return result.interval if result.interval is not None else (result.raw, result.raw)


def _padded(values: Any, length: int) -> np.ndarray:
    """A pair of layers stands at the layer that it begins with."""
    out = np.full(length, np.nan)
    out[: len(values)] = values
    return out
