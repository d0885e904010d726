"""The arguments that ε, δ and σ share, checked once: a mechanism, a neighbouring relation and a route."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms import Mechanism, Poisson, as_mechanism
from leakcore.numerics import AccuracyError, Curve, DiscreteCurve, PrivacyLoss

METHODS = ("exact", "pld", "rdp")
FAINT = 1e-6
"""Separation of a Gaussian pair that leaks at least as much, below which that pair's profile is used."""


@dataclasses.dataclass(frozen=True, eq=False)
class Accountant:
    """A mechanism with the relation and the method to account for it.

    loss: where the mechanism's pair is one of sampled Gaussian steps, else None. orders: for "rdp", None: its own.
    """

    mechanism: Mechanism
    relation: Adjacency
    method: str
    orders: Any
    loss: PrivacyLoss | None

    @classmethod
    def parse(
        cls, noise_multiplier: Any, sample_rate: Any, steps: Any, *, adjacency: str | None, method: str, orders: Any
    ) -> Accountant:
        """ValueError or TypeError names the argument that is out of range, or that the others do not go with."""
        name = validate.one_of(*METHODS, method=method)
        mechanism = as_mechanism(noise_multiplier, sample_rate, steps)
        relation = mechanism.relation(adjacency)
        if orders is not None and name != "rdp":
            raise ValueError(f"`orders` must be None with method={name!r}, got {orders!r}: only method='rdp' takes it")
        if relation == "replace" and name == "rdp" and mechanism.steps_loss(relation) is None:
            raise ValueError(
                "`method` must be 'exact' or 'pld' for adjacency='replace' with sample_rate < 1, got 'rdp'"
            )
        if name != "exact" and mechanism.steps_loss(relation) is None and not isinstance(mechanism, Poisson):
            raise ValueError(f"`method` must be 'exact' for {type(mechanism).__name__}, got {name!r}")
        return cls(mechanism, relation, name, _orders(orders), mechanism.steps_loss(relation))

    def with_noise(self, sigma: float) -> Accountant:
        """The same with another noise multiplier."""
        changed = self.mechanism.with_noise(sigma)
        return dataclasses.replace(self, mechanism=changed, loss=changed.steps_loss(self.relation))

    @property
    def curve(self) -> Curve:
        """The profile by the method, which is not "rdp"."""
        if self.method == "exact":
            return self.mechanism.curve(self.relation)
        return DiscreteCurve(self.loss) if self.loss is not None else DiscreteCurve(self._added, replaced=True)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions of the profile that differ."""
        return ("remove",) if self.mechanism.is_symmetric(self.relation) else ("remove", "add")

    @property
    def silent(self) -> bool:
        """Whether nothing leaks."""
        return self._added.silent if isinstance(self.mechanism, Poisson) else self.separation == 0.0

    @property
    def separation(self) -> float:
        """Separation of a Gaussian pair that leaks at least as much; ∞ where none is known."""
        return self.mechanism.separation(self.relation)

    def total_variation(self) -> float:
        """An upper bound of δ(0)."""
        if self.loss is not None:
            return self.loss.total_variation()
        return 2.0 * self._added.total_variation() if isinstance(self.mechanism, Poisson) else 1.0

    @property
    def _added(self) -> PrivacyLoss:
        loss = self.mechanism.steps_loss("add-remove")
        assert loss is not None
        return loss


def _orders(orders: Any) -> Any:
    if orders is None:
        return None
    if isinstance(orders, str):
        from leakcore.numerics import AUTHORS_ORDERS

        validate.one_of("authors", orders=orders)
        return AUTHORS_ORDERS
    return validate.real_array("above 1", lambda v: v > 1.0, orders=orders).ravel()


@contextlib.contextmanager
def naming(mechanism: Mechanism) -> Iterator[None]:
    """Adds the mechanism to an AccuracyError, so that swapped σ and q are seen."""
    try:
        yield
    except AccuracyError as error:
        if "noise_multiplier=" in str(error):
            raise
        hint = "; method='pld' gives an upper bound"
        hint = hint if isinstance(mechanism, Poisson) and "method=" not in str(error) else ""
        raise AccuracyError(f"{error}, of {mechanism!r}{hint}") from error
