"""What the label bound is computed from: Jacobian rows, residuals, joint norms, leverages; checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate


def rows_and_residuals(jacobian: Any, probs: Any, labels: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (..., N, d), their norms and |p − y|, both (..., N); errors name the argument and the entry."""
    rows, _ = validate.host_array(jacobian=jacobian, finite=False)
    if rows.ndim < 2:
        raise ValueError(f"`jacobian` must have shape (..., N, d), got {rows.shape}")
    if rows.shape[-2] == 0:
        raise ValueError(
            f"`jacobian` must have at least one row, got shape {rows.shape}: an empty batch has no label to bound"
        )
    p, _ = validate.host_array(probs=probs)
    y, _ = validate.host_array(labels=labels)
    for name, array in (("probs", p), ("labels", y)):
        _broadcast(name, array, rows.shape[:-1], f"jacobian of shape {rows.shape}")
    validate.real_array("in [0, 1]", lambda v: (v >= 0) & (v <= 1), probs=p)
    validate.real_array("0 or 1", lambda v: (v == 0) | (v == 1), labels=y)
    residuals = np.broadcast_to(np.abs(p - y), rows.shape[:-1])
    return rows, _norms(rows), residuals


def _broadcast(name: str, array: np.ndarray, shape: tuple[int, ...], of: str, own: int = 1) -> None:
    """`array` must have `shape`, or lack leading dimensions of it; its last `own` dimensions must always be there."""
    if array.ndim < own or array.ndim > len(shape) or shape[len(shape) - array.ndim :] != array.shape:
        raise ValueError(
            f"`{name}` must have shape {shape}, or that without leading dimensions, to match {of}, got {array.shape}"
        )


def _norms(rows: np.ndarray) -> np.ndarray:
    """‖C_r‖. Reads the rows once; a second time, scaled, where squares overflow, are lost to underflow, or are NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("...nd,...nd->...n", rows, rows)
    if not np.isfinite(squares).all():
        validate.host_array(jacobian=rows)
    risky = ~((squares > 1e-280) & np.isfinite(squares))
    norms = np.sqrt(np.where(risky, 0.0, squares))
    if risky.any():
        some = rows[risky]
        largest = np.abs(some).max(axis=-1, initial=0.0)
        scaled = some / np.where(largest > 0, largest, 1.0)[:, None]
        norms[risky] = largest * np.sqrt(np.einsum("nd,nd->n", scaled, scaled))
    return np.asarray(norms)


def joint_norms(grad_norms: Any, norms: np.ndarray, e: np.ndarray) -> np.ndarray:
    """J_r = ‖dZ_r/dθ‖ over all parameters that are clipped together; at least ‖C_r‖, which is part of it."""
    if grad_norms is None:
        return norms
    stated, _ = validate.host_array(grad_norms=grad_norms)
    _broadcast("grad_norms", stated, (*e.shape[:-1], 2, e.shape[-1]), f"probs of shape {e.shape}", own=2)
    validate.real_array("at least 0", lambda v: v >= 0, grad_norms=stated)
    first, second = (np.broadcast_to(stated[..., i, :], e.shape) for i in (0, 1))
    joint = first + second
    # Under the logistic loss the two norms are |e|·J and (1 − |e|)·J. 1e-3 leaves room for norms taken in half
    # precision.
    share = np.where(joint > 0, first / np.where(joint > 0, joint, 1.0), e)
    off = np.minimum(np.abs(share - e), np.abs(share - (1.0 - e)))
    if (off > 1e-3).any():
        at = tuple(int(i) for i in np.argwhere(off > 1e-3)[0])
        raise ValueError(
            "`grad_norms` must be |p − y|·J and (1 − |p − y|)·J, norms under the own and the flipped label, with "
            f"|p − y| = {float(e[at])!r}, got {float(first[at])!r} and {float(second[at])!r} for sample {at}"
        )
    short = joint < norms * (1.0 - 1e-3)
    if short.any():
        at = tuple(int(i) for i in np.argwhere(short)[0])
        raise ValueError(
            f"`grad_norms` must have a sum over both labels of at least ‖dZ/dW‖ = {float(norms[at])!r}, which is part "
            f"of it, got {float(joint[at])!r} for sample {at}"
        )
    return np.asarray(np.maximum(joint, norms))


def clipped(e: np.ndarray, reach: np.ndarray, clip: float) -> np.ndarray:
    """|e|·min(1, C/(|e|J)) = min(|e|, C/J)."""
    return np.asarray(np.minimum(e, over(np.full(reach.shape, clip), reach)))


def over(numerator: np.ndarray, denominator: np.ndarray | float) -> np.ndarray:
    """numerator/denominator with x/0 = ∞ for x > 0 and 0/0 = 0."""
    numerator, denominator = np.broadcast_arrays(numerator, np.asarray(denominator, dtype=np.float64))
    out = np.where(numerator > 0, np.inf, 0.0)
    with np.errstate(over="ignore"):
        return np.asarray(np.divide(numerator, denominator, out=out, where=denominator > 0))


def projection(rows: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows the system determines, and 1/√v_r of those: the distance of C_r from the span of the other rows."""
    identifiable, leverage = _without_zero_rows(rows, norms)
    with np.errstate(divide="ignore"):  # the leverage of huge rows underflows
        distance = 1.0 / np.sqrt(np.where(identifiable, leverage, np.inf))
    # A distance from a subspace is at most the distance from 0; rounding must not say otherwise.
    return identifiable, np.minimum(distance, norms)


def _without_zero_rows(rows: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """identifiable and leverage, (..., N) each. A ReLU that is off gives a zero row, which no other row feels but which
    would send the whole system to the singular value decomposition: such rows are left out."""
    nonzero = norms > 0
    if nonzero.all():
        return _solved(rows)
    systems = math.prod(nonzero.shape[:-1])
    flat, there = rows.reshape(systems, *rows.shape[-2:]), nonzero.reshape(systems, nonzero.shape[-1])
    identifiable, leverage = np.zeros(there.shape, dtype=bool), np.zeros(there.shape)
    counts = there.sum(axis=1)
    for count in np.unique(counts[counts > 0]):
        some = np.flatnonzero(counts == count)
        places = np.nonzero(there[some])[1].reshape(len(some), count)
        at = some[:, None], places
        identifiable[at], leverage[at] = _solved(flat[at])
    return identifiable.reshape(nonzero.shape), leverage.reshape(nonzero.shape)


def _solved(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without a right-hand side, which is all that a full rank needs: there is no null space then."""
    solved = kernels.solve_labels(rows, np.empty((*rows.shape[:-2], rows.shape[-1], 0)))
    identifiable = np.asarray(solved.identifiable, dtype=bool)
    short = np.asarray(solved.rank) < rows.shape[-2]
    if short.any():
        # With a zero gradient the error is what the null space can move: it would shift both means of the test.
        some = rows[short]
        moved = kernels.solve_labels(some, np.zeros((*some.shape[:-2], some.shape[-1]))).error
        identifiable = identifiable.copy()
        identifiable[short] &= np.asarray(moved) <= 1e-8
    return identifiable, np.asarray(solved.leverage, dtype=np.float64)
