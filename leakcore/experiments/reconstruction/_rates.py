"""The bound and the attack over q at one ε: what Figures 5 and 14 share."""

from __future__ import annotations

import dataclasses

from leakcore import attacks
from leakcore.experiments._context import Context
from leakcore.experiments.reconstruction import _games, _mechanism
from leakcore.experiments.reconstruction._data import Split

STEPS = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """Per q: σ, bound, and the games of Algorithm 3 and of the likelihood attack."""

    rates: tuple[float, ...]
    noise: list[float]
    bound: list[float]
    top: list[attacks.ReconstructionGame]
    likelihood: list[attacks.ReconstructionGame]
    setting: _games.Setting


def sweep(
    context: Context, split: Split, epsilon: float, prior_size: int, rates: tuple[float, ...], runs: int
) -> Sweep:
    """C = 1, as in the paper."""
    noise, bound, top, likelihood = [], [], [], []
    for q in rates:
        setting = _games.Setting(epsilon=epsilon, sample_rate=q, steps=STEPS, max_grad_norm=1.0, step=1.0)
        noise.append(_mechanism.noise_for(context, epsilon, q, STEPS))
        bound.append(_mechanism.upper(noise[-1], q, STEPS, prior_size))
        task = f"ε = {epsilon:g}, prior {prior_size}, q = {q:g}"
        games = _games.play(
            context, split, setting, prior_size=prior_size, runs=runs, methods=("top", "likelihood"), task=task
        )
        top.append(games["top"])
        likelihood.append(games["likelihood"])
    return Sweep(rates, noise, bound, top, likelihood, setting)
