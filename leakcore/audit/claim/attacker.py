"""What each attack on a claim lets the attacker see, compared with the attacker whom the claim covers."""

from __future__ import annotations

from leakcore import accounting
from leakcore.accounting import LastIterateEpsilon
from leakcore.audit.claim.config import ClaimConfig
from leakcore.audit.report.claim import ClaimedEpsilon
from leakcore.audit.report.format import number, power
from leakcore.audit.report.page import Finding

_SEES = {
    "clipbkd": "the final model's loss at the attacker's rows",
    "backdoor": "the final model's loss at test images with the patch",
    "zero-input": "the final model's loss at the row of zeros",
    "membership": "the final model's loss at every row",
    "crafted-gradient": "the parameters of the first and of the final model",
    "one-run": "every release of the run",
}
"""By attack; all but the last see no model before the final one."""


def sees(config: ClaimConfig) -> str:
    """What the attacker of this audit was allowed to see."""
    return _SEES[config.audit.attack]


def last_iterate(config: ClaimConfig, claim: ClaimedEpsilon) -> LastIterateEpsilon | None:
    """ε of the final model if the loss were linear, where the attack sees nothing else and the estimate is defined."""
    if config.audit.attack == "one-run" or config.mechanism.scheme != "poisson":
        return None
    if claim.adjacency != "add-remove" or claim.noise_multiplier == 0:
        return None
    m = config.mechanism
    return accounting.last_iterate_epsilon(claim.noise_multiplier, m.sample_rate, m.steps, delta=claim.delta)


def finding(config: ClaimConfig, claim: ClaimedEpsilon, last: LastIterateEpsilon | None) -> Finding:
    """What the attacker saw, and what that means for the gap between proof and claim."""
    if config.audit.attack == "one-run":
        return Finding(f"The attacker saw: {sees(config)}.", verdict="That is the attacker whom the claim covers.")
    covered = "The claim covers an attacker who sees every release."
    if last is None:
        return Finding(f"The attacker saw: {sees(config)}.", verdict=f"{covered} A gap to it may be due to that.")
    if config.mechanism.sample_rate == 1:
        less = "the final model alone can reveal as much, because every step holds every row"
        return Finding(f"The attacker saw: {sees(config)}.", verdict=f"{covered} With full batches {less}.")
    return Finding(
        f"The attacker saw: {sees(config)}. With a loss that is linear in the parameters the final model alone is "
        f"worth ε = {number(float(last.value))} at δ = {power(claim.delta)} (estimate, add/remove adjacency).",
        verdict=f"{covered} The two numbers are about different attackers: the smaller one does not bound the claim.",
        assumes="the loss is linear in the parameters, as for crafted gradients; another loss may reveal more or less.",
    )
