"""The report on a claimed ε: what was proved compared with what was claimed, under one adjacency."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypedDict

import numpy as np

from leakcore import accounting
from leakcore.accounting import LastIterateEpsilon
from leakcore.audit.claim.config import ClaimConfig
from leakcore.audit.claim.proofs import ClaimedEpsilon, Proof, Stopped
from leakcore.audit.scores.statistics import area, area_limits
from leakcore.audit.shared import elements
from leakcore.audit.shared.format import ADJACENCY, above, counted, fixed, guarantee, least, number, power, sentence
from leakcore.audit.shared.report import AuditReport, headline_of, same_names
from leakcore.bounds import EpsilonFromScores, MembershipEpsilon, OneRunEpsilon, SequentialEpsilon


class _Attack(NamedTuple):
    """An attack in words. scored: what is scored. share: whose share of scores is drawn."""

    name: str
    sees: str
    scored: str = "minus the loss at the attacker's row"
    share: str = "share of models"


_LOSS = "the final model's loss at"
_FINAL = "a crafted gradient, seen in the final model"
_BOTH = "the parameters of the first and of the final model"
_ATTACKS = {
    "clipbkd": _Attack("clipping-aware poisoning (ClipBKD)", f"{_LOSS} the attacker's rows"),
    "backdoor": _Attack("a backdoor (white patch)", f"{_LOSS} test images with the patch"),
    "zero-input": _Attack("a canary of zeros", f"{_LOSS} the row of zeros"),
    "membership": _Attack("membership inference", f"{_LOSS} every row", "membership score", "share of rows"),
    "crafted-gradient": _Attack(_FINAL, _BOTH, "move of one parameter"),
    "one-run": _Attack("canaries in one run", "every release of the run", "score of a canary", "share of canaries"),
}
"""All but the last see no model before the final one."""


Statistics = TypedDict("Statistics", {"with": np.ndarray, "without": np.ndarray, "k": int})
"""Scores with and without the attacker's rows, and the number of these rows."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ClaimReport(AuditReport):
    """The report of `audit.claim`.

    Attributes:
        config: what was asked.
        claim: the claimed ε, under the audit's adjacency.
        data: what the models were trained on, in words.
        parameters: number of parameters of a model.
        scores: for each k by name, the statistic of every model with and without the attacker's rows, and k. For
            membership: the statistic of every row of the counted models.
        proofs: the lower bounds, valid together at the audit's confidence.
        stopped: when, and why; None where all was trained before anybody looked.

    Example:
        >>> from leakcore import audit
        >>> report = audit.claim({
        ...     "data": {"name": "breast-cancer", "num_rows": 40}, "mechanism": {"noise_multiplier": 1.0, "steps": 2},
        ...     "claim": {"epsilon": 5.0}, "audit": {"trials": 20, "k": [1]},
        ... })
        >>> report.claim.epsilon, report.epsilon <= 5.0
        (5.0, True)
    """

    schema: ClassVar[str] = "leakcore.claim-audit/1"
    result_names: ClassVar[Mapping[str, str]] = same_names(
        "claim audited_epsilon=epsilon proofs data statistics stopped attacker_sees last_iterate"
    )
    timed: ClassVar[bool] = False
    """A resumed audit writes the same JSON."""

    config: ClaimConfig
    claim: ClaimedEpsilon
    data: str
    parameters: int
    scores: dict[str, tuple[np.ndarray, np.ndarray, int]]
    proofs: tuple[Proof, ...]
    stopped: Stopped | None = None

    @property
    def epsilon(self) -> float:
        """The largest lower bound: the audited ε."""
        return max(p.epsilon for p in self.proofs)

    @property
    def _attack(self) -> _Attack:
        return _ATTACKS[self.config.audit.attack]

    @property
    def attacker_sees(self) -> str:
        """What the attacker was allowed to see."""
        return self._attack.sees

    @property
    def last_iterate(self) -> LastIterateEpsilon | None:
        """ε of the final model if the loss were linear, an estimate; None where the attacker sees every release, and
        where the estimate is not defined."""
        m, claim = self.config.mechanism, self.claim
        if self.config.audit.attack == "one-run" or m.scheme != "poisson":
            return None
        if claim.adjacency != "add-remove" or claim.noise_multiplier == 0:
            return None
        return accounting.last_iterate_epsilon(claim.noise_multiplier, m.sample_rate, m.steps, delta=claim.delta)

    @property
    def best(self) -> Proof:
        """The proof with the largest lower bound."""
        return max(self.proofs, key=lambda p: p.epsilon)

    @property
    def title(self) -> str:
        m, model = self.config.mechanism, self.config.model
        layers = "–".join(map(str, model.hidden)) or "logistic regression"
        batches = {
            "shuffled": f"shuffled batches of {m.batch_size}",
            "fixed": f"fresh batches of {m.batch_size}",
            "allocation": f"rows allocated to {m.batches} batches an epoch",
            "poisson": "full batches" if m.sample_rate == 1 else f"Poisson batches, q = {m.sample_rate:g}",
        }[m.scheme]
        return (
            f"{self._attack.name} against {layers} on {self.config.data.name}, {m.steps} "
            f"steps, {batches}, C = {m.max_grad_norm:g}, σ = {number(self.claim.noise_multiplier, 5)}, claimed ε = "
            f"{number(self.claim.stated)} at δ = {power(self.config.claim.delta)} "
            f"({ADJACENCY[self.claim.stated_adjacency]})"
        )

    @property
    def contradictions(self) -> list[str]:
        said = []
        for p in self.proofs:
            if p.epsilon > self.claim.epsilon:
                proved, claimed = above(p.epsilon, self.claim.epsilon)
                said.append(
                    f"The attack proves more than is claimed: ε ≥ {proved} ({self._guarantee(p)}; "
                    f"{p.method}, {p.what}). The claim is ε = {claimed} at δ = {power(self.claim.delta)} under the "
                    "same adjacency."
                )
        return said

    def kept_headline(self) -> str:
        most = max(p.ceiling for p in self.proofs)
        return headline_of(self.epsilon, untested=most <= self.claim.epsilon)

    def judged(self) -> tuple[elements.Judged, ...]:
        sure = self._guarantee(self.best)
        return (elements.Judged(what="the audited ε", value=self.epsilon, guarantee=sure),)

    def _guarantee(self, proof: Proof) -> str:
        """At the confidence of all proofs together; each one alone has a higher one."""
        return guarantee(dataclasses.replace(proof.found, confidence=self.config.audit.confidence))

    def verdict_sentences(self) -> list[str]:
        if self.contradictions:
            above_it = [p.found for p in self.proofs if p.epsilon > self.claim.epsilon]
            gaussian = all(getattr(f, "family", None) == "gdp" for f in above_it)
            unless = ", or the release is not Gaussian, as that bound assumes" if gaussian else ""
            return [
                *self.contradictions,
                *self._saved(),
                f"Either the implementation or its accounting is wrong{unless}, or an assumption of the audit fails.",
            ]
        proved = (
            f"The audit proves ε ≥ {number(self.epsilon, kind='lower')} ({self._guarantee(self.best)}), which does not "
            f"exceed the claimed ε = {number(self.claim.epsilon)} under the same adjacency."
            if self.epsilon > 0
            else f"The audit proves nothing about ε ({self._guarantee(self.best)}); the claimed ε is "
            f"{number(self.claim.epsilon)} under the same adjacency."
        )
        most = number(max(p.ceiling for p in self.proofs), kind="upper")
        limits = (
            f"That does not prove the claim right: an audit of this size can prove at most ε = {most}, and a better "
            "attack may prove more."
        )
        return [proved, *self._saved(), limits]

    def _saved(self) -> list[str]:
        return [] if self.stopped is None else [self.stopped.to_text()]

    def cards(self) -> tuple[elements.Card, elements.Card, elements.Card, elements.Card]:
        best, claim = self.best, self.claim
        return (
            elements.Card(
                question=elements.BEATS,
                detail="This audit tests the claimed ε. It derives no bound on what an attack can reach from it.",
            ),
            self._reached(),
            elements.proof_card(
                dataclasses.replace(best.found, confidence=self.config.audit.confidence),
                claim.delta,
                f"by {best.method}, {best.what}. This audit cannot prove more than ε = "
                f"{number(max(p.ceiling for p in self.proofs), kind='upper')}.",
            ),
            elements.claim_card(claim.epsilon, claim.delta, self.claim.adjacency, claim.how),
        )

    def _reached(self) -> elements.Card:
        name = self._shown
        inside, outside, _ = self.scores[name]
        value, confidence, interval = area(inside, outside), "no guarantee", ""
        what = f"Area under the ROC curve of the attacker's statistic, {name}: 0.5 is guessing, 1 is perfect."
        if self.config.audit.attack in ("membership", "one-run"):
            what += " Without an interval, because rows scored by one model are not independent."
        else:
            level = self.config.audit.confidence
            # One of several statistics is shown: the error is shared among all.
            low, high = area_limits(value, min(len(inside), len(outside)), 1 - (1 - level) / len(self.scores))
            interval, confidence = (
                f"{fixed(low, 3, 'lower')}–{fixed(high, 3, 'upper')}",
                f"{100 * level:g}% confidence",
            )
        return elements.Card(
            question=elements.REACHED,
            value=f"{value:.3f}",
            kind="estimate",
            confidence=confidence,
            interval=interval,
            adjacency=elements.adjacency_words(None),
            detail=what,
        )

    def _k_words(self) -> str:
        return " k is the number of rows that the attacker places." if self._shown.startswith("k = ") else ""

    @property
    def _shown(self) -> str:
        """The statistic of the best proof, or the first one."""
        return self.best.what if self.best.what in self.scores else next(iter(self.scores))

    def _converted(self) -> str:
        claim = self.claim
        if claim.adjacency == claim.stated_adjacency:
            return f", {claim.how}"
        return (
            f"; under {ADJACENCY[self.claim.adjacency]} adjacency, which this audit tests, that is ε = "
            f"{number(claim.epsilon)} at δ = {power(claim.delta)} ({claim.how})"
        )

    def _attacker(self) -> elements.Finding:
        """What the attacker saw, and what that means for the gap between proof and claim."""
        saw, last = f"The attacker saw: {self.attacker_sees}.", self.last_iterate
        if self.config.audit.attack == "one-run":
            return elements.Finding(saw, verdict="That is the attacker whom the claim covers.")
        covered = "The claim covers an attacker who sees every release."
        if last is None:
            return elements.Finding(saw, verdict=f"{covered} A gap to it may be due to that.")
        if self.config.mechanism.sample_rate == 1:
            less = "the final model alone can reveal as much, because every step holds every row"
            return elements.Finding(saw, verdict=f"{covered} With full batches {less}.")
        apart = "The two numbers are about different attackers: the smaller one does not bound the claim."
        linear = "the loss is linear in the parameters, as for crafted gradients; another loss may reveal more or less."
        return elements.Finding(
            f"{saw} With a loss that is linear in the parameters the final model alone is worth ε = "
            f"{number(float(last.value))} at δ = {power(self.claim.delta)} (estimate, add/remove adjacency).",
            verdict=f"{covered} {apart}",
            assumes=linear,
        )

    def findings(self) -> list[str]:
        out: list[str] = [
            elements.Finding(
                f"The claim: ε = {number(self.claim.stated)} at δ = {power(self.config.claim.delta)} under "
                f"{ADJACENCY[self.claim.stated_adjacency]} adjacency{self._converted()}.",
                verdict="The proofs below are compared with this number, under the same adjacency.",
            ),
            self._attacker(),
        ]
        for p in self.proofs:
            proof = p.found
            if isinstance(proof, EpsilonFromScores):
                basis = (
                    f"the event (score at least {'—' if proof.threshold is None else number(proof.threshold)}) "
                    f"occurred in {proof.hits[0]} of {proof.trials[0]} models with the rows and {proof.hits[1]} of "
                    f"{proof.trials[1]} without"
                )
            elif isinstance(proof, SequentialEpsilon):
                basis = (
                    f"bets on {counted(proof.trials, 'pair')} of models in {counted(proof.looks, 'look')}; the claim's "
                    f"p-value, valid at every look, is {number(proof.p_value, 2)}"
                )
            else:
                assert isinstance(proof, MembershipEpsilon | OneRunEpsilon)
                basis = f"{proof.correct:,} of {proof.guesses:,} guesses right"
            sure = f"at {100 * self.config.audit.confidence:g}%, if what is assumed holds"
            follows = (
                f"Above the claim: {sure}, it is contradicted."
                if p.epsilon > self.claim.epsilon
                else f"At {100 * self.config.audit.confidence:g}% nothing is proved; that does not prove privacy "
                "either."
                if p.epsilon == 0
                else "Below the claim: nothing contradicts it, and nothing confirms it."
            )
            if p.epsilon <= self.claim.epsilon and p.ceiling <= self.claim.epsilon:
                # Of canaries more do not always prove more: each adds to what δ allows.
                advice = "" if isinstance(proof, OneRunEpsilon) else ": give it more trials"
                follows += f" An audit of this size could not have contradicted the claim{advice}."
            proved = f"ε ≥ {number(p.epsilon, kind='lower')}" if p.epsilon > 0 else "nothing about ε"
            said = f"{proved} ({self._guarantee(p)}), {p.what}: {basis}"
            most = f"The most that counts of this size can prove is {number(p.ceiling, kind='upper')}."
            text = f"{p.method[0].upper()}{p.method[1:]}: {said}. {most}"
            out.append(elements.Finding(text, verdict=follows, assumes=_assumed(p)))
        return out

    def assumptions(self) -> list[str]:
        sentences = [f"The data: {self.data}; {self.parameters:,} parameters."]
        for p in self.proofs:
            sentences += [sentence(f"{p.method}: {note}") for note in p.found.assumptions.notes]
        sentences.append(
            f"The {len(self.proofs)} bounds hold together at {100 * self.config.audit.confidence:g}%; a correct "
            "mechanism fails this gate with at most the remaining probability."
        )
        if not self.claim.gaussian:
            sentences.append("Subsampled batches do not make a Gaussian mechanism, so the Gaussian family is not used.")
        return list(dict.fromkeys(sentences))

    def tables(self) -> dict[str, elements.Table]:
        claimed = self.claim.epsilon
        proved = elements.table_of(
            "Proved compared with claimed",
            self.proofs,
            {
                "method": lambda p: p.method,
                "chosen": lambda p: p.what,
                "audited ε [lower]": lambda p: least(p.found),
                "claimed ε": lambda p: number(claimed),
                "most this\naudit can prove": lambda p: number(p.ceiling, kind="upper"),
                "": lambda p: "EXCEEDS THE CLAIM" if p.epsilon > claimed else "below",
            },
            f"δ = {power(self.claim.delta)}, {ADJACENCY[self.claim.adjacency]} adjacency throughout; the lower bounds "
            f"hold together with {100 * self.config.audit.confidence:g}% confidence.{self._k_words()}",
            highlight=lambda p: p is self.best,
            marked="the best proof",
        )
        statistic = elements.table_of(
            "The attacker's statistic",
            [(name, a, b) for name, (a, b, _) in self.scores.items()],
            {
                " [parameter]": lambda s: s[0],
                "models or\nrows with": lambda s: f"{len(s[1]):,}",
                "without": lambda s: f"{len(s[2]):,}",
                "mean with [estimate]": lambda s: number(float(s[1].mean())),
                "mean\nwithout [estimate]": lambda s: number(float(s[2].mean())),
                "area under\nthe curve [estimate]": lambda s: f"{area(s[1], s[2]):.3f}",
            },
            "Over all models that were counted. This describes, and proves nothing. "
            f"An area of 0.5 is guessing, 1 is perfect.{self._k_words()}",
        )
        return {"proved": proved, "statistic": statistic}

    def sections(self) -> tuple[elements.Section, ...]:
        from leakcore.audit.shared.plots import histograms_svg

        tables = self.tables()
        name = self._shown
        inside, outside, _ = self.scores[name]
        figure = elements.Figure(
            svg=functools.partial(histograms_svg, inside, outside, self._attack.scored, self._attack.share),
            alt=f"Two histograms of the attacker's statistic, with and without the attacker's rows, {name}: mean "
            f"{number(float(inside.mean()))} with, {number(float(outside.mean()))} without; area under the ROC curve "
            f"{area(inside, outside):.3f}.",
            caption=f"The attacker's statistic with and without the attacker's rows, {name}. The more the two "
            f"histograms overlap, the less a model reveals; {_overlap(inside, outside)}{self._k_words()}",
        )
        return (
            elements.Section("Proved compared with claimed", (tables["proved"],)),
            elements.Section("What the attacker saw", (tables["statistic"],), figure),
        )

    @property
    def statistics(self) -> dict[str, Statistics]:
        """The scores of every k in ascending order, where there are at most 100,000."""
        return {
            name: {"with": np.sort(a), "without": np.sort(b), "k": k}
            for name, (a, b, k) in self.scores.items()
            if len(a) + len(b) <= 100_000
        }


def _assumed(proof: Proof) -> str:
    if not isinstance(proof.found, EpsilonFromScores | SequentialEpsilon):
        return "every row was in or out by a fair coin of its own; guesses depend on what was released alone."
    chosen = "models are trained independently; " + (
        "each bet was chosen by the models before it"
        if isinstance(proof.found, SequentialEpsilon)
        else "the tests hold for all thresholds and every k at once"
    )
    return chosen + ("; the mechanism is Gaussian, as full-batch DP-SGD is." if "Gaussian" in proof.method else ".")


def _overlap(inside: np.ndarray, outside: np.ndarray) -> str:
    apart = abs(area(inside, outside) - 0.5)
    if apart < 0.05:
        return "here they nearly coincide."
    return "here they overlap little." if apart > 0.4 else "here they overlap in part."
