"""How much ε one aggregated gradient spends on a label: the lower bound in closed form, by three tests."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from leakcore import _validate
from leakcore._results import Assumptions, Result
from leakcore.kernels import solve_labels
from leakcore.numerics import gaussian_pair_epsilon

_SOURCE = "Yuan, Xue, Wang and Shen (2022), Algorithm 2"
_PROVENANCE = {
    "paper": f"{_SOURCE}, in closed form",
    "optimal": f"{_SOURCE}, with the best threshold",
    "likelihood-ratio": f"{_SOURCE}, with the Neyman–Pearson test in place of the projection",
}
_METHODS = {
    "paper": "sign of the projected residual",
    "optimal": "best threshold on the projected residual",
    "likelihood-ratio": "likelihood ratio between the two gradients",
}
_ATTACKERS = {
    "paper": "sees the noisy gradient and knows every dZ_r/dW; solves for the residuals and takes the row's sign",
    "optimal": "sees the noisy gradient and knows every dZ_r/dW, and the row's two possible clipped residuals",
    "likelihood-ratio": "sees the noisy gradient and knows everything but the one label, as in the definition",
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelEpsilon(Result):
    """Label-ε of the worst row of each batch: a deterministic lower bound, one label flipped ("replace").

    value: max(0, largest entry of per_row), float, or float64 array over the leading dimensions of the jacobian.
    per_row: (..., N) float64. −∞ where this test proves nothing for the row: undetermined, or P₀ ≤ δ.
    identifiable: (..., N) bool, whether the linear system determines the row (all that "paper" and "optimal" can use).
    separation: (..., N) float64, distance in standard deviations between the test's two means; 0 where it sees nothing.
    test, noise_multiplier, max_grad_norm, delta: as asked.
    replacement: upper bound on the same ε: of one step of the mechanism, whatever the data, under replacement of a row.
    """

    per_row: np.ndarray
    identifiable: np.ndarray
    separation: np.ndarray
    test: str
    noise_multiplier: float
    max_grad_norm: float
    delta: float
    replacement: Result


def label_epsilon(
    jacobian: Any,
    probs: Any,
    labels: Any,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    delta: float,
    grad_norms: Any = None,
    test: str = "paper",
    complement: bool = False,
) -> LabelEpsilon:
    """Lower bound on the (ε, δ) that one noisy aggregated gradient spends on a label of the batch at hand.

    One step releases G = (1/N)Σ_r clip_C(g_r) + N(0, s²I), s = σC/N, g_r = C_r e_r with C_r = dZ_r/dW and e = p − y.
    D₁ flips label r. With J_r = ‖dZ_r/dθ‖ over all parameters that are clipped together,
    u_r = e_r·min(1, C/(|e_r|J_r)) is the clipped residual, u′_r the same for the flipped label, v_r = (CᵀC)⁻¹_rr the
    leverage and w_r = σC√v_r the noise in residual r. Then

    - "paper" (Yuan, Xue, Wang and Shen 2022, Algorithm 2, in closed form): P₀ = Φ(|u_r|/w_r), P₁ = Φ(−|u′_r|/w_r),
      LB_r = log((P₀ − δ)/P₁). Rows that the system determines only.
    - "optimal": the best threshold on the same projection: ε of a Gaussian pair with separation |u_r − u′_r|/w_r.
    - "likelihood-ratio": the attacker of the definition knows both datasets and projects on their difference:
      separation |u_r − u′_r|·‖C_r‖/(σC). Any rank.

    paper ≤ optimal ≤ likelihood-ratio ≤ `.replacement`. The probabilities are exact, so the bound is deterministic.

    jacobian: (..., N, d), row r = dZ_r/dW of the weight vector whose gradient is released.
    probs: (..., N), p in [0, 1]. labels: (..., N), 0 or 1. NumPy arrays or torch CPU tensors; float64 throughout.
    noise_multiplier: σ ≥ 0; 0 gives ∞ for every row whose label changes what the test sees. max_grad_norm: C > 0.
    delta: in [0, 1); at 0 "optimal" and "likelihood-ratio" are ∞ for every row they see, since a Gaussian tail ratio
        has no bound.
    grad_norms: (..., 2, N), joint gradient norms of each sample under its own and under the flipped label, over all
        parameters that are clipped together. Default: clipping by this weight vector alone, as printed. Since
        |e| + |e′| = 1 their sum is J_r, so the order of the two rows does not matter.
    complement: with "paper", also use the complementary event, which D₁ makes likelier: the larger of LB_r and
        log((Φ(|u′_r|/w_r) − δ)/Φ(−|u_r|/w_r)). It is free, as the P's are not estimated, but is not in the printed
        algorithm.

    Holds for this batch and these p (the maximum over rows is over data, not over estimates). Raises ValueError that
    names the argument: probs outside [0, 1], labels other than 0 and 1, shapes that do not match, σ < 0, C ≤ 0,
    δ outside [0, 1), grad_norms that no logistic model has.
    """
    sigma = _validate.non_negative(noise_multiplier=noise_multiplier)
    clip = _validate.positive(max_grad_norm=max_grad_norm)
    slack = _validate.below_one(delta=delta)
    which = _validate.one_of(*_METHODS, test=test)
    if complement and which != "paper":
        raise ValueError(f"complement=True: only with test='paper'; test={test!r} uses every event already")
    rows, e = _rows_and_residuals(jacobian, probs, labels)
    norms = np.linalg.norm(rows, axis=-1)
    reach = _joint_norms(grad_norms, norms, np.abs(e))

    own, flipped = _clipped(np.abs(e), reach, clip), _clipped(1.0 - np.abs(e), reach, clip)
    identifiable, precision = _projection(rows, norms)
    if which == "likelihood-ratio":
        seen, scale = norms > 0, norms / clip
    else:
        seen, scale = identifiable, precision / clip
    # A test that sees the row with no noise tells the two labels apart for certain wherever they differ.
    own_z, flipped_z = _over(own * scale, sigma), _over(flipped * scale, sigma)
    separation = np.where(seen, own_z + flipped_z, 0.0)
    if which == "paper":
        per_row = _log_ratio(own_z, flipped_z, slack)
        if complement:
            per_row = np.maximum(per_row, _log_ratio(flipped_z, own_z, slack))
        per_row = np.where(seen, per_row, -np.inf)
    else:
        per_row = np.where(seen, gaussian_pair_epsilon(separation, delta=slack), -np.inf)
    value = np.maximum(per_row.max(axis=-1), 0.0)
    return LabelEpsilon(
        value=float(value) if value.ndim == 0 else value,
        kind="lower",
        confidence=None,
        interval=None,
        method=_METHODS[which] + (", event and complement" if complement else ""),
        assumptions=Assumptions(
            adjacency="replace", attacker=_ATTACKERS[which], notes=_notes(which, sigma, slack, grad_norms is not None)
        ),
        provenance=_PROVENANCE[which],
        per_row=per_row,
        identifiable=identifiable,
        separation=separation,
        test=which,
        noise_multiplier=sigma,
        max_grad_norm=clip,
        delta=slack,
        replacement=_replacement(sigma, slack),
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelEpsilonExtrapolation(Result):
    """Expected label-ε bound over many batches, from that of one: an extrapolation, not a bound.

    factor: what the bound of one batch was multiplied by. rule, num_batches, batch_size: as asked.
    """

    factor: float
    rule: str
    num_batches: int
    batch_size: int


def extrapolate_label_epsilon(
    lb_one_batch: Any, num_batches: int, batch_size: int, *, rule: str = "harmonic"
) -> LabelEpsilonExtrapolation:
    """Expected largest label-ε bound over `num_batches` batches, from the expected one of a single batch.

    Yuan, Xue, Wang and Shen (2022), A.3.1, for per-row bounds that are independent and exponential, F(x) = 1 −
    e^{−λx} (E4: the text prints 1 − λe^{−λx}). The mean of the largest of n is H_n/λ, H_n the n-th harmonic number,
    so for M batches of N rows

    - rule="harmonic": H_{MN}/H_N, exact for every N; 1.600 and 1.972 for (M, N) = (15, 50) and (80, 50).
    - rule="log": 1 + log M/log N, the text's approximation; 1.69 and 2.12 there. Needs N ≥ 2.

    lb_one_batch: ≥ 0, scalar or array, ideally the mean over several single batches. num_batches: M ≥ 1. batch_size:
    N ≥ 1.

    Returns kind "estimate": the exponential tail is an observation about data, not a theorem. Adjacency "replace".
    """
    one = _validate.real_array("in [0, inf)", lambda v: np.isfinite(v) & (v >= 0), lb_one_batch=lb_one_batch)
    batches = _validate.integer(1, num_batches=num_batches)
    which = _validate.one_of("harmonic", "log", rule=rule)
    rows = _validate.integer(2 if which == "log" else 1, batch_size=batch_size)
    if which == "log":
        factor = 1.0 + math.log(batches) / math.log(rows)
    else:
        # H_n = ψ(n + 1) + γ.
        factor = float(
            (special.digamma(batches * rows + 1.0) + np.euler_gamma) / (special.digamma(rows + 1.0) + np.euler_gamma)
        )
    return LabelEpsilonExtrapolation(
        value=float(one * factor) if one.ndim == 0 else one * factor,
        kind="estimate",
        confidence=None,
        interval=None,
        method=f"{which} rule for the mean of the largest of independent exponential variables",
        assumptions=Assumptions(
            adjacency="replace",
            attacker="as for the bound that is extrapolated",
            notes=("per-row bounds are independent, with one exponential distribution", "an expectation over batches"),
        ),
        provenance="Yuan, Xue, Wang and Shen (2022), A.3.1; erratum E4",
        factor=factor,
        rule=which,
        num_batches=batches,
        batch_size=rows,
    )


def _rows_and_residuals(jacobian: Any, probs: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    rows, _ = _validate.host_array(jacobian=jacobian)
    if rows.ndim < 2:
        raise ValueError(f"jacobian of shape {rows.shape}: must be (..., N, d)")
    if rows.shape[-2] == 0:
        raise ValueError(f"jacobian of shape {rows.shape}: an empty batch has no label to bound")
    p, _ = _validate.host_array(probs=probs)
    y, _ = _validate.host_array(labels=labels)
    for name, array in (("probs", p), ("labels", y)):
        if array.shape != rows.shape[:-1]:
            raise ValueError(
                f"{name} of shape {array.shape} and jacobian of shape {rows.shape}: {name} must be {rows.shape[:-1]}"
            )
    _validate.real_array("in [0, 1]", lambda v: (v >= 0) & (v <= 1), probs=p)
    _validate.real_array("0 or 1", lambda v: (v == 0) | (v == 1), labels=y)
    return rows, p - y


def _joint_norms(grad_norms: Any, norms: np.ndarray, e: np.ndarray) -> np.ndarray:
    """J_r = ‖dZ_r/dθ‖ over all parameters that are clipped together; at least ‖C_r‖, which is part of it."""
    if grad_norms is None:
        return norms
    given, _ = _validate.host_array(grad_norms=grad_norms)
    expected = (*e.shape[:-1], 2, e.shape[-1])
    if given.shape != expected:
        raise ValueError(
            f"grad_norms of shape {given.shape} and probs of shape {e.shape}: grad_norms must be {expected}"
        )
    _validate.real_array("in [0, inf)", lambda v: v >= 0, grad_norms=given)
    first, second = given[..., 0, :], given[..., 1, :]
    joint = first + second
    # Under the logistic loss the two norms are |e|·J and (1 − |e|)·J. 1e-3 leaves room for norms taken in half
    # precision.
    share = np.where(joint > 0, first / np.where(joint > 0, joint, 1.0), e)
    off = np.minimum(np.abs(share - e), np.abs(share - (1.0 - e)))
    if (off > 1e-3).any():
        at = tuple(int(i) for i in np.argwhere(off > 1e-3)[0])
        raise ValueError(
            f"grad_norms: {float(first[at])!r} and {float(second[at])!r} for sample {at}, must be |p − y|·J and "
            f"(1 − |p − y|)·J with |p − y| = {float(e[at])!r}: norms under the own and the flipped label"
        )
    short = joint < norms * (1.0 - 1e-3)
    if short.any():
        at = tuple(int(i) for i in np.argwhere(short)[0])
        raise ValueError(
            f"grad_norms: joint norm {float(joint[at])!r} of sample {at} (sum over both labels), must be at least "
            f"‖dZ/dW‖ = {float(norms[at])!r}, which is part of it"
        )
    return np.asarray(np.maximum(joint, norms))


def _clipped(e: np.ndarray, reach: np.ndarray, clip: float) -> np.ndarray:
    """|e|·min(1, C/(|e|J)) = min(|e|, C/J)."""
    return np.asarray(np.minimum(e, _over(np.full(reach.shape, clip), reach)))


def _over(numerator: np.ndarray, denominator: np.ndarray | float) -> np.ndarray:
    """numerator/denominator with x/0 = ∞ for x > 0 and 0/0 = 0."""
    numerator, denominator = np.broadcast_arrays(numerator, np.asarray(denominator, dtype=np.float64))
    out = np.where(numerator > 0, np.inf, 0.0)
    with np.errstate(over="ignore"):
        return np.asarray(np.divide(numerator, denominator, out=out, where=denominator > 0))


def _projection(rows: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows the system determines, and 1/√v_r of those: the distance of C_r from the span of the other rows."""
    solved = solve_labels(rows, np.zeros((*rows.shape[:-2], rows.shape[-1])))
    # With a zero gradient the error is what the null space can move: it would shift both means of the test.
    identifiable = np.asarray(solved.identifiable, dtype=bool) & (np.asarray(solved.error) <= 1e-8)
    leverage = np.asarray(solved.leverage, dtype=np.float64)
    distance = 1.0 / np.sqrt(np.where(identifiable, leverage, np.inf))
    # A distance from a subspace is at most the distance from 0; rounding must not say otherwise.
    return identifiable, np.minimum(distance, norms)


def _log_ratio(likely: np.ndarray, unlikely: np.ndarray, delta: float) -> np.ndarray:
    """log((Φ(likely) − δ)/Φ(−unlikely)), −∞ where Φ(likely) ≤ δ."""
    gain = special.ndtr(likely) - delta
    log_gain = np.log(gain, out=np.full(gain.shape, -np.inf), where=gain > 0)
    return np.asarray(np.where(gain > 0, log_gain - special.log_ndtr(-unlikely), -np.inf))


def _replacement(sigma: float, delta: float) -> Result:
    return Result(
        value=gaussian_pair_epsilon(math.inf if sigma == 0 else 2.0 / sigma, delta=delta),
        kind="upper",
        confidence=None,
        interval=None,
        method="exact privacy profile of a Gaussian pair at separation 2/σ",
        assumptions=Assumptions(
            adjacency="replace",
            attacker="any; knows all rows but one and both candidates for it",
            notes=(
                "one step, no amplification by sampling",
                "both gradients clipped to C, in opposite directions at worst",
            ),
        ),
        provenance="Balle and Wang (2018), Theorem 8",
    )


def _notes(test: str, sigma: float, delta: float, joint: bool) -> tuple[str, ...]:
    notes = [
        "one step on one batch, membership known: no amplification by sampling",
        "binary labels, logistic loss; the worst row of the batch at hand",
        "clipped by the joint norm of all parameters"
        if joint
        else "clipped by the gradient of this weight vector alone",
    ]
    if sigma == 0:
        notes.append("without noise the bound is infinite for every row that the test sees and whose label matters")
    if delta == 0 and test != "paper":
        notes.append("at delta = 0 this test's bound is infinite for every row that it sees")
    if test != "likelihood-ratio":
        notes.append("rows that the linear system does not determine get no bound from this test")
    return tuple(notes)
