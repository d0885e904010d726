"""Membership inference on many models: which rows was each model trained on?

Every row is in or out of each model's training set by a fair coin of its own, so that the guesses prove a privacy bound
with a confidence: `bounds.epsilon_from_membership(*guesses.tally(), coins="rows", rows=coins)`.

    trials = membership.play(ensemble, features, labels, runs=128)
    target, references = trials[64:], trials[:64]
    lira = membership.scores("lira", target, references=references)
    membership.guess(lira, share=0.2).tally(target.included)

`observe` asks models of yours the same questions. `play_canaries` is the audit by one run: crafted rows, their coins,
and a score for each from all that was released.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
