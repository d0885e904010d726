"""Models trained on random halves of the rows, and guesses at membership from their losses."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check
from leakcore._base.array_record import ArrayRecord
from leakcore.attacks.membership.canaries import batches_by_coins, fair_coins, read_labelled

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution

_LEAST_SPREAD = 1e-6


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MembershipTrials(ArrayRecord):
    """Models trained on random halves of the rows.

    Attributes:
        losses: (runs, rows) float64, of each final model at every row.
        included: (runs, rows) bool, the coins.
        first_run: number of the first model.
    """

    losses: np.ndarray
    included: np.ndarray
    first_run: int

    @property
    def mean_training_loss(self) -> np.ndarray:
        """Mean loss over each model's own training rows, (runs,); DP-SGD does not release it."""
        return np.asarray((self.losses * self.included).sum(axis=1) / np.maximum(self.included.sum(axis=1), 1))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Guesses(ArrayRecord):
    """Guesses at who was in each model's training set.

    Args:
        guess: (runs, rows) int8, 1 "was trained on", −1 "was not", 0 no guess.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> guesses = membership.Guesses(np.array([[1, -1, 0, 1]], np.int8))
        >>> guesses.tally(np.array([[True, False, True, False]]))  # two of three guesses are right
        (2, 3)
    """

    guess: np.ndarray

    def tally(self, included: Any) -> tuple[int, int]:
        """Number of right guesses and of all guesses.

        `included` is (runs, rows) bool, True for rows that were in the training set.
        """
        there = check.even_array(included=included)
        if there.shape != self.guess.shape or there.dtype != bool:
            raise ValueError(
                f"`included` must be bool of shape {self.guess.shape}, got {there.dtype} of shape {there.shape}"
            )
        right = int(((self.guess == 1) & there).sum() + ((self.guess == -1) & ~there).sum())
        return right, int((self.guess != 0).sum())


def coins(runs: int | range, rows: int, *, seed: int) -> np.ndarray:
    """Fair coins that decide which rows `play` trains each model on.

    Args:
        runs: how many models, or which, as range(first, stop).
        rows: how many rows, at least 1.
        seed: the ensemble's.

    Returns:
        (runs, rows) bool, True for "in the training set".

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        A pure function of (seed, run, row) on every machine.

    Example:
        >>> from leakcore.attacks import membership
        >>> both = membership.coins(4, 100, seed=0)
        >>> bool((membership.coins(range(2, 4), 100, seed=0) == both[2:]).all())
        True
    """
    count = check.integer(1, None, rows=rows)
    return fair_coins(runs, count, seed=seed, purpose=kernels.Stream.MEMBERSHIP_COINS, name="rows")


def play(
    ensemble: Ensemble, features: Any, labels: Any, *, runs: int | range, execution: Execution | None = None
) -> MembershipTrials:  # fmt: skip
    """Train models, each on the rows that its coins include, and evaluate their losses at all rows.

    The update is divided by the ensemble's expected batch size (q·rows by default) whatever the coins say, so that
    nothing but a row's own gradient depends on its coin: adjacency add/remove.

    Args:
        ensemble: the mechanism. Shuffled batches are refused: their size would depend on coins.
        features: (rows, inputs).
        labels: (rows,) class numbers.
        runs: how many models, or which, as range(first, stop); ranges may be computed separately and concatenated.
        execution: as in `dpsgd.Ensemble.run`.

    Returns:
        `MembershipTrials`.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic on one machine.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> from leakcore.attacks import membership
        >>> model = dpsgd.Ensemble(
        ...     (20, 2), noise_multiplier=0.1, max_grad_norm=1.0, learning_rate=1.0, steps=20, seed=0
        ... )
        >>> trials = membership.play(model, np.eye(12, 20), np.arange(12) % 2, runs=32)
        >>> trials.losses.shape
        (32, 12)
        >>> bool(trials.losses[trials.included].mean() < trials.losses[~trials.included].mean())
        True
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
    """Scores threshold − loss: positive where a row is called a member (Yeom et al. 2018).

    Args:
        losses: (runs, rows).
        threshold: a number, or one per run. The text takes each model's mean training loss, which is side information
            (`MembershipTrials.mean_training_loss`); a number chosen on other models is not.

    Returns:
        (runs, rows) float64.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.loss_threshold([[0.25, 1.0]], threshold=0.5).tolist()
        [[0.25, -0.5]]
    """
    values = _matrix(losses=losses)
    limit = check.real_array("finite", np.isfinite, threshold=threshold)
    if limit.ndim > 1 or (limit.ndim == 1 and limit.shape != values.shape[:1]):
        raise ValueError(f"`threshold` must be a number or have shape ({values.shape[0]},), got shape {limit.shape}")
    return np.asarray(limit.reshape(-1, 1) - values)


def likelihood_ratio(
    losses: Any, reference_losses: Any, reference_included: Any, *, spread: str = "shared"
) -> np.ndarray:  # fmt: skip
    """Scores log N(φ; μ_in, s_in²) − log N(φ; μ_out, s_out²): positive where a row looks trained on (LiRA).

    φ = log(p/(1 − p)), with p = e^{−loss} the model's probability of the true label. Reference models give its mean
    with and without the row (Carlini et al. 2022, the online attack). A loss below 2⁻⁵³ counts as 2⁻⁵³, which is all
    that rounding leaves of it.

    Args:
        losses: (runs, rows) of the models under attack.
        reference_losses: (references, rows) of other models.
        reference_included: (references, rows) bool, their coins. Each row must be in at least one of them and out of at
            least one.
        spread: "shared": one standard deviation for all rows, one in and one out, for few references (some row must be
            in two, and some row out of two). "row": each row's own, for many (at least two in and two out).

    Returns:
        (runs, rows) float64.

    Raises:
        ValueError: for bad shapes or values, and for too few references.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> included = np.array([[True, False], [False, True], [True, False], [False, True]])
        >>> losses = np.where(included, 0.1, 1.0) + np.array([[0.02], [0.0], [0.0], [0.02]])
        >>> scores = membership.likelihood_ratio([[0.1, 1.0]], losses, included)
        >>> (scores > 0).tolist()  # the first row was trained on, the second was not
        [[True, False]]
    """
    attacked, known = _confidence(_matrix(losses=losses)), _confidence(_matrix(reference_losses=reference_losses))
    there = check.plain_array(reference_included=reference_included)
    kind = check.one_of("shared", "row", spread=spread)
    if there.shape != known.shape or there.dtype != bool:
        raise ValueError(
            f"`reference_included` must be bool of shape {known.shape}, as the losses, got {there.dtype} of "
            f"shape {there.shape}"
        )
    if attacked.shape[1] != known.shape[1]:
        raise ValueError(f"`reference_losses` must have {attacked.shape[1]} rows, as `losses`, got shape {known.shape}")
    least = 1 if kind == "shared" else 2
    scores = np.zeros_like(attacked)
    for sign, who in ((1.0, there), (-1.0, ~there)):
        number = who.sum(axis=0)
        if number.min() < least:
            at = int(number.argmin())
            raise ValueError(
                f"`reference_included` must have each row in and out of at least {least} reference models with "
                f"spread={kind!r}, got row {at} {'in' if sign > 0 else 'out of'} {number[at]}: pass more models"
            )
        if kind == "shared" and number.sum() == len(number):
            raise ValueError(
                f"`reference_included` must have a row {'in' if sign > 0 else 'out of'} two reference models, since "
                "one shows no spread: pass more models"
            )
        mean = (known * who).sum(axis=0) / number
        squares = ((known - mean) ** 2 * who).sum(axis=0)
        # One mean per row was fitted.
        variance = squares / (number - 1) if kind == "row" else squares.sum() / (number.sum() - len(number))
        deviation = np.maximum(np.sqrt(variance), _LEAST_SPREAD)
        scores += sign * (-0.5 * ((attacked - mean) / deviation) ** 2 - np.log(deviation))
    return scores


def guess(scores: Any, *, share: float = 1.0) -> Guesses:
    """Guess where the scores are clearest: for each model, the share of rows with the largest |score|, by its sign.

    Args:
        scores: (runs, rows), positive for "was trained on".
        share: of the rows, in (0, 1]; at least one row per model is guessed.

    Returns:
        `Guesses`. A score of 0 is guessed "was not"; ties go to the earlier row.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.guess([[0.1, -3.0, 2.0, 0.5]], share=0.5).guess.tolist()
        [[0, -1, 1, 0]]
    """
    values = _matrix(scores=scores)
    part = check.probability(share=share)
    if part == 0:
        raise ValueError("`share` must be in (0, 1], got 0")
    wanted = part * values.shape[1]
    # 0.29·100 rounds to just below 29, although 29 is meant.
    near = round(wanted)
    taken = max(1, near if abs(wanted - near) <= 4 * math.ulp(wanted) else math.floor(wanted))
    out = np.zeros(values.shape, np.int8)
    clearest = np.argsort(-np.abs(values), axis=1, kind="stable")[:, :taken]
    signs = np.where(np.take_along_axis(values, clearest, axis=1) > 0, 1, -1).astype(np.int8)
    np.put_along_axis(out, clearest, signs, axis=1)
    return Guesses(out)


def _confidence(losses: np.ndarray) -> np.ndarray:
    """log(p/(1 − p)) of p = e^{−loss}.

    A loss is known to half an ulp of 1, so one that rounded to 0 counts as that much: a far smaller number would make
    one such row's φ drown all others' spread.
    """
    return np.asarray(-losses - np.log(-np.expm1(-np.maximum(losses, 2.0**-53))))


def _matrix(**kwargs: Any) -> np.ndarray:
    ((name, values),) = kwargs.items()
    if hasattr(values, "requires_grad"):  # a tensor, which NumPy may refuse without naming the argument
        values = check.host_array(**kwargs)[0]
    out = check.real_array("finite", np.isfinite, **{name: values})
    if out.ndim != 2 or 0 in out.shape:
        raise ValueError(f"`{name}` must have shape (runs, rows), at least 1 each, got {out.shape}")
    return out
