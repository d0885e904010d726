"""What an audit of a recorded run found, and what follows from it, before it is put into words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore._base.results import Result, require_same_adjacency
from leakcore.audit.report import page
from leakcore.audit.report.format import above, counted, guarantee, percent
from leakcore.audit.report.report import AuditReport
from leakcore.audit.trace.rates import Compared, Measured, Separation, levels, lifted
from leakcore.audit.trace.whole_run import Extent


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
class TraceFacts(AuditReport):
    """The fields of a `TraceReport`, and what they are held against."""

    delta: float
    claimed_epsilon: float | None
    confidence: float
    coins: bool
    steps: int
    noise_multiplier: tuple[float, float]
    max_grad_norm: tuple[float, float]
    sample_rate: float
    run: Extent
    batch_rows: float
    members: int
    non_members: int
    members_given: bool
    recognised: bool
    statistic: str
    epsilon: Result
    epsilon_replace: Result
    candidate_counts: tuple[int, ...]
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
        """The ε that the run is held to, add/remove adjacency; ∞ where none is claimed and the run's is not known."""
        if self.claimed_epsilon is not None:
            return self.claimed_epsilon
        return math.inf if self.undecided else float(self.epsilon.value)

    @property
    def undecided(self) -> str:
        return self.run.unknown

    @property
    def gated(self) -> bool:
        return super().gated or self.claimed_epsilon is not None or self.coins

    @property
    def above_claim(self) -> bool:
        """Whether the accountant's ε is above what is claimed."""
        return self.claimed_epsilon is not None and float(self.epsilon.value) > self.claimed_epsilon * (1 + 1e-9)

    @property
    def incomparable(self) -> str:
        """Why measured rates are not held against the bounds; empty where they are."""
        if self.run.unknown:
            return (
                "they are of the recorded steps alone, and what was trained before them shows in the models at which "
                "gradients were taken"
            )
        if self.run.partial and not self.members_given and self.sample_rate < 1:
            return (
                "members are the rows that were in recorded batches, and the others may have been in batches that were "
                "not recorded; record with members=…"
            )
        return ""

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
        return self.picked if self.area is not None and self.picked < 0.9999 and not self.incomparable else 1.0

    def held(self, bound: float) -> float:
        """The bound that a rate of this run's candidates is held against."""
        return lifted(bound, self.lift)

    @property
    def num_candidates(self) -> int:
        """Candidates of the prior that was asked about."""
        return self.candidate_counts[-1]

    def _beside(self, what: str, found: Measured, bound: Any) -> Compared:
        return Compared(
            what=what, found=found, bound=float(bound), lift=self.lift, members=self.members,
            non_members=self.non_members, alike=self.coins,
        )  # fmt: skip

    def names(self) -> list[Compared]:
        """What naming a row reached, beside its bounds; empty where it cannot be held against them."""
        if self.incomparable:
            return []
        triples = zip(self.candidate_counts, self.named, self.reconstruction, strict=True)
        return [self._beside(f"Naming a row among {p}", m, b.value) for p, m, b in triples if m is not None]

    def tells(self) -> list[Compared]:
        """What telling members reached, beside its bounds; empty where it cannot be held against them."""
        if self.incomparable:
            return []
        triples = zip(levels(self.at_fpr), self.found_at_fpr, np.atleast_1d(self.at_fpr.value), strict=True)
        return [
            self._beside(f"Telling members at {percent(f)} false positives", m, b) for f, m, b in triples
            if m is not None
        ]  # fmt: skip

    @property
    def between(self) -> bool:
        """Whether the claim is contradicted at `confidence`, but not at the gate's."""
        return self.audited is not None and not self.contradictions and float(self.audited.value) > self.claim

    @property
    def untested(self) -> bool:
        """Whether so few coins could not have contradicted the claim."""
        return self.ceiling is not None and self.ceiling <= self.claim

    @property
    def contradictions(self) -> list[str]:
        found = []
        if self.claimed_epsilon is not None and self.above_claim:
            epsilon, claimed = above(self.epsilon, self.claimed_epsilon, "upper")
            schedule = (
                f"The noise of {self.run.alone} alone" if self.run.unknown
                else f"The schedule of the run's {counted(self.run.steps, 'step')}" if self.run.partial
                else "The schedule that was recorded"
            )  # fmt: skip
            found.append(f"{schedule} gives ε = {epsilon} ({guarantee(self.epsilon)}), above the claimed {claimed}.")
        if self.gate is not None:
            require_same_adjacency(self.gate, self.epsilon)
            if float(self.gate.value) > self.claim:
                proved, claimed = above(self.gate, self.claim)
                found.append(
                    f"Guesses at the coins prove ε ≥ {proved} ({guarantee(self.gate)}), above the claimed {claimed}: "
                    f"{'the run' if self.run.unknown else 'the mechanism'} does not do what its "
                    f"{'claim' if self.run.unknown else 'schedule'} says."
                )
        return found

    @property
    def broken(self) -> str:
        """What a proof above the claim says."""
        return f"the run is not what its {'claim' if self.run.unknown else 'schedule'} says"

    def judged(self) -> tuple[page.Judged, ...]:
        schedule = (
            f"{self.run.alone} alone" if self.run.unknown
            else f"the run's {counted(self.run.steps, 'step')}" if self.run.partial
            else "the recorded schedule"
        )  # fmt: skip
        said = [(f"the accountant's ε of {schedule}", self.epsilon)]
        if self.audited is not None:
            said.append(("the ε that guesses at the coins prove", self.audited))
        return tuple(page.judged(what, found) for what, found in said)
