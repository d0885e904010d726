"""The sections of a configuration that describe a claim and its audit, with the default of every key."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from annotated_types import Ge, MinLen

from leakcore.audit.config.values import (
    ActivationName,
    AdjacencyName,
    Confidence,
    Count,
    CountFrom2,
    NonNegative,
    Positive,
    PositiveDelta,
    SampleRate,
    Seed,
    Steps,
    Text,
    Trials,
    Width,
)

Stop = Literal["early", "never"]
BLOCK = 32
"""Models that are trained at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on.

    Attributes:
        name: of the data set.
        num_rows: training rows; None for all.
        path: of a folder of data sets.
        features: "frozen" (CIFAR-10 only) for the features of a small network that was trained on the subset of
            CIFAR-100.
    """

    name: Literal["digits", "breast-cancer", "fashion-mnist", "cifar10", "location30", "purchase100"] = "digits"
    num_rows: Annotated[int, Ge(10)] | None = None
    path: Text | None = None
    features: Literal["pixels", "frozen"] = "pixels"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The network. hidden: sizes of its hidden layers, () for logistic regression."""

    hidden: tuple[Width, ...] = ()
    activation: ActivationName = "relu"
    initialisation: Literal["per-run", "fixed", "glorot", "fixed-glorot"] = "fixed-glorot"
    initialisation_scale: NonNegative = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """DP-SGD.

    Attributes:
        noise_multiplier: σ; None: computed from the claim.
        max_grad_norm: C.
        learning_rate: step size.
        steps: T.
        sampling: how batches are drawn; None: "shuffled" with a `batch_size`, else "poisson".
        sample_rate: "poisson": q; 1 for full batches.
        batch_size: "shuffled", "fixed": rows of a batch.
        batches: "allocation": of an epoch; each row draws one of them.
    """

    noise_multiplier: NonNegative | None = None
    max_grad_norm: Positive = 1.0
    learning_rate: Positive = 0.15
    steps: Steps = 24
    sampling: Literal["poisson", "shuffled", "fixed", "allocation"] | None = None
    sample_rate: SampleRate = 1.0
    batch_size: Count | None = None
    batches: Steps | None = None

    @property
    def scheme(self) -> str:
        """The sampling that is meant."""
        return self.sampling or ("poisson" if self.batch_size is None else "shuffled")

    @property
    def swaps(self) -> bool:
        """Whether batches have one size, so that a row can only be replaced."""
        return self.scheme in ("shuffled", "fixed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """An implementation error on purpose, as `dpsgd.Fault`."""

    noise: NonNegative = 1.0
    bias_noise: NonNegative = 1.0
    clip: Literal["sample", "batch"] = "sample"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed. epsilon: None for the accountant's ε of the noise multiplier."""

    epsilon: Positive | None = None
    delta: PositiveDelta = 1e-5
    adjacency: AdjacencyName = "add-remove"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """How the claim is tested.

    Attributes:
        attack: what is played.
        trials: models on each data set, all counted. "membership": one half of them learns how rows score.
        k: numbers of rows that the attacker places.
        adjacency: None: the claim's, or "replace" with shuffled batches or `contrast`.
        contrast: as in `attacks.poisoning.ClipBKD`.
        canaries: of the attack "one-run".
        stop: "early": stop when the claim falls, or cannot fall any more within the trials.
        confidence: at which the bounds hold together.
        seed: of everything random.
    """

    attack: Literal["clipbkd", "backdoor", "membership", "zero-input", "crafted-gradient", "one-run"] = "clipbkd"
    trials: Trials = 1000
    k: Annotated[tuple[Count, ...], MinLen(1)] = (1, 2, 4, 8)
    adjacency: AdjacencyName | None = None
    contrast: bool = False
    canaries: CountFrom2 = 500
    stop: Stop = "never"
    confidence: Confidence = 0.99
    seed: Seed = 0
