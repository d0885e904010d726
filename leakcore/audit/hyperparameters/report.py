"""The report on a configuration, in words, tables and a figure: bounds, attacks and labels over noise levels."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar

from leakcore._base.results import Result, require_same_adjacency
from leakcore.audit.hyperparameters import scheme, tables
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.hyperparameters.labels import LabelStudy
from leakcore.audit.hyperparameters.reconstruction import BoundCurve, ReconstructionPoint
from leakcore.audit.shared import elements
from leakcore.audit.shared.format import (
    ADJACENCY,
    above,
    claim_of,
    ends_proved,
    guarantee,
    interval,
    number,
    percent,
    power,
    understated,
)
from leakcore.audit.shared.report import AuditReport, headline_of


def _bracket_text(epsilon: Result) -> str:
    """Both ends of an ε that is known only from above and from below; empty of another."""
    if epsilon.method != "bracket" or epsilon.interval is None:
        return ""
    low, high = (float(v) for v in epsilon.interval)
    return f" ε lies between {number(low, kind='lower')} and {number(high, kind='upper')}: {ends_proved(epsilon)}."


def _membership(p: ReconstructionPoint) -> list[str]:
    """What no membership test can beat."""
    if p.membership is None:
        return []
    rate = float(p.membership.value)
    return [
        elements.Finding(
            f"Telling members from others: no test recognises more than {percent(p.membership)} of the rows that were "
            f"trained on at 1% false positives ({guarantee(p.membership)}). Guessing gives 1%.",
            verdict=(
                "Training adds little to what guessing gives."
                if rate < 0.02
                else "This noise does not rule out membership inference."
                if rate > 0.9
                else "That bounds every membership test, whatever it uses; none was run here."
            ),
            assumes="the attacker knows every other row and sees every noisy gradient and every model.",
        )
    ]


def _poisson_claim(config: AuditConfig, p: ReconstructionPoint) -> list[str]:
    """What accounting as Poisson sampling would print, and whether it lies below what is proved from below."""
    numbers = [
        (result, name, show)
        for result, name, show in (
            (p.epsilon, "ε", number),
            (p.bound, f"naming the target among {config.num_candidates}", percent),
            (p.membership, "recognising members at 1% false positives", percent),
        )
        if result is not None and claim_of(result) is not None
    ]
    if not numbers:
        return []
    said = [
        f"{name} {show(claim_of(result) or 0.0)}, proved between "
        f"{show(float(result.interval[0]), kind='lower')} and {show(float(result.interval[1]), kind='upper')}"
        for result, name, show in numbers
        if result.interval is not None
    ]
    below = [name for result, name, _ in numbers if understated(result)]
    assert p.attack.interval is not None
    beaten = float(p.attack.interval[0]) > (claim_of(p.bound) or 1.0)
    played = " The attack that was run reached more than the second, with its whole interval." if beaten else ""
    return [
        elements.Finding(
            f"What Poisson accounting would claim: if each row were in each batch with probability 1/{config.batches}, "
            f"the claims would be {'; '.join(said)} ({guarantee(p.epsilon)}). Batches are not drawn so.{played}",
            verdict=(
                f"Do not quote these claims: they lie below the lower limit for {', '.join(below)}."
                if below
                else "These claims are not proved; they lie above the lower limits."
            ),
            assumes="the lower limits are for a fresh order in each epoch; the upper ones hold for any order.",
        )
    ]


def _untestable(p: ReconstructionPoint) -> list[str]:
    bound, trials = float(p.bound.value), p.attack.trials
    untestable = (
        f"No attack could have proved more than was claimed: {trials:,} right answers of {trials:,} would prove a "
        f"success of {percent(p.attack_ceiling, 'lower')}, below the bound."
    )
    if not 0 < bound < 1:
        return [untestable]
    # The lower limit of n hits in n is m^(1/n), m the chance of a miss.
    needed = math.floor(trials * math.log(p.attack_ceiling) / math.log(bound)) + 1
    return [untestable, f"An attack that never errs takes {needed:,} trainings to be proved above it."]


def _accountant(config: AuditConfig, p: ReconstructionPoint) -> str:
    others = [f"{name} {number(r)}" for name, r in (("PLD", p.epsilon_pld), ("RDP", p.epsilon_rdp)) if r is not None]
    compared = f" dp-accounting gives {' and '.join(others)} for the same." if others else ""
    replaced = ""
    if p.epsilon_replace is not None:
        instead = "removing" if p.epsilon.adjacency == "add-remove" else "zeroing"
        replaced = (
            f" Against replacing a row instead of {instead} it, the same run has ε = {number(p.epsilon_replace)} "
            f"({guarantee(p.epsilon_replace)}): another question, not a contradiction."
        )
    return elements.Finding(
        f"The accountant: σ = {number(p.noise_multiplier, 5)} over {scheme.total_steps(config)} steps, "
        f"{scheme.words(config)}, gives ε = {number(p.epsilon)} at δ = {power(config.delta)} ({guarantee(p.epsilon)})."
        f"{_bracket_text(p.epsilon)}{compared}{replaced}",
        verdict="Quote ε together with its δ and its adjacency.",
        assumes="every step clips each row to C and adds noise σC to the sum, with batches drawn as configured.",
    )


def _bound(config: AuditConfig, p: ReconstructionPoint) -> str:
    bound, chance = float(p.bound.value), 1 / config.num_candidates
    follows = (
        "The training adds little to what guessing gives."
        if bound < chance + 0.1
        else "This noise does not rule out reconstruction."
        if bound > 0.9
        else f"Training lifts what an attacker can reach from {percent(chance)} to at most {percent(p.bound)}."
    )
    rdp = "" if p.bound_rdp is None else f" The older bound through Rényi divergence promises {percent(p.bound_rdp)}."
    if p.bound.interval is not None and p.bound.method == "bracket":
        low = percent(float(p.bound.interval[0]), "lower")
        rdp = f" The lower end of the bound is {low}: {ends_proved(p.bound)}."
    return elements.Finding(
        "What no attacker can beat: knowing all rows but one, every noisy gradient, every model, and that the missing "
        f"row is one of {config.num_candidates} equally likely candidates, an attacker names it with probability at "
        f"most {percent(p.bound)} ({guarantee(p.bound)}). Guessing gives {percent(chance)}.{rdp}",
        verdict=follows,
        assumes="the mechanism is DP-SGD with this noise and sampling; the prior is uniform over that many candidates.",
    )


def _attack(config: AuditConfig, p: ReconstructionPoint) -> str:
    assert p.attack.interval is not None
    low, high = (float(v) for v in p.attack.interval)
    bound = float(p.bound.value)
    follows = (
        "The whole interval lies below the bound, as it must."
        if high <= bound
        else "The interval contains the bound: it is too wide to tell."
        if low <= bound
        else "Above the bound: see the verdict."
    )
    batches = scheme.batches_known(config)
    knows = batches if batches.startswith("but ") else f"and {batches}"
    return elements.Finding(
        f"What an attacker did: the prior-aware attack named the target in {p.attack.hits} of {p.attack.trials} "
        f"independent trainings, {percent(p.attack)} (interval {interval(p.attack)}; "
        f"{guarantee(p.attack)}).",
        verdict=follows,
        assumes=f"the trainings are independent. The attack knows the other rows, {knows}. "
        "Another attack may do better, up to the bound.",
    )


def _gaps(p: ReconstructionPoint) -> list[str]:
    if p.reference is None:
        return []
    middle, attack = float(p.reference.value), float(p.attack.value)
    first = (
        f"Why the bound is higher ({percent(p.bound)} against {percent(middle)}): it must hold for every prior with κ "
        f"= 1/{p.num_candidates}, and the worst of these priors only asks to tell the target from one alternative. "
        "Choosing among candidates whose gradients are all clipped and orthogonal is harder; the smaller number is the "
        "optimum for that case (an estimate: it models the candidates, and guarantees nothing about these)."
    )
    facts = (
        f"{percent(p.clipped_share)} of the candidates' gradients were clipped, and the average cosine between a "
        f"candidate's gradient and its nearest neighbour's was {p.nearest_cosine:.2f}"
    )
    low, high = (float(v) for v in p.attack.interval) if p.attack.interval else (attack, attack)
    if low <= middle <= high:
        second = (
            f"The attack is at that optimum: it agrees within its interval. In this run {facts}; correlated or "
            "unclipped gradients help the defender, anti-correlated ones the attacker."
        )
    elif attack < middle:
        second = (
            f"Why the attack is lower still ({percent(attack)}): correlated or unclipped gradients help the defender. "
            f"In this run {facts}."
        )
    else:
        second = (
            f"The attack is above the orthogonal optimum ({percent(attack)} against {percent(middle)}): {facts}, and "
            "candidates whose gradients point apart are easier to tell from each other than orthogonal ones."
        )
    return [first, second]


def _audited(p: ReconstructionPoint) -> str:
    proved, claimed = float(p.epsilon_audited.value), float(p.epsilon.value)
    sure = "" if p.epsilon_audited.confidence is None else f"At {100 * p.epsilon_audited.confidence:g}%: "
    least = f"ε ≥ {number(p.epsilon_audited)}" if proved > 0 else "nothing about ε"
    return elements.Finding(
        f"What the attack proves: {least} ({guarantee(p.epsilon_audited)}). A "
        f"game with {p.num_candidates} candidates cannot prove more than log {p.num_candidates} = "
        f"{number(p.audit_ceiling, 3)}, so this is a check that nothing is broken, not a measurement of ε.",
        verdict=sure
        + (
            "more than is claimed; if what is assumed holds, the mechanism or its accounting is wrong."
            if proved > claimed
            else "less than is claimed; nothing contradicts it, and nothing confirms it."
            if proved > 0
            else "nothing is proved, which does not prove privacy."
        ),
        assumes="the trainings are independent and the rule that names the target was fixed beforehand.",
    )


def _labels(study: LabelStudy) -> list[str]:
    clean = next(o for o in study.outcomes if o.noise_multiplier == 0)
    open_ = clean.determined > 0 and clean.right / clean.determined > 0.9
    out: list[str] = [
        elements.Finding(
            f"Labels without noise: one averaged last-layer gradient of {study.batch_size} rows gave away "
            f"{clean.right} of {clean.determined} determined labels ({percent(clean.recovered)}); "
            f"{clean.labels - clean.determined} of {clean.labels} labels could not be determined; leakcore reports "
            "those, and does not guess them.",
            verdict=(
                "Averaging does not protect labels: share such gradients only with noise."
                if open_
                else "On this batch most labels could not be read."
            ),
            assumes="the attacker knows the model and the inputs of the batch, and sees its averaged gradient.",
        )
    ]
    noisy = [o for o in study.outcomes if o.noise_multiplier > 0 and o.claimed]
    for o in noisy:
        lower = o.lower["likelihood-ratio"]
        if o.replacement is not None:
            require_same_adjacency(lower, o.replacement)
            assert o.recovered.interval is not None
            sure = f"At {100 * (o.recovered.confidence or 0):g}%"
            follows = (
                f"{sure} this attacker does worse than always answering the majority class; another may do better."
                if float(o.recovered.interval[1]) < o.majority
                else f"{sure} labels still leak: the attacker does better than always answering the majority class."
                if float(o.recovered.interval[0]) > o.majority
                else f"{sure} the interval does not tell the attacker from one who always answers the majority class."
            )
            out.append(
                elements.Finding(
                    f"Labels with clipping and the noise of ε = {number(o.epsilon)} (σ = "
                    f"{number(o.noise_multiplier, 3)}): {percent(o.recovered)} of the determined labels "
                    f"were right ({interval(o.recovered)}; {guarantee(o.recovered)}); always answering the majority "
                    f"class gives {percent(o.majority)}. For the most exposed label of these batches one step leaks a "
                    "label-ε of at least "
                    f"{number(lower, 3)} ({guarantee(lower)}), and at most "
                    f"{number(o.replacement, 3)} by the accountant ({guarantee(o.replacement)}).",
                    verdict=follows,
                    assumes="the attacker knows the model and the inputs of the batch; one step, no amplification.",
                )
            )
    return out


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RunReport(AuditReport):
    """The report of `audit.run`.

    Attributes:
        config: what was asked.
        points: one entry for each noise level; the claimed one is marked.
        curve: the bounds between the noise levels.
        labels: the label study.
    """

    schema: ClassVar[str] = "leakcore.audit/2"
    result_names: ClassVar[Mapping[str, str]] = {"reconstruction": "points", "curve": "curve", "labels": "labels"}

    config: AuditConfig
    points: list[ReconstructionPoint]
    curve: BoundCurve
    labels: LabelStudy

    @property
    def claimed(self) -> ReconstructionPoint:
        """The configuration that the audit is about."""
        return next(p for p in self.points if p.claimed)

    @property
    def title(self) -> str:
        config, p = self.config, self.claimed
        layers = "–".join(map(str, (64, *config.hidden, 10)))
        return (
            f"DP-SGD on digits, MLP {layers} {config.activation.upper()}, {config.num_rows:,} rows, "
            f"{scheme.total_steps(config)} steps, {scheme.words(config)}, C = {config.max_grad_norm:g}, "
            f"σ = {number(p.noise_multiplier, 5)}, claimed ε = {number(p.epsilon)} at δ = {power(config.delta)}"
        )

    @property
    def contradictions(self) -> list[str]:
        """Claims that an attack disproved: its corrected lower limit lies above a bound of the same adjacency."""
        sentences = []
        for p in self.points:
            require_same_adjacency(p.attack, p.bound)
            if p.attack_lower > float(p.bound.value):
                sentences.append(
                    f"At ε = {number(p.epsilon)} the attack's corrected lower limit {percent(p.attack_lower, 'lower')} "
                    f"is above the bound {percent(p.bound)}."
                )
            require_same_adjacency(p.epsilon_audited, p.epsilon)
            if float(p.epsilon_audited.value) > float(p.epsilon.value):
                proved, claimed = above(p.epsilon_audited, float(p.epsilon.value))
                sentences.append(
                    f"The attack proves ε ≥ {proved} ({guarantee(p.epsilon_audited)}), above the claimed {claimed}, "
                    "unless an assumption of the audit fails."
                )
        return sentences

    def kept_headline(self) -> str:
        return headline_of(self.claimed.epsilon_audited, untested=not self.claimed.testable)

    def judged(self) -> tuple[elements.Judged, ...]:
        p = self.claimed
        return (
            elements.judged("the accountant's ε of the audited σ", p.epsilon),
            elements.judged("the ε that the attack proves there", p.epsilon_audited),
        )

    def verdict_sentences(self) -> list[str]:
        if self.contradictions:
            wrong = "Either the mechanism is not what it claims to be, or its accounting is wrong."
            return [*self.contradictions, wrong]
        p = self.claimed
        numbers = (
            f"At σ = {number(p.noise_multiplier, 4)} no attacker who holds a prior of {p.num_candidates} candidates "
            f"names the target with probability above {percent(p.bound)} ({guarantee(p.bound)}); the best attack we "
            f"ran reached {percent(p.attack)} ({interval(p.attack)})."
        )
        if not p.testable:
            return [*_untestable(p), numbers]
        within = "No attack at any noise level proved more leakage than was claimed, which does not prove the claim"
        return [f"{within} right.", numbers]

    def cards(self) -> tuple[elements.Card, elements.Card, elements.Card, elements.Card]:
        config, p = self.config, self.claimed
        among = f"of naming the target among {config.num_candidates} equally likely candidates"
        bound = f"The probability {among}; guessing reaches {percent(1 / config.num_candidates)}."
        attack = f"The share {among}: {p.attack.hits:,} of {p.attack.trials:,} trainings."
        proof = f"from the same trainings. This game cannot prove more than ε = {number(p.audit_ceiling, 3)}."
        epsilon = (
            f"the accountant's ε of σ = {number(p.noise_multiplier, 4)} over {scheme.total_steps(config):,} steps, "
            f"{scheme.words(config)}.{_bracket_text(p.epsilon)}"
        )
        return (
            elements.card(elements.BEATS, p.bound, percent(p.bound), bound),
            elements.card(elements.REACHED, p.attack, percent(p.attack), attack, interval=interval(p.attack)),
            elements.proof_card(p.epsilon_audited, config.delta, proof),
            elements.epsilon_card(p.epsilon, config.delta, epsilon),
        )

    def findings(self) -> list[str]:
        config, p = self.config, self.claimed
        out: list[str] = [_bound(config, p), _attack(config, p), *_gaps(p), _accountant(config, p)]
        return [*out, *_poisson_claim(config, p), *_membership(p), _audited(p), *_labels(self.labels)]

    def assumptions(self) -> list[str]:
        config = self.config
        mechanism = (
            f"The mechanism is DP-SGD with per-sample clipping at C and Gaussian noise σC on the sum, with "
            f"{scheme.words(config)}. The bounds are statements about that mechanism."
        )
        relation = scheme.mechanism(config, 1.0).adjacency
        reconstruction = (
            f"Reconstruction attacker: knows every training row but the target, {scheme.batches_known(config)}, the "
            f"initial model, every intermediate model and noisy gradient, and a prior of {config.num_candidates} "
            f"equally likely candidates. Adjacency: {ADJACENCY[relation]}."
        )
        independence = (
            "Attack runs are independent: fresh noise, initial parameters and candidates for each; the known rows are "
            "the same in all runs."
        )
        gate = (
            "The gate compares each attack's lower limit, corrected for the number of noise levels, with the bound of "
            "the same adjacency; it fails a correct mechanism with probability at most "
            f"{1 - config.gate_confidence:.2g}."
        )
        label = (
            "Label attacker: knows the model and the inputs of the batch, and sees one released last-layer gradient. "
            "Adjacency: replacement (a flipped label); no amplification by sampling, because the attacker knows the "
            "batch: the bounds of this one step are the same however batches are drawn."
        )
        noise = (
            "The noise comes from a statistical, not a cryptographic, generator: right for an audit, wrong for a model "
            "to be released."
        )
        return [mechanism, reconstruction, independence, gate, label, noise]

    def tables(self) -> dict[str, elements.Table]:
        return {
            "reconstruction": tables.reconstruction_table(self.points, self.config.num_candidates),
            "accounting": tables.accounting_table(self.points, self.config.delta),
            "labels": tables.labels_table(self.labels),
            "label_epsilon": tables.label_epsilon_table(self.labels),
        }

    def sections(self) -> tuple[elements.Section, ...]:
        shown = self.tables()
        parts = [f"at ε {number(p.epsilon)} attack {percent(p.attack)}, bound {percent(p.bound)}" for p in self.points]
        figure = elements.Figure(
            svg=functools.partial(tables.sandwich_svg, self.curve, self.points),
            alt=f"Probability of naming the target against ε: {'; '.join(parts)}.",
            caption=self._figure_caption(),
        )
        drawn = figure if any(p.drawable for p in self.points) else None
        return (
            elements.Section("Reconstruction: the attack compared with its bound", (shown["reconstruction"],), drawn),
            elements.Section("The accountant", (shown["accounting"],)),
            elements.Section("Labels from one aggregated gradient", (shown["labels"], shown["label_epsilon"])),
        )

    def _figure_caption(self) -> str:
        """What to conclude from the figure."""
        points = self.points
        across = [p for p in points if p.attack.interval and float(p.attack.interval[1]) > float(p.bound.value)]
        if self.contradictions:
            relation = "An attack lies above its bound: the claim is contradicted."
        elif across:
            at = ", ".join(number(p.epsilon) for p in across)
            relation = f"No attack lies above it; at ε = {at} the interval reaches across it, too wide to tell."
        else:
            relation = "Every attack lies below it, with its whole interval."
        reference = (
            " The dash-dotted curve is the best possible attack if the candidates' gradients were orthogonal and all "
            "clipped."
            if any(p.reference is not None for p in points)
            else ""
        )
        left_out = [number(p.epsilon) for p in points if not p.drawable]
        beyond = f" Not drawn on this axis: ε = {', '.join(left_out)}." if left_out else ""
        return (
            "The solid curve is what no attacker can beat (upper, deterministic); the points are the attack we ran "
            f"(estimates, {100 * self.config.confidence:g}% intervals, each for its own point). {relation}{reference} "
            f"{elements.adjacency_words(points[0].bound.adjacency).capitalize()}.{beyond}"
        )
