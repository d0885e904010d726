"""Poisoning attacks for audits: rows placed in a training set so that the trained model shows whether they were there.

Jagielski, Ullman and Oprea (2020). `Backdoor`, `ClipBKD`, `FrozenClipBKD` and `ZeroInput` choose the rows, and
`poisoning_scores` trains with and without them and returns one score per model.
`crafted_gradient_scores` inserts a gradient instead of rows, and looks at the final model alone.
`bounds.epsilon_lower_bound_from_scores` turns the scores into a proof. Under adjacency "replace" the poison replaces k
rows, under "add-remove" it is added to them: each must be compared with an ε of its own adjacency.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
