"""What the attacker of the reconstruction game knows of the batches, and how he scores, by the way they are drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from leakcore._base.results import Adjacency
from leakcore.attacks.reconstruction import prior_aware, running_scores

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One way to draw batches.

    Attributes:
        batches: whose batches the attacker knows, as in `dpsgd.Observer`. More than the bound of the scheme allows
            would let an attack on a correct mechanism lie above it.
        adjacency: the neighbouring relation of that bound.
        knows: the same in words.
        subtracts: what the attacker subtracts, in words.
    """

    batches: Literal["common", "all", "none"]
    adjacency: Adjacency
    knows: str
    subtracts: str = "their clipped gradients"

    def told(self, subtract_known: bool) -> str:
        """What the attacker knows of the batches, and does with it."""
        return f"{self.knows}, {'subtracts' if subtract_known else 'does not subtract'} {self.subtracts}"


_COINS = Scheme("common", "add-remove", " and which of them were in each batch")
SCHEMES: Mapping[str, Scheme] = {
    "poisson": _COINS,
    "allocation": _COINS,
    "shuffled": Scheme("all", "zero-out", " and the order of every epoch, hence the batches of the target"),
    "fixed": Scheme(
        "none", "replace", ", but not which of them were in a batch", "the average of their clipped gradients"
    ),
}
"""By name. Rows that draw their batches by themselves say nothing of the target's. The size of a batch that is fixed
does: with shuffled batches the attacker may use it, for their bound holds for any known order; with a fresh batch in
each step the bound rests on batches that nobody knows."""


def name_of(settings: Mapping[str, Any]) -> str:
    """The scheme of an ensemble's settings."""
    return str(settings.get("sampling") or ("poisson" if settings["batch_size"] is None else "shuffled"))


def scheme(ensemble: Ensemble) -> Scheme:
    """The scheme of an ensemble."""
    return SCHEMES[name_of(ensemble.settings())]


def resolve(ensemble: Ensemble, method: str, prior: Any) -> str:
    """The method that "auto" stands for: the best where it is known, else Algorithm 2 or 3."""
    from leakcore.dpsgd import AllocatedBatches, FixedBatches

    batches = ensemble.sampling
    if method == "auto" and isinstance(batches, AllocatedBatches) and ensemble.noise_multiplier > 0:
        return "likelihood"
    if method == "auto" and prior is None and isinstance(batches, FixedBatches):
        return "top"
    return prior_aware.resolve(method, ensemble.sample_rate, prior)


def rule(ensemble: Ensemble, method: str, rows: int) -> running_scores.Rule:
    """How candidates are scored in runs on this many training rows."""
    from leakcore.dpsgd import AllocatedBatches, FixedBatches

    batches = ensemble.sampling
    return running_scores.rule(
        method,
        max_grad_norm=ensemble.max_grad_norm,
        sample_rate=batches.batch_size / rows if isinstance(batches, FixedBatches) else ensemble.sample_rate,
        steps=ensemble.steps,
        noise_multiplier=ensemble.noise_multiplier,
        batches=batches.batches if isinstance(batches, AllocatedBatches) else None,
    )
