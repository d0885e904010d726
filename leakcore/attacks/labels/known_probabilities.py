"""Labels when the probabilities are known: each residual takes one of two known values, so a box replaces the rank."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import optimize, special

from leakcore._base import validate
from leakcore.attacks.labels.linear_system import Conditions, growth
from leakcore.attacks.labels.observation import Clipping
from leakcore.attacks.labels.result import UNDETERMINED

_NORM_ROUNDOFFS = 64.0
"""Given joint norms are taken to be right to this many unit roundoffs: sums of squares are made in blocks."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClippedSamples:
    """Each sample's gradient times min(1, C/(norm + slack)): C, slack, and joint norms (S, N) of dZ_r/dθ or None."""

    clip: float
    slack: float
    joint: np.ndarray | None
    roundoff: float


def read_clipping(clipping: Clipping | None, *, known_probs: bool, steps: int | None, n: int) -> ClippedSamples | None:
    """Check it against what the attacker knows; None: not clipped."""
    if clipping is None:
        return None
    validate.instance(Clipping, clipping=clipping)
    if not known_probs:
        raise ValueError(
            "`clipping` is allowed only with known_probs=; clipping keeps every sign, and nothing else is read"
        )
    clip, slack = clipping.max_grad_norm, clipping.clip_slack
    if clipping.grad_norms is None:
        return ClippedSamples(clip, slack, None, 0.0)
    norms, roundoff = validate.host_array(grad_norms=clipping.grad_norms)
    wanted = (2, n) if steps is None else (steps, 2, n)
    if norms.shape != wanted:
        raise ValueError(f"`grad_norms` must have shape {wanted}, joint norms under both labels, got {norms.shape}")
    validate.real_array("at least 0", lambda v: v >= 0, grad_norms=norms)
    return ClippedSamples(clip, slack, norms.sum(axis=-2).reshape(-1, n), roundoff)


def two_values(
    probs: np.ndarray,
    doubt: np.ndarray,
    rows: np.ndarray,
    forward: np.ndarray,
    step: int,
    how: ClippedSamples | None,
    roundoff: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N,) each: the residual under label 0, what it is above the one under label 1, and the error of either.

    p and p − 1; clipped, u(p) and −u(1 − p) with u(e) = e·min(1, C/(e·J + slack)), J = ‖dZ_r/dθ‖. u grows with e, at
    most as fast as e, and changes by at most the relative error of J.
    """
    if how is None:
        return probs, np.ones(len(probs)), doubt
    own = np.linalg.norm(rows, axis=1)
    reach = own if how.joint is None else how.joint[step]
    short = reach < own * (1.0 - 1e-3)
    if short.any():
        r = int(short.argmax())
        raise ValueError(
            f"`grad_norms` must be at least ‖dZ/dW‖ = {float(own[r])!r} for sample {r} (sum over both "
            f"labels), which is part of it, got {float(reach[r])!r}"
        )
    high, low = (_clipped(e, reach, how) for e in (probs, 1.0 - probs))
    drift = np.divide(forward, reach, out=np.zeros_like(reach), where=reach > 0)
    drift = drift + _NORM_ROUNDOFFS * max(how.roundoff, roundoff)
    return high, high + low, doubt + np.maximum(high, low) * drift


def _clipped(e: np.ndarray, reach: np.ndarray, how: ClippedSamples) -> np.ndarray:
    norm = e * reach + how.slack
    return np.asarray(e * np.divide(how.clip, norm, out=np.ones_like(norm), where=norm > how.clip))


_LINEAR_PROGRAM_BOUND = 1e6
"""Largest weight in the certificate's linear program, in units of the typical row: HiGHS works to 1e-7 absolutely."""


@dataclasses.dataclass(frozen=True, eq=False)
class BoxSolution:
    """labels: (N,) 0, 1 or −1; y: (N,) relaxed solution; reach: (N,) how far from it any y that fits may be, or ∞.
    fits: whether any y does; if not, something that was said of the gradient is false, and no label is determined."""

    labels: np.ndarray
    y: np.ndarray
    reach: np.ndarray
    fits: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Observation:
    """One gradient of one weight vector: rows (N, d), total (d,) summed over samples, high and gap (N,). stored,
    forward: as in `solve`, (d,) and (N,). doubt: (N,) error of the known probabilities."""

    rows: np.ndarray
    total: np.ndarray
    high: np.ndarray
    gap: np.ndarray
    stored: np.ndarray | None
    forward: np.ndarray
    doubt: np.ndarray


def noise_radius(std: float, entries: int, level: float) -> float:
    """What the norm of this many independent normals stays below with probability `level`: std times χ's quantile. It
    holds for the whole vector, and so for whatever certificate is chosen after the noise was seen."""
    return std * math.sqrt(2.0 * float(special.gammaincinv(entries / 2, level)))


def solve_box(observations: list[Observation], how: Conditions) -> BoxSolution:
    """Labels of one batch from one or several gradients of it, stacked: all have the same y."""
    design = np.concatenate([(o.rows * o.gap[:, None]).T for o in observations])
    target = np.concatenate([o.rows.T @ o.high - o.total for o in observations])
    error = math.hypot(*[_error(o, how) for o in observations])
    if how.noise:
        error += noise_radius(how.noise, len(target), how.level)
    n = design.shape[1]
    if not design.any() or not math.isfinite(error):
        return BoxSolution(np.full(n, UNDETERMINED), np.full(n, 0.5), np.full(n, np.inf))
    fit = optimize.lsq_linear(design, target, (0.0, 1.0), method="bvls", max_iter=10 * n)
    relaxed = np.clip(fit.x, 0.0, 1.0)
    nearest = np.round(relaxed)
    misfit = float(np.linalg.norm(design @ relaxed - target))
    error += float(len(target) * 2.0**-53 * (np.abs(design) @ np.ones(n) + np.abs(target)).max())
    if how.noise == 0 and misfit > error:
        return BoxSolution(np.full(n, UNDETERMINED), relaxed, np.full(n, np.inf), fits=False)
    unknown_noise = how.noise is None and misfit > error
    if unknown_noise or np.linalg.norm(design @ nearest - target) <= error:
        vertex = nearest
        settled = np.ones(n, dtype=bool)
    else:
        settled = np.abs(relaxed - nearest) <= 1e-3
        vertex = np.where(settled, nearest, relaxed)
    slack = error + (0.0 if unknown_noise else float(np.linalg.norm(design @ vertex - target)))
    reach = _reach(design, vertex, settled, slack)
    labels = np.where(settled & (reach < 1.0), vertex, UNDETERMINED).astype(np.int64)
    return BoxSolution(labels, relaxed, reach)


def _error(o: Observation, how: Conditions) -> float:
    """Norm of what rounding can do to an observation's equations, given that |e| ≤ max(high, gap − high)."""
    e = np.maximum(np.abs(o.high), np.abs(o.gap - o.high))
    entries = growth(o.rows.shape[0], how.roundoff) * (np.abs(o.rows).T @ e)
    entries = entries + how.lost * (np.abs(o.rows).sum(axis=0) + len(o.rows) + 2.0)
    if o.stored is not None:
        entries = entries + o.stored
    return float(np.linalg.norm(entries) + o.forward @ e + np.linalg.norm(o.rows, axis=1) @ o.doubt)


def _reach(design: np.ndarray, vertex: np.ndarray, settled: np.ndarray, slack: float) -> np.ndarray:
    """(N,) upper bounds on |y_r − vertex_r| over all y of the box that fit to within `slack`; ∞ where none is known."""
    lengths = np.linalg.norm(design, axis=0)
    signed = design * np.where(settled, 1.0 - 2.0 * vertex, 1.0)
    reach = np.full(len(vertex), np.inf)
    used = lengths > 0
    if settled.all():
        reach[used] = _bound(signed[:, used], _nearest_to_hull(signed[:, used] / lengths[used]), settled[used], slack)
    if not (reach[used & settled] < 1.0).all():
        w = _linear_program(signed[:, used], settled[used], slack)
        reach[used] = np.minimum(reach[used], _bound(signed[:, used], w, settled[used], slack))
    return reach


def _bound(signed: np.ndarray, w: np.ndarray, settled: np.ndarray, slack: float) -> np.ndarray:
    margins = w @ signed
    # The rounding error of float64 is subtracted from each margin.
    doubt = (len(w) + 4) * 2.0**-53 * (np.abs(w) @ np.abs(signed))
    against = float(np.where(settled, np.maximum(doubt - margins, 0.0), np.abs(margins) + doubt).sum())
    total = float(np.linalg.norm(w)) * slack + against
    useful = settled & (margins > doubt)
    return np.where(useful, total / np.where(useful, margins - doubt, 1.0), np.inf)


def _nearest_to_hull(unit: np.ndarray) -> np.ndarray:
    """The point of the columns' convex hull nearest to 0: it has a positive product with all of them, or is 0."""
    n = unit.shape[1]
    try:
        weights, _ = optimize.nnls(np.vstack([unit, np.ones(n)]), np.r_[np.zeros(len(unit)), 1.0], maxiter=20 * n)
    except RuntimeError:  # too many steps: the linear program decides
        return np.zeros(len(unit))
    return np.asarray(unit @ weights)


def _linear_program(signed: np.ndarray, settled: np.ndarray, slack: float) -> np.ndarray:
    """The w with as many margins of 1 as there can be: certificates of different rows add up to one for all. Its norm
    is kept so small that ‖w‖·slack ≤ 1/2, where a margin of 1 decides."""
    d, n = signed.shape
    typical = float(np.linalg.norm(signed, axis=0).max())
    scaled = signed / typical
    limit = min(_LINEAR_PROGRAM_BOUND, typical / (2.0 * slack * math.sqrt(d)) if slack > 0 else math.inf)
    bound = scaled[:, settled].T
    count = len(bound)
    program = optimize.linprog(
        np.r_[np.zeros(d), -np.ones(count)],
        A_ub=np.hstack([-bound, np.eye(count)]),
        b_ub=np.zeros(count),
        A_eq=None if count == n else np.hstack([scaled[:, ~settled].T, np.zeros((n - count, count))]),
        b_eq=None if count == n else np.zeros(n - count),
        bounds=[(-limit, limit)] * d + [(0.0, 1.0)] * count,
        method="highs",
    )
    return np.zeros(d) if program.x is None else np.asarray(program.x[:d]) / typical
