"""Samples of the loss of batches of a fixed size; `FixedBatchStep` has the law."""

from __future__ import annotations

import numpy as np
from scipy import special

from leakcore._base import validate

_CELLS = 1 << 21
"""Uniforms in memory at a time. A sample is a function of its number alone, so this changes no result."""
_MAX_STEPS = 1 << 22
"""Most steps: the uniforms of one sample are in memory together, half a gigabyte of arrays."""
_SIDES = ("null", "alternative")


def sample_losses(
    sigma: np.ndarray, rate: np.ndarray, num_samples: int, under: str, seed: int, first_sample: int
) -> np.ndarray:
    """(num_samples,) float64: log μ/ν of samples first_sample, … of steps with these σ_t and γ_t.

    A step takes 64 random bits. ValueError for more than 2²² steps: the uniforms of one sample are in memory together.
    """
    from leakcore import kernels

    side = validate.one_of(*_SIDES, under=under)
    steps = validate.integer(0, _MAX_STEPS, steps=len(rate))
    out = np.zeros(num_samples)
    if steps == 0:
        return out
    rows = max(1, _CELLS // (2 * steps))
    for start in range(0, num_samples, rows):
        count = min(rows, num_samples - start)
        words = kernels.uniform(
            (count, 2 * steps),
            seed=seed,
            purpose=kernels.Stream.FIXED_BATCH,
            step=_SIDES.index(side),
            first_row=first_sample + start,
        )
        uniform = words[:, :steps] - 2.0**-33 + 2.0**-32 * words[:, steps:]
        out[start : start + count] = _losses(uniform, sigma, rate).sum(axis=1)
    return out if side == "alternative" else -out


def _losses(uniform: np.ndarray, sigma: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """L under μ by inversion, piece by piece: where x > 1 of Q and of P, where x < 1 of P, and the rest."""
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
