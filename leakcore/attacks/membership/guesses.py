"""Guesses at membership: the scores that are clearest, by their signs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.array_record import ArrayRecord
from leakcore._base.score_arrays import ascending
from leakcore.attacks.membership.observations import numbers


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
        there = validate.even_array(included=included)
        if there.shape != self.guess.shape or there.dtype != bool:
            raise ValueError(
                f"`included` must be bool of shape {self.guess.shape}, got {there.dtype} of shape {there.shape}"
            )
        right = int(((self.guess == 1) & there).sum() + ((self.guess == -1) & ~there).sum())
        return right, int((self.guess != 0).sum())


def guess(scores: Any, *, share: float = 1.0, seed: int = 0) -> Guesses:
    """Guess where the scores are clearest: for each model, the share of rows with the largest |score|, by its sign.

    Args:
        scores: (runs, rows), positive for "was trained on".
        share: share of the rows to guess, in (0, 1]; at least one row per model.
        seed: seed of the order of equally clear scores. The rows' own order could tell who is a member.

    Returns:
        `Guesses`. A score of 0 is guessed "was not".

    Guarantees:
        Deterministic.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.guess([[0.1, -3.0, 2.0, 0.5]], share=0.5).guess.tolist()
        [[0, -1, 1, 0]]
    """
    values = _scores(scores)
    part, start = validate.probability(share=share), validate.seed(seed=seed)
    if part == 0:
        raise ValueError("`share` must be in (0, 1], got 0")
    wanted = part * values.shape[1]
    # 0.29·100 rounds to just below 29, although 29 is meant.
    near = round(wanted)
    taken = max(1, near if abs(wanted - near) <= 4 * math.ulp(wanted) else math.floor(wanted))
    out = np.zeros(values.shape, np.int8)
    clearest = ascending(-np.abs(values), kernels.generator(start, kernels.Stream.GUESS_TIES))[:, :taken]
    signs = np.where(np.take_along_axis(values, clearest, axis=1) > 0, 1, -1).astype(np.int8)
    np.put_along_axis(out, clearest, signs, axis=1)
    return Guesses(out)


def _scores(scores: Any) -> np.ndarray:
    out = numbers(scores=scores)
    if out.ndim != 2 or 0 in out.shape:
        raise ValueError(f"`scores` must have shape (runs, rows), at least 1 each, got {out.shape}")
    return out
