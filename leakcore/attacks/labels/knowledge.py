"""What the attacker knows: the rows dZ_r/dW of every observed step, how exact they are, perhaps the probabilities."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special

from leakcore._base import validate
from leakcore.attacks.labels.forward_rounding import (
    SAFETY,
    HiddenLayer,
    LastLayer,
    LogitJacobian,
    hidden_linear,
    last_linear,
)
from leakcore.attacks.labels.linear_system import differences
from leakcore.gradients import tensor


@dataclasses.dataclass(frozen=True, eq=False)
class KnownModel:
    """The attacker holds the model and the batch's inputs, and recomputes what it needs in the model's present mode.

    How far rounding may move the attacker's numbers from the victim's is measured: the distance between float32 and
    float64, times four.

    Args:
        model: a torch module. For `last_layer` and `second_last_layer` its output is the logits of its last linear
            layer, or their sigmoid or softmax; for `general` it is one or K logits. For `last_layer` also a list of S
            models, one for each observed step of the same batch.
        inputs: the batch's inputs, as the model takes them.

    Raises:
        TypeError: for anything but a torch module, and for inputs that are not an array of real numbers.
        ValueError: for an empty list of models, and for inputs whose memory has been freed.
    """

    model: torch.nn.Module | Sequence[torch.nn.Module]
    inputs: Any

    def __post_init__(self) -> None:
        if isinstance(self.model, list | tuple) and not self.model:
            raise ValueError("`model` must hold at least one module")
        for module in self.models:
            if not isinstance(module, torch.nn.Module):
                raise TypeError(f"`model` must be a torch.nn.Module, got {type(module).__name__}")
        object.__setattr__(self, "inputs", tensor(self.inputs, "inputs"))

    @property
    def models(self) -> list[Any]:
        """The model, or one model for each observed step, as a list."""
        return list(self.model) if isinstance(self.model, list | tuple) else [self.model]

    def single_model(self) -> Any:
        """The only model; ValueError for a list of them."""
        if isinstance(self.model, list | tuple):
            raise ValueError(
                f"`model` must be one module, got a {type(self.model).__name__}: only last_layer takes several"
            )
        return self.model


@dataclasses.dataclass(frozen=True, eq=False)
class KnownHiddenLayer:
    """The attacker knows the inputs of the last hidden layer and the slope of its activation, for `second_last_layer`.

    Args:
        activations: (N, d), the inputs of the layer for the batch.
        derivatives: (N, p), the derivatives U = A′(Z) of its p neurons; (N,) for one neuron.
    """

    activations: Any
    derivatives: Any
    roundoff: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self) -> None:
        rows, coarse = validate.host_array(activations=self.activations)
        slope, fine = validate.host_array(derivatives=self.derivatives)
        slope = slope[:, None] if slope.ndim == 1 else slope
        _check_layer(rows, slope)
        object.__setattr__(self, "activations", rows)
        object.__setattr__(self, "derivatives", slope)
        object.__setattr__(self, "roundoff", max(coarse, fine))


def _check_layer(rows: np.ndarray, slope: np.ndarray) -> None:
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"`activations` must have shape (N, d) with at least one row and one column, got {rows.shape}")
    if slope.ndim != 2 or len(slope) != len(rows) or 0 in slope.shape:
        raise ValueError(
            f"`derivatives` must have shape ({len(rows)}, p), one row for each row of activations, got {slope.shape}"
        )


def known_of_hidden_layer(knowledge: Any) -> HiddenLayer:
    """The layer before the last, as it was given or recomputed from the model."""
    if isinstance(knowledge, KnownHiddenLayer):
        rows, slope = knowledge.activations, knowledge.derivatives
        return HiddenLayer(
            rows=rows,
            slope=slope,
            row_error=np.zeros(len(rows)),
            slope_error=np.zeros(slope.shape),
            weights=None,
            roundoff=knowledge.roundoff,
            who="the inputs of the last hidden layer and its activation's derivatives for the batch",
        )
    if not isinstance(knowledge, KnownModel):
        raise TypeError(
            f"`knowledge` must be a labels.KnownModel or labels.KnownHiddenLayer, got a {type(knowledge).__name__}"
        )
    layer = hidden_linear(knowledge.single_model(), knowledge.inputs)
    _check_layer(layer.rows, layer.slope)
    return layer


class Probabilities(NamedTuple):
    """Probabilities (S, N, K), and how far each may be from the victim's."""

    values: np.ndarray
    error: np.ndarray

    @classmethod
    def of_steps(cls, steps: Sequence[Probabilities | None]) -> Probabilities | None:
        """One of (N, K) for each step, or None where none are known."""
        known = [step for step in steps if step is not None]
        return cls(*(np.stack(parts) for parts in zip(*known, strict=True))) if known else None


@dataclasses.dataclass(frozen=True, eq=False)
class KnownSystem:
    """What the attacker knows of S steps: rows (S, N, d); forward: (S, N) their error; weights: (S, K, d + 1) or None.

    probs: the probabilities that the attack uses, or None. own: the model's probabilities, if the attacker holds the
    model; residuals are checked against them. steps: None if one step came without a leading axis.
    wide: None, or the number K of logits behind one weight vector: rows and forward are then the N·(K − 1) of
    `differences`, and summed (d,) the magnitudes behind the gradient's rounding.
    """

    rows: np.ndarray
    forward: np.ndarray
    weights: np.ndarray | None
    probs: Probabilities | None
    roundoff: float
    steps: int | None
    who: str
    wide: int | None = None
    summed: np.ndarray | None = None
    own: Probabilities | None = None

    @property
    def samples(self) -> int:
        """N."""
        return int(self.rows.shape[1]) // (1 if self.wide is None else self.wide - 1)

    def rougher(self, factor: float) -> KnownSystem:
        """The same with all errors grown by a factor."""
        probs, own = (None if p is None else p._replace(error=p.error * factor) for p in (self.probs, self.own))
        return dataclasses.replace(self, forward=self.forward * factor, probs=probs, own=own)


def known_of_last_layer(knowledge: Any, known_probs: Any) -> KnownSystem:
    """The inputs of the last layer, given or recomputed from one model or one per step."""
    if not isinstance(knowledge, KnownModel):
        return known_of_arrays(known_probs, activations=knowledge)
    layers = [last_linear(model, knowledge.inputs) for model in knowledge.models]
    several = isinstance(knowledge.model, list | tuple)
    if len({(lay.activations.shape, lay.weights.shape) for lay in layers}) > 1:
        raise ValueError("model: the last layers of the steps differ in shape")
    of_each = [known_probs] * len(layers)
    if several and known_probs is not None and not isinstance(known_probs, (bool, np.bool_)):
        of_each = list(known_probs) if np.iterable(known_probs) else []
        if len(of_each) != len(layers):
            raise ValueError(f"`known_probs` must hold one array for each of {len(layers)} models, got {len(of_each)}")
    rows = np.stack([lay.activations for lay in layers])
    if 0 in rows.shape:
        raise ValueError(
            f"`activations` must have shape (N, d) with at least one row and one column, got {rows.shape[1:]}"
        )
    if not np.isfinite(rows).all():
        raise ValueError("model: its activations are not finite on these inputs")
    return KnownSystem(
        rows=rows,
        forward=np.stack([lay.activation_error for lay in layers]),
        weights=np.stack([lay.weights for lay in layers]),
        probs=Probabilities.of_steps([_probs_of(p, lay) for p, lay in zip(of_each, layers, strict=True)]),
        roundoff=max(lay.roundoff for lay in layers),
        steps=len(layers) if several else None,
        who="knows the model and the batch's inputs",
        own=Probabilities.of_steps([_of_model(lay) for lay in layers]),
    )


def known_of_arrays(known_probs: Any, **kwargs: Any) -> KnownSystem:
    """Rows given under their argument's name, (N, d) or (S, N, d), with probabilities to match."""
    ((name, value),) = kwargs.items()
    if value is None or hasattr(value, "named_parameters"):
        raise TypeError(
            f"`knowledge` must be {name}, an array, or labels.KnownModel(model, inputs), got a {type(value).__name__}"
        )
    rows, roundoff = validate.host_array(**kwargs)
    if rows.ndim not in {2, 3} or 0 in rows.shape:
        raise ValueError(
            f"`{name}` must have shape (N, d), or (S, N, d) for S steps, with at least one row and column, "
            f"got {rows.shape}"
        )
    steps = rows.shape[0] if rows.ndim == 3 else None
    rows = rows.reshape(-1, *rows.shape[-2:])
    if known_probs is True:
        raise ValueError("`known_probs=True` is allowed only with labels.KnownModel; pass the probabilities")
    probs = None
    if known_probs is not None:
        values, fine = _probabilities(known_probs)
        lead = rows.shape[:2] if steps else rows.shape[1:2]
        if values.shape[: len(lead)] != lead or values.ndim > len(lead) + 1:
            raise ValueError(
                f"`known_probs` must have shape {lead} or {(*lead, 'K')} to match {name}, got {values.shape}"
            )
        values = values.reshape(*rows.shape[:2], -1)
        probs = Probabilities(values, np.full(values.shape, 4.0 * fine))
        roundoff = max(roundoff, fine)
    layer = "inputs of the last layer" if name == "activations" else "logits' derivatives"
    return KnownSystem(
        rows=rows,
        forward=np.zeros(rows.shape[:2]),
        weights=None,
        probs=probs,
        roundoff=roundoff,
        steps=steps,
        who=f"knows the {layer} for the batch",
    )


def known_of_jacobian(derivatives: LogitJacobian, known_probs: Any) -> KnownSystem:
    """One step of a model whose logits' derivatives were computed."""
    probs = Probabilities.of_steps([_probs_of(known_probs, derivatives)])
    classes = derivatives.logits.shape[1]
    rows, forward, summed = derivatives.jacobian[:, 0], derivatives.error[:, 0], None
    if classes > 1:
        rows, forward, summed = differences(derivatives.jacobian, derivatives.error)
    return KnownSystem(
        rows=rows[None],
        forward=forward[None],
        weights=derivatives.weights[None, None, :],
        probs=probs,
        roundoff=derivatives.roundoff,
        steps=None,
        who="knows the model and the batch's inputs",
        wide=classes if classes > 1 else None,
        summed=summed,
        own=Probabilities.of_steps([_of_model(derivatives)]),
    )


def _probabilities(known_probs: Any) -> tuple[np.ndarray, float]:
    probs, roundoff = validate.host_array(known_probs=known_probs)
    validate.real_array("in [0, 1]", lambda v: (v >= 0) & (v <= 1), known_probs=probs)
    return probs, roundoff


def _probs_of(known_probs: Any, layer: LastLayer | LogitJacobian) -> Probabilities | None:
    """(N, K) probabilities and their errors: given, or the model's own where known_probs is True."""
    if known_probs is None or known_probs is False:
        return None
    if known_probs is not True:
        probs, fine = _probabilities(known_probs)
        logits = layer.logits
        if probs.shape not in {logits.shape, logits.shape[:1]} or probs.size != logits.size:
            raise ValueError(
                f"`known_probs` must have shape {logits.shape} to match the model's logits, got {probs.shape}"
            )
        return Probabilities(probs.reshape(logits.shape), np.full(logits.shape, 4.0 * max(fine, layer.roundoff)))
    return _of_model(layer)


def _of_model(layer: LastLayer | LogitJacobian) -> Probabilities:
    """(N, K) probabilities of a model's logits, and their errors."""
    logits, logit_error = layer.logits, layer.logit_error
    probs = np.asarray(special.expit(logits) if logits.shape[1] == 1 else special.softmax(logits, axis=1))
    # dp/dz ≤ p(1 − p) ≤ 1/4 for a sigmoid; a softmax moves by at most half the largest change of a logit.
    moved = logit_error if logits.shape[1] == 1 else np.broadcast_to(logit_error.max(axis=1)[:, None], logits.shape)
    return Probabilities(probs, moved / 2 + SAFETY * 2.0 * layer.roundoff)
