"""Poisoning attacks for audits: rows placed in a training set so that the trained model shows whether they were there.

Jagielski, Ullman and Oprea (2020). `Backdoor`, `ClipBKD`, `FrozenClipBKD` and `ZeroInput` choose the rows,
`poisoning_scores` trains with and without them and returns one score per model. What the scores prove is
`bounds.epsilon_lower_bound_from_scores`'s business. Under adjacency "replace" k rows are replaced by the poison, under
"add-remove" k rows are added: the two must not be held against the same ε.
"""

from leakcore.attacks.poisoning.frozen_clipbkd import FrozenClipBKD, FrozenPoisoning, through
from leakcore.attacks.poisoning.losses import losses
from leakcore.attacks.poisoning.rows import Backdoor, ClipBKD, Poisoning, ZeroInput
from leakcore.attacks.poisoning.scores import PoisoningScores, poisoning_scores, poisoning_sweep

__all__ = [
    "Backdoor",
    "ClipBKD",
    "FrozenClipBKD",
    "FrozenPoisoning",
    "Poisoning",
    "PoisoningScores",
    "ZeroInput",
    "losses",
    "poisoning_scores",
    "poisoning_sweep",
    "through",
]
