"""The relation under which an ε is claimed: stated by the user, and compared only with proofs of the same relation."""

from __future__ import annotations

from typing import Any

from leakcore._base.results import Adjacency, parse_adjacency

CLAIMABLE = (
    "was that ε computed for adding or removing a row ('add-remove', as Opacus and most accountants do), for replacing "
    "a row ('replace'), or for zeroing one out ('zero-out')?"
)
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
