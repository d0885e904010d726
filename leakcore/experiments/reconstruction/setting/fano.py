"""Advantage bounds of a single full-batch step: ours, and Fano's in two forms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakcore import bounds
from leakcore.experiments.context import Context


def ours(noise_multiplier: float, num_candidates: int) -> float:
    """(B_κ − κ)/(1 − κ), exact (equation 4)."""
    kappa = 1 / num_candidates
    return (float(bounds.reconstruction(noise_multiplier, 1.0, 1, kappa=kappa).value) - kappa) / (1 - kappa)


def fano(context: Context, noise: Sequence[float], num_candidates: int, *, samples: int) -> np.ndarray:
    """Guo et al. 2022b: (analytic, Monte-Carlo) by noise multiplier, for one-hot means; each stored as a piece."""

    def find(sigma: float) -> dict[str, float]:
        analytic = bounds.fano_advantage(sigma, num_candidates=num_candidates, information="analytic")
        drawn = bounds.fano_advantage(
            sigma,
            num_candidates=num_candidates,
            information=bounds.SampledInformation(num_samples=samples, seed=context.seed, executor=context.executor),
        )
        return {"analytic": float(analytic.value), "monte-carlo": float(drawn.value)}

    pairs = []
    for sigma in map(float, noise):
        piece = context.pieces.get_or_run(f"fano-{num_candidates}-{sigma!r}", lambda sigma=sigma: find(sigma))  # type: ignore[misc]
        pairs.append((piece["analytic"], piece["monte-carlo"]))
        context.progress(f"Guo et al., prior of {num_candidates}", len(pairs), len(noise))
    return np.array(pairs)
