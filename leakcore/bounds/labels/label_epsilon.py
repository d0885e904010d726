"""How much ε one aggregated gradient spends on a label: the lower bound in closed form, by three tests."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result
from leakcore.accounting import Epsilon
from leakcore.bounds.labels import arguments as given
from leakcore.bounds.labels.label_test import LabelTest, SignTest, label_test
from leakcore.numerics import gaussian_pair_epsilon


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelEpsilon(Result):
    """Label-ε of the worst row of each batch: a deterministic lower bound, one label flipped ("replace").

    Attributes:
        value: max(0, largest entry of per_row), a float, or a float64 array over the leading dimensions of the
            jacobian: one bound per weight vector, per batch, or both.
        per_row: (..., N) float64. −∞ where this test proves nothing for the row: undetermined, or P₀ ≤ δ.
        identifiable: (..., N) bool, whether the linear system determines the row (which "paper" and "optimal" need);
            composed: in at least one step.
        separation: (..., N) float64, distance in standard deviations between the test's two means; 0 where it sees
            nothing.
        test: as asked.
        noise_multiplier: as asked.
        max_grad_norm: as asked.
        delta: as asked.
        steps: how many steps were composed, 1 without.
        replacement: upper bound on the same ε: of those steps of the mechanism, whatever the data, under replacement of
            a row.
    """

    quantity: str = "ε of a label"
    per_row: np.ndarray
    identifiable: np.ndarray
    separation: np.ndarray
    test: str
    noise_multiplier: float
    max_grad_norm: float
    delta: float
    steps: int
    replacement: Result

    @property
    def largest(self) -> float:
        """The bound from everything at hand: the largest value over all weight vectors and batches.

        Rows of different batches have labels of their own, so each value is a bound on the ε of the same mechanism,
        and so is the largest; they are exact, not estimated, so nothing has to be corrected for choosing.
        """
        return float(np.max(self.value))


def label_epsilon(
    jacobian: Any,
    probs: Any,
    labels: Any,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    delta: float,
    grad_norms: Any = None,
    test: str | LabelTest = "paper",
) -> LabelEpsilon:
    """Lower bound on the (ε, δ) that one noisy aggregated gradient spends on a label of the batch at hand.

    One step of binary logistic DP-SGD releases (1/N)Σ_r clip_C(C_r e_r) + noise of σC/N, with C_r = dZ_r/dW and e = p −
    y. The attacker compares the batch with the one in which label r is flipped (Yuan, Xue, Wang and Shen 2022,
    Algorithm 2, in closed form). docs/explanation/bounds.md has the formulas; "paper" ≤ "optimal" ≤ "likelihood-ratio"
    ≤ `replacement`.

    Args:
        jacobian: (..., N, d), row r = dZ_r/dW of the weight vector whose gradient is released; leading dimensions are
            weight vectors, batches, or both. NumPy or CPU torch, computed in float64; so are the next two.
        probs: p in [0, 1], (..., N); leading dimensions may be left out.
        labels: 0 or 1, likewise.
        noise_multiplier: σ ≥ 0; 0 gives ∞ for rows that the test sees.
        max_grad_norm: C > 0.
        delta: δ in [0, 1); at 0 only "paper" is finite.
        grad_norms: (..., 2, N), gradient norms of each sample under its own and the flipped label, over all parameters
            that are clipped together; None: clipping by this weight vector alone.
        test: "paper", "optimal", "likelihood-ratio", or the objects `SignTest`, `ThresholdTest`, `LikelihoodRatioTest`.

    Returns:
        `LabelEpsilon` of kind "lower" ("estimate" for composed steps), adjacency "replace".

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Exact and deterministic, for this batch and these p.

    Example:
        >>> from leakcore import bounds
        >>> batch = {"jacobian": [[1.0, 0.0], [0.0, 1.0]], "probs": [0.9, 0.2], "labels": [1, 0]}
        >>> spent = bounds.label_epsilon(**batch, noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5)
        >>> f"{spent.value:.2f}", f"{spent.replacement.value:.2f}"
        ('1.08', '10.00')
    """
    sigma = validate.non_negative(noise_multiplier=noise_multiplier)
    clip = validate.positive(max_grad_norm=max_grad_norm)
    if not 1e-290 < clip < 1e290:
        raise ValueError(f"`max_grad_norm` must be in (1e-290, 1e290), got {clip!r}")
    slack = validate.below_one(delta=delta)
    chosen = label_test(test)
    which, compose = chosen.name, chosen.composes
    rows, norms, e = given.rows_and_residuals(jacobian, probs, labels)
    if compose and (rows.ndim < 3 or not rows.shape[0]):
        raise ValueError(f"`jacobian` must have shape (steps, ..., N, d), steps ≥ 1, to compose, got {rows.shape}")
    reach = given.joint_norms(grad_norms, norms, e)

    own, flipped = given.clipped(e, reach, clip), given.clipped(1.0 - e, reach, clip)
    identifiable, precision = given.projection(rows, norms)
    if which == "likelihood-ratio":
        visible, scale = norms > 0, norms / clip
    else:
        visible, scale = identifiable, precision / clip
    # A test that sees the row with no noise tells the two labels apart for certain wherever they differ.
    own_z, flipped_z = given.over(own * scale, sigma), given.over(flipped * scale, sigma)
    separation = np.where(visible, own_z + flipped_z, 0.0)
    if compose:
        separation = np.sqrt(np.square(separation).sum(axis=0))
        visible, identifiable = np.asarray(visible.any(axis=0)), np.asarray(identifiable.any(axis=0))
    if which == "paper":
        per_row = _log_ratio(own_z, flipped_z, slack)
        if isinstance(chosen, SignTest) and chosen.complement:
            per_row = np.maximum(per_row, _log_ratio(flipped_z, own_z, slack))
        per_row = np.where(visible, per_row, -np.inf)
    else:
        per_row = np.where(visible, gaussian_pair_epsilon(separation, delta=slack), -np.inf)
    steps = len(rows) if compose else 1
    replacement = _replacement(sigma, slack, steps)
    # Nothing but rounding can be above it.
    per_row = np.minimum(per_row, float(replacement.value))
    value = np.maximum(per_row.max(axis=-1), 0.0)
    return LabelEpsilon(
        value=float(value) if value.ndim == 0 else value,
        kind="lower" if steps == 1 else "estimate",
        confidence=None,
        interval=None,
        method=chosen.method + (", event and complement" if isinstance(chosen, SignTest) and chosen.complement else ""),
        assumptions=Assumptions(
            adjacency="replace",
            attacker=chosen.attacker,
            notes=_notes(which, sigma, slack, steps, grad_norms is not None),
        ),
        provenance=chosen.provenance,
        per_row=per_row,
        identifiable=identifiable,
        separation=separation,
        test=which,
        noise_multiplier=sigma,
        max_grad_norm=clip,
        delta=slack,
        steps=steps,
        replacement=replacement,
    )


def _log_ratio(likely: np.ndarray, unlikely: np.ndarray, delta: float) -> np.ndarray:
    """log((Φ(likely) − δ)/Φ(−unlikely)), −∞ where Φ(likely) ≤ δ."""
    gain = special.ndtr(likely) - delta
    log_gain = np.log(gain, out=np.full(gain.shape, -np.inf), where=gain > 0)
    return np.asarray(np.where(gain > 0, log_gain - special.log_ndtr(-unlikely), -np.inf))


@functools.lru_cache(maxsize=64)
def _replacement(sigma: float, delta: float, steps: int) -> Result:
    return Epsilon(
        delta=delta,
        value=gaussian_pair_epsilon(math.inf if sigma == 0 else 2.0 * math.sqrt(steps) / sigma, delta=delta),
        kind="upper",
        confidence=None,
        interval=None,
        method="exact privacy profile of a Gaussian pair at separation " + ("2/σ" if steps == 1 else f"2√{steps}/σ"),
        assumptions=Assumptions(
            adjacency="replace",
            attacker="any; knows all rows but one and both candidates for it",
            notes=(
                f"{'one step' if steps == 1 else f'{steps} steps'}, no amplification by sampling",
                "both gradients clipped to C, in opposite directions at worst",
            ),
        ),
        provenance="Balle and Wang (2018), Theorem 8",
    )


def _notes(test: str, sigma: float, delta: float, steps: int, joint: bool) -> tuple[str, ...]:
    notes = [
        "membership in the batch known: no amplification by sampling",
        "binary labels, logistic loss; the worst row of the batch at hand",
        "hard labels, and no weights of classes or samples in the loss; p and dZ/dW are the victim's",
        f"released once: the sum of clipped gradients with Gaussian noise of {sigma:g} times the clipping norm",
        "computed in float64, rounded to nearest",
        "clipped by the joint norm of all parameters, taken as given"
        if joint
        else "clipped by the gradient of this weight vector alone",
    ]
    if steps > 1:
        notes.append(
            f"{steps} steps, separations as at these weights: under the other label later weights would differ, so "
            "this is not a bound unless the weights are fixed beforehand"
        )
    if sigma == 0:
        notes.append("without noise the bound is infinite for every row that the test sees and whose label matters")
    if delta == 0 and test != "paper":
        notes.append("at delta = 0 this test's bound is infinite for every row that it sees")
    if test != "likelihood-ratio":
        notes.append("rows that the linear system does not determine get no bound from this test")
    return tuple(notes)
