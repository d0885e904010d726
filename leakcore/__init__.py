"""leakcore: measure and bound how much a gradient leaks.

Three questions, each answered with a number that says its kind, its confidence and its adjacency:

- what can no attacker beat? `leakcore.mechanisms`, `leakcore.bounds`, `leakcore.accounting`
- what can an attacker do? `leakcore.attacks`
- how private is this training run? `leakcore.audit`

Importing leakcore imports neither torch nor SciPy; each part is loaded at first use.
"""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach
from leakcore._base.version import __version__ as __version__
from leakcore._base.version import identify_by as _identify_by

if TYPE_CHECKING:
    from leakcore import accounting as accounting
    from leakcore import attacks as attacks
    from leakcore import audit as audit
    from leakcore import bounds as bounds
    from leakcore import datasets as datasets
    from leakcore import defenses as defenses
    from leakcore import dpsgd as dpsgd
    from leakcore import experiments as experiments
    from leakcore import jax as jax
    from leakcore import kernels as kernels
    from leakcore import leakage as leakage
    from leakcore import mechanisms as mechanisms
    from leakcore import models as models
    from leakcore import numerics as numerics
    from leakcore.dpsgd import Canaries as Canaries
    from leakcore.dpsgd import record as record
    from leakcore.kernels import clip_and_noise as clip_and_noise
    from leakcore.kernels import clip_scores as clip_scores
    from leakcore.kernels import get_include as get_include
    from leakcore.kernels import mixture_log_ratio as mixture_log_ratio
    from leakcore.kernels import mixture_tail as mixture_tail
    from leakcore.kernels import solve_labels as solve_labels


_NAMES = {
    "accounting": ".accounting",
    "attacks": ".attacks",
    "audit": ".audit",
    "bounds": ".bounds",
    "datasets": ".datasets",
    "defenses": ".defenses",
    "dpsgd": ".dpsgd",
    "experiments": ".experiments",
    "jax": ".jax",
    "kernels": ".kernels",
    "leakage": ".leakage",
    "mechanisms": ".mechanisms",
    "models": ".models",
    "numerics": ".numerics",
    "Canaries": ".dpsgd",
    "record": ".dpsgd",
    "clip_and_noise": ".kernels",
    "clip_scores": ".kernels",
    "get_include": ".kernels",
    "mixture_log_ratio": ".kernels",
    "mixture_tail": ".kernels",
    "solve_labels": ".kernels",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)


def _arithmetic() -> object:
    from leakcore.kernels import arithmetic

    return arithmetic()


_identify_by("arithmetic", _arithmetic)
