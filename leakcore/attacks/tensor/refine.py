"""Least squares on the gradient itself, started from the tensor method's answer: it tests and improves that answer.

g_j = Σ_i r_i σ(w_jᵀx_i) is m equations in B(d + 1) unknowns. Gauss–Newton steps converge from a start that is right,
and how far they move is the start's own error; from a wrong start they stall above what the lower orders alone explain.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from leakcore.attacks.tensor.moments import with_identity
from leakcore.attacks.tensor.weights import Weights

_STEPS = 20
_SLOPE_STEP = 1e-6
_ROWS = 20_000
_ROWS_PER_UNKNOWN = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Refined:
    """inputs (k, d) unit rows, residuals (k,), and the rms of the part of g that they leave, per degree of freedom.

    errors: (k,) root mean square error of each input if that remainder is noise, from the last step's normal equations,
    and the length of that step. structure: rms of the part of the remainder that still depends on w (linear, quadratic,
    and cubic in the inputs' span) beyond what noise would show: noise on the gradient leaves none, a wrong answer does.
    """

    inputs: np.ndarray
    residuals: np.ndarray
    errors: np.ndarray
    remainder: float
    structure: float


def refine(
    inputs: np.ndarray,
    residuals: np.ndarray,
    gradient: np.ndarray,
    weights: Weights,
    sigma: Callable[[np.ndarray], np.ndarray],
    *,
    all_rows: bool,
    others: bool,
) -> Refined:
    """Levenberg–Marquardt with ‖x_i‖ = 1.

    others: there are samples besides these, whose constant and linear part are fitted as well. all_rows: use all of g,
    else as many entries as determine the unknowns many times over.
    """
    k, d = inputs.shape
    extra = d + 1 if others else 0
    unknowns = k * (d + 1) + extra
    limit = None if all_rows else max(_ROWS, _ROWS_PER_UNKNOWN * unknowns)
    rows = weights.num_neurons if limit is None else min(limit, weights.num_neurons)
    x, r, nuisance = inputs.copy(), residuals.copy(), np.zeros(extra)

    def misfit(x: np.ndarray, r: np.ndarray, nuisance: np.ndarray) -> float:
        total = 0.0
        for part, w in weights.blocks(max(k, d), limit):
            rest = gradient[part] - sigma(w @ x.T) @ r
            if others:
                rest -= nuisance[0] + w @ nuisance[1:]
            total += float(rest @ rest)
        return total

    if others:
        nuisance = _linear_part(x, r, gradient, weights, sigma, limit)
    best = misfit(x, r, nuisance)
    damping = 1e-6
    gram, last = np.eye(unknowns), np.zeros(k)
    for _ in range(_STEPS):
        gram, slope = np.zeros((unknowns, unknowns)), np.zeros(unknowns)
        for part, w in weights.blocks(unknowns, limit):
            u = w @ x.T
            values = sigma(u)
            slopes = (sigma(u + _SLOPE_STEP) - sigma(u - _SLOPE_STEP)) / (2.0 * _SLOPE_STEP) * r
            columns = [values, (slopes[:, :, None] * w[:, None, :]).reshape(len(w), -1)]
            rest = gradient[part] - values @ r
            if others:
                columns += [np.ones((len(w), 1)), w]
                rest -= nuisance[0] + w @ nuisance[1:]
            design = np.hstack(columns)
            gram += design.T @ design
            slope += design.T @ rest
        # Lengths are fixed, so a step along x_i is penalised; for ReLU it would equal a step in r_i.
        scale = float(np.trace(gram)) / unknowns
        for i in range(k):
            at = slice(k + i * d, k + (i + 1) * d)
            gram[at, at] += scale * np.outer(x[i], x[i])
        better = False
        for _ in range(6):
            step = np.linalg.lstsq(gram + damping * scale * np.eye(unknowns), slope, rcond=None)[0]
            moved = x + step[k : k + k * d].reshape(k, d)
            moved /= np.linalg.norm(moved, axis=1, keepdims=True)
            trial = (moved, r + step[:k], nuisance + step[k + k * d :])
            squares = misfit(*trial)
            if squares < best:
                better, damping = True, damping / 10.0
                break
            damping = max(damping, 1e-9) * 30.0
        if not better:
            break
        gained, best = (best - squares) / best, squares
        last = np.linalg.norm(trial[0] - x, axis=1)
        x, r, nuisance = trial
        if gained < 1e-6 or best == 0.0:
            break
    rest = np.empty(rows)
    for part, w in weights.blocks(max(k, d), limit):
        rest[part] = gradient[part] - sigma(w @ x.T) @ r
        if others:
            rest[part] -= nuisance[0] + w @ nuisance[1:]
    remainder = math.sqrt(best / max(1, rows - unknowns))
    inverse = np.linalg.pinv(gram, hermitian=True)
    blocks = [inverse[at : at + d, at : at + d] for at in range(k, k + k * d, d)]
    spread = [max(0.0, float(np.trace(b) - x[i] @ b @ x[i])) for i, b in enumerate(blocks)]
    errors = np.hypot(remainder * np.sqrt(spread), last) + d * 2.0**-51
    return Refined(x, r, errors, remainder, _structure(rest, weights, x, limit))


def _structure(rest: np.ndarray, weights: Weights, x: np.ndarray, limit: int | None) -> float:
    """√(Σ (M_α² − expected for noise)/α!) over the Hermite moments of the remainder, by Parseval a part of its rms."""
    n, d = len(rest), x.shape[1]
    basis = np.linalg.qr(x.T)[0]
    linear, square = np.zeros(d), np.zeros((d, d))
    first, cube = np.zeros(basis.shape[1]), np.zeros((basis.shape[1],) * 3)
    for part, w in weights.blocks(d + basis.shape[1] ** 2, limit):
        weighted = w * rest[part, None]
        linear += weighted.sum(axis=0)
        square += weighted.T @ w
        u = w @ basis
        cube += np.einsum("na,nb,nc->abc", u * rest[part, None], u, u, optimize=True)
        first += u.T @ rest[part]
    square = square / n - rest.mean() * np.eye(d)
    cube = (cube - with_identity(first)) / n
    energy = np.square(linear / n).sum() + np.square(square).sum() / 2.0 + np.square(cube).sum() / 6.0
    k = basis.shape[1]
    entries = d + d * (d + 1) / 2.0 + k * (k + 1) * (k + 2) / 6.0
    noise = float(rest @ rest) / n**2
    return math.sqrt(max(0.0, float(energy) - noise * (entries + 4.0 * math.sqrt(2.0 * entries))))


def _linear_part(
    x: np.ndarray,
    r: np.ndarray,
    gradient: np.ndarray,
    weights: Weights,
    sigma: Callable[[np.ndarray], np.ndarray],
    limit: int | None,
) -> np.ndarray:
    d = x.shape[1]
    gram, slope = np.zeros((d + 1, d + 1)), np.zeros(d + 1)
    for part, w in weights.blocks(d + 1, limit):
        design = np.hstack([np.ones((len(w), 1)), w])
        gram += design.T @ design
        slope += design.T @ (gradient[part] - sigma(w @ x.T) @ r)
    return np.asarray(np.linalg.lstsq(gram, slope, rcond=None)[0])
