"""When a row takes part in a training whose noise is correlated, and how far it then moves what is released."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore._base import validate


@dataclasses.dataclass(frozen=True)
class MinSeparation:
    """A row takes part at most `participations` times, any two at least `separation` steps apart.

    Attributes:
        separation: b ≥ 1.
        participations: k ≥ 1.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.MinSeparation(separation=100, participations=5)
        MinSeparation(separation=100, participations=5)
    """

    separation: int
    participations: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", validate.integer(1, separation=self.separation))
        object.__setattr__(self, "participations", validate.integer(1, participations=self.participations))


@dataclasses.dataclass(frozen=True)
class CyclicPoisson:
    """Rows are in β groups, β the matrix's bands; step t samples group t mod β by Poisson, at βq each row.

    Attributes:
        sample_rate: q in (0, 1], a row's rate averaged over all steps; βq must be at most 1.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.CyclicPoisson(0.01)
        CyclicPoisson(sample_rate=0.01)
    """

    sample_rate: float

    def __post_init__(self) -> None:
        rate = validate.probability(sample_rate=self.sample_rate)
        if rate == 0.0:
            raise ValueError("`sample_rate` must be above 0, got 0")
        object.__setattr__(self, "sample_rate", rate)


@dataclasses.dataclass(frozen=True)
class BallsInBins:
    """Each row draws one of b batches once, and is in that batch of every epoch.

    Attributes:
        batches: b ≥ 1, steps of an epoch.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.BallsInBins(batches=100)
        BallsInBins(batches=100)
    """

    batches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", validate.integer(1, batches=self.batches))


Participation = MinSeparation | CyclicPoisson | BallsInBins


def sensitivity(matrix: np.ndarray, participation: MinSeparation) -> tuple[float, float]:
    """(low, high) of max over π of ‖Σ_{t∈π} c_t‖, π as the participation allows, c_t the columns of the matrix.

    They agree where columns at least a separation apart are orthogonal: then the squares add up, and dynamic
    programming finds the best π. Else the high limit counts each t with the most that Σ_{s∈π} |⟨c_s, c_t⟩| can be
    (Choquette-Choo et al. 2023), and the low one is that of the best π on the way.
    """
    gram = matrix.T @ matrix
    steps, separation = len(gram), participation.separation
    most = min(participation.participations, -(-steps // separation))
    squares = np.diag(gram).copy()
    apart = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))) >= separation
    others = np.where(apart, np.abs(gram), 0.0)
    candidates = [list(range(0, steps, separation))[:most], best_steps(squares, separation, most)]
    if not others.any():
        weights = squares
    else:
        weights = squares + np.array([_most(row, t, separation, most) for t, row in enumerate(others)])
        candidates.append(best_steps(weights, separation, most))
    high = float(weights[best_steps(weights, separation, most)].sum())
    low = max(float(gram[np.ix_(steps_of, steps_of)].sum()) for steps_of in candidates)
    if _is_decreasing_toeplitz(matrix):
        high = min(high, float(gram[np.ix_(candidates[0], candidates[0])].sum()))
    rounding = 1e-13 * steps
    return float(np.sqrt(max(low, 0.0))) * (1.0 - rounding), float(np.sqrt(high)) * (1.0 + rounding)


def best_steps(weights: np.ndarray, separation: int, most: int) -> list[int]:
    """The at most `most` steps, `separation` or more apart, whose weights ≥ 0 have the largest sum."""
    steps = len(weights)
    best = np.zeros((most + 1, steps + separation + 1))  # best[j, t]: of steps t, t + 1, …
    for j in range(1, most + 1):
        taken = weights + best[j - 1, separation : separation + steps]
        best[j, :steps] = np.maximum.accumulate(taken[::-1])[::-1]
    out, j, t = [], most, 0
    while j and t < steps:
        taken = weights[t:] + best[j - 1, t + separation : steps + separation]
        first = t + int(np.argmax(taken))
        if taken[first - t] <= 0.0:
            break
        out.append(first)
        j, t = j - 1, first + separation
    return out


def _most(row: np.ndarray, step: int, separation: int, most: int) -> float:
    """The most that the entries of other steps add up to where this step is taken."""
    if most == 1 or not row.any():
        return 0.0
    return float(row[best_steps(row, separation, most - 1)].sum())


def _is_decreasing_toeplitz(matrix: np.ndarray) -> bool:
    """Whether diagonals are constant, not negative and do not rise: then the earliest steps are the worst (Kalinin and
    Lampert 2024, Theorem 2)."""
    first = matrix[:, 0]
    if (first < 0.0).any() or (np.diff(first) > 0.0).any():
        return False
    return all(np.array_equal(matrix[t:, t], first[: len(first) - t]) for t in range(len(first)))
