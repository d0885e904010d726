"""What an audit by scores proves: the threshold is chosen for the user, in a way that keeps the promise."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.results import Assumptions, parse_adjacency
from leakcore.bounds.audited_epsilon.counts import PROVENANCE, EpsilonLowerBound, RefutableClaim, epsilon_lower_bound
from leakcore.numerics import clopper_pearson, simultaneous_lower_limits


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonFromScores(EpsilonLowerBound):
    """An `EpsilonLowerBound` whose event is {score ≥ threshold}.

    threshold: of the event, None where every threshold proves nothing. select: how it was chosen (a split sets it half-
    way to the next lower score). counted: trials that were counted (with the k rows, without them), the same as
    `trials`.
    """

    threshold: float | None
    select: str


def epsilon_lower_bound_from_scores(
    scores_in: Any,
    scores_out: Any,
    *,
    select: str = "split",
    share: float = 0.5,
    confidence: float = 0.99,
    delta: float = 0.0,
    k: int = 1,
    adjacency: str = "replace",
    direction: str = "in",
    family: str = "dp",
    seed: int = 0,
) -> EpsilonFromScores:
    """Lower bound on ε from a real-valued test statistic, one score per trial, on two datasets that differ in k rows.

    The event is {score ≥ threshold}. A threshold chosen to look best on the trials that are then counted makes the
    bound false (published tools that do so report ε > 0 for a mechanism that leaks nothing in 27–99% of cases). Two
    valid ways:

    - "split" (Jagielski, Ullman and Oprea 2020, Section 4.2): a random share of the trials of each dataset chooses the
      threshold, and with direction="both" the direction, too; the others are counted by `epsilon_lower_bound`.
    - "simultaneous": all trials choose and all are counted, with limits that hold at every threshold at once
      (`numerics.simultaneous_lower_limits`).

    Which is tighter depends on the counts. In the far tail, where strong audits are decided, a threshold that holds for
    all costs less than half of the trials: perfect scores of 500 trials per dataset prove 3.99 simultaneously and 3.84
    after a split in halves, at 99%. In the middle the split's optimum is flat and it wins. Choose one before you look.

    scores_in, scores_out: (n_in,) and (n_out,) finite real numbers: trials with the k rows and without them; larger
        means likelier "in". n_in may differ from n_out. Infinities are allowed, NaN is not.
    select: "split" or "simultaneous". share: part of the trials that chooses, in (0, 1); "split" only.
    confidence, delta, k, adjacency, family: as in `epsilon_lower_bound`.
    direction: "in": the event is likelier with the k rows (larger scores); "out": without them; "both": not fixed. With
        "split" the choosing trials settle it at no cost; "simultaneous" splits the error over both.
    seed: of the random split; where there are as many scores in as out, trials of one number fall on one side of it, so
        trial i of both may share its randomness.

    Returns an `EpsilonFromScores`: kind "lower". Deterministic given the scores and the seed. Raises ValueError or
    TypeError that names the argument; "split" needs at least two trials per dataset.
    """
    sides = {
        name: checked_scores(**{name: values})
        for name, values in (("scores_in", scores_in), ("scores_out", scores_out))
    }
    inside, outside = sides["scores_in"], sides["scores_out"]
    level = validate.confidence(confidence=confidence)
    how = validate.one_of("split", "simultaneous", select=select)
    part = validate.open_probability(share=share)
    side = validate.one_of("in", "out", "both", direction=direction)
    claim = RefutableClaim(
        validate.below_one(delta=delta), validate.integer(1, k=k), validate.one_of("dp", "gdp", family=family)
    )
    parse_adjacency(adjacency)
    number = validate.seed(seed=seed)
    if how == "simultaneous":
        return _simultaneous(inside, outside, level, claim, adjacency, side)
    (in_choose, in_count), (out_choose, out_count) = (
        split(number, name, values, part) for name, values in sides.items()
    )
    counting = (len(in_count), len(out_count))
    chosen_side, threshold, _ = choose(in_choose, out_choose, counting, level, claim, side)
    proof = epsilon_lower_bound(
        int((in_count >= threshold).sum()),
        int((out_count >= threshold).sum()),
        counting,
        confidence=level,
        delta=claim.delta,
        k=claim.k,
        adjacency=adjacency,
        direction=chosen_side,
        family=claim.family,
    )
    fields = {f.name: getattr(proof, f.name) for f in dataclasses.fields(proof)}
    return EpsilonFromScores(**{**fields, "seed": number}, threshold=threshold, select=how)


def checked_scores(**given: Any) -> np.ndarray:
    """One score per trial; the error names the argument."""
    out = validate.real_array("a number", lambda v: ~np.isnan(v), **given)
    if out.ndim != 1 or out.size == 0:
        raise ValueError(f"{next(iter(given))}.shape={out.shape}: must be one score per trial, at least one")
    return out


def split(seed: int, name: str, scores: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """(choosing, counting) parts: the same trials by number for all arrays of one length, so that what chooses is never
    counted where arrays share trials, or have the same randomness in trials of one number."""
    number = round(share * len(scores))
    if not 0 < number < len(scores):
        raise ValueError(
            f"{name}: {len(scores)} trials at share={share} leave none to choose or none to count: give more, or "
            "select='simultaneous'"
        )
    order = kernels.generator(seed, kernels.Stream.SCORE_SPLIT).permutation(len(scores))
    return scores[order[:number]], scores[order[number:]]


def _exceed(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """How many scores are at least each threshold."""
    return np.asarray(len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left"))


def choose(
    inside: np.ndarray, outside: np.ndarray, counting: tuple[int, int], level: float, claim: RefutableClaim, side: str
) -> tuple[str, float, float]:
    """The direction and threshold that would prove most if the counting trials fell like these, and how much."""
    thresholds = np.unique(np.concatenate([inside, outside]))
    shares = [
        np.rint(_exceed(scores, thresholds) / len(scores) * n).astype(int)
        for scores, n in zip((inside, outside), counting, strict=True)
    ]
    limits = [clopper_pearson(hits, n, confidence=level) for hits, n in zip(shares, counting, strict=True)]
    best = ("in" if side == "both" else side, float(thresholds[-1]), -1.0)
    for name, ((low, _), (_, high)) in (("in", limits), ("out", limits[::-1])):
        if side in (name, "both"):
            proved = _proved(np.asarray(low), np.asarray(high), claim)
            at = int(proved.argmax())
            if proved[at] > best[2]:
                best = (name, _between(thresholds, at), float(proved[at]))
    return best


def _between(thresholds: np.ndarray, at: int) -> float:
    """Half-way down to the next lower score: the same choosing trials exceed it, and a gap is split evenly."""
    here = float(thresholds[at])
    below = float(thresholds[at - 1]) if at else here
    return 0.5 * here + 0.5 * below if np.isfinite(here) and np.isfinite(below) else here


def _proved(low: np.ndarray, high: np.ndarray, claim: RefutableClaim) -> np.ndarray:
    """By the event or by its complement, for limits of the likelier and the less likely side."""
    return np.asarray(np.maximum(claim.proved_each(low, high), claim.proved_each(1 - high, 1 - low)))


def _simultaneous(
    inside: np.ndarray, outside: np.ndarray, level: float, claim: RefutableClaim, adjacency: str, side: str
) -> EpsilonFromScores:
    # One band per dataset and direction, each at an equal share of the error.
    bands = 2 if side != "both" else 4
    band_level = 1 - (1 - level) / bands
    thresholds = np.unique(np.concatenate([inside, outside]))
    counts = [_exceed(scores, thresholds) for scores in (inside, outside)]
    lows = [simultaneous_lower_limits(len(s), confidence=band_level) for s in (inside, outside)]
    # The two limits of P(score ≥ t), and those of its complement from the complementary counts: no cancellation.
    low = [band[hits] for band, hits in zip(lows, counts, strict=True)]
    low_complement = [band[len(band) - 1 - hits] for band, hits in zip(lows, counts, strict=True)]
    best, where, at_best = 0.0, None, -1
    for name, hi, lo in (("in", 0, 1), ("out", 1, 0)):
        if side not in (name, "both"):
            continue
        for event, a, b in (
            ("event", low[hi], low_complement[lo]),
            ("complement of the event, which is", low_complement[lo], low[hi]),
        ):
            proved = claim.proved_each(a, 1 - b)
            at = int(proved.argmax())
            if proved[at] > best:
                best, where, at_best = float(proved[at]), f"{event}, likelier {name}".replace("is, ", "is "), at
    hits = (0, 0) if where is None else (int(counts[0][at_best]), int(counts[1][at_best]))
    limits = (
        ((0.0, 1.0), (0.0, 1.0))
        if where is None
        else tuple((float(a[at_best]), 1 - float(b[at_best])) for a, b in zip(low, low_complement, strict=True))
    )
    relation = parse_adjacency(adjacency)
    return EpsilonFromScores(
        value=claim.epsilon(best),
        kind="lower",
        confidence=level,
        interval=None,
        method=f"simultaneous limits of equal local levels at α/{bands}, event and complement at every threshold",
        assumptions=Assumptions(
            adjacency=relation,
            attacker="chooses the k rows, sees each trained model's test statistic, and knows both datasets",
            notes=(
                "the threshold was chosen on the counted trials; the limits hold at all thresholds at once",
                "the statistic, k" + ("" if side == "both" else ", direction") + " were fixed before the trials",
                *claim.notes(relation),
            ),
        ),
        provenance=PROVENANCE[claim.family] + "; Moscovich, Nadler and Spiegelman (2016) for the band",
        hits=hits,
        trials=(len(inside), len(outside)),
        limits=limits,
        delta=claim.delta,
        k=claim.k,
        direction=side,
        proved_by=where,
        family=claim.family,
        mu=best if claim.family == "gdp" else None,
        threshold=None if where is None else float(thresholds[at_best]),
        select="simultaneous",
    )
