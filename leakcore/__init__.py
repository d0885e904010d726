"""leakcore: measure and bound how much a gradient leaks.

Three questions, each answered with a number that says its kind, its confidence and its adjacency:

- what can no attacker beat? `leakcore.bounds`, `leakcore.accounting`
- what can an attacker do? `leakcore.attacks`
- how private is this training run? `leakcore.audit`

Importing leakcore imports neither torch nor SciPy; each part is loaded at first use.
"""

from leakcore._lazy import attach as _attach

__version__ = "0.1.0"

_NAMES = {
    "accounting": ".accounting",
    "attacks": ".attacks",
    "audit": ".audit",
    "bounds": ".bounds",
    "datasets": ".datasets",
    "dpsgd": ".dpsgd",
    "kernels": ".kernels",
    "leakage": ".leakage",
    "models": ".models",
    "record": ".dpsgd",
    "clip_and_noise": ".kernels",
    "clip_scores": ".kernels",
    "get_include": ".kernels",
    "mixture_log_ratio": ".kernels",
    "mixture_tail": ".kernels",
    "solve_labels": ".kernels",
}
__getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
