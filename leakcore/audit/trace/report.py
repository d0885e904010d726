"""The report on a recorded training run, in words, tables and figures."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from leakcore._base.results import Result
from leakcore.audit.shared import page
from leakcore.audit.shared.format import (
    ADJACENCY,
    claim_of,
    counted,
    ends,
    ends_proved,
    guarantee,
    interval,
    number,
    percent,
    power,
)
from leakcore.audit.shared.format import proved as proved_words
from leakcore.audit.shared.page import (
    BEATS,
    EPSILON,
    PROVED,
    REACHED,
    Card,
    Cell,
    Column,
    Finding,
    Row,
    Table,
    card,
    epsilon_card,
    proof_card,
)
from leakcore.audit.shared.report import GATE, NOTHING, TOO_WEAK
from leakcore.audit.trace.measure import Measured, TraceFacts, for_picked, levels, standing
from leakcore.audit.trace.request import Chosen


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


def findings(report: TraceFacts) -> list[str]:
    """The findings, in the order of the report."""
    out = [accountant(report), reconstruction(report), membership(report), proof(report)]
    if report.exposed:
        first, recorded = report.exposed[0], "recorded " * report.run.partial
        out.append(
            Finding(
                f"Most exposed: candidate {first.candidate} was in "
                f"{counted(first.times_seen, f'{recorded}batch', f'{recorded}batches')}, its gradient was clipped in "
                f"{percent(first.clipped_share)} of the {recorded}steps, and it outscores {percent(first.beaten)} of "
                "the non-members.",
                verdict=(
                    "Look at such rows first: a row that is unlike the others is the easiest to recognise."
                    if report.told
                    else "Chance may have picked it: on these candidates the test does no better than guessing."
                ),
                assumes="another attack ranks the rows alike; a row chosen because it stands out has no guarantee.",
            )
        )
    return out


def accountant(report: TraceFacts) -> str:
    """ε of the schedule."""
    run, epsilon = report.run, report.epsilon
    claimed = "" if report.claimed_epsilon is None else f" The run claims ε = {number(report.claimed_epsilon)}."
    if epsilon is None:
        return no_mechanism(report, claimed)
    numbers = epsilon_of(report, epsilon) + claimed
    presupposed = report.mechanism.assumed
    if claimed:
        presupposed += f"; the ε that is claimed is for {ADJACENCY[epsilon.adjacency]} adjacency, too"
    if run.unknown:
        return Finding(
            f"The accountant: these are {run.words}. The noise of {run.alone} alone gives {numbers}",
            verdict=(
                "That alone is above the claim."
                if report.above_claim
                else f"The run's ε is not known, and may be far above: {run.unknown}."
            ),
            assumes=f"each recorded step clipped every row and added the recorded noise; {presupposed}.",
        )
    what = "noise over the run's" if run.partial else "recorded noise over"
    return Finding(
        f"The accountant: the {what} {counted(run.steps, 'step')} gives {numbers}"
        + (f" Of these steps {run.others}." if run.partial else ""),
        verdict=(
            "The schedule is above the claim."
            if report.above_claim
            else f"Not decided: {report.undecided}."
            if report.undecided
            else claim_too_low
            if (claim_too_low := below_lower(epsilon, report.mechanism))
            else "Quote ε together with its δ and its adjacency."
            if math.isfinite(float(epsilon.value))
            else "No finite ε holds: nothing is guaranteed."
        ),
        assumes=f"each step clipped every row and added the recorded noise; {presupposed}.",
    )


def reconstruction(report: TraceFacts) -> str:
    """Naming a row among equally likely ones: what none can beat, what was reached."""
    run = report.run
    limits = [b for b in report.reconstruction if b is not None]
    if not limits:
        return measured_reconstruction(report)
    parts = [f"{percent(b)} among {p:,}" for p, b in zip(report.candidate_counts, limits, strict=True)]
    likely, after = "equally likely candidates", ""
    if run.unknown:
        likely, after = f"candidates that were equally likely before {run.alone}", " after them"
    said = (
        f"Reconstruction: an attacker knows every row but one, and that the missing row is one of several {likely}. No "
        f"attacker names it{after} with a probability above {' and '.join(parts)} "
        f"({guarantee(limits[0])})."
    )
    if all(m is None for m in report.named):
        if not report.recognised:
            return said + (
                " No member was recognised in a batch (inputs are transformed on the way, or none was sampled), so the "
                "attack could not be measured."
            )
        return said + " There were no non-members to compare with, so the attack could not be measured."
    compared, picked = report.names(), for_picked(report.lift)
    reached, missing = [], ""
    for p, m, b in zip(report.candidate_counts, report.named, limits, strict=True):
        if m is None:
            missing = f" Naming one of {p:,} takes {p - 1:,} non-members: not measured."
        else:
            against = f"; compared with {percent(report.held(float(b.value)), 'upper')}" if picked else ""
            reached.append(f"{percent(m)} among {p:,} ({interval(m)}{against})")
    bounds = f" Rates are compared with bounds{picked}." if picked else ""
    where = f"In {run.alone}" if run.partial else "On this run"
    below = f"{'Not above' if picked else 'Below'} the bound{picked}: nothing contradicts the schedule."
    return Finding(
        f"{said} {where} the prior-aware attack named {' and '.join(reached)} (estimate, "
        f"{100 * report.confidence:g}% intervals, {report.statistic}).{bounds}{missing}",
        verdict=standing(compared) or (below if compared else f"Not compared with the bounds: {report.incomparable}."),
        assumes="the attacker knows every other row and every batch, and members and non-members are alike. The "
        "intervals treat rows as independent; they do not count the noise that all rows of one run share.",
    )


def membership(report: TraceFacts) -> str:
    """Telling members from others."""
    if report.area is None:
        return "Membership: not measured; candidates must hold members and non-members."
    bound = "bound" if report.incomparable else "no attacker beats"
    rates = [
        f"{percent(m)} of the members ({interval(m)}) at {percent(f)} false positives"
        + ("" if b is None else f" ({bound} {percent(report.held(b), 'upper')})")
        for f, m, b in report.rates()
        if m is not None
    ]
    area = report.area
    sure, few = f"{100 * report.confidence:g}%", report.members + report.non_members
    picked = f"; the bounds are{for_picked(report.lift)}" if report.lift < 1 else ""
    picked += f"; not compared with the bounds: {report.incomparable}" if report.incomparable else ""
    return Finding(
        f"Membership: the test by {report.statistic} separates members from non-members with an area under the ROC "
        f"curve of {number(area, 3)} (estimate, {sure} interval {ends(area, 2)}). Guessing gives 0.5, "
        f"and reaches this much with p = {number(area.p_value, 2)} (one-sided Mann-Whitney)."
        + (f" The test recognises {'; '.join(rates)}; {sure} intervals{picked}." if rates else ""),
        verdict=" ".join(
            [
                f"At {sure}: These {few:,} candidates do not tell members from guessing."
                if not report.told
                else f"Members can be told from non-members at {sure}, if what is assumed holds; by this area "
                + (
                    "hardly better than by guessing."
                    if float(area.value) < 0.55
                    else "better than by guessing."
                    if float(area.value) < 0.75
                    else "in most cases."
                ),
                *([said] if (said := standing(report.tells())) else []),
            ]
        ),
        assumes="members and non-members come from the same distribution. The intervals treat rows as independent; "
        "they count the threshold's own uncertainty, but not the noise that all rows of one run share.",
    )


def proof(report: TraceFacts) -> str:
    """What guesses at coins prove from below."""
    tested = "schedule" if report.claimed_epsilon is None else "claim"
    if report.audited is None:
        return Finding(
            "What is proved: no lower bound on ε. One run proves one only if a fair coin of its own "
            "decided for each candidate whether it was trained on; then pass coins=True.",
            verdict=f"The {tested} was not tested by this run; the bounds above follow from its settings alone.",
        )
    proved = float(report.audited.value)
    if math.isinf(report.claim) and report.unknown:
        verdict = "The run's ε is not known, and none is claimed: there is nothing to compare this with."
    elif not report.tests_claim:
        verdict = (
            f"It is for adding or removing a row, the {'claim' if report.epsilon is None else 'ε above'} for another "
            "relation: the two are not compared. Divide by a constant, draw the coins before, and record with "
            "divisor='constant': then they are."
        )
    elif report.between:
        verdict = (
            f"More than is claimed, at {100 * report.confidence:g}%; at the gate's {100 * GATE:g}% it is not: record "
            "more candidates, or another run."
        )
    elif proved > report.claim:
        verdict = f"More than is claimed, at the gate's {100 * GATE:g}%, if what is assumed holds: {report.broken}."
    elif report.untested and report.ceiling is not None:
        verdict = (
            f"{report.members} members and {report.non_members} non-members chosen by coins prove at most ε = "
            f"{number(report.ceiling, kind='upper')} at the gate's confidence of {100 * GATE:g}%, even if every guess "
            f"is right: they could not have contradicted the {tested}."
        )
    elif proved <= 0:
        verdict = f"At {100 * report.confidence:g}% nothing is proved, which does not prove privacy."
    else:
        less = "the schedule gives" if report.claimed_epsilon is None else "is claimed"
        verdict = f"At {100 * report.confidence:g}% less than {less}: nothing contradicts it, and nothing confirms it."
    own = ""
    if report.own_curve is not None:
        own = (
            f" If only the noise multiplier of the schedule is in doubt, they prove "
            f"{proved_words(report.own_curve, report.delta)}. {report.if_it_ran()}."
        )
    return Finding(
        f"What is proved: {proved_words(report.audited, report.delta)}, from guesses at "
        f"{report.members + report.non_members} coins in one run. The "
        f"bound is valid, but rarely tight.{own}",
        verdict=verdict,
        assumes="a fair coin of its own decided for each candidate whether it was trained on.",
    )


def cards(report: TraceFacts) -> tuple[Card, Card, Card, Card]:
    """The four numbers, in the order of `QUESTIONS`; a number that the recorded steps do not give is called unknown."""
    run, upper = report.run, report.reconstruction[-1]
    if report.unknown or upper is None or report.epsilon is None:
        unknown = f"The recorded steps alone do not tell: {report.unknown}."
        bound = Card(question=BEATS, absent="not known", detail=unknown)
        epsilon = Card(question=EPSILON, absent="not known", detail=unknown)
    else:
        size = report.num_candidates
        bound = card(
            BEATS,
            upper,
            percent(upper),
            f"The probability of naming a training row among {size:,} equally likely candidates; guessing reaches "
            f"{percent(1 / size)}.",
        )
        epsilon = epsilon_card(
            report.epsilon, report.delta, f"the accountant's ε of the run's {counted(run.steps, 'step')}."
        )
    return bound, _reached(report), _proved(report), epsilon


def _reached(report: TraceFacts) -> Card:
    where = "in the recorded steps" if report.run.partial else "on this run"
    measured = [(size, m) for size, m in zip(report.candidate_counts, report.named, strict=True) if m is not None]
    if measured:
        size, best = measured[-1]
        return card(
            REACHED,
            best,
            percent(best),
            f"The share of rows named among {size:,} candidates {where}.",
            interval=interval(best),
        )
    if report.area is not None:
        return card(
            REACHED,
            report.area,
            number(report.area, 3),
            f"Area under the ROC curve of the membership test {where}: 0.5 is guessing, 1 is perfect.",
            interval=ends(report.area, 2),
        )
    why = (
        "The candidates hold no non-members to compare with."
        if report.recognised
        else "No member was recognised in a batch: inputs are transformed on the way, or none was sampled."
    )
    return Card(question=REACHED, absent="not measured", detail=why)


def _proved(report: TraceFacts) -> Card:
    if report.audited is None:
        return Card(
            question=PROVED,
            detail="One run proves a lower bound on ε only if a fair coin decided for each candidate whether it was "
            "trained on.",
        )
    coins = report.members + report.non_members
    return proof_card(report.audited, report.delta, f"from guesses at {coins:,} coins in one run.")


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
    from leakcore.audit.shared.plots import roc_svg

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


_SETTINGS = (
    "delta",
    "claimed_epsilon",
    "confidence",
    "coins",
    "num_candidates",
    "steps",
    "noise_multiplier",
    "max_grad_norm",
    "sample_rate",
    "mechanism",
    "run",
    "batch_rows",
    "members",
    "non_members",
    "members_given",
    "recognised",
    "statistic",
)
_RESULTS = (
    "epsilon",
    "epsilon_replace",
    "candidate_counts",
    "reconstruction",
    "named",
    "membership",
    "at_fpr",
    "found_at_fpr",
    "roc",
    "area",
    "audited",
    "gate",
    "ceiling",
    "own_curve",
    "exposed",
    "picked",
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TraceReport(TraceFacts):
    """The report of `audit.from_trace`.

    `noise_multiplier`, `max_grad_norm`, `sample_rate` and `batch_rows` are about the recorded steps. `epsilon`,
    `epsilon_replace`, `reconstruction`, `membership` and `at_fpr` are about the whole run; if that is not known
    (`undecided`), they are about the recorded steps alone, and their notes say so. `named`, `found_at_fpr` and `area`
    are estimates on this run's candidates, with finite-sample intervals for rows drawn independently. `audited`,
    `gate`, `ceiling` and `own_curve` exist only if coins decided the members.
    """

    schema: ClassVar[str] = "leakcore.trace-audit/2"
    setting_names: ClassVar[tuple[str, ...]] = _SETTINGS
    result_names: ClassVar[Mapping[str, str]] = {name: name for name in _RESULTS}

    @property
    def word(self) -> str:
        if self.passed is None:
            return (
                "Not judged: how batches were drawn is not known."
                if self.mechanism.missing
                else "Not judged: a part of the run is known."
                if self.run.unknown
                else "Not judged: the claim lies where nothing is proved."
            )
        if self.passed and any(c.odd for c in (*self.names(), *self.tells())):
            return "Above a bound: check."
        if self.passed and self.between:
            return f"Above its claim at {100 * self.confidence:g}%, not at {100 * GATE:g}%: check."
        if self.passed and self.epsilon is not None and math.isinf(float(self.epsilon.value)):
            return "No privacy guarantee."
        if self.passed and self.claimed_epsilon is None:
            return "Measured."
        if self.passed and (self.audited is None or not self.tests_claim):
            return "Schedule within its claim; not tested."
        if self.passed and self.untested:
            return TOO_WEAK
        if self.passed and self.audited is not None and float(self.audited.value) <= 0:
            return NOTHING
        return super().word

    @property
    def title(self) -> str:
        return (
            f"recorded DP-SGD run: {self.run.words}, {self.mechanism.words}, C = {_span(self.max_grad_norm)}, σ = "
            f"{_span(self.noise_multiplier)}; {counted(self.members, 'member')} and "
            f"{counted(self.non_members, 'non-member')} watched"
        )

    def cards(self) -> tuple[Card, Card, Card, Card]:
        return cards(self)

    def verdict_sentences(self) -> list[str]:
        if self.contradictions:
            return self.contradictions
        bound, size = self.reconstruction[-1], self.num_candidates
        if bound is None or self.epsilon is None:
            return [f"No ε and no bound of the run follow: {self.unknown}.", f"{self.mechanism.remedy}."]
        epsilon = f"ε = {number(self.epsilon)} at δ = {power(self.delta)} ({guarantee(self.epsilon)})"
        if self.run.unknown:
            said = [
                f"These are {self.run.words}, and no bound of the run follows: {self.unknown}.",
                f"{self._capital_alone} alone have {epsilon}.",
            ]
        else:
            steps = f", over {counted(self.run.steps, 'step')}, {self.run.recorded:,} of them recorded"
            bounded = (
                f"The run has {epsilon}{steps * self.run.partial}: no attacker who holds a prior of {size} candidates "
                f"names a training row with probability above {percent(bound)}."
            )
            said = [bounded, *([f"Not judged: {self.undecided}."] if self.undecided else [])]
            if warned := below_lower(self.epsilon, self.mechanism):
                said.append(warned)
        odd = [c.said() for c in (*self.names(), *self.tells()) if c.odd]
        rates = zip(self.candidate_counts, self.named, self.reconstruction, strict=True)
        measured = [(p, m, b) for p, m, b in rates if m is not None and b is not None]
        if measured:
            among, best, upper = measured[-1]
            whose = "" if among == size and not self.run.unknown else f", among {among},"
            where = " in the recorded steps" if self.run.partial else ""
            limit = percent(self.held(float(upper.value)), "upper")
            against = f", compared with {limit}{for_picked(self.lift)}" if self.lift < 1 else ""
            said.append(
                f"For comparison, the attack on this run's candidates{where}{whose} reached "
                f"{self._estimate(best)}{against}."
            )
        return [*said, *odd]

    @property
    def _capital_alone(self) -> str:
        return self.run.alone.replace("the", "The", 1)

    def _estimate(self, measured: Measured) -> str:
        return f"{percent(measured)} (estimate, {100 * self.confidence:g}% interval {interval(measured)})"

    def findings(self) -> list[str]:
        return findings(self)

    def tables(self) -> dict[str, Table]:
        tables = {"attacks": attacks_table(self)}
        if self.exposed:
            tables["exposed"] = exposed_table(self)
        return tables

    def sections(self) -> tuple[page.Section, ...]:
        tables = self.tables()
        figure = None
        if self.roc is not None and self.membership is not None:
            figure = roc_figure(self, self.membership, self.roc, membership(self))
        sections = [page.Section("Attacks compared with their bounds", (tables["attacks"],), figure)]
        if "exposed" in tables:
            sections.append(page.Section("Most exposed members", (tables["exposed"],)))
        return tuple(sections)

    def assumptions(self) -> list[str]:
        chosen = (
            "Each candidate was trained on, or not, by its own fair coin, independent of everything else."
            if self.coins
            else "Members and non-members among the candidates come from the same distribution; nothing is proved of "
            "this from below."
        )
        sentence = (
            "Which candidates are members is as the caller said."
            if self.members_given
            else "A candidate counts as a member if it turned up in a recorded batch, and as none otherwise."
            if self.incomparable
            else "A candidate counts as a member if it turned up in a batch; one that sampling never picked counts as "
            "none. Rates are compared with bounds divided by the probability that sampling picks a row, "
            f"{percent(self.picked)}."
        )
        mechanism = "The optimizer clipped each sample and added the noise that its settings say"
        if self.mechanism.missing:
            mechanism += "."
        else:
            mechanism += f"; {self.mechanism.assumed}. The bounds are statements about that mechanism."
        run = "The run is what was trained up to the end of the recording: training on makes ε and every bound larger."
        if self.run.partial and not self.run.unknown:
            run = f"ε and bounds are of {counted(self.run.steps, 'step')}: {self.run.others}. {run}"
        attacker = (
            "The attacker knows all rows but the candidate in question and which of them were in each batch, and sees "
            "every noisy gradient and every model."
            + (f" Adjacency: {ADJACENCY[self.mechanism.adjacency]}." if self.mechanism.adjacency else "")
        )
        gate = (
            f"A claim is contradicted by the schedule's ε, or by what coins prove at {100 * GATE:g}%: chance does that "
            f"to a correct run with probability at most {1 - GATE:.1g}. A limit (fail_above) is compared with each ε "
            f"printed next to it, what coins prove at {100 * self.confidence:g}% among them: chance lifts that above "
            f"the ε of a correct run with probability at most {1 - self.confidence:.2g}."
            if self.coins
            else "A claim, and a limit (fail_above), are compared with the schedule's ε alone: no coins, no proof."
        )
        rates = "A rate above its bound fails nothing: one run's noise lifts the rates of all candidates together."
        return [
            mechanism,
            run,
            attacker,
            sentence,
            chosen,
            "Candidates' gradients were taken without dropout.",
            f"{gate} {rates}",
        ]


def _span(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{low:.4g}" if low == high else f"{low:.4g}–{high:.4g}"
