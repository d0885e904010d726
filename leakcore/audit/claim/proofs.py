"""What trainings prove, compared with the claimed ε under the audit's own adjacency; and when training may stop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from leakcore import accounting, bounds, mechanisms
from leakcore._base.results import Result
from leakcore.audit.claim.config import BLOCK, Audit, ClaimConfig
from leakcore.audit.shared.format import counted


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ClaimedEpsilon:
    """What the audit may not exceed: (ε, δ) under the adjacency that the audit tests.

    stated: the claim as the user made it, under `stated_adjacency`. how: how one follows from the other, in words.
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
    epsilon, at, how = stated, delta, f"as claimed ({words})"
    converted = own != config.adjacency  # add-remove into replace: the other way round is refused
    if converted and by_accountant <= stated * (1 + 1e-6):
        same, noise = by_accountant >= stated * (1 - 1e-6), sigma
        if not same:  # a claim with room to spare: it allows less noise
            noise = float(accounting.noise_multiplier(scheme, epsilon=stated, delta=delta, adjacency=own).value)
        which = "the same σ" if same else f"σ = {noise:.4g}, the least that the claim allows"
        epsilon, how = accountant("replace", noise), f"the accountant's ε of {which}, {words}, under replacement"
    elif converted:  # the claim is not what the accountant says of this σ: group privacy needs the claim alone
        epsilon, at = 2 * stated, min(1 - 1e-12, delta * (1 + math.exp(min(stated, 700.0))))
        how = "group privacy: a replacement is one removal and one addition, (2ε, (1 + e^ε)δ)"
    return ClaimedEpsilon(
        noise_multiplier=sigma,
        stated=stated,
        stated_adjacency=own,
        epsilon=epsilon,
        delta=at,
        adjacency=config.adjacency,
        how=how,
        gaussian=isinstance(scheme, mechanisms.FullBatch),
    )


def _scheme(config: ClaimConfig, rows: int) -> tuple[mechanisms.Mechanism, str]:
    """What the accountant is asked about, at σ = 1, and why."""
    m = config.mechanism
    if m.batch_size is not None and m.batch_size > rows:
        raise ValueError(f"`mechanism.batch_size` must be at most the {rows} training rows, got {m.batch_size}")
    size: Any = m.batch_size
    match m.scheme:
        case "poisson" if m.sample_rate == 1:
            return mechanisms.FullBatch(1.0, m.steps), f"full batches, {m.steps} steps"
        case "poisson":
            return mechanisms.Poisson(1.0, m.sample_rate, m.steps), f"Poisson batches, {m.steps} steps"
        case "shuffled":
            # Given the orders, a row is in one batch per epoch: a Gaussian step per epoch, no amplification assumed.
            epochs = math.ceil(m.steps / (rows // size))
            return mechanisms.FullBatch(1.0, epochs), f"shuffled batches, one Gaussian step for each of {epochs} epochs"
        case "fixed":
            words = f"a fresh batch of {size} of {rows} rows, {m.steps} steps"
            return mechanisms.FixedSize(1.0, size, rows, m.steps), words
        case "allocation":
            assert m.batches is not None
            epochs = m.steps // m.batches
            words = f"each row in one of {m.batches} batches of each epoch, {counted(epochs, 'epoch')}"
            return mechanisms.RandomAllocation(1.0, m.batches, epochs), words


Scores = dict[str, tuple[np.ndarray, np.ndarray, int]]
"""By name: the scores with the attacker's rows and without them, and the number of these rows."""
FAMILIES: dict[Literal["dp", "gdp"], str] = {"dp": "(ε, δ)", "gdp": "Gaussian mechanism"}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Proof:
    """One lower bound: how and on what it was obtained. ceiling: the most that an audit of this size could prove."""

    method: str
    what: str
    found: Result
    ceiling: float

    @property
    def epsilon(self) -> float:
        return float(self.found.value)


def families(claimed: ClaimedEpsilon, confidence: float) -> tuple[tuple[Literal["dp", "gdp"], ...], float]:
    """The families of guarantees that are refuted, and the confidence of each: they hold together."""
    names: tuple[Literal["dp", "gdp"], ...] = ("dp", "gdp") if claimed.gaussian else ("dp",)
    return names, 1 - (1 - confidence) / len(names)


def prove(scores: Scores, claimed: ClaimedEpsilon, confidence: float, seed: int) -> tuple[Proof, ...]:
    """The bound by counts and, for a Gaussian mechanism, by the Gaussian family, valid together at `confidence`."""
    perfect = {name: (np.ones(len(a)), np.zeros(len(b)), k) for name, (a, b, k) in scores.items()}
    names, level = families(claimed, confidence)
    proofs = []
    for family in names:
        more: dict[str, Any] = {
            "threshold": bounds.SimultaneousThreshold(seed=seed),
            "confidence": level,
            "delta": claimed.delta,
            "adjacency": claimed.adjacency,
            "hypothesis": bounds.Hypothesis(family=family),
        }
        best = bounds.epsilon_lower_bound_best(scores, **more)
        ceiling = bounds.epsilon_lower_bound_best(perfect, **more)
        method = f"counts, {FAMILIES[family]}"
        proofs.append(Proof(method=method, what=best.chosen, found=best, ceiling=float(ceiling.value)))
    return tuple(proofs)


_LOOKS = 20
"""At most, unless the chunks would be smaller than a block of models, which is trained at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopped:
    """After how many trainings an audit stopped that may stop early, and why.

    "refuted": the claim fell. "hopeless": not even perfect scores could have made it fall within the planned trials.
    "planned": neither happened.
    """

    trainings: int
    planned: int
    why: Literal["refuted", "hopeless", "planned"]

    def to_text(self) -> str:
        """In a sentence."""
        share = f"{self.trainings:,} of {self.planned:,} trainings"
        return {
            "refuted": f"The audit stopped after {share}: the claim has fallen.",
            "hopeless": f"The audit stopped after {share}: the others could not have made the claim fall, however they "
            "had turned out.",
            "planned": f"The audit took all {self.planned:,} trainings.",
        }[self.why]


def chunks(trials: int) -> list[range]:
    """The trials before each look."""
    size = BLOCK * math.ceil(trials / (BLOCK * _LOOKS))
    return [range(first, min(first + size, trials)) for first in range(0, trials, size)]


def until_decided(
    train: Callable[[range], Scores], claimed: ClaimedEpsilon, audit: Audit
) -> tuple[Scores, tuple[Proof, ...], Stopped]:
    """Train chunk by chunk; the scores of all that were trained, what they prove, and why no more were.

    The families share the error, and each tests all k at once.
    """
    names, level = families(claimed, audit.confidence)
    more: dict[str, Any] = {"adjacency": claimed.adjacency, "confidence": level, "delta": claimed.delta}
    tests = {family: bounds.SequentialTest(claimed.epsilon, family=family, **more) for family in names}
    parts: list[Scores] = []
    why: Literal["refuted", "hopeless", "planned"] = "planned"
    for part in chunks(audit.trials):
        parts.append(train(part))
        for test in tests.values():
            test.add(parts[-1])
        left = audit.trials - part.stop
        if any(test.refuted for test in tests.values()):
            why = "refuted"
        elif left and all(test.hopeless(left) for test in tests.values()):
            why = "hopeless"
        if why != "planned":
            break
    scores: Scores = {
        name: (*(np.concatenate([p[name][side] for p in parts]) for side in (0, 1)), k)  # type: ignore[misc]
        for name, (*_, k) in parts[0].items()
    }
    proofs = tuple(
        Proof(
            method=f"bets, {FAMILIES[family]}",
            what=" and ".join(scores),
            found=test.proof(),
            ceiling=test.ceiling(audit.trials),
        )
        for family, test in tests.items()
    )
    sides = 1 + len(scores)
    stopped = Stopped(trainings=sides * part.stop, planned=sides * audit.trials, why=why)
    return scores, proofs, stopped
