"""How much ε one aggregated gradient spends on a label: the lower bound in closed form, by three tests."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result
from leakcore.accounting import Epsilon
from leakcore.kernels import solve_labels
from leakcore.numerics import gaussian_pair_epsilon

_SOURCE = "Yuan, Xue, Wang and Shen (2022), Algorithm 2"


@dataclasses.dataclass(frozen=True)
class LabelTest:
    """What the attacker computes from the noisy gradient. `name` is what `label_epsilon(test=)` calls it; the result
    quotes `method`, `attacker` and `provenance`."""

    name: ClassVar[str]
    method: ClassVar[str]
    attacker: ClassVar[str]
    provenance: ClassVar[str]

    @property
    def composes(self) -> bool:
        """Whether the jacobian's first dimension counts steps."""
        return False


@dataclasses.dataclass(frozen=True)
class SignTest(LabelTest):
    """The sign of the projected residual, as the paper has it: "paper".

    Args:
        complement: also use the complementary event, which the flipped label makes likelier: the larger of LB_r and
            log((Φ(|u′_r|/w_r) − δ)/Φ(−|u_r|/w_r)). It costs nothing, since the probabilities are exact, but is not in
            the printed algorithm.
    """

    complement: bool = False
    name: ClassVar[str] = "paper"
    method: ClassVar[str] = "sign of the projected residual"
    attacker: ClassVar[str] = (
        "sees the noisy gradient and knows every dZ_r/dW; solves for the residuals and takes the row's sign"
    )
    provenance: ClassVar[str] = f"{_SOURCE}, in closed form"

    def __post_init__(self) -> None:
        validate.boolean(complement=self.complement)


@dataclasses.dataclass(frozen=True)
class _SeparationTest(LabelTest):
    compose: bool = False

    def __post_init__(self) -> None:
        validate.boolean(compose=self.compose)

    @property
    def composes(self) -> bool:
        """Whether the jacobian's first dimension counts steps."""
        return self.compose


@dataclasses.dataclass(frozen=True)
class ThresholdTest(_SeparationTest):
    """The best threshold on the projected residual: "optimal".

    Args:
        compose: the first dimension of the jacobian counts steps with independent noise, and row r is the same sample
            in all of them (a zero row where it is not in the batch). Separations combine to √(Σ_t m_t²). Membership is
            known, so sampling amplifies nothing. For two steps or more the result is of kind "estimate": later weights
            depend on earlier noise, so under the other label the separations would differ. It is a lower bound where
            the weights of all steps are fixed beforehand.
    """

    name: ClassVar[str] = "optimal"
    method: ClassVar[str] = "best threshold on the projected residual"
    attacker: ClassVar[str] = (
        "sees the noisy gradient and knows every dZ_r/dW, and the row's two possible clipped residuals"
    )
    provenance: ClassVar[str] = f"{_SOURCE}, with the best threshold"


@dataclasses.dataclass(frozen=True)
class LikelihoodRatioTest(_SeparationTest):
    """The likelihood ratio between the two gradients, which no test beats: "likelihood-ratio".

    Args:
        compose: as in `ThresholdTest`.
    """

    name: ClassVar[str] = "likelihood-ratio"
    method: ClassVar[str] = "likelihood ratio between the two gradients"
    attacker: ClassVar[str] = "sees the noisy gradient and knows everything but the one label, as in the definition"
    provenance: ClassVar[str] = f"{_SOURCE}, with the Neyman–Pearson test in place of the projection"


TESTS: dict[str, type[LabelTest]] = {kind.name: kind for kind in (SignTest, ThresholdTest, LikelihoodRatioTest)}


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
        steps: number of steps that were composed, 1 without composition.
        replacement: upper bound on the same ε, for so many steps and any data, under replacement of a row.
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
    Algorithm 2). docs/explanation/bounds.md has the formulas; "paper" ≤ "optimal" ≤ "likelihood-ratio" ≤ `replacement`.

    Args:
        jacobian: (..., N, d), row r = dZ_r/dW of the weight vector whose gradient is released; leading dimensions are
            weight vectors, batches, or both. NumPy or CPU torch, as the next two.
        probs: p in [0, 1], (..., N); leading dimensions may be left out.
        labels: y, 0 or 1, (..., N); leading dimensions may be left out.
        noise_multiplier: σ ≥ 0; 0 gives ∞ for rows that the test sees.
        max_grad_norm: C > 0.
        delta: δ in [0, 1); at 0 only "paper" is finite.
        grad_norms: (..., 2, N), gradient norms of each sample under its own and the flipped label, over all parameters
            that are clipped together; None: clipping by this weight vector alone.
        test: "paper", "optimal", "likelihood-ratio", or the objects `SignTest`, `ThresholdTest`, `LikelihoodRatioTest`.

    Returns:
        `LabelEpsilon` of kind "lower" ("estimate" for composed steps), adjacency "replace".

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

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
    chosen = test if isinstance(test, LabelTest) else TESTS[validate.one_of(*TESTS, test=test)]()
    which, compose = chosen.name, chosen.composes
    rows, norms, e = _parse_rows(jacobian, probs, labels)
    if compose and (rows.ndim < 3 or not rows.shape[0]):
        raise ValueError(f"`jacobian` must have shape (steps, ..., N, d), steps ≥ 1, to compose, got {rows.shape}")
    reach = _joint_norms(grad_norms, norms, e)

    own, flipped = _clipped(e, reach, clip), _clipped(1.0 - e, reach, clip)
    identifiable, precision = _distances(rows, norms)
    if which == "likelihood-ratio":
        visible, scale = norms > 0, norms / clip
    else:
        visible, scale = identifiable, precision / clip
    # A test that sees the row with no noise tells the two labels apart for certain wherever they differ.
    own_z, flipped_z = _ratio(own * scale, sigma), _ratio(flipped * scale, sigma)
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


def _parse_rows(jacobian: Any, probs: Any, labels: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def _joint_norms(grad_norms: Any, norms: np.ndarray, e: np.ndarray) -> np.ndarray:
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


def _clipped(e: np.ndarray, reach: np.ndarray, clip: float) -> np.ndarray:
    """|e|·min(1, C/(|e|J)) = min(|e|, C/J)."""
    return np.asarray(np.minimum(e, _ratio(np.full(reach.shape, clip), reach)))


def _ratio(numerator: np.ndarray, denominator: np.ndarray | float) -> np.ndarray:
    """numerator/denominator with x/0 = ∞ for x > 0 and 0/0 = 0."""
    numerator, denominator = np.broadcast_arrays(numerator, np.asarray(denominator, dtype=np.float64))
    out = np.where(numerator > 0, np.inf, 0.0)
    with np.errstate(over="ignore"):
        return np.asarray(np.divide(numerator, denominator, out=out, where=denominator > 0))


def _distances(rows: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    solved = solve_labels(rows, np.empty((*rows.shape[:-2], rows.shape[-1], 0)))
    identifiable = np.asarray(solved.identifiable, dtype=bool)
    short = np.asarray(solved.rank) < rows.shape[-2]
    if short.any():
        # With a zero gradient the error is what the null space can move: it would shift both means of the test.
        some = rows[short]
        moved = solve_labels(some, np.zeros((*some.shape[:-2], some.shape[-1]))).error
        identifiable = identifiable.copy()
        identifiable[short] &= np.asarray(moved) <= 1e-8
    return identifiable, np.asarray(solved.leverage, dtype=np.float64)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelEpsilonExtrapolation(Result):
    """Expected label-ε bound over many batches, from that of one: an extrapolation, not a bound.

    Attributes:
        value: the expected largest bound over all batches.
        factor: what the bound of one batch was multiplied by.
        rule: as asked.
        num_batches: as asked.
        batch_size: as asked.
    """

    quantity: str = "ε of a label"
    factor: float
    rule: str
    num_batches: int
    batch_size: int


def extrapolate_label_epsilon(
    lb_one_batch: Any, num_batches: int, batch_size: int, *, rule: str = "harmonic"
) -> LabelEpsilonExtrapolation:
    """Expected largest label-ε bound over `num_batches` batches, from the expected one of a single batch.

    Yuan, Xue, Wang and Shen (2022), A.3.1, for per-row bounds that are independent and exponential, F(x) = 1 − e^{−λx}
    (E4: the text prints 1 − λe^{−λx}). The mean of the largest of n is H_n/λ with H_n the n-th harmonic number, so for
    M batches of N rows

    - "harmonic": H_{MN}/H_N, exact for every N; 1.600 and 1.972 for (M, N) = (15, 50) and (80, 50).
    - "log": 1 + log M/log N, the paper's approximation; 1.69 and 2.12 there. Needs N ≥ 2.

    Args:
        lb_one_batch: bound of one batch, at least 0, a number or an array; ideally the mean over several batches.
        num_batches: number of batches M ≥ 1.
        batch_size: rows of each batch N ≥ 1.
        rule: how the factor is computed, "harmonic" or "log".

    Returns:
        `LabelEpsilonExtrapolation` of kind "estimate", adjacency "replace".

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        None: the exponential tail is an observation about data, not a theorem. Deterministic.

    Example:
        >>> from leakcore import bounds
        >>> f"{bounds.extrapolate_label_epsilon(2.0, 15, 50).value:.2f}"
        '3.20'
    """
    one = validate.real_array("at least 0 and finite", lambda v: np.isfinite(v) & (v >= 0), lb_one_batch=lb_one_batch)
    batches = validate.integer(1, num_batches=num_batches)
    which = validate.one_of("harmonic", "log", rule=rule)
    rows = validate.integer(2 if which == "log" else 1, batch_size=batch_size)
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
