"""The report's tables, defined once: the page and the terminal render the same rows, kinds and captions."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import TYPE_CHECKING

from leakcore.audit.report.cards import adjacency_words
from leakcore.audit.report.format import ADJACENCY, claim_of, ends_proved, interval, number, percent, power

if TYPE_CHECKING:
    from leakcore.audit.hyperparameters.label_section import LabelStudy
    from leakcore.audit.hyperparameters.reconstruction_section import ReconstructionPoint


@dataclasses.dataclass(frozen=True)
class Column:
    """A heading; `kind` is upper, lower, estimate or parameter (an input, a claim, or a plain count)."""

    title: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Cell:
    """A value, and its interval beneath it."""

    text: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """Cells in the order of the columns. highlight: whether it is the row that the report is about."""

    cells: tuple[Cell, ...]
    highlight: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """A titled table with a caption that says confidence and adjacency. marked: what the highlighted rows are."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str
    marked: str = "the audited configuration"

    def to_text(self, width: int = 110) -> str:
        """Aligned plain text, readable without colour."""
        heads = [column.title.split("\n") for column in self.columns]
        depth = max(len(h) for h in heads)
        lines = [
            [""] * (depth - len(h)) + h + [f"[{c.kind}]" if c.kind else ""]
            for h, c in zip(heads, self.columns, strict=True)
        ]
        grid = [list(line) for line in zip(*lines, strict=True)]
        body: list[list[str]] = []
        for row in self.rows:
            body.append([cell.text for cell in row.cells])
            if row.highlight:
                body[-1][0] = f"> {body[-1][0]}"
            if any(cell.note for cell in row.cells):
                body.append([cell.note for cell in row.cells])
        widths = [max(len(r[i]) for r in grid + body) for i in range(len(self.columns))]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))

        def line(cells: list[str]) -> str:
            return "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()

        marks = f"> marks {self.marked}. " if any(row.highlight for row in self.rows) else ""
        caption = textwrap.fill(f"{marks}{self.caption}", width, initial_indent="  ", subsequent_indent="  ")
        return "\n".join([self.title, rule, *map(line, grid), rule, *map(line, body), rule, caption])


def accounting_table(points: list[ReconstructionPoint], delta: float) -> Table:
    """ε of each noise level by the accountants that there are, and under replacement."""
    first = points[0]
    adjacency = ADJACENCY[first.epsilon.adjacency]
    columns = [Column("ε", "parameter"), Column("noise\nmultiplier σ", "parameter")]
    sampled = first.bound_rdp is not None
    bracket, claim = first.epsilon.method == "bracket", claim_of(first.epsilon) is not None
    replaced = any(p.epsilon_replace is not None for p in points)
    columns.append(Column(f"ε, {'at most' if bracket else 'exact'}\n{adjacency}", "upper"))
    if sampled:
        columns += [Column("ε, PLD\nadd/remove", "upper"), Column("ε, RDP\nadd/remove", "upper")]
    if bracket:
        columns.append(Column(f"ε, at least\n{adjacency}", "lower"))
    if claim:
        columns.append(Column("ε, if batches\nwere Poisson", "parameter"))
    if replaced:
        columns.append(Column(f"ε, {'exact' if sampled else 'at most'}\nreplacement", "upper"))
    rows = []
    for p in points:
        cells = [Cell(number(p.epsilon)), Cell(number(p.noise_multiplier, 6)), Cell(number(p.epsilon, 5))]
        if sampled:
            others = (p.epsilon_pld, p.epsilon_rdp)
            cells += [Cell(number(r, 5)) if r is not None else Cell("not installed") for r in others]
        if bracket and p.epsilon.interval is not None:
            cells.append(Cell(number(float(p.epsilon.interval[0]), 5, "lower")))
        if claim:
            cells.append(Cell(number(claim_of(p.epsilon) or 0.0, 5)))
        if replaced:
            cells.append(Cell("—" if p.epsilon_replace is None else number(p.epsilon_replace, 5)))
        rows.append(Row(tuple(cells), p.claimed))
    said = [f"δ = {power(delta)}; all deterministic."]
    if sampled:
        said.append("The exact column inverts our own privacy profile, PLD and RDP are dp-accounting's.")
    if bracket:
        said.append(f"The two ends of the bracket: {ends_proved(first.epsilon)}.")
    if claim:
        said.append("What Poisson accounting would print is not proved: batches are not drawn so.")
    if replaced:
        said.append(
            "The last column is the same mechanism under the other adjacency: it is larger because a replaced row "
            "moves the sum twice as far, and is not to be compared with the others."
        )
    return Table("The accountant", tuple(columns), tuple(rows), " ".join(said))


def reconstruction_table(points: list[ReconstructionPoint], num_candidates: int) -> Table:
    """Bounds, reference and attack for each noise level."""
    first = points[0]
    columns = [
        Column("ε", "parameter"),
        Column("guessing", "parameter"),
        Column("prior-aware\nattack", "estimate"),
        Column("named\nthe target", "parameter"),
        Column("optimum if\northogonal", "estimate"),
        Column("upper\nbound" if first.bound.method == "bracket" else "exact\nbound", "upper"),
    ]
    rdp, claim = first.bound_rdp is not None, claim_of(first.bound) is not None
    if rdp:
        columns.append(Column("RDP\nbound", "upper"))
    if claim:
        columns.append(Column("if batches\nwere Poisson", "parameter"))
    rows = []
    for p in points:
        cells = [
            Cell(number(p.epsilon)),
            Cell(percent(1 / num_candidates)),
            Cell(percent(p.attack), interval(p.attack)),
            Cell(f"{p.attack.hits} / {p.attack.trials}"),
            Cell("—" if p.reference is None else percent(p.reference)),
            Cell(percent(p.bound)),
        ]
        if p.bound_rdp is not None:
            cells.append(Cell(percent(p.bound_rdp)))
        if claim:
            cells.append(Cell(percent(claim_of(p.bound) or 0.0)))
        rows.append(Row(tuple(cells), p.claimed))
    level = f"{100 * (first.attack.confidence or 0):g}%"
    adjacency = adjacency_words(first.bound.adjacency)
    caption = (
        f"Probability of naming the target among {num_candidates} equally likely candidates. {adjacency.capitalize()} "
        f"throughout. Bounds are deterministic; below each attack its own {level} Clopper–Pearson interval, for that "
        "row alone."
    )
    return Table("Reconstruction", tuple(columns), tuple(rows), caption)


def labels_table(study: LabelStudy) -> Table:
    """Labels recovered from one aggregated last-layer gradient, without and with noise."""
    rows = []
    for o in study.outcomes:
        rows.append(
            Row(
                (
                    Cell("no noise, no clipping" if o.noise_multiplier == 0 else f"ε = {number(o.epsilon)}"),
                    Cell(number(o.noise_multiplier, 4)),
                    Cell(f"{o.determined} of {o.labels}"),
                    Cell(str(o.labels - o.determined)),
                    Cell(percent(o.recovered), interval(o.recovered) if o.recovered.interval else ""),
                    Cell(percent(o.majority)),
                ),
                o.claimed,
            )
        )
    columns = (
        Column("companion run", "parameter"),
        Column("noise\nmultiplier σ", "parameter"),
        Column("determined\nlabels", "parameter"),
        Column("undetermined", "parameter"),
        Column("right, of the\ndetermined", "estimate"),
        Column("guessing the\nmajority", "parameter"),
    )
    return Table("Labels", columns, tuple(rows), study.caption)


def label_epsilon_table(study: LabelStudy) -> Table:
    """Label-ε lower bounds compared with the replacement ε of the same single step."""
    rows = []
    for o in study.outcomes:
        if o.replacement is None:
            continue
        rows.append(
            Row(
                (
                    Cell(f"ε = {number(o.epsilon)}"),
                    Cell(number(o.noise_multiplier, 4)),
                    *(Cell(number(o.lower[test], 4)) for test in ("paper", "optimal", "likelihood-ratio")),
                    Cell(number(o.replacement, 4)),
                ),
                o.claimed,
            )
        )
    columns = (
        Column("companion run", "parameter"),
        Column("noise\nmultiplier σ", "parameter"),
        Column("label ε,\npaper's test", "lower"),
        Column("label ε,\nbest threshold", "lower"),
        Column("label ε,\nlikelihood ratio", "lower"),
        Column("replacement ε\nof one step", "upper"),
    )
    return Table("Label privacy of one step", columns, tuple(rows), study.epsilon_caption)
