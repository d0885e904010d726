"""The bound and the attack over q at one ε: what Figures 5 and 14 share."""

from __future__ import annotations

import dataclasses

from leakcore import attacks
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import games as _games
from leakcore.experiments.reconstruction.setting import mechanism
from leakcore.experiments.reconstruction.setting.data import Split

STEPS = 100


@dataclasses.dataclass(frozen=True, eq=False)
class RateSweep:
    """Per q: σ, bound, and the games of Algorithm 3 and of the likelihood attack."""

    rates: tuple[float, ...]
    noise: list[float]
    bound: list[float]
    top: list[attacks.ReconstructionGame]
    likelihood: list[attacks.ReconstructionGame]
    setting: _games.GameSetting

    @property
    def attacked(self) -> list[tuple[attacks.ReconstructionGame, float]]:
        """Every game with its bound."""
        return [*zip(self.top, self.bound, strict=True), *zip(self.likelihood, self.bound, strict=True)]


def sweep(
    context: Context, split: Split, epsilon: float, num_candidates: int, rates: tuple[float, ...], runs: int
) -> RateSweep:
    """C = 1, as in the paper."""
    noise, bound = limits(context, epsilon, num_candidates, rates)
    top, likelihood = [], []
    for q in rates:
        setting = _games.GameSetting(epsilon=epsilon, sample_rate=q, steps=STEPS, max_grad_norm=1.0, step=1.0)
        task = f"ε = {epsilon:g}, prior {num_candidates}, q = {q:g}"
        games = _games.play(
            context, split, setting, num_candidates=num_candidates, runs=runs, methods=("top", "likelihood"), task=task
        )
        top.append(games["top"])
        likelihood.append(games["likelihood"])
    return RateSweep(rates, noise, bound, top, likelihood, setting)


def limits(
    context: Context, epsilon: float, num_candidates: int, rates: tuple[float, ...]
) -> tuple[list[float], list[float]]:
    """(σ, bound) for each q at one ε."""
    noise = [mechanism.noise_for(context, epsilon, q, STEPS) for q in rates]
    return noise, [mechanism.upper(s, q, STEPS, num_candidates) for s, q in zip(noise, rates, strict=True)]
