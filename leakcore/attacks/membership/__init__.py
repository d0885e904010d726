"""Membership inference on many models: which rows was each model trained on?

Every row is in or out of each model's training set by a fair coin of its own, so that the guesses prove a privacy bound
with a confidence: `bounds.epsilon_from_membership(*guesses.tally(), coins="rows", rows=coins)`.

    trials = membership.play(ensemble, features, labels, runs=64)
    yeom = membership.loss_threshold(trials.losses, threshold=0.3)
    lira = membership.likelihood_ratio(trials.losses, references.losses, references.included)
    membership.guess(lira, share=0.2).tally(trials.included)

`play_canaries` is the audit by one run: crafted rows, their coins, and a score for each from all that was released.
"""

from leakcore.attacks.membership.canaries import CanaryTrials, canaries, canary_coins, play_canaries
from leakcore.attacks.membership.models import (
    Guesses,
    MembershipTrials,
    coins,
    guess,
    likelihood_ratio,
    loss_threshold,
    play,
)

__all__ = [
    "CanaryTrials",
    "Guesses",
    "MembershipTrials",
    "canaries",
    "canary_coins",
    "coins",
    "guess",
    "likelihood_ratio",
    "loss_threshold",
    "play",
    "play_canaries",
]
