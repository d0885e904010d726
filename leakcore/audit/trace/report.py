"""The report on a recorded training run, in words, tables and a figure."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from leakcore._base.results import Result
from leakcore.audit.shared import elements
from leakcore.audit.shared.elements import (
    BEATS,
    EPSILON,
    PROVED,
    REACHED,
    Card,
    Finding,
    Table,
    card,
    epsilon_card,
    heads,
    proof_card,
    row_of,
    table_of,
)
from leakcore.audit.shared.format import (
    ADJACENCY,
    above,
    chance,
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
from leakcore.audit.shared.format import above_claim as above_claim_text
from leakcore.audit.shared.format import proved as proved_text
from leakcore.audit.shared.report import GATE, between_levels, headline_of, names, same_names
from leakcore.audit.trace.measure import Measured
from leakcore.audit.trace.numbers import Compared, TraceNumbers, levels
from leakcore.audit.trace.recorded_run import MechanismChoice

_INDEPENDENT = (
    "the attacker knows every other row and every batch, and members and non-members are alike. The intervals treat "
    "rows as independent; they do not count the noise that all rows of one run share."
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TraceReport(TraceNumbers):
    """The report of `audit.from_trace`.

    `noise_multiplier`, `max_grad_norm`, `sample_rate` and `batch_rows` are about the recorded steps. `epsilon`,
    `epsilon_replace`, `reconstruction`, `membership` and `at_fpr` are about the whole run; if that is not known
    (`undecided`), they are about the recorded steps alone, and their notes say so. `named`, `found_at_fpr` and `area`
    are estimates on this run's candidates, with finite-sample intervals for rows drawn independently. `audited`,
    `gate`, `ceiling` and `own_curve` exist only if coins decided the members.
    """

    schema: ClassVar[str] = "leakcore.trace-audit/2"
    setting_names: ClassVar[tuple[str, ...]] = names(
        "delta claimed_epsilon confidence coins num_candidates steps noise_multiplier max_grad_norm sample_rate "
        "mechanism run batch_rows members non_members members_given recognised statistic"
    )
    result_names: ClassVar[Mapping[str, str]] = same_names(
        "epsilon epsilon_replace candidate_counts reconstruction named membership at_fpr found_at_fpr roc area audited "
        "gate ceiling own_curve exposed picked"
    )

    def kept_headline(self) -> str:
        if self.passed is None:
            if self.mechanism.missing:
                return "Not judged: how batches were drawn is not known."
            partly = "a part of the run is known" if self.run.unknown else "the claim lies where nothing is proved"
            return f"Not judged: {partly}."
        if any(c.odd for c in (*self.names(), *self.tells())):
            return "Above a bound: check."
        if self.between:
            return between_levels(self.confidence)
        if self.epsilon is not None and math.isinf(float(self.epsilon.value)):
            return "No privacy guarantee."
        if self.claimed_epsilon is None:
            return "Measured."
        if self.audited is None or not self.tests_claim:
            return "Schedule within its claim; not tested."
        return headline_of(self.audited, untested=self.untested)

    @property
    def title(self) -> str:
        return (
            f"recorded DP-SGD run: {self.run.words}, {self.mechanism.words}, C = {_span(self.max_grad_norm)}, σ = "
            f"{_span(self.noise_multiplier)}; {counted(self.members, 'member')} and "
            f"{counted(self.non_members, 'non-member')} watched"
        )

    @property
    def contradictions(self) -> list[str]:
        out = []
        if self.above_claim and self.claimed_epsilon is not None and self.epsilon is not None:
            epsilon, claimed = above_claim_text(self.epsilon, self.claimed_epsilon, bracketed=self.mechanism.bracketed)
            schedule = "The schedule that was recorded"
            if self.run.partial:
                schedule = f"The schedule of the run's {counted(self.run.steps, 'step')}"
            if self.run.unknown:
                schedule = f"The noise of {self.run.alone} alone"
            out.append(f"{schedule} gives ε = {epsilon} ({guarantee(self.epsilon)}), above the claimed {claimed}.")
        if self.above_gate and self.gate is not None:
            proved, claimed = above(self.gate, self.claim)
            out.append(
                f"Guesses at the coins prove ε ≥ {proved} ({guarantee(self.gate)}), above the claimed {claimed}: "
                f"{'the run' if self.unknown else 'the mechanism'} does not do what its "
                f"{'claim' if self.unknown else 'schedule'} says, unless an assumption of the audit fails."
            )
        if self.refuted:
            out.append(
                f"{_if_it_ran(self)}: the mechanism does not do what its schedule says, unless an assumption fails."
            )
        return out

    def judged(self) -> tuple[elements.Judged, ...]:
        schedule = f"the run's {counted(self.run.steps, 'step')}" if self.run.partial else "the recorded schedule"
        schedule = f"{self.run.alone} alone" if self.run.unknown else schedule
        named = (
            (f"the accountant's ε of {schedule}", self.epsilon),
            ("the ε that guesses at the coins prove", self.audited),
        )
        return tuple(elements.judged(what, epsilon) for what, epsilon in named if epsilon is not None)

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
                f"{self.run.alone.replace('the', 'The', 1)} alone have {epsilon}.",
            ]
        else:
            steps = f", over {counted(self.run.steps, 'step')}, {self.run.recorded:,} of them recorded"
            bounded = (
                f"The run has {epsilon}{steps * self.run.partial}: no attacker who holds a prior of {size} candidates "
                f"names a training row with probability above {percent(bound)}."
            )
            said = [bounded]
            said += [f"Not judged: {self.undecided}."] if self.undecided else []
            said += [warned] if (warned := _below_lower(self.epsilon, self.mechanism)) else []
        rates = zip(self.candidate_counts, self.named, self.reconstruction, strict=True)
        measured = [(p, m, b) for p, m, b in rates if m is not None and b is not None]
        if measured:
            among, best, upper = measured[-1]
            whose = "" if among == size and not self.run.unknown else f", among {among},"
            where = " in the recorded steps" if self.run.partial else ""
            limit = percent(self.scaled_bound(float(upper.value)), "upper")
            against = f", compared with {limit}{_for_picked(self.lift)}" if self.lift < 1 else ""
            said.append(
                f"For comparison, the attack on this run's candidates{where}{whose} reached {percent(best)} (estimate, "
                f"{100 * self.confidence:g}% interval {interval(best)}){against}."
            )
        return [*said, *(_standing(self, [c]) for c in (*self.names(), *self.tells()) if c.odd)]

    def cards(self) -> tuple[Card, Card, Card, Card]:
        upper = self.reconstruction[-1]
        if self.unknown or upper is None or self.epsilon is None:
            unknown = f"The recorded steps alone do not tell: {self.unknown}."
            bound = Card(question=BEATS, absent="not known", detail=unknown)
            epsilon = Card(question=EPSILON, absent="not known", detail=unknown)
        else:
            among = f"among {self.num_candidates:,} equally likely candidates"
            guessing = f"guessing reaches {percent(1 / self.num_candidates)}."
            bound = card(BEATS, upper, percent(upper), f"The probability of naming a training row {among}; {guessing}")
            accountant = f"the accountant's ε of the run's {counted(self.run.steps, 'step')}."
            epsilon = epsilon_card(self.epsilon, self.delta, accountant)
        return bound, _reached_card(self), _proved_card(self), epsilon

    def findings(self) -> list[str]:
        out = [_accountant(self), _reconstruction(self), _membership(self), _proof(self)]
        return [*out, _most_exposed(self)] if self.exposed else out

    def tables(self) -> dict[str, Table]:
        exposed = {"exposed": _exposed_table(self)} if self.exposed else {}
        return {"attacks": _attacks_table(self), **exposed}

    def figures(self) -> dict[str, elements.Figure]:
        curve, measured = self.membership, self.roc
        return {} if curve is None or measured is None else {"attacks": _roc_figure(self, curve, measured)}

    def assumptions(self) -> list[str]:
        mechanism = "The optimizer clipped each sample and added the noise that its settings say"
        if not self.mechanism.missing:
            mechanism += f"; {self.mechanism.assumed}. The bounds are statements about that mechanism"
        run = "The run is what was trained up to the end of the recording: training on makes ε and every bound larger."
        if self.run.partial and not self.run.unknown:
            run = f"ε and bounds are of {counted(self.run.steps, 'step')}: {self.run.others}. {run}"
        attacker = (
            "The attacker knows all rows but the candidate in question and which of them were in each batch, and sees "
            "every noisy gradient and every model."
            + (f" Adjacency: {ADJACENCY[self.mechanism.adjacency]}." if self.mechanism.adjacency else "")
        )
        members = (
            "Which candidates are members is as the caller said."
            if self.members_given
            else "A candidate counts as a member if it turned up in a recorded batch, and as none otherwise."
            if self.incomparable
            else "A candidate counts as a member if it turned up in a batch; one that sampling never picked counts as "
            "none. Rates are compared with bounds divided by the probability that sampling picks a row, "
            f"{percent(self.picked)}."
        )
        chosen = (
            "Each candidate was trained on, or not, by its own fair coin, independent of everything else."
            if self.coins
            else "Members and non-members among the candidates come from the same distribution; nothing is proved of "
            "this from below."
        )
        gate = (
            f"A claim is contradicted by the schedule's ε, or by what coins prove at {100 * GATE:g}%: chance does that "
            f"to a correct run with probability at most {1 - GATE:.1g}. A limit (fail_above) is compared with each ε "
            f"printed next to it, what coins prove at {100 * self.confidence:g}% among them: chance lifts that above "
            f"the ε of a correct run with probability at most {1 - self.confidence:.2g}."
            if self.coins
            else "A claim, and a limit (fail_above), are compared with the schedule's ε alone: no coins, no proof."
        )
        return [
            f"{mechanism}.",
            run,
            attacker,
            members,
            chosen,
            "Candidates' gradients were taken without dropout.",
            f"{gate} A rate above its bound fails nothing: one run's noise lifts the rates of all candidates together.",
        ]


def _span(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{low:.4g}" if low == high else f"{low:.4g}–{high:.4g}"


def _for_picked(lift: float) -> str:
    """The words that must accompany a bound that was divided by `lift`; empty if it was not."""
    return f" for members that sampling picked (bound / {percent(lift)})" if lift < 1 else ""


def _standing(report: TraceNumbers, compared: list[Compared]) -> str:
    """Sentences about rates above their bounds; empty if there are none."""
    said = []
    for c in (c for c in compared if c.above):
        sure = f"{100 * (c.rate.confidence or 0):g}%"
        rate = f"{c.what}: {percent(c.rate)} is above the bound {percent(c.bound, 'upper')}{_for_picked(report.lift)}"
        said.append(
            f"{rate}, and so is the whole {sure} interval {interval(c.rate)}, which takes rows as independent: one "
            "run's noise may lift all of them, the more so the fewer directions their gradients have"
            f"{'' if report.coins else ', and so may members and non-members that are not alike'}. Check the loop, σ "
            "and the sampling; record another run; a proof needs members chosen by coins."
            if c.odd
            else f"{rate} by chance: with {report.members} members and {report.non_members} non-members the {sure} "
            f"interval is {interval(c.rate)}."
        )
    return " ".join(said)


def _if_it_ran(report: TraceNumbers) -> str:
    """How likely the guesses are under the run's own schedule."""
    own = report.own_curve
    assert own is not None
    assert own.p_value is not None
    return (
        f"Under {own.family}, guesses at the coins would be right at least this often with probability at most "
        f"{chance(own.p_value)}"
    )


def _below_lower(epsilon: Result, mechanism: MechanismChoice) -> str:
    """A warning where Poisson accounting claims less than what is proved from below; else empty."""
    claimed = claim_of(epsilon)
    if claimed is None or epsilon.interval is None or not mechanism.lower_holds:
        return ""
    low = float(epsilon.interval[0])
    if claimed >= low:
        return ""
    limit = number(low, kind="lower")
    return f"Do not quote the ε of Poisson accounting, {number(claimed)}: it lies below the lower limit {limit}."


def _reached_card(report: TraceNumbers) -> Card:
    where = "in the recorded steps" if report.run.partial else "on this run"
    measured = [(size, m) for size, m in zip(report.candidate_counts, report.named, strict=True) if m is not None]
    if measured:
        size, best = measured[-1]
        detail = f"The share of rows named among {size:,} candidates {where}."
        return card(REACHED, best, percent(best), detail, interval=interval(best))
    if report.area is not None:
        detail = f"Area under the ROC curve of the membership test {where}: 0.5 is guessing, 1 is perfect."
        return card(REACHED, report.area, number(report.area, 3), detail, interval=ends(report.area, 2))
    why = (
        "The candidates hold no non-members to compare with."
        if report.recognised
        else "No member was recognised in a batch: inputs are transformed on the way, or none was sampled."
    )
    return Card(question=REACHED, absent="not measured", detail=why)


def _proved_card(report: TraceNumbers) -> Card:
    if report.audited is None:
        return Card(
            question=PROVED,
            detail="One run proves a lower bound on ε only if a fair coin decided for each candidate whether it was "
            "trained on.",
        )
    coins = report.members + report.non_members
    return proof_card(report.audited, report.delta, f"from guesses at {coins:,} coins in one run.")


def _epsilon_text(report: TraceNumbers, epsilon: Result) -> str:
    """ε with its guarantee and, of a bracket, with both ends and with what Poisson accounting would print."""
    said = f"ε = {number(epsilon)} at δ = {power(report.delta)} ({guarantee(epsilon)})"
    replaced = report.epsilon_replace
    if replaced is not None and epsilon.adjacency != "replace":
        said += f"; against replacing a row {number(replaced)} ({guarantee(replaced)})"
    if report.mechanism.bracketed and epsilon.interval is not None:
        low, high = (float(v) for v in epsilon.interval)
        if low < high:
            said += (
                f". Its limits are {number(low, kind='lower')} and {number(high, kind='upper')}: {ends_proved(epsilon)}"
                + ("" if report.mechanism.lower_holds else "; of this run the upper one alone is proved")
            )
    if (claimed := claim_of(epsilon)) is not None:
        said += f". Accounting as if batches were Poisson samples would print {number(claimed)}, which is not proved"
    return ". ".join([said, *report.mechanism.notes]) + "."


def _accountant(report: TraceNumbers) -> str:
    run, epsilon, choice = report.run, report.epsilon, report.mechanism
    claimed = "" if report.claimed_epsilon is None else f" The run claims ε = {number(report.claimed_epsilon)}."
    if epsilon is None:
        why = f"The accountant: no ε and no bounds, because no mechanism is named: {choice.missing}."
        return Finding(
            " ".join([why, *choice.notes]) + claimed,
            verdict=f"{choice.remedy}.",
            assumes="nothing of how batches were drawn; the accountant's own ε would be that of Poisson sampling.",
        )
    numbers = _epsilon_text(report, epsilon) + claimed
    assumed = choice.assumed
    if claimed:
        assumed += f"; the ε that is claimed is for {ADJACENCY[epsilon.adjacency]} adjacency, too"
    if run.unknown:
        unknown = f"The run's ε is not known, and may be far above: {run.unknown}."
        return Finding(
            f"The accountant: these are {run.words}. The noise of {run.alone} alone gives {numbers}",
            verdict="That alone is above the claim." if report.above_claim else unknown,
            assumes=f"each recorded step clipped every row and added the recorded noise; {assumed}.",
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
            if (claim_too_low := _below_lower(epsilon, choice))
            else "Quote ε together with its δ and its adjacency."
            if math.isfinite(float(epsilon.value))
            else "No finite ε holds: nothing is guaranteed."
        ),
        assumes=f"each step clipped every row and added the recorded noise; {assumed}.",
    )


def _reconstruction(report: TraceNumbers) -> str:
    """Naming a row among equally likely ones: what no attacker can beat, and what was reached."""
    run = report.run
    sure = f"{100 * report.confidence:g}% intervals, {report.statistic}"
    limits = [b for b in report.reconstruction if b is not None]
    named = [(p, m) for p, m in zip(report.candidate_counts, report.named, strict=True) if m is not None]
    if not limits:
        if not named:
            return "Reconstruction: no bound without a mechanism, and the attack could not be measured."
        reached = " and ".join(f"{percent(m)} among {p:,} ({interval(m)})" for p, m in named)
        return Finding(
            f"Reconstruction: no bound without a mechanism. The prior-aware attack named {reached} (estimate, {sure}).",
            verdict="Other attacks may reach more: without a bound nothing says how much.",
            assumes=_INDEPENDENT,
        )
    parts = [f"{percent(b)} among {p:,}" for p, b in zip(report.candidate_counts, limits, strict=True)]
    likely, after = "equally likely candidates", ""
    if run.unknown:
        likely, after = f"candidates that were equally likely before {run.alone}", " after them"
    said = (
        f"Reconstruction: an attacker knows every row but one, and that the missing row is one of several {likely}. No "
        f"attacker names it{after} with a probability above {' and '.join(parts)} ({guarantee(limits[0])})."
    )
    if not named:
        why = "No member was recognised in a batch (inputs are transformed on the way, or none was sampled)"
        why = "There were no non-members to compare with" if report.recognised else why
        return f"{said} {why}, so the attack could not be measured."
    compared, picked = report.names(), _for_picked(report.lift)
    reached_each, missing = [], ""
    for p, m, b in zip(report.candidate_counts, report.named, limits, strict=True):
        if m is None:
            missing = f" Naming one of {p:,} takes {p - 1:,} non-members: not measured."
        else:
            against = f"; compared with {percent(report.scaled_bound(float(b.value)), 'upper')}" if picked else ""
            reached_each.append(f"{percent(m)} among {p:,} ({interval(m)}{against})")
    bounds = f" Rates are compared with bounds{picked}." if picked else ""
    where = f"In {run.alone}" if run.partial else "On this run"
    below = f"{'Not above' if picked else 'Below'} the bound{picked}: nothing contradicts the schedule."
    return Finding(
        f"{said} {where} the prior-aware attack named {' and '.join(reached_each)} (estimate, {sure}).{bounds}"
        f"{missing}",
        verdict=_standing(report, compared)
        or (below if compared else f"Not compared with the bounds: {report.incomparable}."),
        assumes=_INDEPENDENT,
    )


def _membership(report: TraceNumbers) -> str:
    """Telling members from others."""
    area = report.area
    if area is None:
        return "Membership: not measured; candidates must hold members and non-members."
    bound = "bound" if report.incomparable else "no attacker beats"
    rates = [
        f"{percent(m)} of the members ({interval(m)}) at {percent(f)} false positives"
        + ("" if b is None else f" ({bound} {percent(report.scaled_bound(b), 'upper')})")
        for f, m, b in report.rates()
        if m is not None
    ]
    sure, few = f"{100 * report.confidence:g}%", report.members + report.non_members
    picked = f"; the bounds are{_for_picked(report.lift)}" if report.lift < 1 else ""
    picked += f"; not compared with the bounds: {report.incomparable}" if report.incomparable else ""
    verdict = f"At {sure}: These {few:,} candidates do not tell members from guessing."
    if report.is_detected:
        how = (
            "hardly better than by guessing."
            if float(area.value) < 0.55
            else "better than by guessing."
            if float(area.value) < 0.75
            else "in most cases."
        )
        verdict = f"Members can be told from non-members at {sure}, if what is assumed holds; by this area {how}"
    return Finding(
        f"Membership: the test by {report.statistic} separates members from non-members with an area under the ROC "
        f"curve of {number(area, 3)} (estimate, {sure} interval {ends(area, 2)}). Guessing gives 0.5, "
        f"and reaches this much with p = {number(area.p_value, 2)} (one-sided Mann-Whitney)."
        + (f" The test recognises {'; '.join(rates)}; {sure} intervals{picked}." if rates else ""),
        verdict=" ".join(filter(None, (verdict, _standing(report, report.tells())))),
        assumes="members and non-members come from the same distribution. The intervals treat rows as independent; "
        "they count the threshold's own uncertainty, but not the noise that all rows of one run share.",
    )


def _proof(report: TraceNumbers) -> str:
    """What guesses at coins prove from below."""
    tested = "schedule" if report.claimed_epsilon is None else "claim"
    if report.audited is None:
        return Finding(
            "What is proved: no lower bound on ε. One run proves one only if a fair coin of its own "
            "decided for each candidate whether it was trained on; then pass coins=True.",
            verdict=f"The {tested} was not tested by this run; the bounds above follow from its settings alone.",
        )
    proved, sure = float(report.audited.value), f"{100 * report.confidence:g}%"
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
            f"More than is claimed, at {sure}; at the gate's {100 * GATE:g}% it is not: record more candidates, or "
            "another run."
        )
    elif proved > report.claim:
        verdict = (
            f"More than is claimed, at the gate's {100 * GATE:g}%, if what is assumed holds: the run is not what its "
            f"{'claim' if report.unknown else 'schedule'} says."
        )
    elif report.untested and report.ceiling is not None:
        verdict = (
            f"{report.members} members and {report.non_members} non-members chosen by coins prove at most ε = "
            f"{number(report.ceiling, kind='upper')} at the gate's confidence of {100 * GATE:g}%, even if every guess "
            f"is right: they could not have contradicted the {tested}."
        )
    elif proved <= 0:
        verdict = f"At {sure} nothing is proved, which does not prove privacy."
    else:
        less = "the schedule gives" if report.claimed_epsilon is None else "is claimed"
        verdict = f"At {sure} less than {less}: nothing contradicts it, and nothing confirms it."
    own = ""
    if report.own_curve is not None:
        own = (
            f" If only the noise multiplier of the schedule is in doubt, they prove "
            f"{proved_text(report.own_curve, report.delta)}. {_if_it_ran(report)}."
        )
    return Finding(
        f"What is proved: {proved_text(report.audited, report.delta)}, from guesses at "
        f"{report.members + report.non_members} coins in one run. The bound is valid, but rarely tight.{own}",
        verdict=verdict,
        assumes="a fair coin of its own decided for each candidate whether it was trained on.",
    )


def _most_exposed(report: TraceNumbers) -> str:
    first, recorded = report.exposed[0], "recorded " * report.run.partial
    return Finding(
        f"Most exposed: candidate {first.candidate} was in "
        f"{counted(first.times_seen, f'{recorded}batch', f'{recorded}batches')}, its gradient was clipped in "
        f"{percent(first.clipped_share)} of the {recorded}steps, and it outscores {percent(first.beaten)} of the "
        "non-members.",
        verdict=(
            "Look at such rows first: a row that is unlike the others is the easiest to recognise."
            if report.is_detected
            else "Chance may have picked it: on these candidates the test does no better than guessing."
        ),
        assumes="another attack ranks the rows alike; a row chosen because it stands out has no guarantee.",
    )


def _attacks_table(report: TraceNumbers) -> Table:
    """Reconstruction for each prior, membership at each false-positive rate, next to their bounds."""

    def measured_and_bound(measured: Measured | None, bound: float | None) -> tuple[str | tuple[str, str], ...]:
        rate = "—" if measured is None else (percent(measured), interval(measured))
        if bound is None:
            return rate, "—"
        note = "" if report.lift == 1 else f"{percent(bound, 'upper')} / {percent(report.lift)}"
        return rate, (percent(report.scaled_bound(bound), "upper"), note)

    rows = [
        row_of(f"name a row among {n}", percent(1 / n), *measured_and_bound(m, None if b is None else float(b.value)))
        for n, b, m in zip(report.candidate_counts, report.reconstruction, report.named, strict=True)
    ]
    rows += [
        row_of(f"tell members, {percent(level)} false", percent(level), *measured_and_bound(m, limit))
        for level, m, limit in report.rates()
    ]
    run, choice = report.run, report.mechanism
    exact = "exact\nbound" if report.lift == 1 else "bound for\nrows picked"
    bound = (
        "bound of these\nsteps alone"
        if run.unknown
        else "upper\nbound"
        if choice.bracketed or choice.missing
        else exact
    )
    reached = "reached in\nrecorded steps" if run.partial else "reached on\nthis run"
    titles = heads("attack", "guessing", f"{reached} [estimate]", f"{bound} [upper]")
    relation = (
        "No bounds: no mechanism of the run is known."
        if choice.missing
        else f"{ADJACENCY[choice.adjacency].capitalize()} adjacency; bounds are deterministic."
    )
    caption = (
        f"{relation} Under each measured rate stands its own {100 * report.confidence:g}% interval, which treats rows "
        "as independent and does not count the noise that all rows of one run share."
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
            f" Members were recognised in batches, so each bound is{_for_picked(report.lift)}: below it the exact "
            "bound over the probability of being picked."
        )
    if any(measured is None for measured in (*report.named, *report.found_at_fpr)):
        caption += " —: too few candidates to measure, or none recognised."
    return Table("Attacks compared with their bounds", titles, tuple(rows), caption)


def _exposed_table(report: TraceNumbers) -> Table:
    return table_of(
        "Most exposed members",
        report.exposed,
        {
            "candidate": lambda e: str(e.candidate),
            "batches it\nwas in": lambda e: str(e.times_seen),
            "steps in which\nit was clipped [estimate]": lambda e: percent(e.clipped_share),
            "non-members\nit outscores [estimate]": lambda e: percent(e.beaten),
            "lead over the\nbest rival [estimate]": lambda e: f"{e.lead:+.3g}",
        },
        f"The members that stand out most, scored by {report.statistic}. They were chosen for that: no guarantee.",
    )


def _roc_figure(report: TraceNumbers, curve: Result, measured: tuple[np.ndarray, np.ndarray]) -> elements.Figure:
    """The test's ROC below the bound's curve that its rates are compared with."""
    from leakcore.audit.shared.plots import roc_svg

    sure, picked = f"{100 * report.confidence:g}% intervals", _for_picked(report.lift)
    alone = f"bound of {report.run.alone} alone" if report.run.unknown else ""
    svg = functools.partial(
        roc_svg,
        levels(curve),
        np.array([report.scaled_bound(float(b)) for b in np.atleast_1d(curve.value)]),
        measured,
        intervals=[
            (float(f), float(m.value), float(m.interval[0]), float(m.interval[1]))
            for f, m, _ in report.rates()
            if m is not None and m.interval is not None
        ],
        intervals_name=sure,
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
    return elements.Figure(
        svg=svg,
        alt="True-positive against false-positive rate of the membership test, "
        f"{'next to' if report.incomparable else 'below'} the curve of the bound; {_membership(report)}",
        caption=f"{upper} (upper, deterministic). The {'other' if alone else 'lower one'} is the test on this run's "
        f"candidates (estimate; bars: {sure}, which treat rows as independent and do not count the noise that they "
        f"share). {means}",
    )
