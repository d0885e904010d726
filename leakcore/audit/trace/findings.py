"""What the report on a recorded run says, in sentences: the accountant, what attacks reached, what is proved."""

from __future__ import annotations

import math

from leakcore.audit.report.format import ADJACENCY, counted, ends, guarantee, interval, number, percent
from leakcore.audit.report.format import proved as proved_words
from leakcore.audit.report.page import Finding
from leakcore.audit.report.report import GATE
from leakcore.audit.trace.facts import TraceFacts
from leakcore.audit.trace.mechanism_said import below_lower, epsilon_of, measured_reconstruction, no_mechanism
from leakcore.audit.trace.rates import for_picked, standing


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
