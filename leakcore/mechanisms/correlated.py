"""Noise that is correlated from step to step: DP-FTRL, banded and buffered matrix mechanisms.

What is released is Cx + σz, C a matrix, which a decoder turns into prefix sums. The matrices come first, then when a
row takes part and how far it then moves the release, then the mechanism.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency
from leakcore.mechanisms.allocation import RandomAllocation
from leakcore.mechanisms.mechanism import Mechanism, gaussian_laws
from leakcore.mechanisms.poisson import Poisson
from leakcore.numerics import Bounded, Bracket, DominatingLaws, ExactCurve, LatticeCurve, PrivacyLoss, dominating_laws

_MOST_STEPS = 8192


def _steps(steps: int) -> int:
    return validate.integer(1, _MOST_STEPS, steps=steps)


def toeplitz(coefficients: np.ndarray, steps: int) -> np.ndarray:
    """The lower triangular Toeplitz matrix C_{s,t} = coefficients[s − t], 0 beyond the last one.

    Args:
        coefficients: (m,), finite; the first positive.
        steps: T, at most 8192.

    Returns:
        (T, T) float64.

    Raises:
        ValueError, TypeError: for a value or shape that is not allowed; the text names the argument.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.toeplitz([1.0, 0.5], 3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]
    """
    size = _steps(steps)
    values = validate.real_array("finite", np.isfinite, coefficients=coefficients)
    if values.ndim != 1 or len(values) == 0 or not values[0] > 0.0:
        raise ValueError(f"`coefficients` must be a sequence whose first entry is positive, got {coefficients!r}")
    column = np.zeros(size)
    column[: min(size, len(values))] = values[:size]
    out = np.zeros((size, size))
    for t in range(size):
        out[t:, t] = column[: size - t]
    return out


def square_root(steps: int, *, bands: int | None = None) -> np.ndarray:
    """The square root of the matrix of prefix sums, C² = A: C_{s,t} = binom(2j, j)/4^j, j = s − t.

    It is optimal up to a constant for prefix sums (Fichtenberger, Henzinger and Upadhyay 2023). Cut to `bands`
    diagonals it is the banded square root of Kalinin and Lampert (2024).

    Args:
        steps: T, at most 8192.
        bands: β ≥ 1, diagonals to keep; None: all.

    Returns:
        (T, T) float64.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.square_root(3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.375, 0.5, 1.0]]
    """
    size = _steps(steps)
    width = size if bands is None else min(validate.integer(1, bands=bands), size)
    j = np.arange(1, width)
    return toeplitz(np.concatenate(([1.0], np.cumprod((2.0 * j - 1.0) / (2.0 * j)))), size)


def blt(scales: np.ndarray, decays: np.ndarray, steps: int) -> np.ndarray:
    """A buffered linear Toeplitz matrix: coefficients 1, then Σ_i scales_i·decays_i^{j−1} at distance j ≥ 1.

    Dvijotham et al. (2024). Its noise takes one buffer for each scale.

    Args:
        scales: (d,), at least 0.
        decays: (d,) in [0, 1).
        steps: T, at most 8192.

    Returns:
        (T, T) float64.

    Raises:
        ValueError, TypeError: for a value or shape that is not allowed; the text names the argument.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.blt([0.5], [0.5], 3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """
    size = _steps(steps)
    weights = validate.real_array("at least 0", lambda v: v >= 0.0, scales=scales)
    rates = validate.real_array("in [0, 1)", lambda v: (v >= 0.0) & (v < 1.0), decays=decays)
    if weights.ndim != 1 or weights.shape != rates.shape:
        raise ValueError(f"`decays` must have the shape of `scales`, {weights.shape}, got {rates.shape}")
    with np.errstate(over="ignore"):
        total = weights.sum()
    if not np.isfinite(total):
        raise ValueError(f"`scales` must have a finite sum, got {scales!r}")
    powers = rates[:, None] ** np.arange(size - 1)
    return toeplitz(np.concatenate(([1.0], weights @ powers)), size)


def tree(steps: int) -> np.ndarray:
    """The binary tree of partial sums: a row for each node, 1 at the steps below it (Dwork et al. 2010).

    Args:
        steps: T, at most 8192.

    Returns:
        (nodes, T) float64; nodes that no step is below are left out.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import mechanisms
        >>> mechanisms.tree(2).tolist()
        [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    size = _steps(steps)
    rows, width = [], 1
    while True:
        for start in range(0, size, width):
            row = np.zeros(size)
            row[start : start + width] = 1.0
            rows.append(row)
        if width >= size:
            return np.array(rows)
        width *= 2


@dataclasses.dataclass(frozen=True)
class MinSeparation:
    """A row takes part at most `participations` times, any two at least `separation` steps apart.

    Attributes:
        separation: b ≥ 1.
        participations: k ≥ 1.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
    patterns = (math.comb(max(steps - (size - 1) * (separation - 1), 0), size) for size in range(1, most + 1))
    if others.any() and sum(patterns) <= _MOST_PATTERNS:
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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CorrelatedNoise(Mechanism):
    """What is released is Cx + σz: x_t the sum of step t's clipped gradients, z standard normal.

    `MinSeparation`: μ-GDP with μ = max_π ‖Σ_{t∈π} c_t‖/σ, c_t the columns of C. `CyclicPoisson`, C with β bands: ⌈T/β⌉
    Poisson steps at rate βq with noise σ/max‖c_t‖ (Choquette-Choo et al. 2023). `BallsInBins`, C ≥ 0: P = (1/b)ΣN(m_j,
    σ²I), Q = N(0, σ²I) with m_j = Σ_i c_{j+ib}, by its sampler; its exact limits come from the worst bin alone. C may
    have any shape: Gaussian noise may be rotated, so that only CᵀC counts (Denisov et al. 2022). Where limits cannot
    agree, as for most matrices with `MinSeparation`, the result is a bracket.

    Attributes:
        matrix: C, (rows, T), as `square_root`, `toeplitz`, `blt` and `tree` make it, or any other.
        noise_multiplier: σ in (0, ∞).
        participation: a `MinSeparation`, a `CyclicPoisson` or a `BallsInBins`.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> matrix = mechanisms.square_root(100, bands=10)
        >>> often = mechanisms.MinSeparation(separation=20, participations=5)
        >>> training = mechanisms.CorrelatedNoise(matrix, 4.0, often)
        >>> f"{accounting.epsilon(training, delta=1e-5).value:.3f}"
        '3.138'
    """

    _relations: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out")

    matrix: np.ndarray
    noise_multiplier: float
    participation: Participation

    def __post_init__(self) -> None:
        matrix = validate.real_array("finite", np.isfinite, matrix=self.matrix)
        if matrix.ndim != 2 or matrix.size == 0:
            raise ValueError(f"`matrix` must have two dimensions and an entry, got shape {matrix.shape}")
        validate.instance(MinSeparation, CyclicPoisson, BallsInBins, participation=self.participation)
        self._set(matrix=matrix, noise_multiplier=validate.positive(noise_multiplier=self.noise_multiplier))
        how = self.participation
        if isinstance(how, CyclicPoisson) and (bands := self.bands) * how.sample_rate > 1.0 + 1e-12:
            raise ValueError(f"`participation` must have sample_rate at most 1/{bands} with {bands} bands, got {how!r}")
        if isinstance(how, BallsInBins):
            if matrix.shape[1] % how.batches:
                raise ValueError(f"`participation` must have batches that divide {matrix.shape[1]} steps, got {how!r}")
            if (matrix < 0.0).any():
                raise ValueError("`matrix` must not have negative entries with BallsInBins")

    @property
    def bands(self) -> int:
        """β: columns at least so far apart share no row."""
        rows = [np.flatnonzero(row) for row in self.matrix]
        return max((int(at[-1] - at[0]) + 1 for at in rows if len(at)), default=1)

    def proof(self, adjacency: str | None = None) -> str:
        self.relation(adjacency)
        return {
            MinSeparation: "a Gaussian mechanism of the matrix's sensitivity: Choquette-Choo et al. (2023)",
            CyclicPoisson: "banded matrix, cyclic Poisson sampling: Choquette-Choo et al. (2023)",
            BallsInBins: "balls in bins with correlated noise: Chua et al. (2025), Choquette-Choo et al. (2024)",
        }[type(self.participation)]

    def notes(self, adjacency: Adjacency) -> tuple[str, ...]:
        notes = (f"noise correlated by a matrix; {self.participation!r}",)
        if self.is_exact(adjacency):
            return notes
        how = self.participation
        if isinstance(how, MinSeparation):
            low, high = self._sensitivity
            return (*notes, f"sensitivity between {low:.6g} (a pattern that reaches it) and {high:.6g} (a bound)")
        if isinstance(how, CyclicPoisson):
            return (*notes, "interval: from the worst group of rows alone to every column as long as the longest")
        return (*notes, "interval: nothing is known from below")

    def is_exact(self, adjacency: Adjacency) -> bool:
        how = self.participation
        if isinstance(how, MinSeparation):
            low, high = self._sensitivity
            return high - low <= _SAME * high
        if isinstance(how, CyclicPoisson):
            return self._group == self._cyclic(how)
        return self.without_correlation() is not None

    def steps_loss(self, adjacency: Adjacency) -> PrivacyLoss | None:
        how = self.participation
        if (independent := self.without_correlation()) is not None:
            return independent.steps_loss(adjacency)
        if not self.is_exact(adjacency):
            return None
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).steps_loss(adjacency)
        if isinstance(how, MinSeparation):
            return PrivacyLoss((), self.separation(adjacency) ** 2)
        return None

    def curve(self, adjacency: Adjacency) -> Bounded:
        if (independent := self.without_correlation()) is not None:
            return independent.curve(adjacency)
        if isinstance(self.participation, BallsInBins) or self.is_exact(adjacency):
            return super().curve(adjacency)
        lower, upper = self._both_losses(adjacency)
        below = ExactCurve(lower) if len(lower.groups) < 2 else LatticeCurve(dominating_laws(lower))
        return Bracket(below, ExactCurve(upper))

    def dominating_laws(self, adjacency: Adjacency) -> DominatingLaws:
        if (independent := self.without_correlation()) is not None:
            return independent.dominating_laws(adjacency)
        if isinstance(self.participation, BallsInBins):
            return DominatingLaws(gaussian_laws(PrivacyLoss((), self.separation(adjacency) ** 2)).upper, ())
        lower, upper = self._both_losses(adjacency)
        return DominatingLaws(gaussian_laws(upper).upper, gaussian_laws(lower).lower)

    def separation(self, adjacency: Adjacency) -> float:
        # As if the steps of each row were known.
        how = self.participation
        if isinstance(how, MinSeparation):
            return self._sensitivity[1] / self.noise_multiplier
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).separation(adjacency)
        return float(_norms(self._means(how)).max()) * (1.0 + 1e-12) / self.noise_multiplier

    def with_noise(self, noise_multiplier: float) -> Mechanism:
        # The sensitivity is the same, and takes seconds for a large matrix.
        changed = super().with_noise(noise_multiplier)
        if isinstance(self.participation, MinSeparation):
            changed.__dict__["_sensitivity"] = self._sensitivity
        return changed

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        from leakcore import kernels

        how = self.participation
        if isinstance(how, CyclicPoisson):
            return self._cyclic(how).sample_log_ratio(num_samples, under, seed, first_sample)
        if isinstance(how, MinSeparation):
            mu = self.separation(self.adjacency)
            if mu == 0.0:
                return np.zeros(num_samples)
            return Poisson(1.0 / mu, 1.0, 1).sample_log_ratio(num_samples, under, seed, first_sample)
        # G = MᵀM = RᵀR, without the rounding of a square.
        factor = np.asarray(np.linalg.qr(self._means(how), mode="r")).T
        pair = kernels.Allocation(self.noise_multiplier, how.batches, factor=factor)
        out: np.ndarray = kernels.allocation_log_ratio(
            pair, num_samples, under=under, seed=seed, first_sample=first_sample
        )
        return out

    def without_correlation(self) -> RandomAllocation | None:
        """Balls in bins with independent noise, where the matrix is the identity; else None."""
        how, steps = self.participation, self.matrix.shape[1]
        if not isinstance(how, BallsInBins) or not np.array_equal(self.matrix, np.eye(steps)):
            return None
        return RandomAllocation(self.noise_multiplier, how.batches, steps // how.batches, fixed=True)

    @functools.cached_property
    def _sensitivity(self) -> tuple[float, float]:
        """(low, high), of `MinSeparation`."""
        assert isinstance(self.participation, MinSeparation)
        return sensitivity(self.matrix, self.participation)

    @functools.cached_property
    def _group(self) -> Poisson:
        """`CyclicPoisson`: what rows of the group with the longest columns run, which is nothing but Poisson steps,
        since columns of one group share no row of the matrix. It equals `_cyclic` where the bound is reached."""
        how = self.participation
        assert isinstance(how, CyclicPoisson)
        whole, bands = self._cyclic(how), self.bands
        if whole.steps == 0:
            return whole
        norms = _norms(self.matrix)
        groups = [norms[first::bands] for first in range(bands)]
        longest = max(groups, key=lambda lengths: float((lengths * lengths).sum()))
        if len(longest) == whole.steps and (longest >= norms.max() * (1.0 - _SAME)).all():
            return whole
        with np.errstate(divide="ignore"):
            return Poisson(self.noise_multiplier / longest, whole.sample_rate, len(longest))

    def _both_losses(self, adjacency: Adjacency) -> tuple[PrivacyLoss, PrivacyLoss]:
        """(one that the mechanism dominates, one that dominates it), not of balls in bins."""
        how = self.participation
        if isinstance(how, MinSeparation):
            low, high = (one / self.noise_multiplier for one in self._sensitivity)
            return PrivacyLoss((), low * low), PrivacyLoss((), high * high)
        assert isinstance(how, CyclicPoisson)
        lower, upper = self._group.steps_loss(adjacency), self._cyclic(how).steps_loss(adjacency)
        assert lower is not None
        assert upper is not None
        return lower, upper

    def _cyclic(self, how: CyclicPoisson) -> Poisson:
        bands, steps = self.bands, self.matrix.shape[1]
        longest = float(_norms(self.matrix).max())
        if longest == 0.0:
            return Poisson(math.inf, 0.0, 0)
        rate = min(bands * how.sample_rate, 1.0)
        return Poisson(self.noise_multiplier / longest, rate, -(-steps // bands))

    def _means(self, how: BallsInBins) -> np.ndarray:
        """m_j as columns."""
        rows, steps = self.matrix.shape
        return np.asarray(self.matrix.reshape(rows, steps // how.batches, how.batches).sum(axis=1))


_SAME = 1e-9
"""Relative difference of two limits of a sensitivity that rounding alone makes."""


def _norms(matrix: np.ndarray) -> np.ndarray:
    """Norms of the columns; their squares neither overflow nor vanish."""
    scale = float(np.abs(matrix).max())
    return scale * np.linalg.norm(matrix / scale, axis=0) if scale > 0.0 else np.zeros(matrix.shape[1])
