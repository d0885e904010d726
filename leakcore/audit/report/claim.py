"""The ε that an audit is compared with, always under the audit's own adjacency."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from leakcore import accounting
from leakcore.audit.claim.config import ClaimConfig


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ClaimedEpsilon:
    """What the audit may not exceed.

    Attributes:
        noise_multiplier: of the mechanism.
        stated: the claim as the user made it.
        stated_adjacency: its adjacency.
        epsilon: the claim under `adjacency`.
        delta: of `epsilon`.
        adjacency: the audit's.
        how: how one follows from the other, in words.
        gaussian: whether the mechanism is Gaussian (full or shuffled batches), so that the Gaussian family may be used.
    """

    noise_multiplier: float
    stated: float
    stated_adjacency: str
    epsilon: float
    delta: float
    adjacency: str
    how: str
    gaussian: bool


def claim_of(config: ClaimConfig, rows: int) -> ClaimedEpsilon:
    """The configured claim, converted if the audit has another adjacency."""
    m, c = config.mechanism, config.claim
    delta, own = c.delta, c.adjacency
    rate, steps, words = _composition(config, rows)
    if m.noise_multiplier is None:
        assert c.epsilon is not None, "one of the two is given"
        answer = accounting.noise_multiplier(
            epsilon=c.epsilon, delta=delta, sample_rate=rate, steps=steps, adjacency=own
        )
        sigma = float(answer.value)
    else:
        sigma = m.noise_multiplier

    def accountant(adjacency: str, noise: float) -> float:
        if noise == 0:
            return math.inf
        return float(accounting.epsilon(noise, rate, steps, delta=delta, adjacency=adjacency).value)

    by_accountant = accountant(own, sigma)
    stated = by_accountant if c.epsilon is None else c.epsilon
    gaussian = rate == 1
    common: dict[str, Any] = {
        "noise_multiplier": sigma,
        "stated": stated,
        "stated_adjacency": own,
        "gaussian": gaussian,
    }
    if own == config.adjacency:
        return ClaimedEpsilon(**common, epsilon=stated, delta=delta, adjacency=own, how=f"as claimed ({words})")
    if by_accountant <= stated * (1 + 1e-6):
        same, noise = by_accountant >= stated * (1 - 1e-6), sigma
        if not same:  # a claim with room to spare: it allows less noise
            noise = float(
                accounting.noise_multiplier(
                    epsilon=stated, delta=delta, sample_rate=rate, steps=steps, adjacency=own
                ).value
            )
        which = "the same σ" if same else f"σ = {noise:.4g}, the least that the claim allows"
        return ClaimedEpsilon(
            **common,
            epsilon=accountant("replace", noise),
            delta=delta,
            adjacency="replace",
            how=f"the accountant's ε of {which}, {words}, under replacement",
        )
    # The claim is not what the accountant says of this σ: group privacy needs the claim alone.
    return ClaimedEpsilon(
        **common,
        epsilon=2 * stated,
        delta=min(1 - 1e-12, delta * (1 + math.exp(min(stated, 700.0)))),
        adjacency="replace",
        how="group privacy: a replacement is one removal and one addition, (2ε, (1 + e^ε)δ)",
    )


def _composition(config: ClaimConfig, rows: int) -> tuple[float, int, str]:
    """(sampling rate, steps) that the accountant is asked about, and why."""
    m = config.mechanism
    if m.batch_size is None:
        words = "full batches" if m.sample_rate == 1 else "Poisson batches"
        return m.sample_rate, m.steps, f"{words}, {m.steps} steps"
    if m.batch_size > rows:
        raise ValueError(f"`mechanism.batch_size` must be at most the {rows} training rows, got {m.batch_size}")
    # Given the orders, a row is in one batch per epoch: a Gaussian step per epoch, no amplification assumed.
    epochs = math.ceil(m.steps / (rows // m.batch_size))
    return 1.0, epochs, f"shuffled batches, one Gaussian step for each of {epochs} epochs"
