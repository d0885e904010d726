"""Mechanisms from the events of Google's dp-accounting."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from leakcore.mechanisms.claims import GDP, ApproximateDP
from leakcore.mechanisms.fixed_size import FixedSize
from leakcore.mechanisms.mechanism import Composition, Mechanism
from leakcore.mechanisms.poisson import FullBatch, Poisson
from leakcore.mechanisms.zcdp import ZCDP

_MOST_COPIES = 10_000


def from_event(event: Any) -> Mechanism:
    """The mechanism that an event of dp-accounting (a `DpEvent`) describes.

    Gaussian, Poisson-sampled and fixed-size sampled Gaussian and zCDP events, Laplace, discrete Laplace and randomised
    response by the pure ε that they have, and compositions of all of them. An event's parameter is one under
    add-remove, as dp-accounting has it: under replacement, where a row goes and another comes, each is taken twice (2ε,
    4ρ, Gaussians 2/σ apart). Randomised response of a row's own value is one under replacement.

    Args:
        event: of dp-accounting; only its type's name and its fields are read.

    Returns:
        A mechanism of this package.

    Raises:
        ValueError: for an event that no mechanism here describes; the text names it.

    Guarantees:
        None of its own: see the mechanism's `proof`.

    Example:
        >>> import dp_accounting
        >>> from leakcore import mechanisms
        >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        >>> mechanisms.from_event(dp_accounting.SelfComposedDpEvent(step, 1000))
        Poisson(noise_multiplier=1, sample_rate=0.01, steps=1000)
    """
    kind = type(event).__name__
    if kind == "NoOpDpEvent":
        return GDP(0.0)
    if kind == "GaussianDpEvent":
        return FullBatch(event.noise_multiplier, 1)
    if kind == "LaplaceDpEvent":
        return ApproximateDP(1.0 / event.noise_multiplier, 0.0, reached=False, claimed_under="add-remove")
    if kind == "DiscreteLaplaceDpEvent":
        return ApproximateDP(event.noise_parameter * event.sensitivity, 0.0, reached=False, claimed_under="add-remove")
    if kind == "RandomizedResponseDpEvent":
        other = event.noise_parameter / event.num_buckets
        return ApproximateDP(
            math.log((1.0 - event.noise_parameter + other) / other), 0.0, reached=False, claimed_under="replace"
        )
    if kind == "ZCDpEvent" and getattr(event, "xi", 0.0) == 0.0:
        return ZCDP(event.rho, claimed_under="add-remove")
    if kind == "ComposedDpEvent" and event.events:
        return _composed([from_event(one) for one in event.events])
    if kind == "SelfComposedDpEvent":
        return _repeated(from_event(event.event), event.count)
    inner: Any = getattr(event, "event", None)
    if type(inner).__name__ == "GaussianDpEvent":
        if kind == "PoissonSampledDpEvent":
            return Poisson(inner.noise_multiplier, event.sampling_probability, 1)
        if kind == "SampledWithoutReplacementDpEvent":
            return FixedSize(inner.noise_multiplier, event.sample_size, event.source_dataset_size, 1)
    raise ValueError(f"`event` must be an event that a mechanism here describes, got {event!r}")


def _composed(parts: list[Mechanism]) -> Mechanism:
    return parts[0] if len(parts) == 1 else Composition(tuple(parts))


def _repeated(one: Mechanism, count: int) -> Mechanism:
    """`count` releases of the same kind."""
    if count == 0:
        return GDP(0.0)
    if isinstance(one, Poisson | FullBatch | FixedSize) and isinstance(one.noise_multiplier, float):
        return dataclasses.replace(one, steps=one.steps * count)
    if isinstance(one, GDP):
        return dataclasses.replace(one, mu=one.mu * math.sqrt(count))
    if isinstance(one, ZCDP):
        return dataclasses.replace(one, rho=one.rho * count)
    if isinstance(one, Composition):  # the order of the parts changes no profile
        return _composed([_repeated(part, count) for part in one.parts])
    if count > _MOST_COPIES:
        raise ValueError(f"`event` must repeat {type(one).__name__} at most {_MOST_COPIES} times, got {count}")
    return _composed([one] * count)
