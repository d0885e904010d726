"""A recorded run with canaries: what an attacker who sees every release proves of ε, and the report that says it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from leakcore import bounds
from leakcore._base import validate
from leakcore._base.progress import timed
from leakcore._base.results import Result
from leakcore.audit.scores.statistics import audited
from leakcore.audit.shared import elements
from leakcore.audit.shared.claimed_epsilon import noted, proved_epsilon
from leakcore.audit.shared.doctor import environment
from leakcore.audit.shared.elements import BEATS, REACHED, Card, Finding, Table, epsilon_card, heads, proof_card, row_of
from leakcore.audit.shared.format import (
    NUMBERS_FIXED,
    ROWS_PUBLIC,
    UNSAID,
    above,
    above_claim,
    chance,
    counted,
    guarantee,
    least,
    no_smaller,
    number,
    percent,
    power,
    proved,
    sentence,
)
from leakcore.audit.shared.report import GATE, GATE_SHARE, AuditReport, between_levels, headline_of, names, same_names
from leakcore.audit.trace.recorded_run import read_trace
from leakcore.dpsgd import CanaryTrace, parse_divisor
from leakcore.mechanisms import Mechanism, Poisson

if TYPE_CHECKING:
    from leakcore.dpsgd import CanaryRecorder, Divisor


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CanaryReport(AuditReport):
    """The report of `audit.from_canaries`.

    Attributes:
        delta: δ of every ε.
        claimed_epsilon: ε that the run claims, under the adjacency of `epsilon`; None: the accountant's.
        divisor: what the program divides by: "rows" or "constant"; None if nobody said.
        confidence: level of `proved` and `by_coins`.
        steps: recorded steps.
        noise_multiplier: smallest and largest σ.
        max_grad_norm: smallest and largest C.
        sample_rate: q of the loader.
        mechanism: what is claimed to have run in these steps.
        canaries: number of canaries.
        included: canaries in the data.
        controls: coordinates without a canary.
        parameters: coordinates of the model.
        epsilon: the mechanism's ε.
        proved: lower bound on ε, by the order of the scores; by guesses at the coins if the noise is dependent.
        by_coins: lower bound on ε by guesses at the coins, which assumes nothing of noise or mechanism.
        from_release: the same for an attacker who does not know the other rows; an estimate, for dependent scores.
        gate: `proved` at the gate's confidence.
        p_value: how rarely scores would tell canaries apart this well, were the mechanism what ran.
        independent: whether the noise of coordinates and steps showed no dependence.
        noise_ratio: measured standard deviation of the noise over the stated one; an estimate.
        common_noise: p-value of noise that coordinates share.
        repeated_noise: p-value of noise that a step shares with the next; None for one step.
        interference: root mean square of what the other rows add at a canary's coordinate, in units of the noise.
        times_seen: mean number of steps with an included canary.

    Example:
        >>> from leakcore import audit
        >>> audit.CanaryReport.schema
        'leakcore.canary-audit/2'
    """

    schema: ClassVar[str] = "leakcore.canary-audit/2"
    setting_names: ClassVar[tuple[str, ...]] = names(
        "delta claimed_epsilon confidence steps noise_multiplier max_grad_norm sample_rate mechanism canaries included "
        "controls parameters divisor"
    )
    result_names: ClassVar[Mapping[str, str]] = same_names(
        "epsilon proved by_coins from_release gate p_value independent noise_ratio common_noise repeated_noise "
        "interference times_seen"
    )

    delta: float
    claimed_epsilon: float | None
    confidence: float
    steps: int
    noise_multiplier: tuple[float, float]
    max_grad_norm: tuple[float, float]
    sample_rate: float
    mechanism: str
    canaries: int
    included: int
    controls: int
    parameters: int
    divisor: str | None
    epsilon: Result
    proved: Result
    by_coins: bounds.OneRunEpsilon
    from_release: Result
    gate: Result
    p_value: float
    independent: bool
    noise_ratio: float
    common_noise: float
    repeated_noise: float | None
    interference: float
    times_seen: float

    @property
    def title(self) -> str:
        return (
            f"recorded DP-SGD run with canaries: {counted(self.steps, 'step')} of {self.mechanism}; "
            f"{self.canaries:,} canaries, {self.included:,} of them in the data"
        )

    @property
    def claim(self) -> float:
        """The ε that the run is compared with."""
        return float(self.epsilon.value) if self.claimed_epsilon is None else self.claimed_epsilon

    @property
    def share(self) -> float:
        """The part of the mechanism's ε that is proved; 1 of an ε of 0."""
        whole = float(self.epsilon.value)
        return float(self.proved.value) / whole if whole > 0 else 1.0

    @property
    def _least(self) -> float:
        """What is proved of the mechanism's ε from below: the lower end of its bracket."""
        return 0.0 if self.epsilon.interval is None else float(self.epsilon.interval[0])

    @property
    def undecided(self) -> str:
        claim = self.claimed_epsilon
        if claim is None or self.contradictions or float(self.epsilon.value) <= claim * (1 + 1e-9):
            return ""
        return "the claim lies below the upper limit of the schedule's ε, and not below a lower limit that is proved"

    @property
    def between(self) -> bool:
        """Whether the claim is contradicted at `confidence`, but not at the gate's."""
        return not self.contradictions and float(self.proved.value) > self.claim

    @property
    def gated(self) -> bool:
        return True

    def kept_headline(self) -> str:
        if self.between:
            return between_levels(self.confidence)
        return "Not decided." if self.undecided else headline_of(self.proved, untested=False)

    @property
    def contradictions(self) -> list[str]:
        out = []
        if self.claimed_epsilon is not None and self._least > self.claimed_epsilon * (1 + 1e-9):
            bracketed = self._least < float(self.epsilon.value) * (1 - 1e-6)
            spent, claimed = above_claim(self.epsilon, self.claimed_epsilon, bracketed=bracketed)
            out.append(
                f"The recorded schedule gives ε = {spent} ({guarantee(self.epsilon)}), above the claimed {claimed}, "
                "which is read under the same adjacency."
            )
        if float(self.gate.value) > self.claim:
            least, claimed = above(self.gate, self.claim)
            out.append(
                f"The canaries prove ε ≥ {least} ({guarantee(self.gate)}), above the claimed {claimed}, which is read "
                "under the same adjacency, unless an assumption of the audit fails."
            )
        if self.p_value <= GATE_SHARE:
            out.append(
                f"{self._tested()}: the mechanism does not do what its schedule says, unless an assumption fails."
            )
        return out

    def _tested(self) -> str:
        return (
            f"Under {self.mechanism}, scores would tell canaries in the data from others this well with probability at "
            f"most {chance(self.p_value)}"
        )

    def judged(self) -> tuple[elements.Judged, ...]:
        return (
            elements.judged("the accountant's ε of the recorded steps", self.epsilon),
            elements.judged("the ε that the canaries prove", self.proved),
        )

    def verdict_sentences(self) -> list[str]:
        if self.contradictions:
            return self.contradictions
        if self.between:
            said = (
                f"The canaries prove {proved(self.proved, self.delta)}, above {number(self.claim)}, the ε that is "
                f"claimed (read under the same adjacency); at the gate's {100 * GATE:g}% they do not: record more "
                "canaries, or another run."
            )
            return [said]
        if self.undecided:
            return [f"Not decided: {self.undecided}.", f"The canaries prove {proved(self.proved, self.delta)}."]
        if float(self.proved.value) <= 0:
            said = f"The canaries prove {proved(self.proved, self.delta)}; the accountant's is {number(self.epsilon)}."
            return [said, "Nothing contradicts it, and nothing confirms it."]
        return [
            f"The canaries prove {proved(self.proved, self.delta)}, {percent(min(self.share, 1.0))} of the "
            f"accountant's {number(self.epsilon)}: if what is assumed holds, sampling, clipping and noise leak at "
            "least that much, and nothing contradicts the schedule."
            if self.share >= 0.5
            else f"The canaries prove {proved(self.proved, self.delta)}; the accountant's is {number(self.epsilon)}. "
            "Nothing contradicts it, and little confirms it."
        ]

    def cards(self) -> tuple[Card, Card, Card, Card]:
        how = "the order of the canaries' scores" if self.independent else "guesses at the coins"
        below = "Canaries prove ε from below. Record candidates to bound attacks on your rows."
        accountant = f"the accountant's ε of the {counted(self.steps, 'recorded step')}."
        return (
            Card(question=BEATS, detail=below),
            Card(question=REACHED, detail="Canaries are not your rows. Record candidates to measure attacks on those."),
            proof_card(self.proved, self.delta, f"from {how}, in one run."),
            epsilon_card(self.epsilon, self.delta, accountant),
        )

    def findings(self) -> list[str]:
        return [self._accountant(), self._proof(), self._schedule(), self._noise(), self._others()]

    def _accountant(self) -> str:
        claimed = "" if self.claimed_epsilon is None else f" The run claims ε = {number(self.claimed_epsilon)}."
        return Finding(
            f"The accountant: {self.mechanism} gives ε = {number(self.epsilon)} at δ = {power(self.delta)} "
            f"({guarantee(self.epsilon)}).{claimed}",
            verdict="It is about the recorded steps: steps that were not recorded make the run's ε larger."
            + (
                " It is for a public number of rows (zero-out): what the program divides by depends on that number."
                if self.divisor == "rows"
                else ""
            ),
            assumes="each step clipped every row and added the recorded noise"
            + (
                f"; {NUMBERS_FIXED}" + ("." if self.divisor else f" ({UNSAID}).")
                if self.divisor != "rows"
                else "; a coin decides whether a canary takes part, and not what the sum is divided by."
            ),
        )

    def _proof(self) -> str:
        return Finding(
            f"What is proved: {proved(self.proved, self.delta)}, {percent(min(self.share, 1.0))} of the accountant's. "
            f"Guesses at the coins alone prove {proved(self.by_coins, self.delta)}, whatever the mechanism and its "
            "noise.",
            verdict=f"{no_smaller(self.proved)} That is so if what is assumed holds."
            if float(self.proved.value) > 0
            else f"At {100 * self.confidence:g}% nothing is proved, which does not prove privacy.",
            assumes=f"{self.mechanism} ran with some noise, independent from coordinate to coordinate and step to step."
            if self.independent
            else "a fair coin of its own decided for each canary whether it was in the data.",
        )

    def _schedule(self) -> str:
        return Finding(
            f"The schedule: {self._tested()}.",
            verdict=f"At {100 * (1 - GATE_SHARE):g}% it is refuted, if what is assumed holds: look for missing noise, "
            "clipping that does not clip, rows sampled more often than stated."
            if self.p_value <= GATE_SHARE
            else f"At {100 * (1 - GATE_SHARE):g}% the scores do not refute it.",
            assumes="the attacker knows all rows but the canary and their batches; it sees every noisy gradient.",
        )

    def _noise(self) -> str:
        repeated = (
            "" if self.repeated_noise is None else f", of noise repeated in the next step {chance(self.repeated_noise)}"
        )
        return Finding(
            f"The noise: its standard deviation is {number(self.noise_ratio)} times the stated one (an estimate). The "
            f"p-value of noise that coordinates share is {chance(self.common_noise)}{repeated}.",
            verdict="No dependence shows in tests at 99.99% each."
            if self.independent
            else "It is dependent, so the order of the scores proves no ε here; guesses at the coins do. That is by a "
            "test at 99.99%.",
            assumes="what is left when the other rows' clipped gradients are subtracted is noise.",
        )

    def _others(self) -> str:
        return Finding(
            f"Interference: the other rows add {number(self.interference, 3)} standard deviations of the noise at a "
            f"canary's coordinate in a step. An attacker who does not know them would prove about "
            f"ε = {number(self.from_release)} instead of {number(self.proved)} (an estimate).",
            verdict="Compare the proof with the accountant's ε: both are for an attacker who knows all other rows.",
            assumes="scores that share the other rows' sum were independent, which they are not quite.",
        )

    def tables(self) -> dict[str, Table]:
        rows = (
            row_of("knows all other rows", least(self.proved), percent(min(self.share, 1.0)), guarantee(self.proved)),
            row_of("the same, by guesses at coins", least(self.by_coins), "", guarantee(self.by_coins)),
            row_of("sees the releases alone", number(self.from_release), "", "estimate"),
        )
        columns = heads("attacker", "ε at least [lower]", "share of the\naccountant's [lower]", "guarantee")
        caption = (
            f"{self.included:,} canaries in the data, {self.canaries - self.included:,} left out by coins, "
            f"{self.controls:,} other coordinates of {self.parameters:,}; a canary was in {self.times_seen:.4g} of "
            f"{self.steps:,} steps on average. δ = {power(self.delta)}."
        )
        return {"canaries": Table("What the canaries prove", columns, rows, caption)}

    def assumptions(self) -> list[str]:
        coins = (
            "A fair coin of its own decided for each canary whether it was in the data; a copy of one of your rows "
            "carried it through sampler and model."
        )
        replaced = (
            "Before the optimizer clipped, the copy's per-sample gradient was replaced by one of four times C on a "
            "coordinate of the canary's own. How layers compute per-sample gradients is not audited."
        )
        noise = (
            "Noise of different coordinates and steps is independent, as the mechanism claims; with other noise the "
            "order of the scores proves nothing."
        )
        shared = f"Two tests share the gate's error of {1 - GATE:.1g}: ε above the claim, and the schedule itself."
        notes = [sentence(note) for note in self.proved.assumptions.notes]
        return [coins, replaced, noise, shared, *notes]


_DEPENDENT = 1e-4
"""p-value below which noise counts as dependent."""


@timed
def from_canaries(
    trace: CanaryTrace | CanaryRecorder | str | Path,
    *,
    delta: float = 1e-5,
    claimed_epsilon: float | None = None,
    mechanism: Mechanism | None = None,
    confidence: float = 0.95,
    divisor: Divisor | None = None,
) -> CanaryReport:
    """The report on a training run in which `leakcore.record` planted canaries.

    ε is proved by one test of the order of all canaries' scores, if the schedule ran with some noise; its p-value tests
    the schedule itself. Where the noise of different coordinates proves to be dependent, ε is proved by guesses at
    the coins instead, which assumes nothing of the noise. docs/explanation/audit-power.md has the argument.

    Args:
        trace: a `CanaryTrace`, a recorder, or the file that it wrote.
        delta: δ in (0, 1).
        claimed_epsilon: ε that the run claims at δ, under the relation of the report. None: the accountant's.
        mechanism: what is claimed to have run in the recorded steps. None: Poisson sampling as recorded.
        divisor: "constant" or "rows", as for `leakcore.record`; None: as the trace says. A coin decides whether a
            canary takes part, and what the run divides by stays: zero-out adjacency, unless it is "constant".
        confidence: level of the quoted lower bounds, in (0, 1). Claims are contradicted at 99.9%.

    Returns:
        A `CanaryReport`.

    Raises:
        ValueError: names the argument.
        TypeError: for another type.

    Guarantees:
        Deterministic. About the recorded steps.

    Example:
        >>> import numpy as np
        >>> from leakcore import audit, dpsgd
        >>> rng = np.random.default_rng(0)
        >>> scores = rng.normal(size=1000) + 2 * (np.arange(1000) < 100)  # full batches, 4 steps at σ = 1
        >>> trace = dpsgd.CanaryTrace(
        ...     noise_multiplier=np.ones(4), max_grad_norm=np.ones(4), sample_rate=1.0, rows=90, parameters=1000,
        ...     coins=np.arange(200) < 100, times_seen=np.full(200, 4), scores=scores, release_scores=scores,
        ...     noise_ratio=1.0, common_noise=0.5, repeated_noise=0.5, interference=0.0,
        ... )
        >>> report = audit.from_canaries(trace)
        >>> report.passed, report.proved.kind
        (True, 'lower')
    """
    start = time.monotonic()
    slack = validate.open_probability(delta=delta)
    claim = None if claimed_epsilon is None else validate.non_negative(claimed_epsilon=claimed_epsilon)
    level = validate.confidence(confidence=confidence)
    recorded = read_trace(trace, CanaryTrace)
    sigma, norm = recorded.noise_multiplier, recorded.max_grad_norm
    noise = float(sigma[0]) if (sigma == sigma[0]).all() else sigma
    claimed = Poisson(noise, recorded.sample_rate, recorded.steps) if mechanism is None else mechanism
    validate.instance(Mechanism, mechanism=claimed)
    hypothesis = bounds.Hypothesis(claimed)
    stated = recorded.divisor if divisor is None else parse_divisor(divisor)
    relation = claimed.relation("zero-out" if stated == "rows" else "add-remove")
    inside = np.append(recorded.coins, np.zeros(recorded.controls, dtype=bool))

    def ordered(scores: np.ndarray, sure: float) -> bounds.EpsilonFromScores:
        return bounds.epsilon_lower_bound_from_scores(
            scores[inside],
            scores[~inside],
            adjacency=relation,
            threshold=bounds.SimultaneousThreshold(),
            confidence=sure,
            delta=slack,
            hypothesis=hypothesis,
        )

    whole = ordered(recorded.scores, level)
    of_coins = recorded.scores[: recorded.canaries], recorded.coins, slack
    tests = [p for p in (recorded.common_noise, recorded.repeated_noise) if p is not None]
    independent = min(tests) > _DEPENDENT
    strict = 1 - GATE_SHARE
    gate = ordered(recorded.scores, strict) if independent else audited(*of_coins, strict, relation)
    alone = dataclasses.replace(ordered(recorded.release_scores, level), kind="estimate", confidence=None)
    premise = {"rows": ROWS_PUBLIC, "constant": NUMBERS_FIXED, None: f"{NUMBERS_FIXED} ({UNSAID})"}[stated]
    facts = "steps sample_rate canaries controls parameters noise_ratio common_noise repeated_noise interference"
    return CanaryReport(
        **{name: getattr(recorded, name) for name in names(facts)},
        environment=environment(),
        delta=slack,
        claimed_epsilon=claim,
        confidence=level,
        noise_multiplier=(float(sigma.min()), float(sigma.max())),
        max_grad_norm=(float(norm.min()), float(norm.max())),
        mechanism=repr(claimed),
        included=int(recorded.coins.sum()),
        independent=independent,
        times_seen=float(recorded.times_seen[recorded.coins].mean()),
        divisor=stated,
        epsilon=noted(proved_epsilon(claimed, delta=slack, adjacency=relation), premise),
        proved=whole if independent else audited(*of_coins, level, relation),
        by_coins=audited(*of_coins, level, relation),
        from_release=alone,
        gate=dataclasses.replace(gate, confidence=GATE),
        p_value=float(whole.p_value or 0.0),
        seconds=time.monotonic() - start,
    )
