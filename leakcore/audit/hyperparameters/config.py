"""What an audit is asked to do: one DP-SGD configuration, a sweep around it, and how hard the attacks try."""

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
"""An ε beyond it is no claim, and no accountant goes further."""


def _claimable(**given: Any) -> float:
    ((name, value),) = given.items()
    epsilon = check.positive(**given)
    if epsilon > _LARGEST:
        raise ValueError(f"{name}={value!r}: must be in (0, {_LARGEST:g}]")
    return epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """One audit. The defaults are the full-batch setting of Hayes et al. (2023, Section 4), on digits.

    The mechanism, in Opacus's terms:
        epsilon: the claimed ε at `delta`, add/remove adjacency; its noise multiplier is computed. None: give
            `noise_multiplier`.
        noise_multiplier: σ ≥ 0; None: computed from `epsilon`. Exactly one of the two.
        sweep: further values of ε to audit beside it, for the curve; may be empty.
        delta, steps, sample_rate, max_grad_norm, learning_rate: δ, T, q, C and the step size. The default
            step size was chosen by training accuracy at ε = 1 (83%), not by the attack: clipped gradients are short.
    The reconstruction game (scikit-learn's digits, MLP 64–hidden–10):
        num_rows: training rows, the target included. hidden: sizes of the hidden layers. activation: theirs.
        num_candidates: n equally likely candidates, one of which is the target. runs: independent trainings per noise
            level.
    The label game (scikit-learn's breast cancer, MLP 30–label_hidden–1 ReLU):
        label_batch_size: rows per observed gradient. label_steps: DP-SGD steps of the companion training.
        label_trials: repetitions of the label attack per batch, each with noise of its own.
    defense: a `leakcore.defenses.Defense`, or its spelling ("prune:0.1", see `defenses.parse`): the reconstruction game
        is also played with each release of the claimed configuration put through it, in a section of its own. Full
        batches only; None: no such section. Kept as spelt.
    confidence: of every interval (two-sided). gate_confidence: with which the gate fails a run only rightly, over all
    noise levels together. seed: of everything random.

    Raises ValueError or TypeError that names the field, its value and what is allowed.
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
        """The configuration with these fields, defaults for the rest; ValueError names a field that does not exist."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            shown = printable(repr(fields[unknown[0]]), 60)
            raise ValueError(
                f"{name_of(unknown[0])}={shown}: no such field; there are {', '.join(sorted(known))}"
                f"{nearest(unknown[0], known)}"
            )
        return cls(**fields)

    def to_dict(self) -> dict[str, object]:
        """The fields as plain JSON types."""
        return dict(jsonable(self))


def _named_sweep(sweep: Any) -> str:
    """What was given for the sweep. An array is not printed: its memory may be gone."""
    plain = isinstance(sweep, int | float | str | None)
    return f"sweep={sweep!r}" if plain else f"sweep is a {type(sweep).__name__}"
