"""What an attacker observes of models: their losses and answers at the rows in question, and at others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from leakcore._base import validate
from leakcore._base.array_record import ArrayRecord

_Own = TypeVar("_Own", bound="Observations")


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Observations(ArrayRecord):
    """What an attacker observes of models; `observations[first:stop]` are some of the models.

    Each attack of `scores` says which fields it reads; the others may be None. The population are rows that no model
    was trained on, drawn as the rows in question were.

    Attributes:
        losses: (models, rows) cross-entropy of each model at the rows in question, at least 0.
        population_losses: (models, others) of each model at the population.
        checkpoint_losses: (models, checkpoints, rows), the losses during training, the final ones last.
        copies_right: (models, rows) in [0, 1], the share of a row's noisy copies that the model gives the row's label.
        features: (rows, columns) of the rows, for all models.
        population_features: (others, columns) of the population.

    Example:
        >>> from leakcore.attacks import membership
        >>> observations = membership.Observations(losses=[[0.2, 1.5], [0.9, 0.1], [0.4, 0.4]])
        >>> observations[:2].losses.tolist()
        [[0.2, 1.5], [0.9, 0.1]]
    """

    losses: np.ndarray
    population_losses: np.ndarray | None = None
    checkpoint_losses: np.ndarray | None = None
    copies_right: np.ndarray | None = None
    features: np.ndarray | None = None
    population_features: np.ndarray | None = None

    def __post_init__(self) -> None:
        models, rows = self._set("losses", ("models", "rows")).shape
        self._set("population_losses", ("models", "others"), (models, None))
        self._set("checkpoint_losses", ("models", "checkpoints", "rows"), (models, None, rows))
        self._set("copies_right", ("models", "rows"), (models, rows), most=1.0)
        columns = self._set("features", ("rows", "columns"), (rows, None), least=-np.inf)
        others = None if self.population_losses is None else self.population_losses.shape[1]
        wide = None if columns is None else columns.shape[1]
        self._set("population_features", ("others", "columns"), (others, wide), least=-np.inf)

    def _set(
        self,
        name: str,
        axes: tuple[str, ...],
        sizes: tuple[int | None, ...] = (),
        *,
        least: float = 0.0,
        most: float = np.inf,
    ) -> Any:
        """The field as a float64 array of these sizes, None for any size."""
        value = getattr(self, name)
        if value is None and name != "losses":
            return None
        array = numbers(**{name: value})
        wanted = sizes or (None,) * len(axes)
        shape = ", ".join(axis if size is None else str(size) for axis, size in zip(axes, wanted, strict=True))
        fits = array.ndim == len(axes) and 0 not in array.shape
        if not fits or any(size not in (None, n) for size, n in zip(wanted, array.shape, strict=True)):
            raise ValueError(f"`{name}` must have shape ({shape}), at least 1 each, got {array.shape}")
        if not (least <= array.min() and array.max() <= most):
            raise ValueError(
                f"`{name}` must be in [{least:g}, {most:g}], got values from {array.min():g} to {array.max():g}"
            )
        object.__setattr__(self, name, array)
        return array

    def __len__(self) -> int:
        return len(self.losses)

    def __getitem__(self: _Own, models: slice) -> _Own:
        if not isinstance(models, slice):
            raise TypeError(f"`models` must be a slice, first:stop, got {type(models).__name__}")
        first, stop, step = models.indices(len(self))
        if step != 1 or stop <= first:
            raise ValueError(f"`models` must be a range of the {len(self)} models, first:stop, got {models}")
        return dataclasses.replace(self, **self._of(first, stop))

    def _of(self, first: int, stop: int) -> dict[str, Any]:
        """The fields that belong to single models, for these models."""
        names = ("losses", "population_losses", "checkpoint_losses", "copies_right")
        return {name: None if (own := getattr(self, name)) is None else own[first:stop] for name in names}

    def need(self, name: str, *, attack: str, role: str) -> np.ndarray:
        """The field; ValueError where it is None. role: what the attack calls these observations."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"`{role}.{name}` must be observed for {attack}, got None")
        return np.asarray(value)


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class References(Observations):
    """What an attacker observes of models whose training sets it knows, because it trained them.

    Of the fields of `Observations` no attack reads a reference's `copies_right`, `features` and `population_features`.

    Attributes:
        included: (models, rows) bool, which rows each model was trained on. All False for models that were trained on
            other data ("offline").
    """

    included: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        included = validate.even_array(included=self.included)
        if included.shape != self.losses.shape or included.dtype != bool:
            raise ValueError(
                f"`included` must be bool of shape {self.losses.shape}, as the losses, got {included.dtype} of shape "
                f"{included.shape}"
            )
        object.__setattr__(self, "included", included)

    def _of(self, first: int, stop: int) -> dict[str, Any]:
        return {**super()._of(first, stop), "included": self.included[first:stop]}

    def require(self, least_in: int, least_out: int, *, attack: str) -> None:
        """Raise ValueError if a row is in, or out of, fewer models than this."""
        for side, count, least in (
            ("in", self.included.sum(axis=0), least_in),
            ("out of", (~self.included).sum(axis=0), least_out),
        ):
            if count.min() < least:
                row = int(count.argmin())
                raise ValueError(
                    f"`references.included` must have each row {side} at least {least} models for {attack}, got row "
                    f"{row} {side} {count[row]}: pass more models"
                )


def numbers(**kwargs: Any) -> np.ndarray:
    """A finite float64 array from an array or tensor without gradients."""
    ((name, value),) = kwargs.items()
    if hasattr(value, "requires_grad"):  # a tensor, which NumPy may refuse without naming the argument
        value = validate.host_array(**kwargs)[0]
    return validate.real_array("finite", np.isfinite, **{name: value})


def confidence(losses: np.ndarray) -> np.ndarray:
    """φ = log(p/(1 − p)) of p = e^{−loss}, nearly normal over models (Carlini et al. 2022, Section IV-C). A loss is
    known to half an ulp of 1, so one that rounded to 0 counts as that much: a far smaller number would make one such
    row's φ drown all others' spread."""
    return np.asarray(-losses - np.log(-np.expm1(-np.maximum(losses, 2.0**-53))))


_AT_ONCE = 4096
"""Rows in one forward pass."""


@dataclasses.dataclass(frozen=True, eq=False)
class Queries:
    """What is asked of models beyond their losses at the rows in question.

    Args:
        population: (features, labels) of rows that no model was trained on, for "rmia" and "quantile".
        copies: (copies, rows, ...) of the rows' features, for "label-only": `noisy_copies`, or augmentations of yours.
    """

    population: tuple[Any, Any] | None = None
    copies: Any = None

    def arrays(self, features: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
        """(name, features, labels or None for the rows' own) of each kind of query, checked against the rows."""
        out: list[tuple[str, np.ndarray, np.ndarray | None]] = []
        if self.population is not None:
            if not isinstance(self.population, tuple) or len(self.population) != 2:
                raise TypeError(
                    f"`population` must be a pair (features, labels) or None, got {type(self.population).__name__}"
                )
            others = validate.plain_array(population=self.population[0])
            labels = validate.plain_array(labels_of_population=self.population[1])
            if others.shape[1:] != features.shape[1:] or labels.shape != (len(others),) or not len(others):
                shape = ", ".join(map(str, ("others", *features.shape[1:])))
                raise ValueError(
                    f"`population` must have shapes ({shape}) and (others,), at least one, got {others.shape} and "
                    f"{labels.shape}"
                )
            if labels.dtype.kind not in "iu":
                raise TypeError(f"`population` must have class numbers, integers, for labels, got {labels.dtype}")
            out.append(("population", others, labels))
        if self.copies is not None:
            copies = validate.plain_array(copies=self.copies)
            if copies.ndim < 1 or copies.shape[1:] != features.shape or not len(copies):
                shape = ", ".join(map(str, ("copies", *features.shape)))
                raise ValueError(f"`copies` must have shape ({shape}), at least one, got {copies.shape}")
            out.append(("copies", copies, None))
        return out


def observe(models: Iterable[Any], features: Any, labels: Any, *, queries: Queries | None = None) -> Observations:
    """Ask torch modules about rows.

    Args:
        models: torch modules that return logits (rows, classes), or (rows, 1) for two classes. For "loss-trajectory" a
            sequence of checkpoints in place of each module, the final model last. Each is called as it is, in the mode
            it is in, and none is changed.
        features: (rows, ...), as the models take them.
        labels: (rows,) class numbers.
        queries: what else is asked. None: nothing.

    Returns:
        `Observations`. With a population its `features` are the rows' numbers and labels.

    Raises:
        ValueError: names the argument, its value and what is allowed; or a layer that mixes rows or draws.

    Guarantees:
        Deterministic on one machine.

    Example:
        >>> import torch
        >>> from leakcore.attacks import membership
        >>> model = torch.nn.Linear(3, 2)
        >>> membership.observe([model], torch.eye(3), [0, 1, 0]).losses.shape
        (1, 3)
    """
    x, y = validate.plain_array(features=features), validate.plain_array(labels=labels)
    if x.ndim < 2 or 0 in x.shape:
        raise ValueError(f"`features` must have shape (rows, ...), at least 1 each, got {x.shape}")
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise ValueError(
            f"`labels` must be class numbers, integers, of shape ({len(x)},), got {y.dtype} of shape {y.shape}"
        )
    questions = validate.settings(Queries, queries=queries).arrays(x)
    asked: dict[str, Any] = {name: (own, answers) for name, own, answers in questions}
    population, copies = asked.get("population"), asked.get("copies")
    if hasattr(models, "parameters") or not isinstance(models, Iterable):
        raise TypeError(f"`models` must be a sequence of torch modules, got {type(models).__name__}")
    runs = [tuple(own) if isinstance(own, Sequence) else (own,) for own in models]
    if not runs or len({len(run) for run in runs}) != 1 or not runs[0]:
        lengths = sorted({len(run) for run in runs})
        raise ValueError(f"`models` must be modules, or equally many checkpoints of each, got {lengths or 'none'}")
    losses, others, shares = [], [], []
    for run in runs:
        losses.append([_losses(model, x, y) for model in run])
        if population is not None:
            others.append(_losses(run[-1], *population))
        if copies is not None:
            shares.append(np.mean([right(_logits(run[-1], copy), y) for copy in copies[0]], axis=0))
    trajectory = np.array(losses)
    own: dict[str, Any] = {}
    if population is not None:
        rows, answers = population
        classes = int(max(y.max(), answers.max())) + 1
        own = {"features": columns(x, y, classes), "population_features": columns(rows, answers, classes)}
    return Observations(
        losses=trajectory[:, -1],
        checkpoint_losses=trajectory if len(runs[0]) > 1 else None,
        population_losses=np.array(others) if others else None,
        copies_right=np.array(shares) if shares else None,
        **own,
    )


def columns(features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """(rows, numbers) of rows and their labels, one column for each class."""
    return np.concatenate([features.reshape(len(features), -1), labels[:, None] == np.arange(classes)], axis=1)


def right(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether logits (..., rows, outputs) give these labels."""
    answers = logits[..., 0] > 0 if logits.shape[-1] == 1 else logits.argmax(axis=-1)
    return np.asarray(answers == labels)


def _losses(model: Any, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(rows,) cross-entropy in float64."""
    logits = _logits(model, features)
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise ValueError(
            f"`labels` must be classes of the model, in [0, {logits.shape[1] - 1}], got values from {labels.min()} to "
            f"{labels.max()}"
        )
    chosen = np.take_along_axis(logits, labels[:, None].astype(np.int64), axis=1)
    # Differences first: the loss of a sure answer is far below the rounding of its logit.
    return np.asarray(np.maximum(np.logaddexp.reduce(logits - chosen, axis=1), 0.0))


def _logits(model: Any, features: np.ndarray) -> np.ndarray:
    """(rows, outputs) float64."""
    import torch

    from leakcore.gradients import lock_of, require_still, tensor

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"`models` must hold torch.nn.Module, got {type(model).__name__}")
    anchor = next(model.parameters(), torch.empty(0))
    rows = tensor(np.array(features), "features")
    rows = rows.to(anchor) if rows.is_floating_point() else rows.to(anchor.device)
    with lock_of(model), torch.no_grad():
        require_still(model)
        parts = []
        for start in range(0, len(rows), _AT_ONCE):
            try:
                out = model(rows[start : start + _AT_ONCE])
            except RuntimeError as error:
                raise ValueError(f"`features` must fit the models, got shape {tuple(rows.shape)} ({error})") from error
            shape, wanted = tuple(getattr(out, "shape", ())), len(rows[start : start + _AT_ONCE])
            if len(shape) != 2 or shape[0] != wanted:
                raise ValueError(
                    f"`models` must return logits of shape ({wanted}, classes), got {shape or type(out).__name__}"
                )
            parts.append(out.double().cpu().numpy())
    logits = np.concatenate(parts)
    if not np.isfinite(logits).all():
        raise ValueError(f"`models` must return finite logits, got {logits[~np.isfinite(logits)][0]}")
    return logits
