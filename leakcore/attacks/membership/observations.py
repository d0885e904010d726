"""What an attacker observes of models: their losses and answers at the rows in question, and at others."""

from __future__ import annotations

import dataclasses
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

    Args:
        losses: (models, rows) cross-entropy of each model at the rows in question, at least 0.
        population_losses: (models, others) of each model at the population.
        checkpoint_losses: (models, checkpoints, rows), the losses during training, the final ones last.
        copies_right: (models, rows) in [0, 1], the share of a row's noisy copies that the model gives the row's label.
        features: (rows, columns) of the rows, for all models.
        population_features: (others, columns) of the population.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an argument of another type.

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
        first, stop, step = _range(models, len(self))
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

    Args:
        losses: (models, rows), as in `Observations`, at the rows in question.
        population_losses: (models, others), as there.
        checkpoint_losses: (models, checkpoints, rows), as there.
        copies_right: (models, rows), as there; no attack reads it.
        features: (rows, columns), as there; no attack reads it.
        population_features: (others, columns), as there; no attack reads it.
        included: (models, rows) bool, which rows each model was trained on. All False for models that were trained on
            other data ("offline").

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.References(losses=[[0.2, 1.5]], included=[[True, False]])
        References(losses=float64 (1, 2), included=bool (1, 2))
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
    """φ = log(p/(1 − p)) of p = e^{−loss}, nearly normal over models (Carlini et al. 2022, Section IV-C).

    A loss is known to half an ulp of 1, so one that rounded to 0 counts as that much: a far smaller number would make
    one such row's φ drown all others' spread.
    """
    return np.asarray(-losses - np.log(-np.expm1(-np.maximum(losses, 2.0**-53))))


def _range(models: slice, count: int) -> tuple[int, int, int]:
    if not isinstance(models, slice):
        raise TypeError(f"`models` must be a slice, first:stop, got {type(models).__name__}")
    return models.indices(count)
