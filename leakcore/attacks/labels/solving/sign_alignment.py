"""Joining systems whose scale, and so sign, is unknown: aligned by the rows they share, then resolved by the prior."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Assumptions
from leakcore.attacks.labels.conditions import Noise, Precision
from leakcore.attacks.labels.observation import ObservedGradient
from leakcore.attacks.labels.result import CONTRADICTION, UNDETERMINED, LabelRecovery, worst_condition
from leakcore.attacks.labels.solving.linear_system import BLIND, HARD, MISFIT, noise_notes, read_conditions, solve

_SIGN_TEST = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class NeuronRows:
    """One unit's rows (N, d), which are dZ_r/dW up to one factor; forward as in `solve`; number: which unit it is."""

    number: int
    rows: np.ndarray
    forward: np.ndarray


def prior_below_half(positive_ratio: float) -> bool:
    """Whether positives are the rarer class; a ratio of one half says nothing and is refused."""
    ratio = validate.open_probability(positive_ratio=positive_ratio)
    if ratio == 0.5:
        raise ValueError("`positive_ratio` must differ from 0.5, or it cannot resolve the sign")
    return ratio < 0.5


def recover_up_to_sign(
    neurons: list[NeuronRows],
    observed: ObservedGradient,
    *,
    positive_ratio: float,
    noise: Noise | None,
    precision: Precision,
    roundoff: float,
    attacker: str,
    method: str,
    provenance: str,
    proofs: bool = True,
) -> LabelRecovery:
    """Solve each neuron's system, align their signs, let the neurons vote, and choose the sign that fits the prior.

    The sign of a system is that of an unknown weight. Two systems that determine a common row agree on it or
    disagree on it, which tells their relative sign; the set of systems so connected that determines the most rows is
    kept. A row's label is the majority of its votes (exact gradients never contradict each other), −1 in a tie. Then
    one global sign is left: the one under which positives are rarer (or more frequent) among the rows with a vote.

    The prior is an assumption about this batch: where it is wrong, every determined label is the opposite one, and a
    result of kind "lower" holds under it alone. It *decides* the sign if the opposite one would put at least half of
    the whole batch into the rarer class. If it does not, because votes are missing, the sign counts only under two
    conditions. Rows whose residual is lost in rounding are those the model is sure of, mostly of the frequent class:
    the opposite sign must put at least half of all rows that are seen into the rarer class whatever the lost ones are.
    Rows that no neuron sees (U = 0) are taken to be missing at random, and the votes must be so lopsided that the
    opposite sign would show them with probability at most 1/1000 (sign test). Else, and in a tie, nothing is
    determined.
    """
    below = prior_below_half(positive_ratio)
    shape = neurons[0].rows.shape
    divisor = observed.source.divisor(shape[0])
    how = read_conditions(
        max(shape), roundoff=max(roundoff, observed.roundoff), divisor=divisor, noise=noise, precision=precision
    )
    each = how.shared(len(neurons))
    blind = observed.stored is None
    solutions = [
        solve(
            n.rows,
            divisor * observed.values[0, n.number, :, None],
            each,
            stored=None if observed.stored is None else divisor * observed.stored[0, n.number, :, None],
            forward=n.forward * how.coarser_than(roundoff),
            unit_scale=False,
        )
        for n in neurons
    ]
    residuals = np.stack([s.residuals[:, 0] for s in solutions])
    tolerance = np.stack([s.tolerance[:, 0] for s in solutions])
    signs = np.where(np.abs(residuals) > tolerance, np.sign(residuals), 0.0).astype(np.int64)
    turn = align(signs)
    votes = turn @ signs
    ones, zeros = int((votes < 0).sum()), int((votes > 0).sum())
    flip = 1 if ones == zeros or (ones < zeros) == below else -1
    in_sight = np.any([s.identifiable for s, t in zip(solutions, turn, strict=True) if t], axis=0)
    many = max(ones, zeros)
    certain = 2 * many >= len(votes) and ones != zeros
    lopsided = many > 0 and float(special.bdtrc(many - 1, ones + zeros, 0.5)) <= _SIGN_TEST
    resolved = certain or (2 * many >= int(in_sight.sum()) and lopsided)
    fits = blind or all(s.fits for s in solutions)
    determined = (votes != 0) & resolved & fits
    labels = np.where(determined, flip * votes < 0, UNDETERMINED).astype(np.int64)
    contradicted = bool((np.abs(votes) < np.abs(turn[:, None] * signs).sum(axis=0)).any())
    assumed = any(
        (~s.identifiable & (np.linalg.norm(n.rows, axis=1) > 0)).any()
        for s, n, t in zip(solutions, neurons, turn, strict=True)
        if t
    )
    exact = how.noise is not None and not blind and not assumed and certain and proofs and fits and not contradicted
    notes = ["binary labels, logistic loss, one logit", HARD, *noise_notes(how)]
    prior = f"assumed: {'fewer' if below else 'more'} than half of the batch's labels are 1 (positive_ratio)"
    if resolved:
        decided = "the sign follows from it" if certain else "it chose, but does not prove, the sign"
        notes.append(f"{prior}; {decided}, and were it wrong, every determined label would be the opposite one")
    else:
        notes.append(f"{prior}; it leaves the sign open")
    if assumed:
        notes.append(
            "rows that a system does not determine are taken to be at most ten times the largest that it does: their "
            "rounding is in the tolerance under this assumption, so nothing is proved"
        )
    if not fits:
        notes.append(MISFIT + (", or undetermined rows are larger than taken" if assumed else ""))
    if contradicted:
        notes.append(CONTRADICTION)
    if blind:
        notes.append(BLIND)
    best = (np.abs(residuals) / np.maximum(tolerance, np.finfo(float).tiny) * (turn != 0)[:, None]).argmax(axis=0)
    at = (best, np.arange(len(votes)))
    return LabelRecovery(
        value=float(determined.mean()),
        kind="lower" if exact else "estimate",
        confidence=how.level if exact and how.noise else None,
        interval=None,
        method=f"{method}; {int((turn != 0).sum())} of {len(neurons)} neurons aligned",
        assumptions=Assumptions(
            adjacency=None, attacker=f"{attacker}; knows which label is the rarer one in this batch", notes=tuple(notes)
        ),
        provenance=provenance,
        labels=labels,
        residuals=flip * np.where(turn[best] == 0, 1, turn[best]) * residuals[at],
        identifiable=np.any([s.identifiable for s in solutions], axis=0),
        determined=determined,
        tolerance=tolerance[at],
        rank=max(s.rank for s in solutions),
        condition=worst_condition([s.condition for s in solutions]),
    )


def align(signs: np.ndarray) -> np.ndarray:
    """(J,) factors ±1 that make the (J, N) signs agree, 0 for systems outside the best connected set.

    Grows a tree from the system that determines the most rows, along the overlaps that agree or disagree most clearly.
    """
    agreement = signs @ signs.T
    left = set(range(len(signs)))
    best, covered = np.zeros(len(signs), dtype=np.int64), -1
    while left:
        start = max(left, key=lambda j: (int(np.abs(signs[j]).sum()), -j))
        turn = np.zeros(len(signs), dtype=np.int64)
        turn[start] = 1
        link = agreement[start].copy()
        while True:
            clear = np.where(turn == 0, np.abs(link), 0)
            j = int(clear.argmax())
            if clear[j] == 0:
                break
            turn[j] = np.sign(link[j])
            link = np.where(np.abs(agreement[j]) > np.abs(link), turn[j] * agreement[j], link)
        rows = int((np.abs(signs[turn != 0]).sum(axis=0) > 0).sum())
        if rows > covered:
            best, covered = turn, rows
        left -= set(np.flatnonzero(turn).tolist())
    return best


def chosen(neurons: Any, count: int) -> list[int]:
    """The indices of the neurons to use: all by default, else one index or several, checked."""
    if neurons is None:
        return list(range(count))
    if not isinstance(neurons, (int, np.integer)) and not np.iterable(neurons):
        raise TypeError(f"`neurons` must be an integer, several of them, or None, got {neurons!r}")
    listed = [neurons] if isinstance(neurons, (int, np.integer)) else list(neurons)
    if not listed:
        raise ValueError("`neurons` must name at least one neuron")
    return [validate.integer(0, count - 1, neurons=j) for j in listed]
