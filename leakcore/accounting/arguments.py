"""The arguments that ε, δ and σ share, checked once: a configuration, a neighbouring relation and a route."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency, parse_adjacency
from leakcore.numerics import AccuracyError, PrivacyLoss, parse_schedule

METHODS = ("exact", "pld", "rdp")
STEPS = {"add-remove": 1.0, "replace": 2.0}
"""Number of add/remove steps that one change takes (for a replacement: where batches are sampled)."""
FAINT = 1e-6
"""Separation of the full batches' Gaussian pair below which the profile of that pair is used."""


@dataclasses.dataclass(frozen=True, eq=False)
class Accountant:
    """A privacy loss with the relation and the method to account for it; orders: for "rdp", None: its own."""

    loss: PrivacyLoss
    relation: Adjacency
    method: str
    orders: Any

    @classmethod
    def parse(
        cls, noise_multiplier: Any, sample_rate: Any, steps: Any, *, adjacency: str, method: str, orders: Any
    ) -> Accountant:
        """ValueError or TypeError names the argument that is out of range, or that the others do not go with."""
        relation = parse_adjacency(adjacency)
        name = validate.one_of(*METHODS, method=method)
        sigmas, rates, count = parse_schedule(noise_multiplier, sample_rate, steps)
        if orders is not None and name != "rdp":
            raise ValueError(f"`orders` must be None with method={name!r}, got {orders!r}: only method='rdp' takes it")
        loss = PrivacyLoss.of_steps(sigmas, rates, count)
        if relation == "replace" and name == "rdp" and loss.groups:
            raise ValueError(
                "`method` must be 'exact' or 'pld' for adjacency='replace' with sample_rate < 1, got 'rdp'"
            )
        return cls(loss, relation, name, _orders(orders))

    def as_added(self) -> Accountant:
        """Full batches under replacement as an add/remove pair: clipped gradients up to 2C apart, twice the separation.

        Any other accountant is returned as it is.
        """
        if self.relation != "replace" or self.loss.groups:
            return self
        doubled = PrivacyLoss((), 4.0 * self.loss.gaussian_variance, self.loss.log_no_escape)
        return dataclasses.replace(self, loss=doubled, relation="add-remove")

    def full_batch_separation(self) -> float:
        """Separation of the Gaussian pair of full batches, which leak at least as much as subsampled ones."""
        return STEPS[self.relation] * self.loss.full_batch_separation()


def _orders(orders: Any) -> Any:
    if orders is None:
        return None
    if isinstance(orders, str):
        from leakcore.numerics import AUTHORS_ORDERS

        validate.one_of("authors", orders=orders)
        return AUTHORS_ORDERS
    return validate.real_array("above 1", lambda v: v > 1.0, orders=orders).ravel()


@contextlib.contextmanager
def naming(sigma: Any, rate: Any, steps: Any) -> Iterator[None]:
    """Adds the configuration to an AccuracyError, so that swapped σ and q are seen."""
    try:
        yield
    except AccuracyError as error:
        if str(error).startswith("noise_multiplier="):
            raise
        texts = [f"{float(v):g}" if np.ndim(v) == 0 else f"[{len(v)} values]" for v in (sigma, rate)]
        hint = "" if "method=" in str(error) else "; method='pld' gives an upper bound"
        raise AccuracyError(
            f"noise_multiplier={texts[0]}, sample_rate={texts[1]}, steps={steps}: {error}{hint}"
        ) from error
