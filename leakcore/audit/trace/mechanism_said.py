"""Sentences about the mechanism of a recorded run: its ε as a bracket, or why there is none."""

from __future__ import annotations

from leakcore._base.results import Result
from leakcore.audit.report.format import claim_of, ends_proved, guarantee, interval, number, percent, power
from leakcore.audit.report.page import Finding
from leakcore.audit.trace.chosen import Chosen
from leakcore.audit.trace.facts import TraceFacts


def epsilon_of(report: TraceFacts, epsilon: Result) -> str:
    """ε with its guarantee and, of a bracket, with both ends and with what Poisson accounting would print."""
    said = f"ε = {number(epsilon)} at δ = {power(report.delta)} ({guarantee(epsilon)})"
    replaced = report.epsilon_replace
    if replaced is not None and epsilon.adjacency != "replace":
        said += f"; against replacing a row {number(replaced)} ({guarantee(replaced)})"
    if report.mechanism.bracketed and epsilon.interval is not None:
        low, high = (float(v) for v in epsilon.interval)
    else:
        low = high = float(epsilon.value)
    if low < high:
        said += (
            f". Its limits are {number(low, kind='lower')} and {number(high, kind='upper')}: {ends_proved(epsilon)}"
            + ("" if report.mechanism.lower_holds else "; of this run the upper one alone is proved")
        )
    if (claimed := claim_of(epsilon)) is not None:
        said += f". Accounting as if batches were Poisson samples would print {number(claimed)}, which is not proved"
    return ". ".join([said, *report.mechanism.notes]) + "."


def below_lower(epsilon: Result, mechanism: Chosen) -> str:
    """A warning where Poisson accounting claims less than what is proved from below; else empty."""
    claimed = claim_of(epsilon)
    if claimed is None or epsilon.interval is None or not mechanism.lower_holds:
        return ""
    low = float(epsilon.interval[0])
    if claimed >= low:
        return ""
    return (
        f"Do not quote the ε of Poisson accounting, {number(claimed)}: it lies below the lower limit "
        f"{number(low, kind='lower')}."
    )


def no_mechanism(report: TraceFacts, claimed: str) -> Finding:
    """Why there is no ε, and what is needed."""
    chosen = report.mechanism
    return Finding(
        " ".join(
            [f"The accountant: no ε and no bounds, because no mechanism is named: {chosen.missing}.", *chosen.notes]
        )
        + claimed,
        verdict=f"{chosen.remedy}.",
        assumes="nothing of how batches were drawn; the accountant's own ε would be that of Poisson sampling.",
    )


def measured_reconstruction(report: TraceFacts) -> str:
    """What naming a row reached, where no mechanism bounds it."""
    reached = [
        f"{percent(m)} among {p:,} ({interval(m)})"
        for p, m in zip(report.candidate_counts, report.named, strict=True)
        if m is not None
    ]
    if not reached:
        return "Reconstruction: no bound without a mechanism, and the attack could not be measured."
    return Finding(
        f"Reconstruction: no bound without a mechanism. The prior-aware attack named {' and '.join(reached)} "
        f"(estimate, {100 * report.confidence:g}% intervals, {report.statistic}).",
        verdict="Other attacks may reach more: without a bound nothing says how much.",
        assumes="the attacker knows every other row and every batch, and members and non-members are alike. The "
        "intervals treat rows as independent; they do not count the noise that all rows of one run share.",
    )
