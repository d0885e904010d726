"""What an audit of hyperparameters is asked: one DP-SGD configuration, a sweep around it, the effort of the attacks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Interval

from leakcore._base.results import jsonable
from leakcore.audit.shared import config_checks as checks
from leakcore.defenses import Clip, Defense, Dropout, GaussianNoise, Laplace, LocalSteps, Prune, parse, spell
from leakcore.mechanisms import ARGUMENTS, SCHEMES, SchemeName, of_scheme

_TAKEN = (LocalSteps, Dropout, Clip, GaussianNoise, Laplace, Prune)


def _checked_defense(values: Mapping[str, Any]) -> str | None:
    """The configuration's defense, checked against the training that it goes with, and spelt in full; None for None."""
    defense, learning_rate, steps = (values[name] for name in ("defense", "learning_rate", "steps"))
    sampling, sample_rate = values["sampling"], values["sample_rate"]
    if defense is None:
        return None
    if sampling not in ("poisson", "full"):
        raise ValueError(
            f"`sampling` must be 'full', or 'poisson' with sample_rate=1, with a defense, got {sampling!r}"
        )
    if isinstance(defense, str):
        defense = parse(defense, learning_rate=learning_rate)
    text = spell(defense)
    if not defense.parts:
        raise ValueError("`defense` must have a part, got none: None is the audit without a defence")
    for part in defense.parts:
        if not isinstance(part, _TAKEN):
            raise ValueError(
                f"`defense` must not have {type(part).__name__}, the audited mechanism itself, got {text!r}: set "
                "max_grad_norm and epsilon or noise_multiplier"
            )
        if isinstance(part, LocalSteps):
            if part.minibatches or part.learning_rate != learning_rate:
                raise ValueError(
                    "`defense` must have local steps of the audited training (full batches, learning_rate="
                    f"{learning_rate:g}), got {text!r}"
                )
            if steps is None or steps % part.steps:
                raise ValueError(
                    f"`steps` must be a multiple of the {part.steps} local steps of defense={text!r}, got {steps}"
                )
    if sample_rate not in (None, 1):
        raise ValueError(f"`sample_rate` must be 1 with defense={text!r}, got {sample_rate:g}")
    if not values["hidden"] and any(isinstance(part, Dropout) for part in defense.parts):
        raise ValueError(f"`hidden` must not be empty with defense={text!r}, got (): there are no units to drop")
    return text


def parsed_defense(defense: str | Defense | None) -> Defense | None:
    """The defence of a checked configuration, which spells it."""
    return parse(defense) if isinstance(defense, str) else defense


def why_bounds_hold(defense: Defense) -> str:
    """The argument, part by part."""
    after = [part for part in defense.parts if not isinstance(part, Dropout)]
    said = []
    if any(isinstance(part, Dropout) for part in defense.parts):
        said.append(
            "dropout draws its masks without the data, and whatever they are, every gradient is clipped to C before "
            "the noise"
        )
    if after:
        said.append(
            f"{' + '.join(map(spell, after))} acts on what DP-SGD has clipped and noised and looks at no data again "
            "(post-processing), and later steps follow from it alone"
        )
    return "; ".join(said)


def noise_under_defense(defense: Defense | None, noise: float, num_rows: int, max_grad_norm: float) -> float | None:
    """σ of the release if Gaussian noise is the first thing added to each noisy mean: √(σ² + (scale·B/C)²).

    That is DP-SGD with more noise. None if nothing beyond σ is known.
    """
    parts = [] if defense is None else [part for part in defense.parts if not isinstance(part, Dropout)]
    if not parts or not isinstance(parts[0], GaussianNoise):
        return None
    return math.hypot(noise, parts[0].std * num_rows / max_grad_norm)


_LABELLED = 569
"""Rows of the breast cancer data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """One audit of DP-SGD hyperparameters; the defaults are the setting of Hayes et al. (2023, Section 4).

    The reconstruction game trains an MLP 64–hidden–10 on digits; the label game an MLP 30–label_hidden–1 with ReLU on
    breast cancer data.

    Args:
        epsilon: claimed ε, under the sampling's adjacency; or None and `noise_multiplier`.
        noise_multiplier: σ, where `epsilon` is None.
        sweep: further ε to audit, for the curve.
        delta: δ in (0, 1).
        sampling: how batches are drawn; of the next six only its own may be given.
        sample_rate: q of "poisson", default 1.
        steps: T of "poisson", "full", "fixed", default 100.
        batch_size: rows of a batch of "fixed".
        dataset_size: `num_rows`, for "fixed".
        batches: batches an epoch of "shuffled", "allocation".
        epochs: number of epochs, likewise.
        max_grad_norm: clipping norm C.
        learning_rate: step size; the default is best for accuracy at ε = 1.
        num_rows: training rows with the target.
        hidden: sizes of the hidden layers.
        activation: their activation.
        num_candidates: equally likely candidates, with the target.
        runs: trainings for each noise level.
        label_batch_size: rows behind one gradient.
        label_hidden: hidden units of the companion model.
        label_steps: steps of the companion training.
        label_trials: number of releases for each batch.
        defense: a `defenses.Defense` or its spelling: play the game also through it. Full batches only.
        confidence: level of every interval, two-sided.
        gate_confidence: level of the gate, over all noise levels.
        seed: seed of everything random.

    Raises:
        ValueError: lists every fault: the field, its value and what is allowed.
        TypeError: the same, if each is of another type.

    Example:
        >>> from leakcore import audit
        >>> config = audit.AuditConfig(epsilon=4.0, sweep=(1.0, 10.0), runs=500)
        >>> config.sweep, config.steps
        ((1.0, 10.0), 100)
    """

    epsilon: checks.Claimable | None = 10.0
    noise_multiplier: checks.Positive | None = None
    sweep: tuple[checks.Claimable, ...] = (1.0, 4.0, 10.0, 40.0)
    delta: checks.PositiveDelta = 1e-5
    sampling: SchemeName = "poisson"
    sample_rate: checks.SampleRate | None = None
    steps: checks.Steps | None = None
    batch_size: checks.Count | None = None
    dataset_size: checks.Count | None = None
    batches: checks.Steps | None = None
    epochs: checks.Steps | None = None
    max_grad_norm: checks.Positive = 0.1
    learning_rate: checks.Positive = 10.0

    num_rows: checks.CountFrom2 = 1000
    hidden: tuple[checks.Width, ...] = (10,)
    activation: checks.ActivationName = "elu"
    num_candidates: checks.CountFrom2 = 10
    runs: checks.Runs = 1000

    label_batch_size: Annotated[int, Interval(ge=1, le=_LABELLED)] = 32
    label_hidden: checks.Width = 64
    label_steps: checks.Steps = 100
    label_trials: checks.Runs = 100

    defense: str | Defense | None = None

    confidence: checks.Confidence = 0.95
    gate_confidence: checks.Confidence = 0.999
    seed: checks.Seed = 0

    def __post_init__(self) -> None:
        values = checks.checked(type(self), vars(self))
        if (values["epsilon"] is None) == (values["noise_multiplier"] is None):
            raise ValueError(
                "`epsilon` or `noise_multiplier` must be given, exactly one of the two, got "
                f"epsilon={self.epsilon!r}, noise_multiplier={self.noise_multiplier!r}"
            )
        values = _with_scheme(values)
        values["defense"] = _checked_defense(values)
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
        return cls(**checks.checked(cls, fields))

    def to_dict(self) -> dict[str, object]:
        """The fields as plain JSON types."""
        return dict(jsonable(self))


def _with_scheme(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration with the defaults of its scheme.

    ValueError names a key that the scheme needs or has no use for, or that does not go with the rows of the game.
    """
    out, name = dict(values), values["sampling"]
    for argument in SCHEMES[name].arguments:
        if out[argument] is None:
            out[argument] = out["num_rows"] if argument == "dataset_size" else ARGUMENTS[argument].default
    of_scheme(name, 1.0, out)
    rows, batches = out["num_rows"], out["batches"]
    if out["dataset_size"] not in (None, rows):
        raise ValueError(
            f"`dataset_size` must be num_rows={rows}, the rows that the game trains on, or be left out, got "
            f"{out['dataset_size']}"
        )
    if name == "shuffled" and rows % batches:
        raise ValueError(f"`num_rows` must be a multiple of batches={batches}, got {rows}")
    if batches is not None and batches * out["epochs"] > checks.MOST_STEPS:
        raise ValueError(
            f"`batches` times `epochs` must be at most {checks.MOST_STEPS}, got {batches} times {out['epochs']}"
        )
    return out
