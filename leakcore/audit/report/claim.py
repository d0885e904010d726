"""The ε that an audit is compared with, always under the audit's own adjacency."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from leakcore import accounting, mechanisms
from leakcore.audit.claim.config import ClaimConfig
from leakcore.audit.report.format import counted


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
    scheme, words = _scheme(config, rows)
    if m.noise_multiplier is None:
        assert c.epsilon is not None, "one of the two is given"
        sigma = float(accounting.noise_multiplier(scheme, epsilon=c.epsilon, delta=delta, adjacency=own).value)
    else:
        sigma = m.noise_multiplier

    def accountant(adjacency: str, noise: float) -> float:
        if noise == 0:
            return math.inf
        return float(accounting.epsilon(scheme.with_noise(noise), delta=delta, adjacency=adjacency).value)

    by_accountant = accountant(own, sigma)
    stated = by_accountant if c.epsilon is None else c.epsilon
    gaussian = isinstance(scheme, mechanisms.FullBatch)
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
            noise = float(accounting.noise_multiplier(scheme, epsilon=stated, delta=delta, adjacency=own).value)
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


def _scheme(config: ClaimConfig, rows: int) -> tuple[mechanisms.Mechanism, str]:
    """What the accountant is asked about, at σ = 1, and why."""
    m = config.mechanism
    if m.scheme == "poisson" and m.sample_rate == 1:
        return mechanisms.FullBatch(1.0, m.steps), f"full batches, {m.steps} steps"
    if m.scheme == "poisson":
        return mechanisms.Poisson(1.0, m.sample_rate, m.steps), f"Poisson batches, {m.steps} steps"
    if m.scheme == "allocation":
        assert m.batches is not None
        epochs = m.steps // m.batches
        words = f"each row in one of {m.batches} batches of each epoch, {counted(epochs, 'epoch')}"
        return mechanisms.RandomAllocation(1.0, m.batches, epochs), words
    assert m.batch_size is not None
    if m.batch_size > rows:
        raise ValueError(f"`mechanism.batch_size` must be at most the {rows} training rows, got {m.batch_size}")
    if m.scheme == "fixed":
        words = f"a fresh batch of {m.batch_size} of {rows} rows, {m.steps} steps"
        return mechanisms.FixedSize(1.0, m.batch_size, rows, m.steps), words
    # Given the orders, a row is in one batch per epoch: a Gaussian step per epoch, no amplification assumed.
    epochs = math.ceil(m.steps / (rows // m.batch_size))
    return mechanisms.FullBatch(1.0, epochs), f"shuffled batches, one Gaussian step for each of {epochs} epochs"
