"""κ: with what probability a reconstruction succeeds blindly, for a prior given by samples, by pixels or by weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Assumptions, Number, Result
from leakcore.numerics import clopper_pearson

METRICS = ("euclidean", "manhattan", "chebyshev", "hamming")
_BLOCK_BYTES = 32 * 1024 * 1024
_PRIOR_SUM_SLACK = 1e-9
_TERMS = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class KappaBound(Result):
    """κ = sup_z₀ P(ρ(Z, z₀) ≤ η), the success probability of the best blind guess.

    Attributes:
        value: an upper limit of κ, which `reconstruction` takes as kappa.
        log_value: its logarithm, which `reconstruction` takes as log_kappa.
        estimate: the paper's sample-centred value where samples were given, which may be far below κ; else None.
        num_samples: number of samples, None where there are none.
        radius: as asked, None where it does not apply.
        metric: as asked, None where it does not apply.
    """

    quantity: str = "κ"
    log_value: Number
    estimate: float | None = None
    num_samples: int | None = None
    radius: float | None = None
    metric: str | None = None


@one_thread()
def kappa_from_samples(
    samples: Any,
    radius: float,
    *,
    metric: str | Callable[[np.ndarray, np.ndarray], np.ndarray] = "euclidean",
    confidence: float = 0.99,
) -> KappaBound:
    """Upper confidence limit of κ(η) = sup over all z₀ of P(ρ(Z, z₀) ≤ η), from independent samples of the prior.

    The Clopper–Pearson upper limit at the largest number of samples within 2η of a sample. It replaces the printed
    limit of Hayes et al. (2023), Proposition 6, which centres balls at samples only (E8). docs/explanation/bounds.md
    has the proof.

    Args:
        samples: real array (N, …), flattened to N rows.
        radius: η ≥ 0.
        metric: "euclidean", "manhattan", "chebyshev", "hamming" (number of unequal coordinates), or a function of two
            blocks (a, d) and (b, d) that returns distances (a, b). It must be a metric: the proof uses the triangle
            inequality.
        confidence: level of the limit, in (0, 1 − 1e-12].

    Returns:
        `KappaBound` of kind "upper" at `confidence`; its `estimate` is max_i #{j: ρ(z_i, z_j) ≤ η}/N.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, and for a metric that returns a wrong shape or NaN.

    Guarantees:
        The value is below κ with probability at most 1 − confidence, over the samples. It is never smaller than −log(1
        − confidence)/N. Deterministic; distances are computed in blocks, about 32 MiB, and rounded to the safe side.

    Example:
        >>> import numpy as np
        >>> from leakcore import bounds
        >>> draws = np.array([[i % 2, i // 2 % 2] for i in range(1000)])  # as if drawn from four equally likely points
        >>> kappa = bounds.kappa_from_samples(draws, radius=0.4)
        >>> kappa.estimate, f"{kappa.value:.3f}", kappa.confidence
        (0.25, '0.283', 0.99)
    """
    rows, _ = validate.host_array(samples=samples)
    if rows.ndim == 0 or rows.size == 0:
        raise ValueError(f"`samples` must have at least one row and one column, got shape {rows.shape}")
    rows = validate.squarable(samples=rows.reshape(len(rows), -1))
    eta = validate.non_negative(radius=radius)
    level = validate.confidence(confidence=confidence)
    if callable(metric):
        distances, name = _checked(metric), getattr(metric, "__name__", "callable")
    else:
        name = validate.one_of(*METRICS, metric=metric)
        distances = _METRICS[name]
    near, twice = _largest_counts(rows, (eta, 2.0 * eta), distances, name == "euclidean")
    high = float(clopper_pearson(twice, len(rows), confidence=level, side="upper")[1])
    return KappaBound(
        value=high,
        log_value=math.log(high) if high > 0.0 else -math.inf,
        kind="upper",
        confidence=level,
        interval=(0.0, high),
        method="largest 2η-ball around a sample, Clopper–Pearson",
        assumptions=Assumptions(
            adjacency=None,
            attacker="knows the prior, but no output of the mechanism",
            notes=("samples are independent draws of the prior",),
        ),
        provenance="Hayes, Mahloujifar and Balle (2023), Proposition 6, erratum E8",
        estimate=near / len(rows),
        num_samples=len(rows),
        radius=eta,
        metric=name,
    )


def kappa_pixels(num_pixels: int, *, fraction: float = 1.0, pixel_probability: float = 0.25) -> KappaBound:
    """κ of a prior of independent, uniform pixels: P(Bin(d, p) ≥ ⌈ρd⌉), the chance to guess a share ρ of d pixels.

    Hayes et al. (2023), Appendix I: a pixel is right with probability p = 64/256 = 1/4. Their p^{dρ} is right for ρ = 1
    only (E9): at d = 784, ρ = 0.6 it is 1e-283 where the truth is 1e-95, so it bounds nothing.

    It is κ of that prior, not of real images: an all-black guess has 60% of the pixels right in every image of MNIST.
    For images at hand, `kappa_from_samples` bounds κ.

    Args:
        num_pixels: d ≥ 1.
        fraction: ρ in [0, 1].
        pixel_probability: p in (0, 1].

    Returns:
        `KappaBound` of kind "upper". Use `log_value`: 4⁻⁷⁸⁴ = e⁻¹⁰⁸⁶·⁹ is 0 as a float. ρ = 0 or p = 1 give 1.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        Deterministic. log_value is rounded up: by 2e-12, and by 1e-14·d·log d where κ is below 1e-280 (by nothing at ρ
        = 1).

    Example:
        >>> from leakcore import bounds
        >>> kappa = bounds.kappa_pixels(784, fraction=0.6)
        >>> f"{kappa.log_value:.1f}"
        '-218.9'
        >>> bounds.reconstruction(1.0, 1.0, 100, log_kappa=kappa.log_value).value < 1e-6
        True
    """
    count = validate.integer(1, num_pixels=num_pixels)
    share = validate.probability(fraction=fraction)
    chance = validate.probability(pixel_probability=pixel_probability)
    if chance == 0.0:
        raise ValueError(f"`pixel_probability` must be in (0, 1], got {pixel_probability!r}")
    # ρd that is whole except for rounding must not be rounded up: that would make κ too small.
    least = math.ceil(share * count * (1.0 - 1e-12))
    if least == 0 or chance == 1.0:
        log_value = 0.0
    elif least == count:
        log_value = count * math.log(chance)
    else:
        log_value = _log_binomial_tail(count, least, chance)
    return KappaBound(
        value=math.exp(log_value),
        log_value=log_value,
        kind="upper",
        confidence=None,
        interval=None,
        method="binomial tail",
        assumptions=Assumptions(
            adjacency=None,
            attacker="guesses without any output of the mechanism, no pixel better than with the stated probability",
            notes=(
                f"{least} of {count} pixels right, each with probability {chance:g}",
                "pixels are independent and, with the default probability, uniform; real images have easy pixels",
                "an all-black guess may do far better on real images",
            ),
        ),
        provenance="Hayes, Mahloujifar and Balle (2023), Appendix I, erratum E9",
    )


def parse_prior(prior: Any) -> np.ndarray:
    """Probabilities of a discrete prior, zeros dropped; ValueError unless they are in [0, 1] and sum to 1."""
    out = validate.real_array("in [0, 1]", lambda v: (v >= 0.0) & (v <= 1.0), prior=prior)
    if out.ndim != 1 or len(out) == 0:
        raise ValueError(f"`prior` must be a one-dimensional array of probabilities, got shape {out.shape}")
    total = math.fsum(out)
    if abs(total - 1.0) > _PRIOR_SUM_SLACK:
        raise ValueError(f"`prior` must sum to 1, got {total:.12g}")
    return np.asarray(out[out > 0.0])


def _log_binomial_tail(count: int, least: int, chance: float) -> float:
    """Log of a binomial tail, rounded up by several times the rounding error that was observed."""
    tail = float(special.betainc(least, count - least + 1.0, chance))
    if tail > 1e-280:
        return min(math.log(tail) + 2e-12, 0.0)
    total = -math.inf
    for first in range(least, count + 1, _TERMS):
        k = np.arange(first, min(first + _TERMS, count + 1), dtype=np.float64)
        logs = special.gammaln(count + 1.0) - special.gammaln(k + 1.0) - special.gammaln(count - k + 1.0)
        logs += k * math.log(chance) + (count - k) * math.log1p(-chance)
        total = float(np.logaddexp(total, special.logsumexp(logs)))
        # So far out terms fall: all later ones are no more than as many of the last.
        rest = float(logs[-1]) + math.log(count)
        if rest < total - 50.0:
            total = float(np.logaddexp(total, rest))
            break
    return min(total + 1e-14 * count * math.log(count), 0.0)


def _largest_counts(
    rows: np.ndarray,
    radii: tuple[float, float],
    distances: Callable[[np.ndarray, np.ndarray], np.ndarray],
    centre: bool,
) -> list[int]:
    """max_i #{j: ρ(z_i, z_j) ≤ r} for each radius, over blocks of pairs."""
    if centre:
        # Distances do not change, and what cancels in |a|² + |b|² − 2ab is smaller.
        rows = rows - rows.mean(axis=0)
    size = max(1, min(len(rows), 2048, _BLOCK_BYTES // (8 * max(rows.shape[1], 2048))))
    best = [0] * len(radii)
    for a in range(0, len(rows), size):
        block = rows[a : a + size]
        counts = np.zeros((len(radii), len(block)), dtype=np.int64)
        for b in range(0, len(rows), size):
            distance = distances(block, rows[b : b + size])
            for row, radius in enumerate(radii):
                counts[row] += (distance <= radius * (1.0 + 1e-12)).sum(axis=1)
        # A sample is within any radius of itself, whatever rounding says.
        best = [max(old, int(new), 1) for old, new in zip(best, counts.max(axis=1), strict=True)]
    return best


def _euclidean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    first, second = (a * a).sum(axis=1)[:, None], (b * b).sum(axis=1)
    squared = first + second - 2.0 * (a @ b.T)
    # The rounding of three sums of d products, in our disfavour: a pair is nearer, never farther.
    squared -= 4.0 * (a.shape[1] + 4) * 2.0**-53 * (first + second)
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)))


def _by_row(reduce: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda a, b: np.stack([reduce(row - b) for row in a])


_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "euclidean": _euclidean,
    "manhattan": _by_row(lambda gap: np.abs(gap).sum(axis=1)),
    "chebyshev": _by_row(lambda gap: np.abs(gap).max(axis=1)),
    "hamming": _by_row(lambda gap: np.count_nonzero(gap, axis=1).astype(np.float64)),
}


def _checked(metric: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        distance = np.asarray(metric(a, b), dtype=np.float64)
        if distance.shape != (len(a), len(b)):
            raise ValueError(
                f"`metric` must return shape ({len(a)}, {len(b)}), one per pair of rows, got {distance.shape}"
            )
        if np.isnan(distance).any() or (distance < 0.0).any():
            raise ValueError("`metric` must be a metric, but it returned NaN or a negative distance")
        return distance

    return distances
