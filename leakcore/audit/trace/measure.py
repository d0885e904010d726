"""What a recorded run is measured by: bounds of its schedule, what attacks reached, what guesses at coins prove."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import numpy as np
from scipy import special, stats

from leakcore import bounds
from leakcore._base.results import Assumptions, Result, require_same_adjacency
from leakcore.audit.scores.statistics import area, area_limits, audited, provable, rate_limits
from leakcore.audit.shared import page
from leakcore.audit.shared.claimed_epsilon import proved_epsilon
from leakcore.audit.shared.format import above, above_claim, chance, counted, guarantee, interval, percent
from leakcore.audit.shared.report import GATE, AuditReport
from leakcore.audit.trace.request import Chosen, Extent, Question
from leakcore.dpsgd import Trace
from leakcore.mechanisms import GDP, FullBatch, Mechanism, Poisson

FPRS = (0.01, 0.05, 0.1)
"""False-positive rates at which the membership test is reported."""
_EXACT = 50_000
"""Members times non-members up to which the rank sum's exact law is summed: a quarter of a second."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Measured(Result):
    """What an attack on one recorded run reached. trials: rows it was measured on."""

    quantity: str = "success rate"
    trials: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Separation(Measured):
    """An area under the ROC curve. p_value: one-sided, that candidates as alike as these scores say reach it."""

    quantity: str = "area under the ROC curve"
    p_value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """A measured rate, and the bound that no attacker exceeds.

    Attributes:
        what: in words.
        found: the measured rate.
        bound: the upper bound.
        lift: P(sampling picks a row) if the members are the picked rows, else 1.
        members: number of members.
        non_members: number of non-members.
        alike: whether coins decided the members, so that both sides have one distribution.
    """

    what: str
    found: Measured
    bound: float
    lift: float
    members: int
    non_members: int
    alike: bool

    @property
    def held(self) -> float:
        """The bound with which the rate is compared."""
        return lifted(self.bound, self.lift)

    @property
    def above(self) -> bool:
        """Whether the measured rate is above the bound, justly or by chance."""
        return float(self.found.value) > self.held

    @property
    def odd(self) -> bool:
        """Whether the whole interval of this row is above the bound."""
        return self.found.interval is not None and float(self.found.interval[0]) > self.held

    def said(self) -> str:
        """What follows where the rate is above its bound; empty where it is not."""
        if not self.above:
            return ""
        sure = f"{100 * (self.found.confidence or 0):g}%"
        bound = f"the bound {percent(self.held, 'upper')}{for_picked(self.lift)}"
        rate = f"{self.what}: {percent(self.found)} is above {bound}"
        if self.odd:
            return (
                f"{rate}, and so is the whole {sure} interval {interval(self.found)}, which takes rows as independent: "
                "one run's noise may lift all of them, the more so the fewer directions their gradients have"
                f"{'' if self.alike else ', and so may members and non-members that are not alike'}. Check the loop, σ "
                "and the sampling; record another run; a proof needs members chosen by coins."
            )
        return (
            f"{rate} by chance: with {self.members} members and {self.non_members} non-members the {sure} interval is "
            f"{interval(self.found)}."
        )


def lifted(bound: float, lift: float) -> float:
    """Most that a rate among rows picked with probability `lift` can be where `bound` is that of all rows."""
    return min(1.0, bound / lift) if lift > 0 else 1.0


def for_picked(lift: float) -> str:
    """The words that must accompany a bound that was lifted; empty if it was not."""
    return f" for members that sampling picked (bound / {percent(lift)})" if lift < 1 else ""


def levels(curve: Any) -> np.ndarray:
    """False-positive rates of a bound on membership."""
    return np.atleast_1d(np.asarray(curve.fpr))


def standing(compared: list[Compared]) -> str:
    """Sentences about rates above their bounds; empty if there are none."""
    return " ".join(c.said() for c in compared if c.above)


_ONE_RUN = (
    "the interval is for rows drawn independently; all candidates share one run's noise, which it does not count",
    "members and non-members are the caller's candidates; they must come from the same distribution",
    "another attack may do better",
)
_TEST = "knows the batches and all rows that are not candidates, sees every release"


def _assumed(attacker: str) -> Assumptions:
    return Assumptions(adjacency="add-remove", attacker=attacker, notes=_ONE_RUN)


def named(pairs: np.ndarray, inside: np.ndarray, outside: np.ndarray, size: int, confidence: float) -> Measured:
    """Mean over members of the probability that `size` − 1 non-members drawn at random all score lower; ties lose.

    A two-sample U-statistic of values in [0, 1]: Chernoff limits with as many independent terms as there are members
    with rivals of their own (Hoeffding 1963, Section 5b), so that few non-members make a wide interval.
    """
    own = pairs[inside, inside]
    lower = (pairs[np.ix_(inside, outside)] < own[:, None]).sum(axis=1)
    log_all = _log_choose(len(outside), size - 1)
    value = min(1.0, float(np.exp(_log_choose(lower, size - 1) - log_all).mean()))
    apart = min(len(inside), len(outside) // (size - 1))
    return Measured(
        value=value,
        kind="estimate",
        confidence=confidence,
        interval=area_limits(value, apart, confidence),
        method="prior-aware attack, expectation over random rivals; Chernoff limits of a two-sample U-statistic",
        trials=len(inside),
        assumptions=_assumed(
            "knows every row but one and the batches, sees every release; the missing row is one of the candidates"
        ),
        provenance="Hayes, Mahloujifar and Balle (2023), Algorithm 2 and Appendix G; Hoeffding (1963), Section 5b",
    )


def _log_choose(n: object, k: int) -> np.ndarray:
    n = np.asarray(n, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_masses = -special.betaln(n - k + 1.0, k + 1.0) - np.log(n + 1.0)
    return np.where(n >= k, log_masses, -np.inf)


def rate_at(inside: np.ndarray, outside: np.ndarray, fpr: float, confidence: float) -> Measured | None:
    """True-positive rate at the threshold that lets at most a share `fpr` of the non-members through; None where that
    is not one of them. The limits count the members (Clopper and Pearson 1934) and the threshold's own uncertainty
    (order statistics of the non-members).
    """
    limits = rate_limits(inside, outside, fpr, confidence, _ONE_RUN)
    if limits is None:
        return None
    return Measured(
        value=limits.value,
        kind="estimate",
        confidence=confidence,
        interval=limits.interval,
        method=f"membership test, {limits.method}",
        trials=len(inside) + len(outside),
        assumptions=_assumed(_TEST),
        provenance="Hayes et al. (2023), Appendix G; Clopper and Pearson (1934)",
    )


def roc(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False- and true-positive rates of every threshold."""
    levels = np.unique(np.concatenate([inside, outside]))[::-1]
    return (np.array([(outside >= t).mean() for t in levels]), np.array([(inside >= t).mean() for t in levels]))


def separation(inside: np.ndarray, outside: np.ndarray, confidence: float) -> Separation:
    """The area under the ROC curve, its limits, and the p-value of the null that scores say nothing of membership."""
    value = area(inside, outside)
    return Separation(
        value=value,
        kind="estimate",
        confidence=confidence,
        interval=area_limits(value, min(len(inside), len(outside)), confidence),
        p_value=rank_sum(inside, outside),
        method="area under the ROC curve, Chernoff limits of a two-sample U-statistic; one-sided Mann-Whitney test",
        trials=len(inside) + len(outside),
        assumptions=_assumed(_TEST),
        provenance="Hayes et al. (2023), Appendix G; Hoeffding (1963), Section 5b; Mann and Whitney (1947)",
    )


def rank_sum(inside: np.ndarray, outside: np.ndarray) -> float:
    """P(members rank at least this high | which scores are the members' is exchangeable), Mann and Whitney (1947).

    Up to 50,000 pairs by the exact law, ties counted against the members (the test then rejects a true null at most
    as often as it says); beyond that the normal law with corrections for ties and continuity. Noise that scores share
    does no harm: under the null it says nothing of who is a member.
    """
    scores = np.concatenate([inside, outside])
    if (scores == scores[0]).all():
        return 1.0
    if len(inside) * len(outside) > _EXACT:
        return float(stats.mannwhitneyu(inside, outside, alternative="greater", method="asymptotic").pvalue)
    rank = np.empty(len(scores))
    rank[np.lexsort((np.arange(len(scores)) >= len(inside), scores))] = np.arange(len(scores))
    return float(
        stats.mannwhitneyu(rank[: len(inside)], rank[len(inside) :], alternative="greater", method="exact").pvalue
    )


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


R = TypeVar("R", bound=Result)


def recorded(question: Question) -> dict[str, Any]:
    """The recorded steps and the candidates."""
    trace = question.trace
    poisson = isinstance(question.mechanism, Poisson | FullBatch)
    sigma, norm = trace.noise_multiplier, trace.max_grad_norm
    members = np.flatnonzero(trace.members)
    return {
        "steps": trace.steps,
        "noise_multiplier": (float(sigma.min()), float(sigma.max())),
        "max_grad_norm": (float(norm.min()), float(norm.max())),
        "sample_rate": trace.sample_rate if poisson else None,
        "batch_rows": float(trace.batch_rows.mean()),
        "members": len(members),
        "non_members": len(trace.members) - len(members),
        "members_given": trace.members_given,
        "recognised": bool(trace.times_seen[members].any()),
        "statistic": "likelihood ratio" if _by_likelihood(trace) else "summed products",
    }


def limits(question: Question) -> dict[str, Any]:
    """What no attacker beats: ε by the accountant, and the upper bounds of the mechanism; None without one."""
    mechanism, sizes = question.mechanism, question.candidate_counts
    if mechanism is None:
        names = ("epsilon", "epsilon_replace", "membership", "at_fpr")
        return {**dict.fromkeys(names), "reconstruction": (None,) * len(sizes)}
    try:
        return _limits(question, mechanism)
    except ArithmeticError:  # AccuracyError is one: no method reaches the mechanism as it is
        relation = question.chosen.adjacency or mechanism.adjacency
        apart = mechanism.separation(relation)
        if isinstance(mechanism, Poisson | FullBatch) or not math.isfinite(apart):
            raise
        return _limits(question, GDP(apart, claimed_under=relation))


def _limits(question: Question, mechanism: Mechanism) -> dict[str, Any]:
    run, slack = question.run, question.delta
    schedule: tuple[Any, ...] = (mechanism,)
    if isinstance(mechanism, Poisson):
        schedule = mechanism.noise_multiplier, mechanism.sample_rate, mechanism.steps
    elif isinstance(mechanism, FullBatch):
        schedule = mechanism.noise_multiplier, 1.0, mechanism.steps

    relation = question.chosen.adjacency or mechanism.adjacency

    def of(result: R) -> R:
        """For the relation of the run, with what it and the batches presuppose of the program."""
        assumed = result.assumptions
        under = assumed.adjacency
        if relation == "zero-out" and under != "replace":
            under = relation
        notes = (*assumed.notes, *question.chosen.premises(under))
        return run.of(
            dataclasses.replace(result, assumptions=dataclasses.replace(assumed, adjacency=under, notes=notes))
        )

    def epsilon(adjacency: str) -> Result:
        return of(proved_epsilon(mechanism, delta=slack, adjacency=adjacency))

    replaces = "replace" in mechanism.adjacencies
    return {
        "epsilon": epsilon(relation),
        "epsilon_replace": epsilon("replace") if replaces else None,
        "reconstruction": tuple(
            of(bounds.reconstruction(*schedule, kappa=1 / size)) for size in question.candidate_counts
        ),
        "membership": of(bounds.membership(*schedule, fpr=np.geomspace(1e-3, 1, 61))),
        "at_fpr": of(bounds.membership(*schedule, fpr=np.array(FPRS))),
    }


def reached(question: Question) -> dict[str, Any]:
    """What attacks reached on the candidates: estimates, None where there is nothing to tell apart."""
    trace, level = question.trace, question.confidence
    scores, pairs = _scores(trace)
    inside, outside = np.flatnonzero(trace.members), np.flatnonzero(~trace.members)
    both = len(inside) > 0 and len(outside) > 0
    in_batches = both and bool(trace.times_seen[inside].any())
    sides = scores[inside], scores[outside]
    return {
        "named": tuple(
            named(pairs, inside, outside, size, level) if in_batches and size - 1 <= len(outside) else None
            for size in question.candidate_counts
        ),
        "found_at_fpr": tuple(rate_at(*sides, fpr, level) if both else None for fpr in FPRS),
        "roc": roc(*sides) if both else None,
        "area": separation(*sides, level) if both else None,
        "exposed": _exposed(trace, pairs, inside, outside) if in_batches else (),
    }


def proved(question: Question) -> dict[str, Any]:
    """What guesses at the coins prove of ε; None where members were not decided by coins.

    The gate has two ways to fail, which share its error: ε at any mechanism, and the run's own mechanism.
    """
    if not question.coins:
        return dict.fromkeys(("audited", "gate", "ceiling", "own_curve"))
    scores, _ = _scores(question.trace)
    members, slack = question.trace.members, question.delta
    untested = question.run.extent.unknown or question.chosen.adjacency == "zero-out"  # coins leave rows out
    own = None if untested else _own_curve(question.mechanism)
    level = GATE if own is None else 1 - GATE_SHARE
    return {
        "audited": audited(scores, members, slack, question.confidence),
        "gate": dataclasses.replace(audited(scores, members, slack, level), confidence=GATE),
        "ceiling": provable(members, slack, level),
        "own_curve": None if own is None else audited(scores, members, slack, question.confidence, family=own),
    }


def _own_curve(mechanism: Mechanism | None) -> Mechanism | None:
    """The run's mechanism with one noise multiplier, if its trade-off curve is quickly computed; else None."""
    if not isinstance(mechanism, Poisson | FullBatch):
        return None
    sigma = np.asarray(mechanism.noise_multiplier)
    return mechanism if sigma.ndim == 0 and 0 < float(sigma) < math.inf else None


def _by_likelihood(trace: Trace) -> bool:
    return bool(np.isfinite(trace.membership_likelihood).all())


def _scores(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Scores of membership, and of each candidate in each candidate's place: by likelihood where it is known."""
    if _by_likelihood(trace):
        return trace.membership_likelihood, trace.pair_likelihood
    return trace.membership_sum, trace.pair_sum


def _exposed(trace: Trace, pairs: np.ndarray, inside: np.ndarray, outside: np.ndarray) -> tuple[Exposure, ...]:
    """The members whose own score lies furthest above their best rival's, five at most; of those that were in a batch,
    for nothing is exposed of a row that the run never used.
    """
    inside = inside[trace.times_seen[inside] > 0]
    own = pairs[inside, inside]
    beaten = (pairs[np.ix_(inside, outside)] < own[:, None]).mean(axis=1)
    lead = own - pairs[np.ix_(inside, outside)].max(axis=1)
    order = np.lexsort((-lead, -beaten))[:5]
    return tuple(
        Exposure(
            candidate=int(inside[k]),
            times_seen=int(trace.times_seen[inside[k]]),
            clipped_share=float(trace.clipped_share[inside[k]]),
            beaten=float(beaten[k]),
            lead=float(lead[k]),
        )
        for k in order
    )
