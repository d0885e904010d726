"""The fields of the report on a recorded run, and the numbers that follow from them, before they are put into words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import bounds
from leakcore._base.results import Result, require_same_adjacency
from leakcore.audit.shared.format import percent
from leakcore.audit.shared.report import GATE_SHARE, AuditReport
from leakcore.audit.trace.measure import FPRS, Exposure, Measured, Separation
from leakcore.audit.trace.recorded_run import MechanismChoice, RunCoverage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """A measured rate, and the upper bound with which it is compared."""

    what: str
    rate: Measured
    bound: float

    @property
    def above(self) -> bool:
        """Whether the measured rate is above the bound, justly or by chance."""
        return float(self.rate.value) > self.bound

    @property
    def odd(self) -> bool:
        """Whether the whole interval of this rate is above the bound."""
        return self.rate.interval is not None and float(self.rate.interval[0]) > self.bound


def levels(curve: Any) -> np.ndarray:
    """False-positive rates of a bound on membership."""
    return np.atleast_1d(np.asarray(curve.fpr))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TraceNumbers(AuditReport):
    """The fields of a `TraceReport`, and what they are compared with.

    Attributes:
        delta: δ of every ε.
        claimed_epsilon: ε that the run claims, under the relation of `epsilon`; None: the accountant's.
        confidence: level of the intervals and of `audited`, in (0, 1).
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
        statistic: "likelihood ratio", or "summed products" without q or noise.
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
    mechanism: MechanismChoice
    run: RunCoverage
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
    def is_detected(self) -> bool:
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

    def scaled_bound(self, bound: float) -> float:
        """The bound with which a rate of this run's candidates is compared: that of the rows that sampling picked."""
        return min(1.0, bound / self.lift) if self.lift > 0 else 1.0

    @property
    def num_candidates(self) -> int:
        """The size of the prior that was asked about."""
        return self.candidate_counts[-1]

    def names(self) -> list[Compared]:
        """What naming a row reached, with its bounds; empty if they cannot be compared."""
        if self.incomparable:
            return []
        triples = zip(self.candidate_counts, self.named, self.reconstruction, strict=True)
        return [
            Compared(what=f"Naming a row among {p}", rate=m, bound=self.scaled_bound(float(b.value)))
            for p, m, b in triples
            if m is not None and b is not None
        ]

    def tells(self) -> list[Compared]:
        """What telling members reached, with its bounds; empty if they cannot be compared."""
        if self.incomparable or self.at_fpr is None:
            return []
        return [
            Compared(what=f"Telling members at {percent(f)} false positives", rate=m, bound=self.scaled_bound(b))
            for f, m, b in self.rates()
            if m is not None and b is not None
        ]

    def rates(self) -> list[tuple[float, Measured | None, float | None]]:
        """(false-positive rate, what the membership test reached, its bound) at the fixed rates."""
        if self.at_fpr is None:
            return [(f, m, None) for f, m in zip(FPRS, self.found_at_fpr, strict=True)]
        bounds = np.atleast_1d(self.at_fpr.value).tolist()
        return list(zip(levels(self.at_fpr).tolist(), self.found_at_fpr, bounds, strict=True))

    @property
    def above_gate(self) -> bool:
        """Whether guesses at the coins contradict the claim at the gate's confidence."""
        if self.gate is None:
            return False
        if self.claimed_epsilon is None and self.epsilon is not None and self.tests_claim:
            require_same_adjacency(self.gate, self.epsilon)
        return float(self.gate.value) > self.claim

    @property
    def refuted(self) -> bool:
        """Whether the guesses refute the run's own mechanism."""
        p_value = None if self.own_curve is None else self.own_curve.p_value
        return p_value is not None and p_value <= GATE_SHARE

    @property
    def between(self) -> bool:
        """Whether the claim is contradicted at `confidence`, but not at the gate's confidence."""
        contradicted = self.above_claim or self.above_gate or self.refuted
        return self.audited is not None and not contradicted and float(self.audited.value) > self.claim

    @property
    def untested(self) -> bool:
        """Whether there are too few coins to contradict the claim."""
        return self.ceiling is not None and self.ceiling <= self.claim and self.tests_claim
