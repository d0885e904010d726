"""Poisoning attacks for audits: rows placed in a training set so that the trained model shows whether they were there.

Jagielski, Ullman and Oprea (2020). `Backdoor`, `ClipBKD`, `FrozenClipBKD` and `ZeroInput` choose the rows, and
`poisoning_scores` trains with and without them and returns one score per model.
`crafted_gradient_scores` inserts a gradient instead of rows, and looks at the final model alone.
`bounds.epsilon_lower_bound_from_scores` turns the scores into a proof. Under adjacency "replace" the poison replaces k
rows, under "add-remove" it is added to them: each must be compared with an ε of its own adjacency.
"""

from leakcore.attacks.poisoning.frozen_clipbkd import FrozenClipBKD, FrozenPoisoning, through
from leakcore.attacks.poisoning.poisoned_data import Poisoning, losses
from leakcore.attacks.poisoning.poisons import Backdoor, ClipBKD, ZeroInput
from leakcore.attacks.poisoning.scores import (
    PoisoningScores,
    crafted_gradient_scores,
    poisoning_scores,
    poisoning_sweep,
)

__all__ = [
    "Backdoor",
    "ClipBKD",
    "FrozenClipBKD",
    "FrozenPoisoning",
    "Poisoning",
    "PoisoningScores",
    "ZeroInput",
    "crafted_gradient_scores",
    "losses",
    "poisoning_scores",
    "poisoning_sweep",
    "through",
]
