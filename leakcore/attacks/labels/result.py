"""What a label attack returns, and how results about one batch (its steps, its layers) are joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from leakcore._base.results import Assumptions, Result

UNDETERMINED = -1
"""The label of a row that the gradient does not determine."""

CONTRADICTION = "results that should both hold name different labels: something that was said of a gradient is not so"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelRecovery(Result):
    """Labels of one batch.

    Attributes:
        value: share of the batch's labels that are determined.
        kind: "lower" where the determined labels are proved right under `assumptions` (the gradient is exact up to
            rounding, or its noise level is known; where a sign is hidden, the prior on the ratio of positives is
            right), else "estimate".
        labels: (N,) int64, the class (binary: 0 or 1), −1 where undetermined.
        residuals: solved p − y, float64, (N,) for one logit and (N, K) for K. Where the scale or sign of the system is
            not known (a hidden layer), a multiple of it.
        identifiable: (N,) bool, whether the system determines the row at all.
        determined: (N,) bool, identifiable, and the residual is further than `tolerance` from what another label would
            give.
        tolerance: how much rounding and (where its level is known) noise can move each residual, ∞ where not
            identifiable; the residuals' shape.
        rank: rank of the system; the largest one where several systems were joined.
        condition: the system's largest singular value over its smallest non-zero one, ∞ for rank 0; where several
            systems were joined, the largest finite one.
    """

    quantity: str = "share of labels determined"
    labels: np.ndarray
    residuals: np.ndarray
    identifiable: np.ndarray
    determined: np.ndarray
    tolerance: np.ndarray
    rank: int
    condition: float


def name_labels(residuals: np.ndarray, tolerance: np.ndarray, identifiable: np.ndarray) -> np.ndarray:
    """(N,) labels of (N, K) residuals p − y that are known to within `tolerance`; −1 where they do not decide. One
    logit: the residual's sign. K logits: exactly one residual of a row is negative, the one of its label. That class is
    known if its residual is certainly negative, or if all others are certainly positive."""
    if residuals.shape[1] == 1:
        known = np.abs(residuals[:, 0]) > tolerance[:, 0]
        named = residuals[:, 0] < 0
    else:
        named = np.argmin(residuals, axis=1)
        rows = np.arange(len(residuals))
        others = residuals > tolerance
        others[rows, named] = True
        known = (residuals[rows, named] < -tolerance[rows, named]) | others.all(axis=1)
    return np.where(known & identifiable, named, UNDETERMINED).astype(np.int64)


def combine(recoveries: Sequence[LabelRecovery]) -> LabelRecovery:
    """Join what several gradients say about the same batch: observed steps, layers, epochs.

    A row is determined where any recovery determines it, and −1 where two of them contradict each other (which exact
    gradients never do).

    Args:
        recoveries: a sequence of `LabelRecovery` with the same rows and classes.

    Returns:
        `LabelRecovery`, "lower" if all are and no two contradict each other. Its residuals and tolerance come, row by
        row, from the recovery with the largest |residual| / tolerance. Its confidence is 1 minus the sum of all failure
        probabilities (union bound).

    Raises:
        ValueError: for an empty sequence, or for different numbers of rows or classes.
        TypeError: for anything but a sequence of `LabelRecovery`.

    Guarantees:
        Deterministic; the order matters only where recoveries tie.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> y = np.array([1, 0, 1])
        >>> steps = [np.diag([1.0, 1.0, 0.0]), np.diag([0.0, 1.0, 1.0])]  # each step hides one row
        >>> parts = [labels.last_layer(x, x.T @ (0.5 - y) / 3, noise=labels.Noise(0)) for x in steps]
        >>> parts[0].labels.tolist(), labels.combine(parts).labels.tolist()
        ([1, 0, -1], [1, 0, 1])
    """
    if not isinstance(recoveries, Sequence):
        raise TypeError(f"`recoveries` must be a sequence of LabelRecovery, got {recoveries!r}")
    parts = list(recoveries)
    if not parts:
        raise ValueError("`recoveries` must hold at least one LabelRecovery")
    for i, part in enumerate(parts):
        if not isinstance(part, LabelRecovery):
            raise TypeError(f"`recoveries[{i}]` must be a LabelRecovery, got {type(part).__name__}")
        if part.residuals.shape != parts[0].residuals.shape:
            raise ValueError(
                f"`recoveries[{i}]` must be of the same batch as recoveries[0], with residuals "
                f"{parts[0].residuals.shape}, got {part.residuals.shape}"
            )
    if len(parts) == 1:
        return parts[0]
    named = np.stack([p.labels for p in parts])
    known = named != UNDETERMINED
    highest = named.max(axis=0)
    lowest = np.where(known, named, np.iinfo(named.dtype).max).min(axis=0)
    labels = np.where(known.any(axis=0) & (lowest == highest), highest, UNDETERMINED).astype(named.dtype)
    rows = (len(parts), named.shape[1], -1)
    residuals, tolerance = (np.stack([getattr(p, k) for p in parts]).reshape(rows) for k in ("residuals", "tolerance"))
    clearness = (np.abs(residuals) / np.maximum(tolerance, np.finfo(float).tiny)).max(axis=2)
    best = np.where(known, 1.0 + clearness, np.minimum(clearness, 1.0)).argmax(axis=0)
    at = (best, np.arange(named.shape[1]))
    shape = parts[0].residuals.shape
    proved = all(p.kind == "lower" for p in parts)
    contradicted = bool((known.any(axis=0) & (lowest != highest)).any())
    notes = [note for p in parts for note in p.assumptions.notes]
    notes.append("stated: all results are of one batch, its rows in the same order")
    if contradicted:
        proved = False
        notes.append(CONTRADICTION)
    failure = sum(1.0 - p.confidence for p in parts if p.confidence is not None)
    determined = labels != UNDETERMINED
    return dataclasses.replace(
        parts[0],
        value=float(determined.mean()),
        kind="lower" if proved and failure < 1 else "estimate",
        confidence=1.0 - failure if proved and 0 < failure < 1 else None,
        method=f"{parts[0].method}; {len(parts)} results joined",
        assumptions=Assumptions(
            adjacency=None,
            attacker="; ".join(dict.fromkeys(p.assumptions.attacker for p in parts)),
            notes=tuple(dict.fromkeys(notes)),
        ),
        provenance="; ".join(dict.fromkeys(p.provenance for p in parts)),
        labels=labels,
        residuals=residuals[at].reshape(shape),
        identifiable=np.any([p.identifiable for p in parts], axis=0),
        determined=determined,
        tolerance=tolerance[at].reshape(shape),
        rank=max(p.rank for p in parts),
        condition=worst_condition([p.condition for p in parts]),
    )


def worst_condition(conditions: Sequence[float]) -> float:
    """The largest finite condition, ∞ if none is finite (every system had rank 0)."""
    return max((c for c in conditions if np.isfinite(c)), default=np.inf)
