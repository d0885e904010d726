"""The members of the mechanisms' family: how each is drawn, and what is known of it by a way of its own.

Nothing here calls leakcore's numerics: laws are put on grids and composed by plain convolution, moments are integrals,
patterns of participation are counted one by one.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy import signal

from leakcore import mechanisms
from leakcore.numerics import AccuracyError

REFUSALS = (ValueError, TypeError, AccuracyError)
STEPS = (0, 1, 2, 7, 100, 10**4, 10**6, 10**9, 10**12, 10**15, 2**53 + 1, 10**18, 2**62, 2**63 - 1)
DELTAS = (0.3, 1e-2, 1e-5, 1e-12, 1e-60, 1e-300)
EPSILONS = (0.0, 1e-3, 0.5, 3.0, 10.0, 60.0, 1e4)


def _log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


NOISE = st.one_of(st.sampled_from([0.05, 0.3, 1.0, 8.0, 100.0]), _log_uniform(0.05, 100.0))
RATES = st.one_of(st.sampled_from([1e-9, 1e-5, 1e-3, 0.1, 0.5, 1.0]), _log_uniform(1e-9, 1.0))
COUNTS = st.one_of(st.sampled_from(STEPS), st.integers(0, 2000))
FEW = st.one_of(st.sampled_from([1, 2, 5]), st.integers(1, 60))
EPOCHS = st.one_of(st.sampled_from([1, 2, 30, 10**6, 10**12, 2**62]), st.integers(1, 50))


def _schedule(values: st.SearchStrategy[float], length: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(values, min_size=length, max_size=length).map(np.array)


@st.composite
def _poisson_schedules(draw: Any) -> mechanisms.Mechanism:
    length = draw(st.integers(1, 12))
    sigma = draw(st.one_of(NOISE, _schedule(NOISE, length)))
    return mechanisms.Poisson(sigma, draw(_schedule(RATES, length)), length)


@st.composite
def _fixed_sizes(draw: Any, steps: st.SearchStrategy[int] = COUNTS) -> mechanisms.Mechanism:
    rows = draw(st.sampled_from([1, 2, 10, 1000, 10**9]))
    batch = draw(st.integers(1, rows))
    return mechanisms.FixedSize(draw(NOISE), batch, rows, draw(steps))


@st.composite
def _fixed_size_schedules(draw: Any) -> mechanisms.Mechanism:
    sigma = draw(_schedule(NOISE, draw(st.integers(1, 8))))
    return mechanisms.FixedSize(sigma, 10, 1000, len(sigma))


@st.composite
def _allocations(draw: Any, more: bool) -> mechanisms.Mechanism:
    batches = draw(st.sampled_from([1, 2, 5, 40]))
    k = draw(st.integers(1, batches)) if more else 1
    noise = draw(st.floats(0.4, 20.0))
    return mechanisms.RandomAllocation(noise, batches, draw(EPOCHS), k=k, fixed=draw(st.booleans()))


MATRICES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "identity": lambda rng, t: np.eye(t),
    "square root": lambda rng, t: mechanisms.square_root(t),
    "banded square root": lambda rng, t: mechanisms.square_root(t, bands=2),
    "square root, transposed": lambda rng, t: mechanisms.square_root(t).T.copy(),
    "blt": lambda rng, t: mechanisms.blt([0.4, 0.2], [0.9, 0.5], t),
    "tree": lambda rng, t: mechanisms.tree(t),
    "increasing toeplitz": lambda rng, t: mechanisms.toeplitz(np.arange(1.0, t + 1.0), t),
    "alternating toeplitz": lambda rng, t: mechanisms.toeplitz([1.0, -0.7], t),
    "upper bidiagonal": lambda rng, t: np.eye(t) + np.eye(t, k=1),
    "lower, random": lambda rng, t: np.tril(rng.standard_normal((t, t))),
    "square, random": lambda rng, t: rng.standard_normal((t, t)),
    "square, positive": lambda rng, t: rng.random((t, t)),
    "tall": lambda rng, t: rng.standard_normal((2 * t + 1, t)),
    "wide": lambda rng, t: rng.random((max(t // 2, 1), t)) * np.linspace(0.1, 9.0, t),
    "one row": lambda rng, t: rng.standard_normal((1, t)),
    "symmetric": lambda rng, t: np.exp(-np.abs(np.subtract.outer(np.arange(t), np.arange(t)))),
    "first column constant": lambda rng, t: np.where(np.arange(t) == 0, 1.0, rng.random((t, t)) * 3.0),
    "toeplitz below, something above": lambda rng, t: mechanisms.square_root(t) + np.triu(rng.random((t, t)), 1),
    "zeros": lambda rng, t: np.zeros((t, t)),
    "a zero column": lambda rng, t: mechanisms.square_root(t) * (np.arange(t) != 0),
    "huge": lambda rng, t: 1e200 * rng.random((t, t)),
    "tiny": lambda rng, t: 1e-200 * rng.random((t, t)),
}


@st.composite
def matrices(draw: Any, most_steps: int = 9) -> np.ndarray:
    """A matrix of any shape with at most this many columns."""
    steps = draw(st.integers(1, most_steps))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return np.asarray(MATRICES[draw(st.sampled_from(sorted(MATRICES)))](rng, steps), dtype=np.float64)


def _scale(matrix: np.ndarray) -> float:
    return float(np.abs(matrix).max()) or 1.0


@st.composite
def _min_separations(draw: Any) -> mechanisms.Mechanism:
    matrix = draw(matrices())
    how = mechanisms.MinSeparation(draw(st.integers(1, 5)), draw(st.integers(1, 4)))
    return mechanisms.CorrelatedNoise(matrix, draw(NOISE) * _scale(matrix), how)


@st.composite
def _cyclic(draw: Any) -> mechanisms.Mechanism:
    steps = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bands = draw(st.integers(1, steps))
    matrix = np.tril(rng.standard_normal((steps, steps)))
    matrix[np.subtract.outer(np.arange(steps), np.arange(steps)) >= bands] = 0.0
    if draw(st.booleans()):
        matrix = matrix.T.copy()
    return mechanisms.CorrelatedNoise(matrix, draw(NOISE), mechanisms.CyclicPoisson(draw(RATES) / bands))


@st.composite
def _balls(draw: Any) -> mechanisms.Mechanism:
    batches, epochs = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    name = draw(st.sampled_from(["identity", "square root", "tree", "blt", "upper bidiagonal", "zeros"]))
    matrix = MATRICES[name](np.random.default_rng(1), batches * epochs)
    return mechanisms.CorrelatedNoise(matrix, draw(st.floats(0.3, 20.0)), mechanisms.BallsInBins(batches))


@dataclasses.dataclass(frozen=True)
class NoOpDpEvent:
    """Events by the names and fields that dp-accounting gives them, so that the suite runs without it."""


@dataclasses.dataclass(frozen=True)
class GaussianDpEvent:
    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class LaplaceDpEvent:
    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class DiscreteLaplaceDpEvent:
    noise_parameter: float
    sensitivity: int


@dataclasses.dataclass(frozen=True)
class RandomizedResponseDpEvent:
    noise_parameter: float
    num_buckets: int


@dataclasses.dataclass(frozen=True)
class ZCDpEvent:
    rho: float
    xi: float = 0.0


@dataclasses.dataclass(frozen=True)
class ComposedDpEvent:
    events: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class SelfComposedDpEvent:
    event: Any
    count: int


@dataclasses.dataclass(frozen=True)
class PoissonSampledDpEvent:
    sampling_probability: float
    event: Any


@dataclasses.dataclass(frozen=True)
class SampledWithoutReplacementDpEvent:
    source_dataset_size: int
    sample_size: int
    event: Any


_GAUSSIANS = NOISE.map(GaussianDpEvent)
SIMPLE_EVENTS = st.one_of(
    _GAUSSIANS,
    st.builds(LaplaceDpEvent, _log_uniform(0.1, 100.0)),
    st.builds(DiscreteLaplaceDpEvent, st.floats(0.01, 5.0), st.integers(1, 3)),
    st.builds(ZCDpEvent, _log_uniform(1e-3, 10.0)),
    st.builds(PoissonSampledDpEvent, RATES, _GAUSSIANS),
    st.builds(SampledWithoutReplacementDpEvent, st.just(1000), st.integers(1, 1000), _GAUSSIANS),
    st.builds(RandomizedResponseDpEvent, st.floats(0.1, 0.9), st.integers(2, 9)),
    st.just(NoOpDpEvent()),
)
EVENTS = st.one_of(
    SIMPLE_EVENTS,
    st.builds(SelfComposedDpEvent, SIMPLE_EVENTS, st.sampled_from([0, 1, 3, 10, 10**5, 2**62])),
    st.builds(lambda one, two: ComposedDpEvent((one, two)), _GAUSSIANS, SIMPLE_EVENTS),
)


@st.composite
def _event_mechanisms(draw: Any) -> mechanisms.Mechanism | None:
    with contextlib.suppress(ValueError):  # a refusal by name
        return mechanisms.from_event(draw(EVENTS))
    return None


_CHEAP = st.one_of(
    st.builds(mechanisms.Poisson, NOISE, RATES, COUNTS),
    st.builds(mechanisms.FullBatch, NOISE, COUNTS),
    st.builds(mechanisms.GDP, _log_uniform(1e-3, 30.0)),
    st.builds(mechanisms.ApproximateDP, _log_uniform(1e-3, 30.0), st.sampled_from([0.0, 1e-300, 1e-9, 1e-3])),
    st.builds(mechanisms.ZCDP, _log_uniform(1e-3, 10.0)),
    _fixed_sizes(st.sampled_from([1, 1, 3])),
)


@st.composite
def _compositions(draw: Any) -> mechanisms.Mechanism | None:
    parts = draw(st.lists(_CHEAP, min_size=2, max_size=3))
    with contextlib.suppress(ValueError):  # no relation in common
        return mechanisms.Composition(tuple(parts))
    return None


MEMBERS: dict[str, st.SearchStrategy[mechanisms.Mechanism | None]] = {
    "Poisson": st.builds(mechanisms.Poisson, NOISE, RATES, COUNTS),
    "Poisson, schedules": _poisson_schedules(),
    "FullBatch": st.builds(mechanisms.FullBatch, NOISE, COUNTS),
    "FixedSize": _fixed_sizes(),
    "FixedSize, one step": _fixed_sizes(st.just(1)),
    "FixedSize, schedules": _fixed_size_schedules(),
    "Shuffled": st.builds(mechanisms.Shuffled, st.floats(0.3, 50.0), FEW, EPOCHS),
    "RandomAllocation": _allocations(more=False),
    "RandomAllocation, k": _allocations(more=True),
    "CorrelatedNoise, MinSeparation": _min_separations(),
    "CorrelatedNoise, CyclicPoisson": _cyclic(),
    "CorrelatedNoise, BallsInBins": _balls(),
    "GDP": st.builds(mechanisms.GDP, st.one_of(st.just(0.0), _log_uniform(1e-9, 1e3))),
    "ApproximateDP": st.builds(
        mechanisms.ApproximateDP,
        st.one_of(st.just(0.0), _log_uniform(1e-6, 1e4)),
        st.sampled_from([0.0, 1e-300, 1e-9, 0.2, 0.999]),
    ),
    "ZCDP": st.builds(mechanisms.ZCDP, st.one_of(st.just(0.0), _log_uniform(1e-6, 1e4))),
    "from_event": _event_mechanisms(),
    "Composition": _compositions(),
}

PUBLIC_NAMES = {
    "ApproximateDP": "ApproximateDP",
    "BallsInBins": "CorrelatedNoise, BallsInBins",
    "Composition": "Composition",
    "CorrelatedNoise": "CorrelatedNoise, MinSeparation",
    "CyclicPoisson": "CorrelatedNoise, CyclicPoisson",
    "FixedSize": "FixedSize",
    "FullBatch": "FullBatch",
    "GDP": "GDP",
    "MinSeparation": "CorrelatedNoise, MinSeparation",
    "Poisson": "Poisson",
    "RandomAllocation": "RandomAllocation",
    "Shuffled": "Shuffled",
    "ZCDP": "ZCDP",
    "blt": "CorrelatedNoise, MinSeparation",
    "from_event": "from_event",
    "square_root": "CorrelatedNoise, MinSeparation",
    "toeplitz": "CorrelatedNoise, MinSeparation",
    "tree": "CorrelatedNoise, MinSeparation",
}
"""The member that stands for each public name."""
NO_GUARANTEE = {"Grid", "GridResult", "Loss", "Mechanism", "grid"}
"""Public names without a number of their own: containers of mechanisms and of results, the abstract class."""


@dataclasses.dataclass(frozen=True)
class StepPair:
    """P and Q of one step on a line, as likelihood ratios less 1 to N(0, sigma²): P = φ(1 + p), Q = φ(1 + q)."""

    sigma: float
    p: Callable[[np.ndarray], np.ndarray]
    q: Callable[[np.ndarray], np.ndarray]

    def on_grid(self, points: int = 60_001) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(weights of N(0, sigma²), p, q) at even places."""
        reach = 12.0 * self.sigma + 3.0
        x = np.linspace(-reach, reach, points)
        weights = np.exp(-0.5 * (x / self.sigma) ** 2) * (x[1] - x[0]) / (self.sigma * math.sqrt(2.0 * math.pi))
        with np.errstate(over="ignore"):
            return weights, self.p(x), self.q(x)

    def moments(self) -> tuple[float, float]:
        """Mean and variance of log P/Q under P."""
        weights, p, q = self.on_grid()
        usable = np.isfinite(p) & np.isfinite(q)  # elsewhere the weights vanish
        weights, p, q = weights[usable], p[usable], q[usable]
        loss = np.log1p(p) - np.log1p(q)
        # E_P loss = E_φ[(1 + p)·loss]; E_φ p = E_φ q = 0 takes out the terms that cancel.
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float((weights * ((loss - p + q) + p * loss)).sum())
            variance = float((weights * (1.0 + p) * (loss - mean) ** 2).sum())
        # Beyond what a float holds, they prove nothing.
        return (mean, variance) if math.isfinite(mean) and math.isfinite(variance) else (0.0, math.inf)


def shifted(sigma: float, rate: float, to: float) -> Callable[[np.ndarray], np.ndarray]:
    """(1 − rate)N(0, sigma²) + rate·N(to, sigma²) over N(0, sigma²), less 1."""
    return lambda x: rate * np.expm1((2.0 * to * x - to * to) / (2.0 * sigma * sigma))


def none(x: np.ndarray) -> np.ndarray:
    """N(0, sigma²) itself."""
    return np.zeros_like(x)


def proved_epsilon(pairs: list[tuple[StepPair, int]], delta: float) -> float:
    """An ε that is too small for δ, whatever the number of steps: by Cantelli's inequality.

    P(L > m − a) ≥ a²/(v + a²), so that δ(ε) ≥ a²/(v + a²)·(1 − e^{ε − m + a}).
    """
    moments = [(pair.moments(), count) for pair, count in pairs]
    mean = sum(m * count for (m, _), count in moments)
    variance = sum(v * count for (_, v), count in moments)
    best = -math.inf
    if not math.isfinite(mean + variance):
        return best
    for share in np.exp(np.linspace(-16.0, 4.0, 201)):
        tail = share * share / (1.0 + share * share)
        if tail > delta:
            best = max(best, mean - share * math.sqrt(variance) + math.log1p(-delta / tail))
    return best - 1e-6 * abs(mean)  # the integrals' own error


def composed_delta(pair: StepPair, steps: int, epsilon: float, spacing: float, up: bool) -> float:
    """δ(ε) of the composed pair, every step's loss rounded up or down to a multiple of `spacing`."""
    weights, p, q = pair.on_grid(400_001)
    usable = (p > -1.0) & (q > -1.0) & np.isfinite(p) & np.isfinite(q)
    loss = (np.log1p(p[usable]) - np.log1p(q[usable])) / spacing
    mass = (weights * (1.0 + np.where(usable, p, 0.0)))[usable]
    index = (np.ceil(loss) if up else np.floor(loss)).astype(int)
    first = int(index.min())
    law = np.bincount(index - first, weights=mass)
    out, offset = law, first
    for _ in range(steps - 1):
        out, offset = signal.fftconvolve(out, law), offset + first
    losses = spacing * (offset + np.arange(len(out)))
    return float((out * np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)).sum())


def true_sensitivity(matrix: np.ndarray, separation: int, most: int) -> float:
    """max over patterns and signs of ‖Σ ±c_t‖, all of them tried; for C·Cᵀ of any sign a row's gradients may differ
    in direction, so that this is a lower limit, and the truth where the columns' products are not negative."""
    best = 0.0
    scaled = matrix / _scale(matrix)
    for size in range(1, most + 1):
        for chosen in itertools.combinations(range(matrix.shape[1]), size):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                signs = np.array(list(itertools.product((1.0, -1.0), repeat=size - 1))).reshape(
                    2 ** (size - 1), size - 1
                )
                signs = np.hstack([np.ones((len(signs), 1)), signs])
                best = max(best, float(np.linalg.norm(signs @ scaled[:, chosen].T, axis=1).max()))
    return best * _scale(matrix)
