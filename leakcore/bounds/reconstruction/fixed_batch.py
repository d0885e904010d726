"""Batches of a fixed size: a dominating pair under replacement adjacency, for `reconstruction_of`.

A batch of b of n records without replacement, γ = b/n; one record is replaced. With Q = N(0, σ²), P = N(2, σ²) (two
clipped gradients are up to 2C apart) and H_α(A‖B) = E_B(dA/dB − α)_+ a step's divergence is at most
    H_α((1−γ)Q + γP ‖ Q) for α ≥ 1,  H_α(P ‖ (1−γ)P + γQ) for α < 1
(Balle, Barthe and Gaboardi 2018; Zhu, Dong and Wang 2022). Neither pair alone dominates; this one has exactly that
profile, and products of dominating pairs dominate compositions (Zhu, Dong and Wang 2022). With ℓ(x) = 2(x − 1)/σ², the
loss L of the step under μ is
    log(1 − γ + γe^{ℓ(x)}), x ~ (1−γ)Q + γP, where x > 1;  −log(1 − γ + γe^{−ℓ(x)}), x ~ P, where x < 1;  0 otherwise,
and under ν it is distributed as −L is under μ: the pair is symmetric.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.digest import digest
from leakcore.numerics import parse_schedule

_CELLS = 1 << 21
"""Uniforms in memory at a time. A sample is a function of its number alone, so this changes no result."""
_MAX_STEPS = 1 << 22
"""Most steps: the uniforms of one sample are in memory together, half a gigabyte of arrays."""
_SIDES = ("null", "alternative")


@dataclasses.dataclass(frozen=True, eq=False)
class FixedBatchPair:
    """Steps with batches of a fixed size, as `fixed_batch_pair` returns them for `reconstruction_of`.

    Attributes:
        noise_multiplier: σ_t, (T,) float64.
        sample_rate: γ_t, (T,) float64.
        dominates: True: proved to dominate the mechanism.
        adjacency: "replace".

    Example:
        >>> from leakcore import bounds
        >>> pair = bounds.fixed_batch_pair(2.0, 0.1, 5)
        >>> pair.sample_log_ratio(3, "alternative", 0, 0).shape, pair.adjacency
        ((3,), 'replace')
    """

    noise_multiplier: np.ndarray
    sample_rate: np.ndarray
    dominates: bool = True
    adjacency: str = "replace"

    def fingerprint(self) -> str:
        """Equal for equal pairs only (others agree with probability 2⁻²⁵⁶)."""
        return f"FixedBatchPair {digest(self.noise_multiplier, self.sample_rate)}"

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        """(num_samples,) float64: log μ/ν of samples first_sample, …; 64 random bits for each step."""
        from leakcore import kernels

        side = validate.one_of(*_SIDES, under=under)
        steps = len(self.sample_rate)
        out = np.zeros(num_samples)
        if steps == 0:
            return out
        rows = max(1, _CELLS // (2 * steps))
        for start in range(0, num_samples, rows):
            count = min(rows, num_samples - start)
            words = kernels.uniform(
                (count, 2 * steps), seed=seed, purpose=kernels.Stream.FIXED_BATCH, step=_SIDES.index(side),
                first_row=first_sample + start,
            )  # fmt: skip
            uniform = words[:, :steps] - 2.0**-33 + 2.0**-32 * words[:, steps:]
            out[start : start + count] = self._losses(uniform).sum(axis=1)
        return out if side == "alternative" else -out

    def _losses(self, uniform: np.ndarray) -> np.ndarray:
        """L under μ by inversion, piece by piece: where x > 1 of Q and of P, where x < 1 of P, and the rest."""
        sigma, rate = self.noise_multiplier, self.sample_rate
        far, near = special.ndtr(-1.0 / sigma), special.ndtr(1.0 / sigma)
        ends = np.cumsum([(1.0 - rate) * far, rate * near, far], axis=0)
        out = np.zeros_like(uniform)
        for piece, (centre, mass, sign) in enumerate(((0.0, far, 1.0), (2.0, near, 1.0), (2.0, far, -1.0))):
            start = ends[piece - 1] if piece else np.zeros_like(rate)
            width = ends[piece] - start
            inside = (uniform >= start) & (uniform < ends[piece])
            row, column = np.nonzero(inside)
            share = np.clip((uniform[row, column] - start[column]) / width[column], 2.0**-70, 1.0)
            x = centre - sign * sigma[column] * special.ndtri(share * mass[column])
            loss = sign * 2.0 * (x - 1.0) / sigma[column] ** 2
            q = rate[column]
            with np.errstate(divide="ignore"):
                log_rest = np.log1p(-q)
            out[row, column] = sign * np.maximum(np.logaddexp(log_rest, np.log(q) + loss), 0.0)
        return out


def fixed_batch_pair(noise_multiplier: Any, sample_rate: Any, steps: int) -> FixedBatchPair:
    """The pair for `reconstruction_of` when every batch has the same size, b of n records, drawn again in each step.

    An attack that knows all other records succeeds with probability at most B_κ of this pair (Hayes et al. 2023,
    Theorem 2, with ν the run on any fixed record in the target's place; Balle, Barthe and Gaboardi 2018; Zhu, Dong and
    Wang 2022). docs/explanation/bounds.md derives the pair.

    Args:
        noise_multiplier: σ in (0, ∞), relative to the clipping norm; a number, or an array of length `steps`.
        sample_rate: γ = b/n in (0, 1]; likewise.
        steps: T, 0 to 2²².

    Returns:
        `FixedBatchPair`, under adjacency "replace". Poisson sampling of equal rate has add-remove adjacency and about
        half the distance: do not compare the two.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Proved to dominate.

    Example:
        >>> from leakcore import bounds
        >>> pair = bounds.fixed_batch_pair(2.0, 64 / 1000, 20)
        >>> bound = bounds.reconstruction_of(pair, kappa=0.1, num_samples=20_000)
        >>> bound.kind, bound.adjacency, bound.confidence
        ('upper', 'replace', 0.999)
    """
    sigma, rate, count = parse_schedule(noise_multiplier, sample_rate, steps)
    if count > _MAX_STEPS:
        raise ValueError(
            f"`steps` must be at most {_MAX_STEPS}, since a sample is drawn from all its steps, got {count}"
        )
    if (sigma <= 0.0).any() or np.isinf(sigma).any():
        raise ValueError(f"`noise_multiplier` must be in (0, inf), got {noise_multiplier!r}")
    if (rate <= 0.0).any():
        raise ValueError(f"`sample_rate` must be in (0, 1], got {sample_rate!r}")
    return FixedBatchPair(np.full(count, sigma, dtype=np.float64), np.full(count, rate, dtype=np.float64))
