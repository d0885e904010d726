"""What a result says about itself: its method and source, and what it assumes."""

from __future__ import annotations

from leakcore._base.results import Assumptions
from leakcore.accounting.arguments import Accountant

NEGLIGIBLE = 1e-6
"""An upper bound of ε that is as good as the exact value: what "exact" promises."""
PROVENANCE = {
    "exact": "privacy profile of the dominating pair (Zhu, Dong and Wang 2022; Hayes et al. 2023, Corollary 4)",
    "exact, bounded": "privacy profile of the dominating pair, lattice laws from both sides (Doroshenko et al. 2022)",
    "pld": "dp-accounting, privacy loss distributions, pessimistic (Doroshenko et al. 2022)",
    "rdp": "dp-accounting, Renyi differential privacy (Mironov, Talwar and Zhang 2019; Canonne et al. 2020)",
}
_ATTACKER = "sees every noisy gradient sum and all model states, knows every other record and the hyperparameters"


def label(name: str, limits: tuple[float, float], size: float) -> str:
    """The method's name, which says where the limits of "exact" are wider than promised; `size` is the result's."""
    low, high = limits
    wide = name == "exact" and low < high and not high - low <= NEGLIGIBLE * (1.0 + abs(size))
    return "exact, bounded" if wide else name


def assumptions(accountant: Accountant, more: tuple[str, ...] = ()) -> Assumptions:
    """Adjacency, the attacker, how batches are drawn, and `more` notes."""
    notes: tuple[str, ...] = ("Poisson sampling; independent steps",)
    if accountant.relation == "replace" and accountant.loss.groups:
        notes += ("upper bound by group composition (k=2 add/remove steps), not tight",)
    return Assumptions(adjacency=accountant.relation, attacker=_ATTACKER, notes=notes + more)
