"""What the best of several audits proves: attacks, or numbers of poisoned rows, of which one is reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from leakcore._base import validate
from leakcore.bounds.audited_epsilon.counts import RefutableClaim, epsilon_lower_bound
from leakcore.bounds.audited_epsilon.scores import (
    EpsilonFromScores,
    checked_scores,
    choose,
    epsilon_lower_bound_from_scores,
    split,
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonBest(EpsilonFromScores):
    """An `EpsilonFromScores` of one out of several audits.

    chosen: its name. considered: all names.
    """

    chosen: str
    considered: tuple[str, ...]


def epsilon_lower_bound_best(
    audits: Mapping[str, tuple[Any, Any, int]],
    *,
    select: str = "split",
    share: float = 0.5,
    confidence: float = 0.99,
    delta: float = 0.0,
    adjacency: str = "replace",
    direction: str = "in",
    family: str = "dp",
    seed: int = 0,
) -> EpsilonBest:
    """Lower bound on ε from the best of several audits of one mechanism, valid although it was picked.

    Jagielski, Ullman and Oprea (2020) report the best of k = 1, 2, 4, 8 poisoned rows. The maximum of four bounds at
    99% is no bound at 99%. Two valid ways:

    - "split": a random share of the trials of each audit chooses audit, threshold and, with direction="both",
      direction; the others, of that one audit, are counted.
    - "correction": each audit's bound (limits simultaneous over all thresholds, on all its trials) at the share 1/m of
      the error, and the largest of the m is taken.

    Which is tighter depends on the counts, as in `epsilon_lower_bound_from_scores`: perfect scores of 1,000 trials and
    four audits prove 4.54 after a split in halves, however many audits there are, and 4.51 by the correction; with the
    threshold fixed beforehand four audits of 500 trials cost 4.54 → 4.31. Choose one before you look.

    audits: name → (scores_in, scores_out, k): the scores as in `epsilon_lower_bound_from_scores` and the number of rows
        in which that audit's data sets differ. Audits may share trials, with the same number in each: arrays of one
        length are split alike, so no trial both chooses and is counted.
    Other arguments as there.

    Returns an `EpsilonBest`: kind "lower". Deterministic given scores and seed. Raises ValueError or TypeError that
    names the argument; an empty `audits` is an error.
    """
    if not isinstance(audits, Mapping) or not audits:
        raise ValueError("audits: must be a mapping of at least one name to (scores_in, scores_out, k)")
    how = validate.one_of("split", "correction", select=select)
    level = validate.confidence(confidence=confidence)
    names = tuple(map(str, audits))
    common: dict[str, Any] = {"delta": delta, "adjacency": adjacency, "direction": direction, "family": family}
    if how == "correction":
        found = [
            epsilon_lower_bound_from_scores(
                inside, outside, k=k, select="simultaneous", confidence=1 - (1 - level) / len(names), **common
            )
            for inside, outside, k in audits.values()
        ]
        best = max(range(len(names)), key=lambda i: float(found[i].value))
        return _best(found[best], names, best, level, f"; the largest of {len(names)}, each at α/{len(names)}", select)
    part = validate.open_probability(share=share)
    side = validate.one_of("in", "out", "both", direction=direction)
    number = validate.seed(seed=seed)
    plans = []
    for name, (inside, outside, k) in audits.items():
        claim = RefutableClaim(
            validate.below_one(delta=delta), validate.integer(1, k=k), validate.one_of("dp", "gdp", family=family)
        )
        sides = {f"audits[{name!r}] scores_in": inside, f"audits[{name!r}] scores_out": outside}
        parts = [split(number, n, checked_scores(**{n: v}), part) for n, v in sides.items()]
        (in_choose, in_count), (out_choose, out_count) = parts
        counting = (len(in_count), len(out_count))
        chosen_side, threshold, promised = choose(in_choose, out_choose, counting, level, claim, side)
        plans.append((promised, chosen_side, threshold, in_count, out_count, claim))
    best = max(range(len(plans)), key=lambda i: plans[i][0])
    _, chosen_side, threshold, in_count, out_count, claim = plans[best]
    proof = epsilon_lower_bound(
        int((in_count >= threshold).sum()),
        int((out_count >= threshold).sum()),
        (len(in_count), len(out_count)),
        confidence=level,
        delta=claim.delta,
        k=claim.k,
        adjacency=adjacency,
        direction=chosen_side,
        family=claim.family,
    )
    fields = {f.name: getattr(proof, f.name) for f in dataclasses.fields(proof)}
    whole = EpsilonFromScores(**{**fields, "seed": seed}, threshold=threshold, select=how)
    return _best(whole, names, best, level, f"; one of {len(names)} chosen on other trials", select)


def _best(
    found: EpsilonFromScores, names: tuple[str, ...], best: int, level: float, more: str, select: str
) -> EpsilonBest:  # fmt: skip
    fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    fields |= {"confidence": level, "method": found.method + more, "select": select}
    return EpsilonBest(**fields, chosen=names[best], considered=names)
