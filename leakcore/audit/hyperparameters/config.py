"""The configuration of an audit: one DP-SGD configuration, a sweep around it, and the effort of the attacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Interval

from leakcore._base.results import jsonable
from leakcore.audit.config.checking import checked
from leakcore.audit.config.values import (
    ActivationName,
    Claimable,
    Confidence,
    CountFrom2,
    Positive,
    PositiveDelta,
    Runs,
    SampleRate,
    Seed,
    Steps,
    Width,
)
from leakcore.audit.hyperparameters import defense_rules
from leakcore.defenses import Defense

_LABELLED = 569
"""Rows of the breast cancer data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """One audit of DP-SGD hyperparameters; the defaults are the full-batch setting of Hayes et al. (2023, Section 4).

    The reconstruction game trains an MLP 64–hidden–10 on scikit-learn's digits; the label game uses its breast cancer
    data and an MLP 30–label_hidden–1 with ReLU.

    Args:
        epsilon: claimed ε at `delta`, add-remove adjacency; its noise multiplier is computed. None: pass
            `noise_multiplier`.
        noise_multiplier: σ, at least 0. None: from `epsilon`. Exactly one of the two.
        sweep: further values of ε to audit, for the curve; may be empty.
        delta: δ in (0, 1).
        steps: T.
        sample_rate: q in (0, 1].
        max_grad_norm: C.
        learning_rate: step size; the default was chosen by accuracy at ε = 1 (83%), not by the attack.
        num_rows: training rows with the target.
        hidden: sizes of the hidden layers.
        activation: of the hidden layers.
        num_candidates: equally likely candidates, the target among them.
        runs: independent trainings for each noise level.
        label_batch_size: rows of a gradient.
        label_hidden: size of the hidden layer.
        label_steps: DP-SGD steps of the companion training.
        label_trials: repetitions per batch, each with its own noise.
        defense: a `defenses.Defense` or its spelling ("prune:0.1"): play the game also with each release of the claimed
            configuration put through it. Full batches only.
        confidence: of every interval, two-sided.
        gate_confidence: a correct run fails the gate with probability at most 1 − gate_confidence, over all noise
            levels.
        seed: of everything random.

    Raises:
        ValueError: lists every fault: the field, its value and what is allowed.
        TypeError: the same, if each is of another type.

    Example:
        >>> from leakcore import audit
        >>> config = audit.AuditConfig(epsilon=4.0, sweep=(1.0, 10.0), runs=500)
        >>> config.sweep, config.steps
        ((1.0, 10.0), 100)
    """

    epsilon: Claimable | None = 10.0
    noise_multiplier: Positive | None = None
    sweep: tuple[Claimable, ...] = (1.0, 4.0, 10.0, 40.0)
    delta: PositiveDelta = 1e-5
    steps: Steps = 100
    sample_rate: SampleRate = 1.0
    max_grad_norm: Positive = 0.1
    learning_rate: Positive = 10.0

    num_rows: CountFrom2 = 1000
    hidden: tuple[Width, ...] = (10,)
    activation: ActivationName = "elu"
    num_candidates: CountFrom2 = 10
    runs: Runs = 1000

    label_batch_size: Annotated[int, Interval(ge=1, le=_LABELLED)] = 32
    label_hidden: Width = 64
    label_steps: Steps = 100
    label_trials: Runs = 100

    defense: str | Defense | None = None

    confidence: Confidence = 0.95
    gate_confidence: Confidence = 0.999
    seed: Seed = 0

    def __post_init__(self) -> None:
        values = checked(type(self), vars(self))
        if (values["epsilon"] is None) == (values["noise_multiplier"] is None):
            raise ValueError(
                "`epsilon` or `noise_multiplier` must be given, exactly one of the two, got "
                f"epsilon={self.epsilon!r}, noise_multiplier={self.noise_multiplier!r}"
            )
        training = {name: values[name] for name in ("learning_rate", "steps", "sample_rate", "hidden")}
        values["defense"] = defense_rules.checked(values["defense"], **training)
        values["sweep"] = tuple(sorted(set(values["sweep"])))
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> AuditConfig:
        """The configuration with these fields, and defaults for the rest.

        Args:
            fields: by name.

        Returns:
            An `AuditConfig`.

        Raises:
            ValueError: lists every fault: a field that does not exist, or its value and what is allowed.
            TypeError: the same, where each fault is a value of another type.
        """
        return cls(**checked(cls, fields))

    def to_dict(self) -> dict[str, object]:
        """The fields as plain JSON types."""
        return dict(jsonable(self))
