"""The ε that a run claims, under its own relation, and the ε that a report states of its schedule."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import numpy as np

from leakcore import accounting
from leakcore._base.results import Adjacency, Result, parse_adjacency
from leakcore.mechanisms import FullBatch, Mechanism, Poisson

CLAIMABLE = (
    "was that ε computed for adding or removing a row ('add-remove', as Opacus and most accountants do), for replacing "
    "a row ('replace'), or for zeroing one out ('zero-out')?"
)
R = TypeVar("R", bound=Result)
PAIRS = ("add-remove", "zero-out")
"""A replacement is two steps of such a relation: one row out, another in."""


def claimed_under(claimed_epsilon: float | None, claimed_adjacency: Any, audited: Adjacency) -> Adjacency | None:
    """The relation of a claim, checked against that of the audit; None without a claim.

    TypeError where a claim comes without its relation, or a relation without its claim; ValueError where nothing that
    the audit proves can contradict the claim.
    """
    if claimed_epsilon is None:
        if claimed_adjacency is not None:
            raise TypeError(f"`claimed_adjacency` must be left out without claimed_epsilon, got {claimed_adjacency!r}")
        return None
    if claimed_adjacency is None:
        raise TypeError(f"`claimed_adjacency` must be given with claimed_epsilon={claimed_epsilon:g}: {CLAIMABLE}")
    try:
        claimed = parse_adjacency(claimed_adjacency)
    except ValueError:
        raise ValueError(
            f"`claimed_adjacency` must be 'add-remove', 'replace' or 'zero-out', got {claimed_adjacency!r}"
        ) from None
    if claimed != audited and not is_pair(claimed, audited):
        raise ValueError(
            f"`claimed_adjacency` must be {audited!r} where the audit's adjacency is that, got {claimed!r}: an ε under "
            f"{claimed} adjacency says nothing about {audited} adjacency, so no number follows from one for the other. "
            f"State the ε that is claimed under {audited} adjacency"
        )
    return claimed


def is_pair(claimed: Adjacency, audited: Adjacency) -> bool:
    """Whether one step of the audit's relation is two of the claim's."""
    return audited == "replace" and claimed in PAIRS


def noted(result: R, *notes: str, **changes: Any) -> R:
    """The result with further notes, and other changes of it or of its adjacency."""
    assumed = result.assumptions
    relation = changes.pop("adjacency", assumed.adjacency)
    assumed = dataclasses.replace(assumed, adjacency=relation, notes=(*assumed.notes, *notes))
    return dataclasses.replace(result, assumptions=assumed, **changes)


def schedule_of(mechanism: Mechanism) -> tuple[Any, ...]:
    """(σ, q, T) of Poisson sampling and of full batches; any other mechanism itself."""
    if isinstance(mechanism, FullBatch):
        return mechanism.noise_multiplier, 1.0, mechanism.steps
    if isinstance(mechanism, Poisson):
        return mechanism.noise_multiplier, mechanism.sample_rate, mechanism.steps
    return (mechanism,)


def proved_epsilon(
    noise_multiplier: Any,
    sample_rate: Any = None,
    steps: int | None = None,
    *,
    delta: float,
    adjacency: str | None = None,
    methods: tuple[str, ...] = ("exact", "pld"),
) -> accounting.Epsilon:
    """`accounting.epsilon` by the first of `methods` that reaches the schedule and is installed; where none does, the ε
    of every row in every batch, which can only leak more. `method` says which.

    noise_multiplier: or a mechanism.
    """
    if isinstance(noise_multiplier, FullBatch | Poisson):
        noise_multiplier, sample_rate, steps = schedule_of(noise_multiplier)
    elif isinstance(noise_multiplier, Mechanism):
        return accounting.epsilon(noise_multiplier, delta=delta, adjacency=adjacency)
    for method in methods:
        try:
            result = accounting.epsilon(
                noise_multiplier, sample_rate, steps, delta=delta, adjacency=adjacency, method=method
            )
        except (ArithmeticError, ImportError):  # AccuracyError is one, and squares that overflow
            continue
        if method == "exact" or math.isfinite(float(result.value)):  # else its grid, not the mechanism, has no end
            return result
    full = np.ceil(sample_rate) if np.ndim(sample_rate) else float(np.ceil(sample_rate))
    whole = accounting.epsilon(noise_multiplier, full, steps, delta=delta, adjacency=adjacency, method="exact")
    note = "with every row in every batch: no accountant reaches this schedule as it is sampled"
    return noted(whole, note, method="full batches", interval=None)
