"""The report on a recorded training run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._results import Result, jsonable, require_same_adjacency
from leakcore.audit import _page
from leakcore.audit._format import above, counted, ends, guarantee, interval, number, percent, power
from leakcore.audit._page import Finding
from leakcore.audit._report import GATE, TOO_WEAK, AuditReport
from leakcore.audit._tables import Table
from leakcore.audit._trace_rates import Compared, Measured, Separation, for_picked, levels, lifted, standing

_SETTINGS = (
    "delta", "claimed_epsilon", "confidence", "coins", "prior_size", "steps", "noise_multiplier", "max_grad_norm",
    "sample_rate", "batch_rows", "members", "non_members", "members_given", "recognised", "statistic",
)  # fmt: skip
_RESULTS = (
    "epsilon", "epsilon_replace", "prior_sizes", "reconstruction", "named", "membership", "at_fpr", "found_at_fpr",
    "roc", "area", "audited", "gate", "ceiling", "exposed", "picked",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Exposure:
    """A member among the candidates that was in a batch. beaten: share of non-members that it outscores. lead: own
    score less the best rival's, in the statistic's units.
    """

    candidate: int
    times_seen: int
    clipped_share: float
    beaten: float
    lead: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TraceReport(AuditReport):
    """What `audit.from_trace` found; fields are its results, in the order of the report.

    named, found_at_fpr, area: estimates on this run's candidates with finite-sample intervals for rows drawn
    independently, None where there were too few to measure; area has the p-value of scores that say nothing.
    audited: the proved lower bound on ε, gate: the same at 99.9%, ceiling: the gate's of scores that tell
    every coin; None unless coins decided the members.
    """

    schema: ClassVar[str] = "leakcore.trace-audit/1"

    delta: float
    claimed_epsilon: float | None
    confidence: float
    coins: bool
    steps: int
    noise_multiplier: tuple[float, float]
    max_grad_norm: tuple[float, float]
    sample_rate: float
    batch_rows: float
    members: int
    non_members: int
    members_given: bool
    recognised: bool
    statistic: str
    epsilon: Result
    epsilon_replace: Result
    prior_sizes: tuple[int, ...]
    reconstruction: tuple[Result, ...]
    named: tuple[Measured | None, ...]
    membership: Result
    at_fpr: Result
    found_at_fpr: tuple[Measured | None, ...]
    roc: tuple[np.ndarray, np.ndarray] | None
    area: Separation | None
    audited: Result | None
    gate: Result | None
    ceiling: float | None
    exposed: tuple[Exposure, ...]

    @property
    def claim(self) -> float:
        """The ε that the run is held to, add/remove adjacency."""
        return float(self.epsilon.value) if self.claimed_epsilon is None else self.claimed_epsilon

    @property
    def told(self) -> bool:
        """Whether the test rejects, at 1 − confidence, that scores say nothing of who is a member."""
        return self.area is not None and self.area.p_value <= 1 - self.confidence

    @property
    def picked(self) -> float:
        """P(sampling picks a row at least once): members that were recognised in a batch are those rows alone, and a
        rate among them is at most its bound divided by this. 1 where the caller said who the members are.
        """
        if self.members_given or self.sample_rate == 1:
            return 1.0
        return -math.expm1(self.steps * math.log1p(-self.sample_rate))

    @property
    def lift(self) -> float:
        """What bounds are divided by before a measured rate is held against them: `picked`; 1 where nothing was
        measured, or where it differs from 1 by less than a printed digit.
        """
        return self.picked if self.area is not None and self.picked < 0.9999 else 1.0

    def held(self, bound: float) -> float:
        """The bound that a rate of this run's candidates is held against."""
        return lifted(bound, self.lift)

    @property
    def prior_size(self) -> int:
        """Candidates of the prior that was asked about."""
        return self.prior_sizes[-1]

    def _beside(self, what: str, found: Measured, bound: Any) -> Compared:
        return Compared(
            what=what, found=found, bound=float(bound), lift=self.lift, members=self.members,
            non_members=self.non_members, alike=self.coins,
        )  # fmt: skip

    def _names(self) -> list[Compared]:
        triples = zip(self.prior_sizes, self.named, self.reconstruction, strict=True)
        return [self._beside(f"Naming a row among {p}", m, b.value) for p, m, b in triples if m is not None]

    def _tells(self) -> list[Compared]:
        triples = zip(levels(self.at_fpr), self.found_at_fpr, np.atleast_1d(self.at_fpr.value), strict=True)
        return [
            self._beside(f"Telling members at {percent(f)} false positives", m, b) for f, m, b in triples
            if m is not None
        ]  # fmt: skip

    @property
    def word(self) -> str:
        if self.passed and any(c.odd for c in (*self._names(), *self._tells())):
            return "Above a bound: check."
        if self.passed and self._between:
            return f"Above its claim at {100 * self.confidence:g}%, not at {100 * GATE:g}%: check."
        if self.passed and math.isinf(float(self.epsilon.value)):
            return "No privacy guarantee."
        if self.passed and self.claimed_epsilon is None:
            return "Measured."
        if self.passed and self.audited is None:
            return "Schedule within its claim; not tested."
        if self.passed and self._untested:
            return TOO_WEAK
        return super().word

    @property
    def _between(self) -> bool:
        """Whether the claim is contradicted at `confidence`, but not at the gate's."""
        return self.audited is not None and not self.contradictions and float(self.audited.value) > self.claim

    @property
    def _untested(self) -> bool:
        """Whether so few coins could not have contradicted the claim."""
        return self.ceiling is not None and self.ceiling <= self.claim

    @property
    def title(self) -> str:
        batches = "full batches" if self.sample_rate == 1 else f"Poisson sampling q = {self.sample_rate:.4g}"
        return (
            f"recorded DP-SGD run: {counted(self.steps, 'step')}, {batches}, C = {_span(self.max_grad_norm)}, σ = "
            f"{_span(self.noise_multiplier)}; {counted(self.members, 'member')} and "
            f"{counted(self.non_members, 'non-member')} watched"
        )

    @property
    def contradictions(self) -> list[str]:
        found = []
        if self.claimed_epsilon is not None and float(self.epsilon.value) > self.claimed_epsilon * (1 + 1e-9):
            recorded, claimed = above(self.epsilon, self.claimed_epsilon, "upper")
            found.append(
                f"The schedule that was recorded gives ε = {recorded} ({guarantee(self.epsilon)}), above the claimed "
                f"{claimed}."
            )
        if self.gate is not None:
            require_same_adjacency(self.gate, self.epsilon)
            if float(self.gate.value) > self.claim:
                proved, claimed = above(self.gate, self.claim)
                found.append(
                    f"Guesses at the coins prove ε ≥ {proved} ({guarantee(self.gate)}), above the claimed {claimed}: "
                    "the mechanism does not do what its schedule says."
                )
        return found

    def judged(self) -> tuple[_page.Judged, ...]:
        said = [("the accountant's ε of the recorded schedule", self.epsilon)]
        if self.audited is not None:
            said.append(("the ε that guesses at the coins prove", self.audited))
        return tuple(_page.judged(what, found) for what, found in said)

    def verdict(self) -> str:
        if self.contradictions:
            return " ".join(self.contradictions)
        bound, size = self.reconstruction[-1], self.prior_size
        said = (
            f"The run is ε = {number(self.epsilon)} at δ = {power(self.delta)} ({guarantee(self.epsilon)}): no "
            f"attacker who holds a prior of {size} candidates names a training row with probability above "
            f"{percent(bound)}"
        )
        odd = [c.said() for c in (*self._names(), *self._tells()) if c.odd]
        shown = zip(self.prior_sizes, self.named, self.reconstruction, strict=True)
        measured = [(p, m, b) for p, m, b in shown if m is not None]
        if measured:
            among, best, beside = measured[-1]
            whose = "" if among == size else f", among {among},"
            said += f"; the attack on this run's candidates{whose} reached {self._estimate(best)}"
            if self.lift < 1:
                said += f", held against {percent(self.held(float(beside.value)), 'upper')}{for_picked(self.lift)}"
        return " ".join([f"{said}.", *odd])

    def _estimate(self, found: Measured) -> str:
        return f"{percent(found)} (estimate, {100 * self.confidence:g}% interval {interval(found)})"

    def findings(self) -> list[str]:
        out = [self._accountant(), self._reconstruction(), self._membership(), self._proof()]
        if self.exposed:
            first = self.exposed[0]
            out.append(
                Finding(
                    f"Most exposed: candidate {first.candidate} was in "
                    f"{counted(first.times_seen, 'batch', 'batches')}, its gradient was clipped in "
                    f"{percent(first.clipped_share)} of the steps, and it outscores {percent(first.beaten)} of the "
                    "non-members.",
                    verdict=(
                        "Look at such rows first: whoever is unlike the others is told apart most easily."
                        if self.told
                        else "Chance may have chosen it: these candidates are not told from guessing."
                    ),
                    assumes="other scores may rank rows otherwise; what was chosen for standing out has no guarantee.",
                )
            )
        return out

    def _accountant(self) -> str:
        claimed = "" if self.claimed_epsilon is None else f" The run claims ε = {number(self.claimed_epsilon)}."
        above = self.claimed_epsilon is not None and float(self.epsilon.value) > self.claimed_epsilon * (1 + 1e-9)
        return Finding(
            f"The accountant: the recorded noise over {counted(self.steps, 'step')} is ε = {number(self.epsilon)} at "
            f"δ = {power(self.delta)} ({guarantee(self.epsilon)}); against replacing a row "
            f"{number(self.epsilon_replace)} ({guarantee(self.epsilon_replace)}).{claimed}",
            verdict=(
                "The schedule is above the claim."
                if above
                else "Quote ε together with its δ and its adjacency."
                if math.isfinite(float(self.epsilon.value))
                else "No finite ε holds: nothing is guaranteed."
            ),
            assumes="each step clipped every row and added the recorded noise; batches were Poisson at that rate.",
        )

    def _reconstruction(self) -> str:
        parts = [f"{percent(b)} of {p}" for p, b in zip(self.prior_sizes, self.reconstruction, strict=True)]
        said = (
            "Reconstruction: knowing all rows but one, and that the missing one is among equally likely candidates, no "
            f"attacker names it more often than {', '.join(parts)} ({guarantee(self.reconstruction[0])})."
        )
        compared, picked = self._names(), for_picked(self.lift)
        if compared:
            reached, missing = [], ""
            for p, m, b in zip(self.prior_sizes, self.named, self.reconstruction, strict=True):
                if m is None:
                    missing = f" Naming one of {p:,} takes {p - 1:,} non-members: not measured."
                else:
                    beside = f"; held against {percent(self.held(float(b.value)), 'upper')}" if picked else ""
                    reached.append(f"{percent(m)} of {p} ({interval(m)}{beside})")
            bounds = f" Rates are held against bounds{picked}." if picked else ""
            return Finding(
                f"{said} On this run the prior-aware attack named {', '.join(reached)} (estimate, "
                f"{100 * self.confidence:g}% intervals, {self.statistic}).{bounds}{missing}",
                verdict=standing(compared)
                or f"{'Not above' if picked else 'Below'} the bound{picked}: nothing contradicts the schedule.",
                assumes="the attacker knows every other row and every batch; members and non-members are alike, and "
                "the intervals take rows as drawn independently: what the run's noise does to all of them is not in.",
            )
        if not self.recognised:
            return said + (
                " No member was recognised in a batch (inputs are transformed on the way, or none was sampled), so the "
                "attack could not be measured."
            )
        return said + " There were no non-members to compare with, so the attack could not be measured."

    def _membership(self) -> str:
        if self.area is None:
            return "Membership: not measured; candidates must hold members and non-members."
        compared = self._tells()
        rates = [
            f"{percent(m)} ({interval(m)}) at {percent(f)} false positives (no attacker beats "
            f"{percent(self.held(float(b)), 'upper')})"
            for f, m, b in zip(levels(self.at_fpr), self.found_at_fpr, np.atleast_1d(self.at_fpr.value), strict=True)
            if m is not None
        ]
        found = self.area
        sure, few = f"{100 * self.confidence:g}%", self.members + self.non_members
        picked = f"; the bounds are{for_picked(self.lift)}" if self.lift < 1 else ""
        return Finding(
            f"Membership: the test by {self.statistic} separates members from non-members with an area under the ROC "
            f"curve of {number(found, 3)} (estimate, {sure} interval {ends(found, 2)}; 0.5 is guessing, which "
            f"reaches this with p = {number(found.p_value, 2)}, one-sided Mann-Whitney)"
            + (f", and finds {'; '.join(rates)}; {sure} intervals{picked}." if rates else "."),
            verdict=" ".join([
                f"These {few:,} candidates do not tell members from guessing." if not self.told
                else "Members can be told from others, hardly better than guessing." if float(found.value) < 0.55
                else "Members can be told from others, better than guessing." if float(found.value) < 0.75
                else "Members can be told from others in most cases.",
                *([said] if (said := standing(compared)) else []),
            ]),
            assumes="members and non-members come from the same distribution; intervals take rows as drawn "
            "independently and count the threshold's own uncertainty, not the noise that all rows of one run share.",
        )  # fmt: skip

    def _proof(self) -> str:
        tested = "schedule" if self.claimed_epsilon is None else "claim"
        if self.audited is None:
            return Finding(
                "What is proved: nothing from below. One run proves a lower bound on ε only if a fair coin of its own "
                "decided for each candidate whether it was trained on; then pass coins=True.",
                verdict=f"The {tested} was not tested by this run; the bounds above follow from its settings alone.",
            )
        return Finding(
            f"What is proved: ε ≥ {number(self.audited, 3)} at δ = {power(self.delta)} "
            f"({guarantee(self.audited)}), from guesses at {self.members + self.non_members} coins in one run. It is "
            "valid, and rarely tight.",
            verdict=(
                f"More than is claimed, at {100 * self.confidence:g}%; at the gate's {100 * GATE:g}% it is not: record "
                "more candidates, or another run."
                if self._between
                else "More than is claimed: the run is not what its schedule says."
                if float(self.audited.value) > self.claim
                else f"{self.members} coins that fell in and {self.non_members} that fell out prove at most ε = "
                f"{number(self.ceiling, kind='upper')} at {100 * GATE:g}%, however well they are told apart: they "
                f"could not have contradicted the {tested}."
                if self._untested and self.ceiling is not None
                else f"Less than {'the schedule gives' if self.claimed_epsilon is None else 'is claimed'}: nothing "
                "contradicts it, and nothing confirms it."
            ),
            assumes="a fair coin of its own decided for each candidate whether it was trained on.",
        )

    def tables(self) -> dict[str, Table]:
        from leakcore.audit._trace_tables import attacks_table, exposed_table

        made = {"attacks": attacks_table(self)}
        if self.exposed:
            made["exposed"] = exposed_table(self)
        return made

    def sections(self) -> tuple[_page.Section, ...]:
        from leakcore.audit._trace_tables import roc_figure

        tables = self.tables()
        figure = None if self.roc is None else roc_figure(self, self.roc, self._membership())
        shown = [_page.Section("Attacks beside their bounds", (tables["attacks"],), figure)]
        if "exposed" in tables:
            shown.append(_page.Section("Most exposed members", (tables["exposed"],)))
        return tuple(shown)

    def assumptions(self) -> list[str]:
        chosen = (
            "Each candidate was trained on, or not, by its own fair coin, independent of everything else."
            if self.coins
            else "Members and non-members among the candidates come from the same distribution; nothing is proved of "
            "this from below."
        )
        told = (
            "Which candidates are members is as the caller said."
            if self.members_given
            else "A candidate counts as a member if it turned up in a batch; one that sampling never picked counts as "
            "none. Rates are held against bounds divided by the probability that sampling picks a row, "
            f"{percent(self.picked)}."
        )
        mechanism = (
            "The optimizer clipped each sample and added the noise that its settings say; batches were drawn by "
            f"Poisson sampling at q = {self.sample_rate:.6g}. The bounds are statements about that mechanism."
        )
        attacker = (
            "The attacker knows all rows but the candidate in question and which of them were in each batch, and sees "
            "every noisy gradient and every model. Adjacency: add/remove."
        )
        gate = (
            f"A claim is contradicted by the schedule's ε, or by what coins prove at {100 * GATE:g}%: chance does that "
            f"to a correct run with probability at most {1 - GATE:.1g}. A limit (fail_above) is held against each ε "
            f"printed beside it, what coins prove at {100 * self.confidence:g}% among them: chance lifts that above "
            f"the ε of a correct run with probability at most {1 - self.confidence:.2g}."
            if self.coins
            else "A claim, and a limit (fail_above), are held against the schedule's ε alone: no coins, no proof."
        )
        rates = "A rate above its bound fails nothing: one run's noise lifts the rates of all candidates together."
        return [
            mechanism,
            attacker,
            told,
            chosen,
            "Candidates' gradients were taken without dropout.",
            f"{gate} {rates}",
        ]

    def settings(self) -> dict[str, Any]:
        return {name: jsonable(getattr(self, name)) for name in _SETTINGS}

    def content(self) -> dict[str, Any]:
        return {name: jsonable(getattr(self, name)) for name in _RESULTS}


def _span(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{low:.4g}" if low == high else f"{low:.4g}–{high:.4g}"
