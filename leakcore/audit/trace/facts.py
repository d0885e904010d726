"""What an audit of a recorded run found, and what follows from it, before it is put into words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import bounds
from leakcore._base.results import Result, require_same_adjacency
from leakcore.audit.report import page
from leakcore.audit.report.format import above, above_claim, chance, counted, guarantee, percent
from leakcore.audit.report.report import GATE, AuditReport
from leakcore.audit.trace.chosen import Chosen
from leakcore.audit.trace.rates import FPRS, Compared, Measured, Separation, levels, lifted
from leakcore.audit.trace.whole_run import Extent

GATE_SHARE = (1 - GATE) / 2
"""Error of each of the gate's two ways to fail, where the run's own mechanism is tested as well."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Exposure:
    """A member among the candidates that was in a batch.

    Attributes:
        candidate: its number.
        times_seen: batches with it.
        clipped_share: share of steps in which its gradient was clipped.
        beaten: share of non-members that it outscores.
        lead: its score less the best rival's, in units of the statistic.
    """

    candidate: int
    times_seen: int
    clipped_share: float
    beaten: float
    lead: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TraceFacts(AuditReport):
    """The fields of a `TraceReport`, and what they are compared with.

    Attributes:
        delta: δ of every ε.
        claimed_epsilon: ε that the run claims, under the relation of `epsilon`; None: the accountant's.
        confidence: of the intervals and of `audited`.
        coins: whether fair coins decided the members.
        steps: recorded steps.
        noise_multiplier: smallest and largest σ of the recorded steps.
        max_grad_norm: smallest and largest C of the recorded steps.
        sample_rate: q of Poisson sampling, 1 for full batches; None for another mechanism.
        mechanism: what the run was, and what says so.
        run: how much of the run was recorded.
        batch_rows: mean rows of a recorded batch.
        members: number of candidates that are members.
        non_members: number of the other candidates.
        members_given: whether the caller named the members.
        recognised: whether candidates were recognised in batches.
        statistic: "likelihood", or "sum" without q or noise.
        epsilon: the mechanism's ε under its own adjacency; None where no mechanism is known.
        epsilon_replace: ε under replacement, where it is proved.
        candidate_counts: sizes of the priors.
        reconstruction: upper bounds for these priors; None where no mechanism is known, as the next two.
        named: what the attack reached for these priors, an estimate; None where there are too few candidates.
        membership: upper bound on the true-positive rate.
        at_fpr: that bound at fixed false-positive rates.
        found_at_fpr: what the membership test reached there, an estimate; None where there are too few candidates.
        roc: the test's ROC curve, or None.
        area: area under that curve, with the p-value of scores that say nothing; None where there are too few
            candidates.
        audited: the proved lower bound on ε; None without coins.
        gate: the same at 99.9%.
        ceiling: what `gate` would be for scores that tell every coin.
        own_curve: what the coins prove if the run's own mechanism ran with some noise, and the p-value of its schedule;
            None without coins, and for a mechanism other than Poisson sampling or full batches of one σ.
        exposed: the members that were in a batch, most exposed first.
    """

    delta: float
    claimed_epsilon: float | None
    confidence: float
    coins: bool
    steps: int
    noise_multiplier: tuple[float, float]
    max_grad_norm: tuple[float, float]
    sample_rate: float | None
    mechanism: Chosen
    run: Extent
    batch_rows: float
    members: int
    non_members: int
    members_given: bool
    recognised: bool
    statistic: str
    epsilon: Result | None
    epsilon_replace: Result | None
    candidate_counts: tuple[int, ...]
    reconstruction: tuple[Result | None, ...]
    named: tuple[Measured | None, ...]
    membership: Result | None
    at_fpr: Result | None
    found_at_fpr: tuple[Measured | None, ...]
    roc: tuple[np.ndarray, np.ndarray] | None
    area: Separation | None
    audited: Result | None
    gate: Result | None
    ceiling: float | None
    own_curve: bounds.OneRunEpsilon | None
    exposed: tuple[Exposure, ...]

    @property
    def claim(self) -> float:
        """The ε with which a proof by coins is compared, add-remove; ∞ if the run's is unknown, or under another
        adjacency, which coins do not test.
        """
        if not self.tests_claim:
            return math.inf
        if self.claimed_epsilon is not None:
            return self.claimed_epsilon
        if self.unknown or self.epsilon is None:
            return math.inf
        return float(self.epsilon.value)

    @property
    def tests_claim(self) -> bool:
        """Whether coins, which leave a row out, test the relation of ε and of the claim."""
        if self.epsilon is None:
            return not self.mechanism.rows_public
        return self.epsilon.adjacency == "add-remove"

    @property
    def unknown(self) -> str:
        """Why ε and bounds of the run are not known; empty where they are."""
        return self.run.unknown or self.mechanism.missing

    @property
    def undecided(self) -> str:
        if self.unknown or self.claimed_epsilon is None or self.epsilon is None or self.above_claim:
            return self.unknown
        if self.epsilon.adjacency == "replace":
            return "the claim is for adding or removing a row, and the ε that is proved is for replacing one"
        if self.mechanism.bracketed and float(self.epsilon.value) > self.claimed_epsilon:
            return "the claim lies below the upper limit of the run's ε, and not below a lower limit that holds for it"
        return ""

    @property
    def gated(self) -> bool:
        return super().gated or self.claimed_epsilon is not None or self.coins

    @property
    def above_claim(self) -> bool:
        """Whether ε is proved to be above the claim: of a bracket by its lower end."""
        epsilon = self.epsilon
        if self.claimed_epsilon is None or epsilon is None or epsilon.adjacency == "replace":
            return False
        least = float(epsilon.value)
        if not self.mechanism.lower_holds:
            return False
        if self.mechanism.bracketed:
            if epsilon.interval is None:
                return False
            least = float(epsilon.interval[0])
        return least > self.claimed_epsilon * (1 + 1e-9)

    @property
    def incomparable(self) -> str:
        """Why measured rates are not compared with the bounds; empty if they are."""
        if self.mechanism.missing:
            return "no mechanism of the run is known"
        if self.mechanism.adjacency == "replace":
            return (
                "they are for replacing a row by an attacker who does not know the batches, and the attacks tell rows "
                "that were trained on from others and know the batches"
            )
        if self.run.unknown:
            return (
                "they are of the recorded steps alone, and what was trained before them shows in the models at which "
                "gradients were taken"
            )
        if self.run.partial and not self.members_given and self.sample_rate != 1:
            return (
                "members are the rows that were in recorded batches, and the others may have been in batches that were "
                "not recorded; record with members=…"
            )
        return ""

    @property
    def told(self) -> bool:
        """Whether the test rejects, at 1 − confidence, that scores say nothing of membership."""
        return self.area is not None and self.area.p_value <= 1 - self.confidence

    @property
    def picked(self) -> float:
        """P(sampling picks a row at least once); 1 if the caller named the members.

        Members that were recognised in batches are the picked rows alone, so a rate among them is at most its bound
        divided by this probability.
        """
        if self.members_given or self.sample_rate == 1 or self.sample_rate is None:
            return 1.0
        return -math.expm1(self.steps * math.log1p(-self.sample_rate))

    @property
    def lift(self) -> float:
        """The divisor of bounds before a measured rate is compared with them: `picked`.

        It is 1 if nothing was measured, or if `picked` differs from 1 by less than a printed digit.
        """
        return self.picked if self.area is not None and self.picked < 0.9999 and not self.incomparable else 1.0

    def held(self, bound: float) -> float:
        """The bound with which a rate of this run's candidates is compared."""
        return lifted(bound, self.lift)

    @property
    def num_candidates(self) -> int:
        """The size of the prior that was asked about."""
        return self.candidate_counts[-1]

    def _compared(self, what: str, measured: Measured, bound: Any) -> Compared:
        return Compared(
            what=what,
            found=measured,
            bound=float(bound),
            lift=self.lift,
            members=self.members,
            non_members=self.non_members,
            alike=self.coins,
        )

    def names(self) -> list[Compared]:
        """What naming a row reached, with its bounds; empty if they cannot be compared."""
        if self.incomparable:
            return []
        triples = zip(self.candidate_counts, self.named, self.reconstruction, strict=True)
        return [
            self._compared(f"Naming a row among {p}", m, b.value)
            for p, m, b in triples
            if m is not None and b is not None
        ]

    def tells(self) -> list[Compared]:
        """What telling members reached, with its bounds; empty if they cannot be compared."""
        if self.incomparable or self.at_fpr is None:
            return []
        triples = zip(levels(self.at_fpr), self.found_at_fpr, np.atleast_1d(self.at_fpr.value), strict=True)
        return [
            self._compared(f"Telling members at {percent(f)} false positives", m, b)
            for f, m, b in triples
            if m is not None
        ]

    def rates(self) -> list[tuple[float, Measured | None, float | None]]:
        """(false-positive rate, what the membership test reached, its bound) at the fixed rates."""
        if self.at_fpr is None:
            return [(f, m, None) for f, m in zip(FPRS, self.found_at_fpr, strict=True)]
        bounds = np.atleast_1d(self.at_fpr.value).tolist()
        return list(zip(levels(self.at_fpr).tolist(), self.found_at_fpr, bounds, strict=True))

    @property
    def between(self) -> bool:
        """Whether the claim is contradicted at `confidence`, but not at the gate's confidence."""
        return self.audited is not None and not self.contradictions and float(self.audited.value) > self.claim

    @property
    def untested(self) -> bool:
        """Whether there are too few coins to contradict the claim."""
        return self.ceiling is not None and self.ceiling <= self.claim and self.tests_claim

    @property
    def contradictions(self) -> list[str]:
        out = []
        if self.claimed_epsilon is not None and self.epsilon is not None and self.above_claim:
            epsilon, claimed = above_claim(self.epsilon, self.claimed_epsilon, bracketed=self.mechanism.bracketed)
            schedule = (
                f"The noise of {self.run.alone} alone"
                if self.run.unknown
                else f"The schedule of the run's {counted(self.run.steps, 'step')}"
                if self.run.partial
                else "The schedule that was recorded"
            )
            out.append(f"{schedule} gives ε = {epsilon} ({guarantee(self.epsilon)}), above the claimed {claimed}.")
        if self.gate is not None:
            if self.claimed_epsilon is None and self.epsilon is not None and self.tests_claim:
                require_same_adjacency(self.gate, self.epsilon)
            if float(self.gate.value) > self.claim:
                proved, claimed = above(self.gate, self.claim)
                out.append(
                    f"Guesses at the coins prove ε ≥ {proved} ({guarantee(self.gate)}), above the claimed {claimed}: "
                    f"{'the run' if self.unknown else 'the mechanism'} does not do what its "
                    f"{'claim' if self.unknown else 'schedule'} says, unless an assumption of the audit fails."
                )
        if self.own_curve is not None and self.own_curve.p_value is not None and self.own_curve.p_value <= GATE_SHARE:
            out.append(
                f"{self.if_it_ran()}: the mechanism does not do what its schedule says, unless an assumption fails."
            )
        return out

    def if_it_ran(self) -> str:
        """How likely the guesses are under the run's own schedule."""
        assert self.own_curve is not None
        assert self.own_curve.p_value is not None
        return (
            f"Under {self.own_curve.family}, guesses at the coins would be right at least this often with probability "
            f"at most {chance(self.own_curve.p_value)}"
        )

    @property
    def broken(self) -> str:
        """What a proof above the claim means."""
        return f"the run is not what its {'claim' if self.unknown else 'schedule'} says"

    def judged(self) -> tuple[page.Judged, ...]:
        schedule = (
            f"{self.run.alone} alone"
            if self.run.unknown
            else f"the run's {counted(self.run.steps, 'step')}"
            if self.run.partial
            else "the recorded schedule"
        )
        said = [] if self.epsilon is None else [(f"the accountant's ε of {schedule}", self.epsilon)]
        if self.audited is not None:
            said.append(("the ε that guesses at the coins prove", self.audited))
        return tuple(page.judged(what, epsilon) for what, epsilon in said)
