"""The report on a recorded training run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore._results import Result, jsonable, require_same_adjacency
from leakcore.audit import _page
from leakcore.audit._format import above, guarantee, interval, number, percent, power
from leakcore.audit._page import Finding
from leakcore.audit._report import AuditReport
from leakcore.audit._tables import Cell, Column, Row, Table
from leakcore.audit._trace_rates import GATE, Compared, Measured, Separation, standing

_SETTINGS = (
    "delta", "claimed_epsilon", "confidence", "coins", "steps", "noise_multiplier", "max_grad_norm", "sample_rate",
    "batch_rows", "members", "non_members", "members_given", "recognised", "statistic",
)  # fmt: skip
_RESULTS = (
    "epsilon", "epsilon_replace", "prior_sizes", "reconstruction", "named", "membership", "at_fpr", "found_at_fpr",
    "roc", "area", "audited", "gate", "exposed",
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
    audited: the proved lower bound on ε, gate: the same at 99.9%; None unless coins decided the members.
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

    def _beside(self, what: str, found: Measured, bound: Any) -> Compared:
        share = self.picked
        return Compared(
            what=what, found=found, bound=min(1.0, float(bound) / share) if share > 0 else 1.0, lifted=share < 0.999,
            members=self.members, non_members=self.non_members, alike=self.coins,
        )  # fmt: skip

    def _names(self) -> list[Compared]:
        triples = zip(self.prior_sizes, self.named, self.reconstruction, strict=True)
        return [self._beside(f"Naming a row among {p}", m, b.value) for p, m, b in triples if m is not None]

    def _tells(self) -> list[Compared]:
        triples = zip(_levels(self.at_fpr), self.found_at_fpr, np.atleast_1d(self.at_fpr.value), strict=True)
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
        return super().word

    @property
    def _between(self) -> bool:
        """Whether the claim is contradicted at `confidence`, but not at the gate's."""
        return self.audited is not None and not self.contradictions and float(self.audited.value) > self.claim

    @property
    def title(self) -> str:
        batches = "full batches" if self.sample_rate == 1 else f"Poisson sampling q = {self.sample_rate:.4g}"
        return (
            f"recorded DP-SGD run: {self.steps:,} steps, {batches}, C = {_span(self.max_grad_norm)}, σ = "
            f"{_span(self.noise_multiplier)}; {self.members} members and {self.non_members} non-members watched"
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
        bound, size = self.reconstruction[-1], self.prior_sizes[-1]
        said = (
            f"The run is ε = {number(self.epsilon)} at δ = {power(self.delta)} ({guarantee(self.epsilon)}): no "
            f"attacker who holds a prior of {size} candidates names a training row with probability above "
            f"{percent(bound)}"
        )
        odd = [c.said() for c in (*self._names(), *self._tells()) if c.odd]
        best = self.named[-1]
        if best is not None:
            said += f"; the attack on this run's candidates reached {self._estimate(best)}"
        return " ".join([f"{said}.", *odd])

    def _estimate(self, found: Measured) -> str:
        return f"{percent(found)} (estimate, {100 * self.confidence:g}% interval {interval(found)})"

    def findings(self) -> list[str]:
        out = [self._accountant(), self._reconstruction(), self._membership(), self._proof()]
        if self.exposed:
            first = self.exposed[0]
            out.append(
                Finding(
                    f"Most exposed: candidate {first.candidate} was in {first.times_seen} batches, its gradient was "
                    f"clipped in {percent(first.clipped_share)} of the steps, and it outscores "
                    f"{percent(first.beaten)} of the non-members.",
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
            f"The accountant: the recorded noise over {self.steps:,} steps is ε = {number(self.epsilon)} at δ = "
            f"{power(self.delta)} ({guarantee(self.epsilon)}); against replacing a row "
            f"{number(self.epsilon_replace)} ({guarantee(self.epsilon_replace)}).{claimed}",
            verdict=("The schedule is above the claim." if above else "Quote ε together with its δ and its adjacency."),
            assumes="each step clipped every row and added the recorded noise; batches were Poisson at that rate.",
        )

    def _reconstruction(self) -> str:
        parts = [f"{percent(b)} of {p}" for p, b in zip(self.prior_sizes, self.reconstruction, strict=True)]
        said = (
            "Reconstruction: knowing all rows but one, and that the missing one is among equally likely candidates, no "
            f"attacker names it more often than {', '.join(parts)} ({guarantee(self.reconstruction[0])})."
        )
        compared = self._names()
        if compared:
            reached = [
                f"{percent(m)} of {p} ({interval(m)})"
                for p, m in zip(self.prior_sizes, self.named, strict=True)
                if m is not None
            ]
            return Finding(
                f"{said} On this run the prior-aware attack named {', '.join(reached)} (estimate, "
                f"{100 * self.confidence:g}% intervals, {self.statistic}).",
                verdict=standing(compared) or "Below the bound: nothing contradicts the schedule.",
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
            f"{percent(m)} ({interval(m)}) at {percent(f)} false positives (no attacker beats {percent(b, 'upper')})"
            for f, m, b in zip(_levels(self.at_fpr), self.found_at_fpr, np.atleast_1d(self.at_fpr.value), strict=True)
            if m is not None
        ]
        found = self.area
        sure, few = f"{100 * self.confidence:g}%", self.members + self.non_members
        return Finding(
            f"Membership: the test by {self.statistic} separates members from non-members with an area under the ROC "
            f"curve of {number(found, 3)} (estimate, {sure} interval {_ends(found)}; 0.5 is guessing, which "
            f"reaches this with p = {number(found.p_value, 2)}, one-sided Mann-Whitney)"
            + (f", and finds {'; '.join(rates)}; {sure} intervals." if rates else "."),
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
        if self.audited is None:
            return Finding(
                "What is proved: nothing from below. One run proves a lower bound on ε only if a fair coin of its own "
                "decided for each candidate whether it was trained on; then pass coins=True.",
                verdict="The claim was not tested by this run; the bounds above follow from its settings alone.",
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
                else "Less than is claimed: nothing contradicts it, and nothing confirms it."
            ),
            assumes="a fair coin of its own decided for each candidate whether it was trained on.",
        )

    def tables(self) -> dict[str, Table]:
        rows = []
        for size, bound, found in zip(self.prior_sizes, self.reconstruction, self.named, strict=True):
            cells = (f"name a row among {size}", percent(1 / size), found, percent(bound))
            rows.append(Row(tuple(map(_cell, cells))))
        for level, bound, found in zip(
            _levels(self.at_fpr), np.atleast_1d(self.at_fpr.value), self.found_at_fpr, strict=True
        ):
            cells = (f"tell members, {percent(level)} false", percent(level), found, percent(bound, "upper"))
            rows.append(Row(tuple(map(_cell, cells))))
        columns = (
            Column("attack", "parameter"), Column("guessing", "parameter"),
            Column("reached on\nthis run", "estimate"), Column("exact\nbound", "upper"),
        )  # fmt: skip
        caption = (
            f"Add/remove adjacency; bounds are deterministic. Below what was reached its own "
            f"{100 * self.confidence:g}% interval, for rows drawn independently; that all rows share one run's noise "
            "is not counted."
        )
        made = {"attacks": Table("Attacks beside their bounds", columns, tuple(rows), caption)}
        if self.exposed:
            made["exposed"] = self._exposed_table()
        return made

    def _exposed_table(self) -> Table:
        columns = (
            Column("candidate", "parameter"), Column("batches it\nwas in", "parameter"),
            Column("steps in which\nit was clipped", "estimate"), Column("non-members\nit outscores", "estimate"),
            Column("lead over the\nbest rival", "estimate"),
        )  # fmt: skip
        rows = [
            Row(tuple(Cell(c) for c in (
                str(e.candidate), str(e.times_seen), percent(e.clipped_share), percent(e.beaten), f"{e.lead:+.3g}",
            )))
            for e in self.exposed
        ]  # fmt: skip
        caption = f"The members that stand out most; scores by {self.statistic}. Chosen for it, so no guarantee."
        return Table("Most exposed members", columns, tuple(rows), caption)

    def sections(self) -> tuple[_page.Section, ...]:
        from leakcore.audit._plot import roc_svg

        tables, figure = self.tables(), None
        if self.roc is not None:
            bars = [
                (float(f), float(m.value), float(m.interval[0]), float(m.interval[1]))
                for f, m in zip(_levels(self.at_fpr), self.found_at_fpr, strict=True)
                if m is not None and m.interval is not None
            ]
            figure = _page.Figure(
                svg=roc_svg(_levels(self.membership), np.atleast_1d(self.membership.value), self.roc, intervals=bars),
                alt="True-positive against false-positive rate of the membership test, below the curve of the bound; "
                + self._membership(),
                caption="Upper curve: what no membership attacker can beat (upper, deterministic). Below it the test "
                f"on this run's candidates (estimate; bars: {100 * self.confidence:g}% intervals for rows drawn "
                "independently, beside what one run's noise does to all of them). Near the upper curve means the "
                "bound is nearly reached; a whole bar above it: check the mechanism.",
            )
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
            f"The gate fails a correct run with probability at most {1 - GATE:.1g}, by the proof where coins decided. "
            "A rate above its bound fails nothing: one run's noise lifts the rates of all candidates together."
        )
        return [
            mechanism,
            attacker,
            told,
            chosen,
            "Candidates' gradients were taken without dropout.",
            gate,
        ]

    def settings(self) -> dict[str, Any]:
        return {name: jsonable(getattr(self, name)) for name in _SETTINGS}

    def content(self) -> dict[str, Any]:
        return {name: jsonable(getattr(self, name)) for name in _RESULTS}


def _span(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{low:.4g}" if low == high else f"{low:.4g}–{high:.4g}"


def _ends(found: Result) -> str:
    low, high = found.interval or (0.0, 1.0)
    return f"{number(low, 2)}–{number(high, 2)}"


def _cell(shown: str | Measured | None) -> Cell:
    if isinstance(shown, Measured):
        return Cell(percent(shown), interval(shown))
    return Cell(shown or "—")


def _levels(bound: Any) -> np.ndarray:
    return np.atleast_1d(np.asarray(bound.fpr))
