"""The linear system behind the label attacks, its minimum-norm solution, and how far that is from the truth."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base import validate
from leakcore.attacks.arguments import lost_below
from leakcore.attacks.labels.observation import Noise, Precision


@dataclasses.dataclass(frozen=True, eq=False)
class Conditions:
    """How the gradient came about, beyond the system itself.

    roundoff: unit roundoff of the victim's arithmetic. cut: singular values below cut·(largest) count as zero.
    lost: how far a number of the sum over samples may move that the victim's type cannot hold. noise: standard
    deviation per coordinate of the *sum* over samples, None if not known. level: the probability with which no
    determined label may be wrong, where noise > 0.
    """

    roundoff: float
    cut: float
    lost: float
    noise: float | None
    level: float

    def coarser_than(self, roundoff: float) -> float:
        """By how much errors grow that were measured at this unit roundoff: the victim may compute more coarsely."""
        return max(1.0, self.roundoff / max(roundoff, 2.0**-53))

    def shared(self, parts: int) -> Conditions:
        """The same, with the failures divided over `parts` systems that must all hold (union bound)."""
        return dataclasses.replace(self, level=1.0 - (1.0 - self.level) / parts) if self.noise else self


def read_conditions(
    size: int, *, roundoff: float, divisor: float, noise: Noise | None, precision: Precision
) -> Conditions:
    """Read them from the arguments of an attack; size = max(N, d), roundoff that of the coarsest array given."""
    if noise is not None:
        validate.instance(Noise, noise=noise)
    if precision.unit_roundoff is not None:
        roundoff = max(precision.unit_roundoff, 2.0**-53)
    cut = 2.0 * size * roundoff if precision.rcond is None else precision.rcond
    # A narrow type's default on a large system may reach 1, where every singular value would count as zero.
    cut = min(cut, 0.5)
    if noise is None:
        return Conditions(roundoff, cut, lost_below(roundoff) * divisor, None, 0.0)
    return Conditions(roundoff, cut, lost_below(roundoff) * divisor, noise.std * divisor, noise.confidence or 0.0)


_MISFIT_SAFETY = 4.0
"""By how much a misfit may exceed what rounding explains: activations that are given may be rounded once more."""

FLOAT32 = 2.0**-24
_FALSE_ALARM = 1e-6
"""How often noise alone may make a gradient look impossible. It costs labels then, but never makes one wrong."""

MISFIT = (
    "no residuals of hard labels fit this gradient: model, mode, inputs, precision, noise, reduction or loss are not "
    "as said"
)

UNCHANGED = (
    "it is that of the loss alone, and not its negative, or the SGD step's that was stated: no penalty of the weights, "
    "no momentum, not pruned, quantised or otherwise changed"
)

HARD = (
    "hard labels: not smoothed or mixed, no weights of classes or samples in the loss, and the logits are the model's "
    "own, not negated"
)

BLIND = "the rounding of the stored weights is not in the tolerance, because the weights were not given"


def noise_notes(how: Conditions) -> list[str]:
    """What the result must say about noise, rounding, and what else may have moved the gradient."""
    rounded = f"computed and rounded with a relative error of at most {how.roundoff:.3g} (Precision states another)"
    if how.noise is None:
        return ["the noise level is not known: labels are named by sign, and only rounding makes one undetermined"]
    if how.noise == 0:
        return [f"stated: the gradient is exact up to rounding; {UNCHANGED}", rounded]
    return [
        UNCHANGED,
        rounded,
        f"independent Gaussian noise of standard deviation {how.noise:g} per coordinate of the summed gradient",
        "no determined label is wrong with probability at least the confidence, over the noise",
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class SystemSolution:
    """residuals and tolerance: (N, K); identifiable: (N,). alarm: (N, K), which rounding and noise hardly ever exceed.

    fits: whether any residuals give this gradient, up to rounding and noise; if not, something that was said of it is
    false. Always True where the noise level is not known.
    """

    residuals: np.ndarray
    tolerance: np.ndarray
    identifiable: np.ndarray
    rank: int
    condition: float
    alarm: np.ndarray
    fits: bool = True


def solve(
    rows: np.ndarray,
    total: np.ndarray,
    how: Conditions,
    *,
    stored: np.ndarray | None,
    forward: np.ndarray,
    unit_scale: bool = True,
) -> SystemSolution:
    """Minimum-norm e of rowsᵀe = total, rows (N, d), total (d, K) the gradient *summed* over samples.

    stored: (d, K) error of each entry of `total` from stored weights, or None. forward: (N,) how far ‖row‖ may be from
    the row behind the gradient. unit_scale: |e| ≤ 1, as for p − y. Otherwise e is a multiple of p − y by an unknown
    factor; rows that the system does not determine are then taken to have |e| ≤ 10·max|solved e|: their rounding enters
    everyone's tolerance, and nothing else is known about them.

    Tolerance, first order in nothing: the gradient's rounding is at most γΣ_r|row_r||e_r| entrywise, γ = (N + 8)u/(1 −
    (N + 8)u), that of the rows at most Σ_r forward_r|e_r| in norm; a perturbation of norm t moves residual r by at most
    √v_r·t, v the leverages. What does not fit float64's rounding is held to float32's.
    """
    n = rows.shape[0]
    solved = kernels.solve_labels(rows, total / n, rcond=how.cut)
    residuals = np.asarray(solved.residual, dtype=np.float64)
    scale = 1.0
    if not unit_scale:
        scale = 10.0 * float(np.abs(residuals).max())
        scale = scale if scale > 0 else 1.0
        solved = kernels.solve_labels(rows, total / (n * scale), rcond=how.cut)
    spread = np.sqrt(np.asarray(solved.leverage, dtype=np.float64))
    identifiable = np.asarray(solved.identifiable, dtype=bool)
    tolerance = np.asarray(solved.error, dtype=np.float64) * scale
    moved = 0.0 if stored is None else stored
    e, error = _rounding(rows, residuals, spread, identifiable, how, moved, forward, scale)
    tolerance = tolerance + spread[:, None] * error
    if residuals.shape[1] > 1 and unit_scale:
        tolerance = tolerance + 8.0 * how.roundoff  # a softmax's own rounding may flip the sign of a residual near 0
    rank = int(solved.rank)
    fits = how.noise is None or _consistent(rows, total, rank, e, error, how)
    alarm = _widened(tolerance, spread, how, _FALSE_ALARM)
    if unit_scale and how.noise is not None:
        fits = fits and may_be_residuals(residuals[identifiable], alarm[identifiable])
    if not fits and how.roundoff < FLOAT32:
        # Many compute in float32 and pass float64: float32's rounding then counts.
        coarser = solve(
            rows,
            total,
            dataclasses.replace(how, roundoff=FLOAT32),
            stored=stored,
            forward=forward,
            unit_scale=unit_scale,
        )
        if coarser.fits:
            return coarser
    if how.noise:
        claims = max(1, int(identifiable.sum()) * residuals.shape[1])
        tolerance = _widened(tolerance, spread, how, (1.0 - how.level) / claims)
    tolerance = np.where(identifiable[:, None], tolerance, np.inf)
    return SystemSolution(residuals, tolerance, identifiable, rank, condition(rows, rank), alarm, fits)


def may_be_residuals(residuals: np.ndarray, tolerance: np.ndarray) -> bool:
    """Whether (n, K) may be residuals p − y, clipped or not: at most 1 in magnitude, those of K classes of sum 0."""
    within = bool((np.abs(residuals) <= 1.0 + tolerance).all())
    if residuals.shape[1] == 1:
        return within
    return within and bool((np.abs(residuals.sum(axis=1)) <= tolerance.sum(axis=1)).all())


def agree_with_probabilities(
    residuals: np.ndarray, tolerance: np.ndarray, probs: np.ndarray, doubt: np.ndarray
) -> bool:
    """Whether (n, K) may be residuals c·(p − y) of these probabilities, c in [0, 1] for each row, as clipping makes it.
    Then each lies in [p − 1, p], and for the label's class y and any other class k, e_k·(1 − p_y) = −e_y·p_k. Labels
    that are smoothed or mixed, other losses, and a gradient's negative mostly do not."""
    allowed = tolerance + doubt
    if not ((probs - 1.0 - allowed <= residuals) & (residuals <= probs + allowed)).all():
        return False
    if residuals.shape[1] == 1:
        return True
    at = (np.arange(len(residuals)), residuals.argmin(axis=1))
    own, left, rough, vague = (a[:, None] for a in (residuals[at], 1.0 - probs[at], tolerance[at], doubt[at]))
    apart = np.abs(residuals * left + own * probs)
    # To first order, and the products of errors.
    room = tolerance * (left + vague) + rough * (probs + doubt) + np.abs(residuals) * vague + np.abs(own) * doubt
    apart[at] = 0.0
    return bool((apart <= room).all())


def _widened(tolerance: np.ndarray, spread: np.ndarray, how: Conditions, share: float) -> np.ndarray:
    """Tolerances that noise exceeds on one side with probability `share` each."""
    quantile = max(0.0, -float(special.ndtri(share)))
    return tolerance + ((how.noise or 0.0) * quantile * spread)[:, None]


def _consistent(
    rows: np.ndarray, total: np.ndarray, rank: int, e: np.ndarray, error: np.ndarray, how: Conditions
) -> bool:
    """Whether what lies of `total` outside the span of the rows may be rounding and noise. e: (N, K) bounds on the true
    magnitudes; error: (K,) bounds on the norm of what rounding did to each column."""
    n, width = rows.shape
    if rank == width or not np.isfinite(error).all():
        return True
    dropped = 0.0
    if rank == n:
        basis = np.linalg.qr(rows.T)[0]
    else:
        _, singular, right = np.linalg.svd(rows, full_matrices=False)
        basis = right[:rank].T
        dropped = float(singular[rank]) if rank < len(singular) else 0.0
    misfit = np.linalg.norm(total - basis @ (basis.T @ total), axis=0)
    lengths = np.linalg.norm(e, axis=0)
    allowed = error + dropped * lengths
    # The float64 arithmetic here, and underflow in the victim's: N products, their sum and its mean.
    allowed = allowed + (n + width) * 2.0**-53 * (float(np.linalg.norm(rows)) * lengths + np.linalg.norm(total, axis=0))
    # Below this a type of this unit roundoff, or finer, may lose numbers altogether.
    vanishing = 2.0**-14 if how.roundoff >= 2.0**-11 else 2.0**-126 if how.roundoff > 2.0**-53 else 2.0**-1022
    allowed = _MISFIT_SAFETY * (allowed + n * (n + 2) * np.sqrt(width) * vanishing)
    if how.noise:
        share = _FALSE_ALARM / total.shape[1]
        allowed = allowed + how.noise * np.sqrt(2.0 * special.gammainccinv((width - rank) / 2, share))
    return bool((misfit <= allowed).all())


def growth(n: int, roundoff: float) -> float:
    """γ = (N + 8)u/(1 − (N + 8)u), Higham's constant for a sum of N products with room for their factors; ∞ beyond."""
    terms = (n + 8) * roundoff
    return terms / (1.0 - terms) if terms < 1 else math.inf


def _rounding(
    rows: np.ndarray,
    residuals: np.ndarray,
    spread: np.ndarray,
    identifiable: np.ndarray,
    how: Conditions,
    stored: np.ndarray | float,
    forward: np.ndarray,
    scale: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the true |e|, (N, K), and on the norm of what rounding did to each column of the gradient, (K,). The
    true |e| appears in its own error bound. It is at most `scale`, which gives a first bound. Without noise |e| is at
    most |residual| + bound, which gives a better one; the third pass changes nothing that matters."""
    rate = growth(rows.shape[0], how.roundoff)
    if rate == math.inf:
        return np.full(residuals.shape, scale), np.full(residuals.shape[1], np.inf)
    magnitudes = np.abs(rows)
    e = np.full(residuals.shape, scale)
    error = np.full(residuals.shape[1], np.inf)
    # Each sample's residual, its product with the row, and each sum may underflow.
    vanished = how.lost * (magnitudes.sum(axis=0) + len(rows) + 2.0)[:, None]
    for _ in range(1 if how.noise else 3):
        error = np.linalg.norm(rate * (magnitudes.T @ e) + stored + vanished, axis=0) + forward @ e
        bound = spread[:, None] * error
        e = np.where(identifiable[:, None], np.minimum(scale, np.abs(residuals) + bound), scale)
    return e, error


def condition(rows: np.ndarray, rank: int) -> float:
    """Largest over `rank`-th singular value, ∞ for rank 0."""
    if rank == 0:
        return math.inf
    singular = np.linalg.svd(rows, compute_uv=False)
    return float(singular[0] / singular[rank - 1])


def differences(jacobian: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N·(K − 1), d) rows and (N·(K − 1),) their errors, from (N, K, d) and (N, K); and (d,) what the victim adds up.

    The victim sums K terms per row where these rows hold differences. The sum of their magnitudes is at most
    2·max_k|J_rk| per row, since the residuals of a row are one negative number and others that add up to its opposite.
    """
    n, classes, width = jacobian.shape
    rows = (jacobian[:, :-1] - jacobian[:, -1:]).reshape(n * (classes - 1), width)
    errors = (error[:, :-1] + error[:, -1:]).reshape(-1)
    return rows, errors, 2.0 * np.abs(jacobian).max(axis=1).sum(axis=0)


def with_last_class(solution: SystemSolution, classes: int, how: Conditions) -> SystemSolution:
    """(N, K) residuals and tolerances from the (N, K − 1) of the classes before the last. A row is identifiable if each
    of its K − 1 residuals is."""
    residuals = solution.residuals.reshape(-1, classes - 1)
    # A softmax's own rounding may flip the sign of a residual near 0.
    tolerance, alarm = (a.reshape(-1, classes - 1) + 8.0 * how.roundoff for a in (solution.tolerance, solution.alarm))
    tolerance, alarm = (np.c_[a, a.sum(axis=1)] for a in (tolerance, alarm))
    last = -residuals.sum(axis=1, keepdims=True)
    return dataclasses.replace(
        solution,
        residuals=np.c_[residuals, last],
        tolerance=tolerance,
        alarm=alarm,
        identifiable=np.asarray(solution.identifiable.reshape(-1, classes - 1).all(axis=1)),
        fits=solution.fits and (how.noise != 0 or may_be_residuals(last, tolerance[:, -1:])),
    )


def with_last_state(states: np.ndarray) -> np.ndarray:
    """(N, K) states from (N, K − 1): the last class is the label (1) just where no other is (all 0); −1 where open."""
    last = np.where((states == 1).any(axis=1), 0, np.where((states == 0).all(axis=1), 1, -1))
    return np.asarray(np.c_[states, last])
