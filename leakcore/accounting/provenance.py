"""What a result says about itself: its method and source, and what it assumes."""

from __future__ import annotations

from leakcore._base.results import Assumptions
from leakcore.accounting.arguments import Accountant

NEGLIGIBLE = 1e-6
"""An upper bound of ε that is as good as the exact value: what "exact" promises."""
_SOURCES = {
    "exact": "privacy profile of the dominating pair (Zhu, Dong and Wang 2022)",
    "exact, bounded": "privacy profile of the dominating pair, lattice laws from both sides (Doroshenko et al. 2022)",
    "bracket": "privacy profiles of an upper and of a lower pair (Zhu, Dong and Wang 2022)",
    "pld": "dp-accounting, privacy loss distributions, pessimistic (Doroshenko et al. 2022)",
    "rdp": "dp-accounting, Renyi differential privacy (Mironov, Talwar and Zhang 2019; Canonne et al. 2020)",
}
_ATTACKER = "sees every noisy gradient sum and all model states, knows every other record and the hyperparameters"


def label(accountant: Accountant, limits: tuple[float, float], size: float) -> str:
    """The method's name, which says where the limits of "exact" are wider than promised; `size` is the result's."""
    if accountant.method != "exact":
        return accountant.method
    if not accountant.mechanism.is_exact(accountant.relation):
        return "bracket"
    low, high = limits
    return "exact, bounded" if low < high and not high - low <= NEGLIGIBLE * (1.0 + abs(size)) else "exact"


def provenance(accountant: Accountant, route: str) -> str:
    """How the number was computed, and what it rests on."""
    return f"{_SOURCES[route]}; {accountant.mechanism.proof(accountant.relation)}"


def assumptions(accountant: Accountant, more: tuple[str, ...] = ()) -> Assumptions:
    """Adjacency, the attacker, how batches are drawn, and `more` notes."""
    notes = accountant.mechanism.notes(accountant.relation)
    return Assumptions(adjacency=accountant.relation, attacker=_ATTACKER, notes=notes + more)
