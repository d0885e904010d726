"""Advantage bounds of a single full-batch step: ours, and Fano's in two forms."""

from __future__ import annotations

from concurrent.futures import Executor

from leakcore import bounds


def ours(noise_multiplier: float, prior_size: int) -> float:
    """(B_κ − κ)/(1 − κ), exact (equation 4)."""
    kappa = 1 / prior_size
    return (float(bounds.reconstruction(noise_multiplier, 1.0, 1, kappa=kappa).value) - kappa) / (1 - kappa)


def fano(
    noise_multiplier: float, prior_size: int, *, samples: int, seed: int, executor: Executor | None = None
) -> tuple[float, float]:
    """Guo et al. 2022b: (analytic, Monte-Carlo) for one-hot means."""
    analytic = bounds.fano_advantage(noise_multiplier, prior_size=prior_size, information="analytic")
    drawn = bounds.fano_advantage(
        noise_multiplier,
        prior_size=prior_size,
        information="monte-carlo",
        num_samples=samples,
        seed=seed,
        executor=executor,
    )
    return float(analytic.value), float(drawn.value)
