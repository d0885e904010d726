"""The audit that can be done by hand: a poisoned row in ridge regression whose coefficients get noise."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Assumptions, Result
from leakcore.numerics import gaussian_pair_epsilon


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RidgeEpsilon(Result):
    """What the clipping-aware poison proves of output-perturbed ridge regression, and what the mechanism promises.

    Attributes:
        value: ε at δ that the threshold halfway between the two means proves; 0 where it proves nothing.
        best: ε of the best test, which is that of the two Gaussians themselves.
        printed: the paper's bound (see the function, E10).
        promised: the mechanism's exact ε at δ for its sensitivity 2/λ.
        claimed: ε that was asked for.
        delta: δ that was asked for.
        noise: standard deviation per coefficient.
        separation: distance of the two means along the poison, in coefficients.
        success: probability that the threshold is right.
        poison: the poisoned row, (d,).
        poison_target: its target.
        direction_value: σ_d, the smallest singular value of the features.
        lipschitz: largest length of a row's gradient at either minimiser; the sensitivity 2/λ is proved where it is at
            most 1.
    """

    quantity: str = "ε"
    best: float
    printed: float
    promised: float
    claimed: float
    delta: float
    noise: float
    separation: float
    success: float
    poison: np.ndarray
    poison_target: float
    direction_value: float
    lipschitz: float


@one_thread()
def ridge_output_perturbation(
    features: Any, targets: Any = None, *, regularisation: float, epsilon: float, delta: float
) -> RidgeEpsilon:
    """ε that ClipBKD proves of ridge regression with noise on its coefficients, in closed form.

    The mechanism releases argmin_w ½‖Xw − y‖² + (λ/2)‖w‖² + N(0, σ² I) with σ² = 2 ln(1.25/δ)(2/λ)²/ε². ClipBKD
    replaces a row of zeros by the right singular vector of the smallest singular value of X. The threshold halfway
    between the two means is right with probability p = Φ(separation/2σ), which proves log((p − δ)/(1 − p)) (Jagielski,
    Ullman and Oprea 2020, Appendix B). docs/explanation/bounds.md has the separation and why the printed bound (E10) is
    not one.

    Args:
        features: X (n, d), finite.
        targets: y (n,), finite; None: zeros, the case of the text.
        regularisation: λ > 0.
        epsilon: claimed ε > 0, which sets the noise.
        delta: δ in (0, 1).

    Returns:
        `RidgeEpsilon` of kind "lower", adjacency "replace".

    Raises:
        ValueError: for a value or shape that is not allowed, and for features so ill-conditioned that rounding hides
            which way the targets pull; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Exact and deterministic, without sampling. The claim itself holds for ε ≤ 1 where `lipschitz` ≤ 1.

    Example:
        >>> import numpy as np
        >>> from leakcore import bounds
        >>> ridge = bounds.ridge_output_perturbation(np.eye(3) / 10, regularisation=1.0, epsilon=1.0, delta=1e-5)
        >>> f"proved {ridge.value:.3f}, best test {ridge.best:.3f}, promised {ridge.promised:.3f}"
        'proved 0.041, best test 0.165, promised 0.751'
    """
    x = validate.squarable(features=features)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"`features` must have shape (rows, dimensions), at least 1 each, got {x.shape}")
    y = np.zeros(len(x)) if targets is None else validate.squarable(targets=targets)
    if y.shape != x.shape[:1]:
        raise ValueError(f"`targets` must have shape ({len(x)},), one for each row of features, got {y.shape}")
    weight = validate.positive(regularisation=regularisation)
    if not 1.0 / validate.LARGE < weight < validate.LARGE:
        raise ValueError(f"`regularisation` must be in (1e-150, 1e150), got {weight!r}")
    claimed, slack = validate.positive(epsilon=epsilon), validate.open_probability(delta=delta)

    # Not from XᵀX, whose rounding may exceed σ_d²; and σ_d rounded up, by what the product below may err.
    left, singular, right = np.linalg.svd(x, full_matrices=x.shape[0] < x.shape[1])
    direction = right[-1] * (1.0 if right[-1][np.abs(right[-1]).argmax()] > 0 else -1.0)
    rounding = max(x.shape) * 2.0**-52 * float(np.linalg.norm(x))
    least = float(np.linalg.norm(x @ direction)) + rounding
    square = least * least
    pull = float((x @ direction) @ y)
    if y.any() and rounding > 1e-3 * max(least - rounding, math.sqrt(weight)):
        raise ValueError(
            f"features: singular values from {least - rounding:.3g} to {singular[0]:.3g} with regularisation="
            f"{weight:g}: which way the targets pull along the smallest is lost in rounding; scale or drop features"
        )
    target = -1.0 if pull > 0 else 1.0
    noise = math.sqrt(2.0 * math.log(1.25 / slack)) * (2.0 / weight) / claimed
    separation = (1.0 + abs(pull) / (weight + square)) / (weight + square + 1.0)
    success = float(special.ndtr(separation / (2.0 * noise)))
    log_failure = float(special.log_ndtr(-separation / (2.0 * noise)))
    printed = 0.5 / (weight + math.sqrt(square) + 1.0) / noise
    before = right[: len(singular)].T @ (singular / (singular * singular + weight) * (left.T @ y)[: len(singular)])
    after = before + direction * target * separation
    lipschitz = max(
        float(np.max(np.abs(rows @ w - t) * np.linalg.norm(rows, axis=1)))
        for w in (before, after)
        for rows, t in ((x, y), (direction[None], np.array([target])))
    )
    return RidgeEpsilon(
        value=max(0.0, math.log(success - slack) - log_failure) if success > slack else 0.0,
        kind="lower",
        confidence=None,
        interval=None,
        method="threshold half-way between the two Gaussians",
        assumptions=Assumptions(
            adjacency="replace",
            attacker="chooses the poisoned row, knows all others, and sees the released coefficients",
            notes=(
                "a row of zeros is replaced by the poison, so the same numbers hold for adding it",
                "the noise is (ε, δ)-valid for ε ≤ 1 only; `promised` is the exact Gaussian profile at any ε",
                "every row's gradient is at most 1 long at the minimiser, or 2/λ is not the sensitivity"
                + ("" if lipschitz <= 1 else f" (here one is {lipschitz:.3g} long: nothing is promised)"),
            ),
        ),
        provenance="Jagielski, Ullman and Oprea (2020), Appendix B; Balle and Wang (2018), Theorem 8, for the profile",
        best=float(gaussian_pair_epsilon(separation / noise, delta=slack)),
        printed=float(special.log_ndtr(printed) - special.log_ndtr(-printed)),
        promised=float(gaussian_pair_epsilon(2.0 / weight / noise, delta=slack)),
        claimed=claimed,
        delta=slack,
        noise=noise,
        separation=separation,
        success=success,
        poison=direction,
        poison_target=target,
        direction_value=least,
        lipschitz=lipschitz,
    )
