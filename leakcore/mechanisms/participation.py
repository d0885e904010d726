"""When a row takes part in a training whose noise is correlated, and how far it then moves what is released."""

from __future__ import annotations

import dataclasses
import math

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


_MOST_PATTERNS = 20_000
"""Patterns of participation that are tried one by one."""


def sensitivity(matrix: np.ndarray, participation: MinSeparation) -> tuple[float, float]:
    """(low, high) of max over π and unit x_t of ‖Σ_{t∈π} c_t x_tᵀ‖, π as the participation allows, c_t the columns.

    They agree, except for rounding, where
    - columns at least a separation apart are orthogonal: the squares add up, and dynamic programming finds the best π;
    - no ⟨c_s, c_t⟩ that matters is negative and π are few: all are tried;
    - the matrix is square, lower triangular and Toeplitz with coefficients that are not negative and do not rise: the
      earliest steps are the worst (Kalinin and Lampert 2024, Theorem 2).
    Else the high limit counts each t with the most that Σ_{s∈π} |⟨c_s, c_t⟩| can be (Choquette-Choo et al. 2023), and
    the low one is the largest ‖Σ ±c_t‖ that a search meets. Only CᵀC counts, so that no shape of C is assumed.
    """
    scale = float(np.abs(matrix).max())
    if scale == 0.0:
        return 0.0, 0.0
    scaled = matrix / scale  # squares must neither overflow nor vanish
    gram = scaled.T @ scaled
    steps, separation = len(gram), participation.separation
    most = min(participation.participations, -(-steps // separation))
    squares = np.diag(gram).copy()
    apart = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))) >= separation
    others = np.where(apart, np.abs(gram), 0.0) if most > 1 else np.zeros_like(gram)
    candidates = [list(range(0, steps, separation))[:most], best_steps(squares, separation, most)]
    weights = squares
    if others.any():
        weights = squares + np.array([_most(row, t, separation, most) for t, row in enumerate(others)])
        candidates.append(best_steps(weights, separation, most))
    high = float(weights[best_steps(weights, separation, most)].sum())
    if others.any() and _patterns(steps, separation, most) <= _MOST_PATTERNS:
        worst, chosen = _worst_pattern(squares, others, separation, most)
        high = min(high, worst)
        candidates.append(chosen)
    low = max(_with_signs(gram[np.ix_(steps_of, steps_of)]) for steps_of in candidates)
    if _is_decreasing_toeplitz(matrix):
        high = min(high, float(gram[np.ix_(candidates[0], candidates[0])].sum()))
    # Rounding of an inner product, relative to the product of norms; signs may cancel, so that it is counted for each
    # pair of participations.
    pairs = 1 if (matrix >= 0.0).all() else most
    rounding = 2.0**-51 * (len(matrix) + steps) * pairs
    return (scale * math.sqrt(max(low, 0.0)) * max(1.0 - rounding, 0.0), scale * math.sqrt(high) * (1.0 + rounding))


def _patterns(steps: int, separation: int, most: int) -> int:
    """How many sets of at most `most` steps are at least a separation apart."""
    return sum(math.comb(max(steps - (size - 1) * (separation - 1), 0), size) for size in range(1, most + 1))


def _worst_pattern(squares: np.ndarray, others: np.ndarray, separation: int, most: int) -> tuple[float, list[int]]:
    """(Σ_{s,t∈π} |⟨c_s, c_t⟩|, π) of the π for which this is largest, of all that are allowed."""
    steps, best = len(squares), (0.0, [0])
    pending: list[tuple[float, list[int]]] = [(0.0, [])]
    while pending:
        value, chosen = pending.pop()
        if value > best[0]:
            best = value, chosen
        if len(chosen) == most:
            continue
        for t in range(chosen[-1] + separation if chosen else 0, steps):
            pending.append((value + squares[t] + 2.0 * float(others[t, chosen].sum()), [*chosen, t]))
    return best


def _with_signs(gram: np.ndarray) -> float:
    """The largest xᵀGx that turning one sign of x after the other from all +1 leads to."""
    x = np.ones(len(gram))
    for _ in range(len(gram)):
        gains = -4.0 * x * (gram @ x - np.diag(gram) * x)
        t = int(np.argmax(gains))
        if gains[t] <= 0.0:
            break
        x[t] = -x[t]
    return float(x @ gram @ x)


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
    """Whether the matrix is square, lower triangular and Toeplitz, its coefficients not negative and not rising."""
    rows, steps = matrix.shape
    first = matrix[:, 0]
    if rows != steps or (first < 0.0).any() or (np.diff(first) > 0.0).any():
        return False
    return all(np.array_equal(matrix[t:, t], first[: steps - t]) and not matrix[:t, t].any() for t in range(steps))
