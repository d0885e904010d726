"""Where the leak sits in a model of the caller's, as a part of any report."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore.audit.report.format import number
from leakcore.audit.report.page import Figure, Finding, Part, Section
from leakcore.audit.report.plots import heat_map_svg
from leakcore.audit.report.tables import Cell, Column, Row, Table

if TYPE_CHECKING:
    from leakcore.leakage import LeakageByLayer, VInformation


def where_it_sits(measures: LeakageByLayer) -> Part:
    """The result of `leakage.by_layer` as a part of a report.

    The part has a finding with its consequence, a heat map and a table, layer by layer; each latent measure stands next
    to its permutation null. All of it is an estimate on plain gradients of single rows, without clipping or noise. In
    the report's JSON it stands under "layers".

    Args:
        measures: what `leakage.by_layer` returned.

    Returns:
        A part, for `report.with_parts(...)`.

    Raises:
        TypeError: for anything else.

    Example:
        >>> from leakcore import audit
        >>> part = audit.where_it_sits(leakage.by_layer(model, inputs, targets))  # doctest: +SKIP
        >>> report.with_parts(part).to_html("report.html")  # doctest: +SKIP
        >>> audit.where_it_sits("the first layer")
        Traceback (most recent call last):
        TypeError: `measures` must be what leakage.by_layer returns, got str
    """
    from leakcore.leakage import LeakageByLayer

    if not isinstance(measures, LeakageByLayer):
        raise TypeError(f"`measures` must be what leakage.by_layer returns, got {type(measures).__name__}")
    figure = Figure(
        svg=functools.partial(heat_map_svg, measures),
        alt="Heat map, layers by measures; the table below holds the same numbers.",
        caption="Colour is relative to the largest value of its column: red says where a measure is largest, not that "
        "it is large. A star says that no permutation of the labels gave as much.",
    )
    return Part(
        key="layers",
        findings=(_finding(measures),),
        sections=(Section("Where the leak sits, layer by layer", (_table(measures),), figure),),
        content={"measures": measures.to_dict()},
    )


def _finding(measures: LeakageByLayer) -> Finding:
    per = measures.sensitivity.per_parameter()
    most = int(np.argmax(per))
    closest = (
        f"for its size the gradient of layer {measures.layers[most]} follows the input most closely "
        f"({number(per[most], 3)} per root of the number of parameters)"
    )
    said = [closest]
    if measures.original is not None:
        above = np.nan_to_num(measures.original.above_null, nan=-np.inf)
        best = int(np.argmax(above))
        if np.isfinite(above[best]):
            said.append(
                f"inverting {' and '.join(measures.original.pairs[best])} together recovers most of the input itself "
                f"(score {measures.original.raw[best]:.1f}, {2 * np.pi**2:.1f} is perfect; against other inputs "
                f"{measures.original.null[best]:.1f})"
            )
    named = []
    for name, latent in measures.latent.items():
        layers = beyond(latent)
        if layers:
            named.append(name)
            said.append(f"about {name} layer {measures.layers[layers[0]]} shows most, {told(latent, layers[0])}")
        else:
            said.append(f"about {name} no layer shows more than permuted labels do")
    if named:
        sure = f"{100 * (next(iter(measures.latent.values())).confidence or 0):g}%"
        verdict = (
            f"At {sure} each, single gradients of this model show what the task never asks for: {', '.join(named)}."
        )
    elif measures.latent:
        verdict = "This family of attackers reads none of the attributes in single gradients of this model."
    else:
        verdict = "No attribute was looked for."
    return Finding(
        f"Where the leak sits: {'; '.join(said)} (estimates, no guarantee).",
        verdict=verdict,
        assumes="the attacker sees the plain gradient of one row: clipping, noise and other rows of a batch hide some "
        "of it, and a better attacker may read more.",
    )


def _table(measures: LeakageByLayer) -> Table:
    original = measures.original is not None
    columns = [
        Column("layer", "parameter"),
        Column("parameters", "parameter"),
        Column("sensitivity\n‖∂g/∂x‖", "estimate"),
        Column("per root of\nparameters", "estimate"),
        *([Column("original,\nabove null", "estimate")] if original else []),
        *(Column(f"latent:\n{name}", "estimate") for name in measures.latent),
    ]
    rows = []
    for i, row in enumerate(measures.rows()):
        cells = [
            Cell(row["layer"]),
            Cell(f"{row['parameters']:,}"),
            Cell(number(row["sensitivity"])),
            Cell(number(row["per_parameter"], 3)),
            *([Cell("—" if row["original"] is None else nats(row["original"]))] if original else []),
            *(Cell(nats(at(v.value, i)), limits(v, i)) for v in measures.latent.values()),
        ]
        rows.append(Row(tuple(cells)))
    sizes = next((v.set_sizes for v in measures.latent.values()), None)
    latent = (
        f" Latent: nats that {next(iter(measures.latent.values())).family} reads held out, {sizes[0]} rows without and "
        f"{sizes[1]} with the attribute; beneath, the interval of this held-out gain and, in brackets, the largest of "
        "the permutations of the labels: only what lies above that counts."
        if sizes
        else ""
    )
    caption = (
        f"Plain gradients of single rows. Sensitivity: mean Frobenius norm over {measures.samples[0]} inputs."
        f"{' Original: score of inverting this layer with the next.' if original else ''}{latent} Estimates; no "
        "bound on any attack."
    )
    return Table("Where the leak sits", tuple(columns), tuple(rows), caption)


def at(values: Any, layer: int) -> float:
    """The value of a layer, from an array by layer or from the only one."""
    return float(np.atleast_1d(values)[layer])


def beyond(latent: VInformation) -> list[int]:
    """Layers whose whole held-out interval lies above 0 and every permutation, most above its null first."""
    null = _null(latent)
    chance = np.maximum(null.max(axis=0, initial=0.0), 0.0)
    above = np.flatnonzero(np.atleast_1d(latent.held_out_interval[0]) > chance)
    order = np.argsort(-np.nan_to_num(np.atleast_1d(latent.above_null))[above], kind="stable")
    return [int(i) for i in above[order]]


def nats(value: float) -> str:
    """Three decimals; a held-out value below 0 says that the family does worse than the prior."""
    return f"{value:.3f}".replace("-", "−") if abs(value) >= 5e-4 else "0.000"


def limits(latent: VInformation, layer: int) -> str:
    """The held-out interval, and the largest value of permuted labels."""
    low, high, null = _limits(latent, layer)
    return f"{low} to {high} (≤ {null})"


def told(latent: VInformation, layer: int) -> str:
    """The value, its interval and its null in words."""
    low, high, null = _limits(latent, layer)
    return (
        f"{nats(at(latent.value, layer))} of at most {latent.largest:.3f} nats ({low} to {high}, permuted labels at "
        f"most {null})"
    )


def _limits(latent: VInformation, layer: int) -> tuple[str, str, str]:
    low, high = (nats(at(limit, layer)) for limit in latent.held_out_interval)
    null = _null(latent)
    return low, high, nats(float(null[:, layer].max())) if len(null) else "—"


def _null(latent: VInformation) -> np.ndarray:
    """(permutations, layers)."""
    return latent.null.reshape(-1, np.atleast_1d(latent.value).size)
