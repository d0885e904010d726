"""Findings on how the batches are drawn: members told from others, and what Poisson accounting would claim instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakcore.audit.shared.format import claim_of, ends_proved, guarantee, number, percent, understated
from leakcore.audit.shared.page import Finding

if TYPE_CHECKING:
    from leakcore._base.results import Result
    from leakcore.audit.hyperparameters.reconstruction import ReconstructionPoint
    from leakcore.audit.hyperparameters.request import AuditConfig


def bracket(epsilon: Result) -> str:
    """Both ends of an ε that is known only from above and from below; empty of another."""
    if epsilon.method != "bracket" or epsilon.interval is None:
        return ""
    low, high = (float(v) for v in epsilon.interval)
    return f" ε lies between {number(low, kind='lower')} and {number(high, kind='upper')}: {ends_proved(epsilon)}."


def membership(p: ReconstructionPoint) -> list[str]:
    """What no membership test can beat."""
    if p.membership is None:
        return []
    rate = float(p.membership.value)
    return [
        Finding(
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


def poisson_claim(config: AuditConfig, p: ReconstructionPoint) -> list[str]:
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
        Finding(
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
