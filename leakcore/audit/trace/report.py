"""The report on a recorded training run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from leakcore.audit.report import page
from leakcore.audit.report.cards import Card
from leakcore.audit.report.format import ADJACENCY, counted, guarantee, interval, number, percent, power
from leakcore.audit.report.report import GATE, NOTHING, TOO_WEAK
from leakcore.audit.report.tables import Table
from leakcore.audit.trace.cards import cards
from leakcore.audit.trace.facts import TraceFacts
from leakcore.audit.trace.findings import findings, membership
from leakcore.audit.trace.mechanism_said import below_lower
from leakcore.audit.trace.rates import Measured, for_picked
from leakcore.audit.trace.tables import attacks_table, exposed_table, roc_figure

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
