"""The configuration of an audit: one DP-SGD configuration, a sweep around it, and the effort of the attacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from leakcore._base import validate as check
from leakcore._base.printable import name_of, printable
from leakcore._base.results import jsonable
from leakcore.audit.config.keys import nearest, wholes
from leakcore.audit.hyperparameters import defense_rules

_ACTIVATIONS = ("elu", "relu", "tanh", "gelu", "silu", "sigmoid", "softplus", "leaky_relu")


_LARGEST = 1e6
"""A larger ε does not count as a claim, and no accountant goes further."""


def _claimable(**named: Any) -> float:
    ((name, value),) = named.items()
    epsilon = check.positive(**named)
    if epsilon > _LARGEST:
        raise ValueError(f"{name}={value!r}: must be in (0, {_LARGEST:g}]")
    return epsilon


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
        label_trials: repetitions of the label attack per batch, each with its own noise.
        defense: a `defenses.Defense` or its spelling ("prune:0.1"): play the game also with each release of the claimed
            configuration put through it. Full batches only.
        confidence: of every interval, two-sided.
        gate_confidence: a correct run fails the gate with probability at most 1 − gate_confidence, over all noise
            levels.
        seed: of everything random.

    Raises:
        ValueError: names the field, its value and what is allowed.
        TypeError: for another type.

    Example:
        >>> from leakcore import audit
        >>> config = audit.AuditConfig(epsilon=4.0, sweep=(1.0, 10.0), runs=500)
        >>> config.sweep, config.steps
        ((1.0, 10.0), 100)
    """

    epsilon: float | None = 10.0
    noise_multiplier: float | None = None
    sweep: tuple[float, ...] = (1.0, 4.0, 10.0, 40.0)
    delta: float = 1e-5
    steps: int = 100
    sample_rate: float = 1.0
    max_grad_norm: float = 0.1
    learning_rate: float = 10.0

    num_rows: int = 1000
    hidden: tuple[int, ...] = (10,)
    activation: str = "elu"
    num_candidates: int = 10
    runs: int = 1000

    label_batch_size: int = 32
    label_hidden: int = 64
    label_steps: int = 100
    label_trials: int = 100

    defense: Any = None

    confidence: float = 0.95
    gate_confidence: float = 0.999
    seed: int = 0

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                f"epsilon={self.epsilon!r}, noise_multiplier={self.noise_multiplier!r}: give exactly one of the two"
            )
        if self.epsilon is not None:
            put("epsilon", _claimable(epsilon=self.epsilon))
        if self.noise_multiplier is not None:
            put("noise_multiplier", check.positive(noise_multiplier=self.noise_multiplier))
        if not isinstance(self.sweep, list | tuple):
            raise TypeError(f"{_named_sweep(self.sweep)}: must be a list of numbers")
        put("sweep", tuple(sorted({_claimable(sweep=e) for e in self.sweep})))
        put("delta", check.open_probability(delta=self.delta))
        put("steps", check.integer(1, 2**24 - 1, steps=self.steps))
        put("sample_rate", check.probability(sample_rate=self.sample_rate))
        if self.sample_rate == 0:
            raise ValueError("sample_rate=0: must be in (0, 1]: a run that samples nothing has nothing to audit")
        put("max_grad_norm", check.positive(max_grad_norm=self.max_grad_norm))
        put("learning_rate", check.positive(learning_rate=self.learning_rate))
        put("num_rows", check.integer(2, None, num_rows=self.num_rows))
        put("hidden", wholes(1)(hidden=self.hidden))
        put("activation", check.one_of(*_ACTIVATIONS, activation=self.activation))
        put("num_candidates", check.integer(2, None, num_candidates=self.num_candidates))
        put("runs", check.integer(1, None, runs=self.runs))
        put("label_batch_size", check.integer(1, 569, label_batch_size=self.label_batch_size))
        put("label_hidden", check.integer(1, None, label_hidden=self.label_hidden))
        put("label_steps", check.integer(1, 2**24 - 1, label_steps=self.label_steps))
        put("label_trials", check.integer(1, None, label_trials=self.label_trials))
        put("confidence", check.confidence(confidence=self.confidence))
        put("gate_confidence", check.confidence(gate_confidence=self.gate_confidence))
        put("seed", check.seed(seed=self.seed))
        training = {name: getattr(self, name) for name in ("learning_rate", "steps", "sample_rate", "hidden")}
        put("defense", defense_rules.checked(self.defense, **training))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> AuditConfig:
        """The configuration with these fields, and defaults for the rest.

        Args:
            fields: by name.

        Returns:
            An `AuditConfig`.

        Raises:
            ValueError: names a field that does not exist.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            text = printable(repr(fields[unknown[0]]), 60)
            raise ValueError(
                f"{name_of(unknown[0])}={text}: no such field; there are {', '.join(sorted(known))}"
                f"{nearest(unknown[0], known)}"
            )
        return cls(**fields)

    def to_dict(self) -> dict[str, object]:
        """The fields as plain JSON types."""
        return dict(jsonable(self))


def _named_sweep(sweep: Any) -> str:
    """The sweep as the caller passed it. An array is not printed, because its memory may be freed."""
    plain = isinstance(sweep, int | float | str | None)
    return f"sweep={sweep!r}" if plain else f"sweep is a {type(sweep).__name__}"
