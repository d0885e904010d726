"""Models trained on random halves of the rows, and what guesses at membership make of their losses."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check
from leakcore.attacks.membership.canaries import batches_by_coins, fair_coins, read_labelled

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution

_LEAST_SPREAD = 1e-6


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MembershipTrials:
    """Models trained on random halves of the rows.

    losses: (runs, rows) float64, of each final model at every row. included: (runs, rows) bool, the coins. first_run:
    number of the first model.
    """

    losses: np.ndarray
    included: np.ndarray
    first_run: int

    @property
    def mean_training_loss(self) -> np.ndarray:
        """(runs,): over each model's own training rows, which DP-SGD does not release."""
        return np.asarray((self.losses * self.included).sum(axis=1) / np.maximum(self.included.sum(axis=1), 1))


@dataclasses.dataclass(frozen=True, eq=False)
class Guesses:
    """guess: (runs, rows) int8, 1 "was trained on", −1 "was not", 0 no guess."""

    guess: np.ndarray

    def tally(self, included: Any) -> tuple[int, int]:
        """(right, all) guesses, given who was there, (runs, rows) bool."""
        there = check.even_array(included=included)
        if there.shape != self.guess.shape or there.dtype != bool:
            raise ValueError(f"included.shape={there.shape}, dtype={there.dtype}: must be bool {self.guess.shape}")
        right = int(((self.guess == 1) & there).sum() + ((self.guess == -1) & ~there).sum())
        return right, int((self.guess != 0).sum())


def coins(runs: int | range, rows: int, *, seed: int) -> np.ndarray:
    """(runs, rows) bool: fair coins, a pure function of (seed, run, row) on every machine."""
    count = check.integer(1, None, rows=rows)
    return fair_coins(runs, count, seed=seed, purpose=kernels.Stream.MEMBERSHIP_COINS, name="rows")


def play(
    ensemble: Ensemble, features: Any, labels: Any, *, runs: int | range, execution: Execution | None = None
) -> MembershipTrials:  # fmt: skip
    """Train models, each on the rows that its coins include, and read their losses at all rows.

    The update is divided by the ensemble's expected batch size (q·rows unless given), whatever the coins say, so
    nothing but a row's own gradient depends on its coin: adjacency add/remove.

    Args:
        ensemble: the mechanism. Shuffled batches are refused: their size would depend on coins.
        features, labels: (rows, inputs) and (rows,).
        runs: how many models, or which, as range(first, stop); ranges may be computed apart and concatenated.
        execution: as in `dpsgd.Ensemble.run`.

    Returns:
        `MembershipTrials`.

    Raises:
        ValueError, TypeError: that names the argument.

    Guarantees:
        Deterministic.
    """
    from leakcore.dpsgd import PerRun, Rows

    x, y = read_labelled(ensemble, features, labels, by_coins="rows")
    included = coins(runs, len(y), seed=ensemble.seed)
    run = ensemble.run(
        x,
        y,
        runs=runs,
        per_run=PerRun(batches=batches_by_coins(ensemble, runs, included)),
        probes=Rows(x, y),
        keep_parameters=False,
        execution=execution,
    )
    assert run.probe_losses is not None
    return MembershipTrials(losses=run.probe_losses, included=included, first_run=run.first_run)


def loss_threshold(losses: Any, *, threshold: Any) -> np.ndarray:
    """Scores threshold − loss: positive where the row is called a member (Yeom et al. 2018).

    losses: (runs, rows). threshold: a number or one per run; the text takes each model's mean training loss, which is
    side information (`MembershipTrials.mean_training_loss`); a number found on other models is not.
    """
    values = _matrix(losses=losses)
    limit = check.real_array("finite", np.isfinite, threshold=threshold)
    if limit.ndim > 1 or (limit.ndim == 1 and limit.shape != values.shape[:1]):
        raise ValueError(f"threshold.shape={limit.shape}: must be a number or ({values.shape[0]},)")
    return np.asarray(limit.reshape(-1, 1) - values)


def likelihood_ratio(
    losses: Any, reference_losses: Any, reference_included: Any, *, spread: str = "shared"
) -> np.ndarray:  # fmt: skip
    """Scores log N(φ; μ_in, s_in²) − log N(φ; μ_out, s_out²): positive where a row looks trained on.

    φ = log(p/(1 − p)), p = e^{−loss} the model's probability of the true label (a loss below 2⁻⁵³ counts as 2⁻⁵³, all
    that rounding leaves of it); its mean with and without the row is taken from reference models (Carlini et al. 2022,
    the online attack).

    losses: (runs, rows) of the models under attack. reference_losses, reference_included: (references, rows), of other
    models and their coins; each row must be in at least one and out of at least one of them. spread: "shared": one
    standard deviation for all rows, one in and one out, for few references (some row in two, and some out of two);
    "row": each row's own, for many (at least two in and two out). Returns (runs, rows).
    """
    attacked, known = _confidence(_matrix(losses=losses)), _confidence(_matrix(reference_losses=reference_losses))
    there = check.plain_array(reference_included=reference_included)
    kind = check.one_of("shared", "row", spread=spread)
    if there.shape != known.shape or there.dtype != bool:
        raise ValueError(
            f"reference_included.shape={there.shape}, dtype={there.dtype}: must be bool {known.shape}, as the losses"
        )
    if attacked.shape[1] != known.shape[1]:
        raise ValueError(f"reference_losses.shape={known.shape}: must have {attacked.shape[1]} rows, as losses")
    least = 1 if kind == "shared" else 2
    scores = np.zeros_like(attacked)
    for sign, who in ((1.0, there), (-1.0, ~there)):
        number = who.sum(axis=0)
        if number.min() < least:
            at = int(number.argmin())
            raise ValueError(
                f"reference_included: row {at} is {'in' if sign > 0 else 'out of'} {number[at]} reference models, "
                f"spread={kind!r} needs at least {least}: give more of them"
            )
        if kind == "shared" and number.sum() == len(number):
            raise ValueError(
                f"reference_included: every row is {'in' if sign > 0 else 'out of'} one reference model, which shows "
                "no spread; some row must be so in two: give more of them"
            )
        mean = (known * who).sum(axis=0) / number
        squares = ((known - mean) ** 2 * who).sum(axis=0)
        # One mean per row was fitted.
        variance = squares / (number - 1) if kind == "row" else squares.sum() / (number.sum() - len(number))
        deviation = np.maximum(np.sqrt(variance), _LEAST_SPREAD)
        scores += sign * (-0.5 * ((attacked - mean) / deviation) ** 2 - np.log(deviation))
    return scores


def guess(scores: Any, *, share: float = 1.0) -> Guesses:
    """Guess where the scores are clearest: of each model's rows the share with the largest |score|, by its sign.

    scores: (runs, rows), positive for "was trained on". share: in (0, 1]; at least one row per model is guessed, ties
    go to the earlier row. A score of 0 is guessed "was not".
    """
    values = _matrix(scores=scores)
    part = check.probability(share=share)
    if part == 0:
        raise ValueError("share=0: must be in (0, 1]")
    wanted = part * values.shape[1]
    # 0.29·100 rounds to just below 29, which was meant.
    near = round(wanted)
    taken = max(1, near if abs(wanted - near) <= 4 * math.ulp(wanted) else math.floor(wanted))
    out = np.zeros(values.shape, np.int8)
    clearest = np.argsort(-np.abs(values), axis=1, kind="stable")[:, :taken]
    signs = np.where(np.take_along_axis(values, clearest, axis=1) > 0, 1, -1).astype(np.int8)
    np.put_along_axis(out, clearest, signs, axis=1)
    return Guesses(out)


def _confidence(losses: np.ndarray) -> np.ndarray:
    """log(p/(1 − p)) of p = e^{−loss}. A loss is known to half an ulp of 1, so what rounded to 0 counts as that much:
    far smaller would make one such row's φ drown all others' spread."""
    return np.asarray(-losses - np.log(-np.expm1(-np.maximum(losses, 2.0**-53))))


def _matrix(**kwargs: Any) -> np.ndarray:
    ((name, values),) = kwargs.items()
    if hasattr(values, "requires_grad"):  # a tensor: which NumPy takes or not, for reasons it does not name
        values = check.host_array(**kwargs)[0]
    out = check.real_array("finite", np.isfinite, **{name: values})
    if out.ndim != 2 or 0 in out.shape:
        raise ValueError(f"{name}.shape={out.shape}: must be (runs, rows), neither of them 0")
    return out
