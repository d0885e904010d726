"""The tables and the ROC figure of the report on a recorded run: each rate with the bound that it is compared with."""

from __future__ import annotations

import functools

import numpy as np

from leakcore._base.results import Result
from leakcore.audit.report import page
from leakcore.audit.report.format import ADJACENCY, interval, percent
from leakcore.audit.report.tables import Cell, Column, Row, Table
from leakcore.audit.trace.facts import TraceFacts
from leakcore.audit.trace.rates import Measured, for_picked, levels


def attacks_table(report: TraceFacts) -> Table:
    """Reconstruction for each prior, membership at each false-positive rate."""
    rows = []
    for size, bound, measured in zip(report.candidate_counts, report.reconstruction, report.named, strict=True):
        cells = (Cell(f"name a row among {size}"), Cell(percent(1 / size)))
        rows.append(Row((*cells, _measured(measured), _bound(report, None if bound is None else float(bound.value)))))
    for level, measured, limit in report.rates():
        cells = (Cell(f"tell members, {percent(level)} false"), Cell(percent(level)))
        rows.append(Row((*cells, _measured(measured), _bound(report, limit))))
    run, how = report.run, report.mechanism
    exact = "exact\nbound" if report.lift == 1 else "bound for\nrows picked"
    exact = "upper\nbound" if how.bracketed or how.missing else exact
    relation = f"{ADJACENCY[how.adjacency].capitalize()} adjacency; bounds are deterministic."
    if how.missing:
        relation = "No bounds: no mechanism of the run is known."
    columns = (
        Column("attack", "parameter"),
        Column("guessing", "parameter"),
        Column("reached in\nrecorded steps" if run.partial else "reached on\nthis run", "estimate"),
        Column("bound of these\nsteps alone" if run.unknown else exact, "upper"),
    )
    caption = (
        f"{relation} Under each measured rate stands its own "
        f"{100 * report.confidence:g}% interval, which treats rows as independent and does not count the noise that "
        "all rows of one run share."
    )
    if run.unknown:
        caption += (
            f" The bounds are of {run.alone} alone: an attacker who sees the others, too, may do better, and rates are "
            "not compared with them."
        )
    elif run.partial:
        caption += f" Bounds are of the run's {run.steps:,} steps, rates of the {run.recorded:,} that were recorded."
        caption += f" They are not compared: {report.incomparable}." if report.incomparable else ""
    if report.lift < 1:
        caption += (
            f" Members were recognised in batches, so each bound is{for_picked(report.lift)}: below it the exact bound "
            "over the probability of being picked."
        )
    if any(measured is None for measured in (*report.named, *report.found_at_fpr)):
        caption += " —: too few candidates to measure, or none recognised."
    return Table("Attacks compared with their bounds", columns, tuple(rows), caption)


def exposed_table(report: TraceFacts) -> Table:
    """The members that stand out most."""
    columns = (
        Column("candidate", "parameter"),
        Column("batches it\nwas in", "parameter"),
        Column("steps in which\nit was clipped", "estimate"),
        Column("non-members\nit outscores", "estimate"),
        Column("lead over the\nbest rival", "estimate"),
    )
    rows = [
        Row(
            tuple(
                Cell(c)
                for c in (
                    str(e.candidate),
                    str(e.times_seen),
                    percent(e.clipped_share),
                    percent(e.beaten),
                    f"{e.lead:+.3g}",
                )
            )
        )
        for e in report.exposed
    ]
    caption = f"The members that stand out most, scored by {report.statistic}. They were chosen for that: no guarantee."
    return Table("Most exposed members", columns, tuple(rows), caption)


def roc_figure(report: TraceFacts, curve: Result, measured: tuple[np.ndarray, np.ndarray], alt: str) -> page.Figure:
    """The test's ROC below the bound's curve that its rates are compared with. alt: what it says, in a sentence."""
    from leakcore.audit.report.plots import roc_svg

    bars = [
        (float(f), float(m.value), float(m.interval[0]), float(m.interval[1]))
        for f, m, _ in report.rates()
        if m is not None and m.interval is not None
    ]
    bound = np.array([report.held(float(b)) for b in np.atleast_1d(curve.value)])
    picked = for_picked(report.lift)
    alone = f"bound of {report.run.alone} alone" if report.run.unknown else ""
    svg = functools.partial(
        roc_svg,
        levels(curve),
        bound,
        measured,
        intervals=bars,
        intervals_name=f"{100 * report.confidence:g}% intervals",
        bound_name=alone or ("bound for members that sampling picked" if picked else "bound: no attacker beats it"),
    )
    upper = (
        f"One curve is the {alone}, which the run's may exceed, and the test with it"
        if alone
        else f"The upper curve is what no membership attacker can beat{picked}"
    )
    means = (
        f"Not compared: {report.incomparable}."
        if report.incomparable
        else "Close to the upper curve, the bound is nearly reached; if a whole bar lies above it, check the mechanism."
    )
    return page.Figure(
        svg=svg,
        alt="True-positive against false-positive rate of the membership test, "
        f"{'next to' if report.incomparable else 'below'} the curve of the bound; " + alt,
        caption=f"{upper} (upper, deterministic). The {'other' if alone else 'lower one'} is the "
        f"test on this run's candidates (estimate; bars: {100 * report.confidence:g}% intervals, which treat rows as "
        f"independent and do not count the noise that they share). {means}",
    )


def _measured(measured: Measured | None) -> Cell:
    return Cell("—") if measured is None else Cell(percent(measured), interval(measured))


def _bound(report: TraceFacts, bound: float | None) -> Cell:
    if bound is None:
        return Cell("—")
    note = "" if report.lift == 1 else f"{percent(bound, 'upper')} / {percent(report.lift)}"
    return Cell(percent(report.held(bound), "upper"), note)
