"""Noise for a target ε, and the curves that every attack is compared with."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore import accounting, bounds, kernels
from leakcore.experiments.context import Context
from leakcore.experiments.result import Series

DELTA = 1e-5
"""δ of every experiment of the paper (Appendix A)."""
_SAMPLES = 200_000
CALIBRATED = "σ is calibrated to ε at δ = 1e-5, add/remove, by the exact accountant"


def noise_for(context: Context, epsilon: float, sample_rate: float, steps: int) -> float:
    """The σ of (ε, 1e-5)-DP; stored as a piece, since small q takes seconds."""

    def find() -> dict[str, float]:
        answer = accounting.noise_multiplier(epsilon=epsilon, delta=DELTA, sample_rate=sample_rate, steps=steps)
        return {"noise_multiplier": float(answer.value)}

    piece = context.pieces.get_or_run(f"noise-{epsilon!r}-{sample_rate!r}-{steps}", find)
    return float(piece["noise_multiplier"])


def upper(noise_multiplier: float, sample_rate: float, steps: int, num_candidates: int) -> float:
    """The exact bound on success for a uniform prior."""
    return float(bounds.reconstruction(noise_multiplier, sample_rate, steps, kappa=1 / num_candidates).value)


def orthogonal(context: Context, noise_multiplier: float, sample_rate: float, steps: int, num_candidates: int) -> float:
    """Success of the best attack on n orthogonal, clipped candidates: exact for full batches, else an estimate.

    A candidate's score is then the log ratio L of its own coordinate, drawn from μ for the target and from ν for the
    others, so success is E_μ[P_ν(L' < L)ⁿ⁻¹]; `_SAMPLES` draws of each have a standard error below 0.0012.
    """
    if sample_rate == 1.0:
        return float(bounds.orthogonal_success(noise_multiplier, steps, num_candidates).value)

    def find() -> dict[str, float]:
        target, other = (
            kernels.mixture_log_ratio(
                _SAMPLES, noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, under=law,
                seed=context.seed,
            )
            for law in ("alternative", "null")
        )  # fmt: skip
        below = np.searchsorted(np.sort(other), target) / _SAMPLES
        return {"success": float(np.mean(below ** (num_candidates - 1)))}

    name = f"orthogonal-{noise_multiplier!r}-{sample_rate!r}-{steps}-{num_candidates}"
    return float(context.pieces.get_or_run(name, find)["success"])


@dataclasses.dataclass(frozen=True)
class BoundsAtNoise:
    """What an attack is compared with at one noise level and full batches: bound, RDP bound, the optimum among n
    orthogonal candidates, and the same for a simplex."""

    bound: float
    rdp: float
    orthogonal: float
    simplex: float

    @classmethod
    def at(cls, noise_multiplier: float, steps: int, num_candidates: int) -> BoundsAtNoise:
        """The bounds for T full-batch steps."""
        return cls(
            upper(noise_multiplier, 1.0, steps, num_candidates),
            float(bounds.reconstruction_rdp(noise_multiplier, 1.0, steps, kappa=1 / num_candidates).value),
            float(bounds.orthogonal_success(noise_multiplier, steps, num_candidates).value),
            float(bounds.orthogonal_success(noise_multiplier, steps, num_candidates, geometry="simplex").value),
        )


def curves(context: Context, epsilons: tuple[float, ...], steps: int, num_candidates: int) -> tuple[Series, ...]:
    """Bound and reference curves over a range of ε that covers `epsilons`, full batches."""
    noise = [noise_for(context, e, 1.0, steps) for e in (min(epsilons), max(epsilons))]
    grid = np.geomspace(noise[0] * 1.15, noise[1] / 1.15, 30)
    at = [float(accounting.epsilon(s, 1.0, steps, delta=DELTA).value) for s in grid]
    at_noise = [BoundsAtNoise.at(float(s), steps, num_candidates) for s in grid]
    drawn = (
        ("upper bound, exact", "bound", "bound"),
        ("upper bound from RDP", "rdp", "rdp"),
        ("optimum, orthogonal candidates", "orthogonal", "orthogonal"),
        ("optimum, simplex", "simplex", "simplex"),
    )
    curves_drawn = tuple(
        Series(name=name, role=role, x=np.array(at), y=np.array([getattr(b, field) for b in at_noise]))
        for name, role, field in drawn
    )
    return (*curves_drawn, chance(np.array(at), num_candidates))


def sampled_curve(
    context: Context, epsilons: tuple[float, ...], sample_rate: float, steps: int, num_candidates: int
) -> Series:
    """The exact bound over a range of ε with mini-batches; stored as a piece, since each ε takes a moment."""

    def find() -> dict[str, list[float]]:
        noise = [noise_for(context, e, sample_rate, steps) for e in (max(epsilons), min(epsilons))]
        grid = np.geomspace(noise[0], noise[1], context.pick(tiny=3, quick=12, paper=30))
        at = [float(accounting.epsilon(s, sample_rate, steps, delta=DELTA).value) for s in grid]
        return {"epsilon": at, "bound": [upper(float(s), sample_rate, steps, num_candidates) for s in grid]}

    piece = context.pieces.get_or_run(f"curve-{sample_rate!r}-{steps}-{num_candidates}", find)
    return Series(
        name="upper bound, exact", role="bound", x=np.array(piece["epsilon"]), y=np.array(piece["bound"])
    )  # fmt: skip


def chance(x: np.ndarray, num_candidates: int) -> Series:
    """A blind guess."""
    return Series(name="guessing", role="chance", x=x, y=np.full(len(x), 1 / num_candidates))
