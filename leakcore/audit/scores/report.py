"""The report on membership scores of another tool."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from leakcore._base.results import Adjacency, Result
from leakcore.audit.scores.statistics import MeasuredRate
from leakcore.audit.shared import elements
from leakcore.audit.shared.elements import (
    BEATS,
    EPSILON,
    PROVED,
    REACHED,
    Card,
    Finding,
    Row,
    Table,
    card,
    claim_card,
    heads,
    proof_card,
    row_of,
)
from leakcore.audit.shared.format import (
    ADJACENCY,
    above,
    chance,
    ends,
    guarantee,
    interval,
    least,
    no_smaller,
    number,
    percent,
    power,
    proved,
    sentence,
)
from leakcore.audit.shared.report import GATE, AuditReport, between_levels, headline_of, names, same_names


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScoresReport(AuditReport):
    """The report of `audit.from_scores`.

    Attributes:
        source: where the scores come from.
        higher: who scores higher.
        coins: whether fair coins decided the members.
        retrained: whether each score comes from its own model.
        k: rows by which the training data differ.
        delta: δ.
        claimed_epsilon: the claimed ε, or None.
        claimed_adjacency: relation of the claimed ε; None without a claim.
        adjacency: relation that the audit tests.
        confidence: level of the intervals and of `epsilon`, in (0, 1).
        seed: seed of the order of equal scores, or of the random halves.
        select: how the threshold was chosen: "simultaneous", "split", or by "guesses" at coins.
        family: what is refuted: "dp", "gdp" or the claimed mechanism.
        members: number of members.
        non_members: number of non-members.
        area: area under the ROC curve.
        at_fpr: true-positive rates; None where there are too few non-members.
        epsilon: kind "lower" if coins or retraining make it a proof, else "estimate".
        converted: what the scores prove under the claim's adjacency, at `confidence`; None where it is the audit's.
        gate: the proof at 99.9%, under the claim's adjacency; None without a claim or a proof.
        ceiling: what `gate` would be for scores that tell every member; None without `gate`.
        p_value: how rarely guesses would be as good, were the claimed mechanism what ran; None unless `family` is one.
        roc: false-positive and true-positive rates of the curve.

    Example:
        >>> import numpy as np
        >>> from leakcore import audit
        >>> rng = np.random.default_rng(0)
        >>> report = audit.from_scores(rng.normal(1.0, size=500), rng.normal(size=500), adjacency="add-remove")
        >>> report.epsilon.kind, report.proved
        ('estimate', False)
    """

    schema: ClassVar[str] = "leakcore.scores-audit/1"
    setting_names: ClassVar[tuple[str, ...]] = names(
        "source higher coins retrained k delta claimed_epsilon claimed_adjacency adjacency confidence seed select "
        "family members non_members"
    )
    result_names: ClassVar[Mapping[str, str]] = same_names("area at_fpr epsilon converted gate ceiling p_value roc")

    source: str
    higher: str
    coins: bool
    retrained: bool
    k: int
    delta: float
    claimed_epsilon: float | None
    claimed_adjacency: Adjacency | None
    adjacency: str
    confidence: float
    seed: int
    select: str
    family: str
    members: int
    non_members: int
    area: Result
    at_fpr: tuple[MeasuredRate | None, ...]
    epsilon: Result
    converted: Result | None
    gate: Result | None
    ceiling: float | None
    p_value: float | None
    roc: tuple[np.ndarray, np.ndarray]

    @property
    def proved(self) -> bool:
        """Whether ε is a proof."""
        return self.coins or self.retrained

    @property
    def title(self) -> str:
        return (
            f"membership {self._from}: {self.members:,} members and {self.non_members:,} non-members, "
            f"{self.higher} score higher"
        )

    @property
    def _from(self) -> str:
        return self.source if self.source == "scores as given" else f"scores from {self.source}"

    @property
    def contradictions(self) -> list[str]:
        refuted = self._refuted_epsilon()
        if self.p_value is None or self.p_value > 1 - GATE:
            return refuted
        return [f"{self._tested()}: not trained as claimed, unless an assumption of the audit fails.", *refuted]

    def _tested(self) -> str:
        assert self.p_value is not None
        event = (
            "guesses at the coins would be right at least this often"
            if self.coins
            else "scores would tell the sides apart this well"
        )
        return f"Under {self.family}, {event} with probability at most {chance(self.p_value)}"

    def _refuted_epsilon(self) -> list[str]:
        if self.gate is None or self.claimed_epsilon is None or float(self.gate.value) <= self.claimed_epsilon:
            return []
        if self.gate.adjacency != self.claimed_adjacency:
            raise ValueError(
                f"`gate` must be under the claim's adjacency, {self.claimed_adjacency}, got {self.gate.adjacency}"
            )
        least, claimed = above(self.gate, self.claimed_epsilon)
        proof = f"ε ≥ {least} at δ = {power(self.delta)} ({guarantee(self.gate)})"
        refuted = f"above the claimed {claimed} under {self._claim_words} adjacency{self._if_family()}"
        return [
            f"The scores prove {proof}, {refuted}: not trained as claimed, unless an assumption of the audit fails."
        ]

    @property
    def _claim_words(self) -> str:
        return ADJACENCY[self.claimed_adjacency]

    @property
    def _compared(self) -> Result:
        """What is proved at `confidence`, under the relation of the claim."""
        return self.epsilon if self.converted is None else self.converted

    def kept_headline(self) -> str:
        if self.claimed_epsilon is None or not self.proved:
            return "Measured." if self.claimed_epsilon is None else "Measured; the claim was not tested."
        if self._between:
            return between_levels(self.confidence)
        return headline_of(self._compared, untested=self._untested)

    @property
    def _untested(self) -> bool:
        """Whether so few scores could not have contradicted the claim."""
        return self.ceiling is not None and self.claimed_epsilon is not None and self.ceiling <= self.claimed_epsilon

    @property
    def _between(self) -> bool:
        """Whether the claim is contradicted at `confidence`, but not at the gate's."""
        claim = self.claimed_epsilon
        return self.proved and claim is not None and not self.contradictions and float(self._compared.value) > claim

    def judged(self) -> tuple[elements.Judged, ...]:
        if not self.proved:
            return ()
        return (elements.judged("ε proved by the scores", self.epsilon),)

    def verdict_sentences(self) -> list[str]:
        if self.contradictions:
            return self.contradictions
        said = (
            f"The area under the ROC curve of these scores is {number(self.area, 3)} ({_span(self.area)} at "
            f"{100 * self.confidence:g}%, if {self._independence().removesuffix('.')}; 0.5 is guessing)."
        )
        if self.proved:
            return [said, f"They prove {proved(self.epsilon, self.delta)}{self._in_the_claims_words()}."]
        return [said, "They prove nothing about ε, because nothing random chose who was a member."]

    def cards(self) -> tuple[Card, Card, Card, Card]:
        claimed = self.claimed_epsilon
        proof = (
            proof_card(self.epsilon, self.delta, f"by {self.epsilon.method}.")
            if self.proved
            else Card(
                question=PROVED,
                absent="nothing",
                detail="Nothing random chose who was a member. Choose members by fair coins, or retrain, and say so.",
            )
        )
        return (
            Card(question=BEATS, detail="Scores show what one attack reached, not what the best attack could."),
            card(
                REACHED,
                self.area,
                number(self.area, 3),
                "Area under the ROC curve of these scores: 0.5 is guessing, 1 is perfect.",
                interval=_span(self.area),
            ),
            proof,
            Card(question=EPSILON, detail="No ε was claimed, and no accountant saw the training.")
            if claimed is None
            else claim_card(claimed, self.delta, self.claimed_adjacency, "as claimed; no accountant saw the training"),
        )

    def findings(self) -> list[str]:
        return [self._separation(), self._rates(), self._epsilon()]

    def _separation(self) -> str:
        low, high = (float(v) for v in self.area.interval or (0.0, 1.0))
        sure = f"At {100 * self.confidence:g}%, if what is assumed holds, "
        follows = (
            f"{sure}the scores tell members from non-members."
            if low > 0.5
            else f"{sure}non-members score higher than members: check which way the scores point."
            if high < 0.5
            else f"At {100 * self.confidence:g}% the interval holds 0.5: the scores may say nothing about membership."
        )
        return Finding(
            f"Separation: the area under the ROC curve is {number(self.area, 3)} ({_span(self.area)} at "
            f"{100 * self.confidence:g}%, an estimate); 0.5 is guessing, 1 is perfect.",
            verdict=follows,
            assumes=self._independence(),
        )

    def _rates(self) -> str:
        rates = [
            f"{percent(r)} at {percent(r.fpr)} false positives ({interval(r)})" for r in self.at_fpr if r is not None
        ]
        if not rates:
            return f"At few false alarms: {self.non_members:,} non-members are too few to see a rate of 10% or less."
        sharp = [r for r in self.at_fpr if r is not None and r.interval and float(r.interval[0]) > r.fpr]
        follows = (
            f"At {percent(sharp[0].fpr)} false positives the interval lies above guessing. That one of {len(rates)} "
            f"intervals does so says at {_together(self.confidence, len(rates))}, if what is assumed holds, that some "
            "rows are recognised, whatever the test is on average."
            if sharp
            else "At none of these rates does the interval lie above guessing."
        )
        return Finding(
            f"At few false alarms: true-positive rates {', '.join(rates)}; estimates, intervals of "
            f"{100 * self.confidence:g}% each.",
            verdict=follows,
            assumes=self._independence(),
        )

    def _epsilon(self) -> str:
        stated = proved(self.epsilon, self.delta)
        claimed = (
            ""
            if self.claimed_epsilon is None
            else f" The claim is ε = {number(self.claimed_epsilon)} under {self._claim_words} adjacency."
        )
        if not self.proved:
            return Finding(
                f"What is proved: nothing. If every score came from a model of its own, these would prove {stated}; as "
                f"it is, that is an estimate.{claimed}",
                verdict="Do not quote this as a bound. Choose members by fair coins, or retrain, and say so.",
                assumes="a row's score in this model stands for its score in an independent one.",
            )
        how = (
            f"from guesses at {self.members + self.non_members:,} coins of one run"
            + (self._if_family() or ". It is valid, and rarely tight")
            if self.coins
            else f"from tests of the order of all scores, which hold at once{self._if_family()}"
            if self.select == "simultaneous"
            else "from a threshold chosen on one half of the scores and counted on the other" + self._if_family()
        )
        follows = (
            f"The claim is contradicted at the gate's {_gate(self.gate)}, if what is assumed holds."
            if self.contradictions
            else f"Above the claim at {100 * self.confidence:g}%; at the gate's {_gate(self.gate)} it is not: score "
            "more rows or models."
            if self._between
            else f"{self.members:,} members and {self.non_members:,} non-members prove at most ε = "
            f"{number(self.ceiling, kind='upper')} at the gate's {_gate(self.gate)}, however well they are told apart: "
            "they could not have contradicted the claim."
            if self._untested and self.ceiling is not None
            else f"{no_smaller(self.epsilon)} That is so if what is assumed holds{self._if_family()}."
            if float(self.epsilon.value) > 0
            else f"At {100 * self.confidence:g}% nothing is proved; that does not prove privacy either: the attack may "
            "be weak, or the scores few."
        )
        tested = "" if self.p_value is None else f" {self._tested()}."
        stated += self._in_the_claims_words()
        return Finding(f"What is proved: {stated}, {how}.{claimed}{tested}", verdict=follows, assumes=self._design())

    def _in_the_claims_words(self) -> str:
        """What is proved under the relation of the claim, where that is another than the audit's."""
        if self.converted is None:
            return ""
        return (
            f"; under {self._claim_words} adjacency, that of the claim, they prove {proved(self.converted, self.delta)}"
        )

    def _if_family(self) -> str:
        if self.family == "dp":
            return ""
        return ", if " + ("the mechanism is Gaussian" if self.family == "gdp" else f"{self.family} with some noise ran")

    def _independence(self) -> str:
        return (
            "every score is from a model of its own."
            if self.retrained
            else "rows were drawn independently; what all scores of one model share is not in the intervals."
        )

    def _design(self) -> str:
        if self.coins:
            return (
                "a fair coin of its own decided for each row whether it was trained on, every row with a coin is here, "
                "and the scores were made without knowing the coins."
            )
        if self.retrained:
            rows = "the row" if self.k == 1 else f"the {self.k} rows"
            return (
                f"every score is from a model trained independently, with {rows} in question or without, and the "
                "attack was fixed before these models."
            )
        return "members are those rows that happened to be in the training data; nothing is proved of ε."

    def tables(self) -> dict[str, Table]:
        rows = [
            row_of(f"true positives at {percent(r.fpr)} false", percent(r.fpr), percent(r), interval(r))
            for r in self.at_fpr
            if r is not None
        ]
        rows.append(row_of("area under the ROC curve", "0.5", number(self.area, 3), _span(self.area)))
        columns = heads("test", "guessing", "these scores [estimate]", "interval [estimate]")
        caption = (
            f"{100 * self.confidence:g}% intervals, each for its own row, valid in finite samples for independent "
            "scores; they count the threshold's uncertainty. Rates too small for so few non-members are left out."
        )
        epsilon = Table(
            "What the scores say about ε",
            heads(f"ε at least [{self.epsilon.kind}]", "δ", "adjacency", "confidence", "claimed ε"),
            tuple(self._row(result) for result in (self.epsilon, self.converted) if result is not None),
            f"By {self.epsilon.method}. "
            + (
                "No proof, an estimate: "
                if not self.proved
                else "A proof, if what is assumed holds: "
                if float(self.epsilon.value) > 0
                else "Nothing is proved. Assumed was: "
            )
            + self._design(),
        )
        return {"rates": Table("The scores as a membership test", columns, tuple(rows), caption), "epsilon": epsilon}

    def _row(self, result: Result) -> Row:
        """A bound, next to the claim if that is under the same relation."""
        comparable = self.claimed_epsilon is not None and result.adjacency == self.claimed_adjacency
        return row_of(
            least(result) if self.proved else number(result),
            power(self.delta),
            ADJACENCY[result.adjacency],
            "none" if result.confidence is None else f"{100 * result.confidence:g}%",
            number(self.claimed_epsilon or 0.0) if comparable else "—",
        )

    def figures(self) -> dict[str, elements.Figure]:
        from leakcore.audit.shared.plots import roc_svg

        least = max(1e-5, min(1e-3, 0.5 / self.non_members))
        fpr = np.geomspace(least, 1, 61)
        bound = None
        if self.claimed_epsilon is not None:
            rows = self.k if self.adjacency == self.claimed_adjacency else 2 * self.k
            one = np.exp(min(self.claimed_epsilon, 700.0 / rows))
            grow, slack = one**rows, self.delta * sum(one**i for i in range(rows))  # of so many rows: group privacy
            bound = np.minimum(grow * fpr + slack, 1 - (1 - slack - fpr) / grow).clip(0, 1)
        bars = [
            (r.fpr, float(r.value), float(r.interval[0]), float(r.interval[1]))
            for r in self.at_fpr
            if r is not None and r.interval is not None
        ]
        svg = functools.partial(
            roc_svg,
            fpr,
            bound,
            self.roc,
            bound_name="most that the claimed ε allows",
            found_name="these scores",
            intervals=bars,
            intervals_name=f"{100 * self.confidence:g}% intervals",
        )
        limit = (
            ""
            if bound is None or not self.retrained
            else " An interval wholly above the solid curve speaks against "
            "the claimed ε; each is at its own confidence, and what is proved is below."
        )
        figure = elements.Figure(
            svg=svg,
            alt=f"True-positive against false-positive rate of the scores, both axes logarithmic. {self._rates()}",
            caption="Points above the dotted line recognise members better than guessing does. The left end matters "
            f"most, where few are accused wrongly. Bars: {100 * self.confidence:g}% intervals.{limit}",
        )
        return {"rates": figure}

    def assumptions(self) -> list[str]:
        gate = (
            f"A claim is contradicted only by what is proved at {100 * GATE:g}%: chance does that to a model that "
            f"keeps it with probability at most {1 - GATE:.1g}. A limit (fail_above) is compared with the ε printed, "
            f"proved at {100 * self.confidence:g}%: chance lifts that above the model's own with probability at most "
            f"{1 - self.confidence:.2g}."
        )
        return [
            f"How members were chosen: {self._design()}",
            f"Intervals: {self._independence()}",
            f"The scores mean what was stated: {self.higher} score higher ({self._from}).",
            *([gate] if self.proved else []),
            *(sentence(note) for note in self.epsilon.assumptions.notes),
            "What another attack on the same model would find is not known: a low number does not prove privacy.",
        ]


def _span(result: Result) -> str:
    return ends(result, 3)


def _together(confidence: float, number: int) -> str:
    """The level at which all of so many intervals hold."""
    return f"{100 * max(0.0, 1 - number * (1 - confidence)):.3g}%"


def _gate(result: Result | None) -> str:
    return "the gate's level" if result is None or result.confidence is None else f"{100 * result.confidence:g}%"
