"""Ask models about rows: losses, losses at checkpoints, and labels of noisy copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate
from leakcore.attacks.membership.observations import Observations

if TYPE_CHECKING:
    import torch

_AT_ONCE = 4096
"""Rows in one forward pass."""


@dataclasses.dataclass(frozen=True, eq=False)
class Queries:
    """What is asked of models beyond their losses at the rows in question.

    Args:
        population: (features, labels) of rows that no model was trained on, for "rmia" and "quantile".
        copies: (copies, rows, ...) of the rows' features, for "label-only": `noisy_copies`, or augmentations of yours.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> queries = membership.Queries(population=(np.eye(4), np.arange(4) % 2))
        >>> queries.copies is None
        True
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
        TypeError: for an argument of another type.

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
    if queries is not None:
        validate.instance(Queries, queries=queries)
    asked = {name: (own, others) for name, own, others in (queries or Queries()).arrays(x)}
    if hasattr(models, "parameters") or not isinstance(models, Iterable):
        raise TypeError(f"`models` must be a sequence of torch modules, got {type(models).__name__}")
    runs = [tuple(own) if isinstance(own, Sequence) else (own,) for own in models]
    if not runs or len({len(run) for run in runs}) != 1 or not runs[0]:
        lengths = sorted({len(run) for run in runs})
        raise ValueError(f"`models` must be modules, or equally many checkpoints of each, got {lengths or 'none'}")
    losses, others, shares, classes = [], [], [], 2
    for run in runs:
        losses.append([_losses(model, x, y) for model in run])
        if "population" in asked:
            rows, answers = asked["population"]
            assert answers is not None
            others.append(_losses(run[-1], rows, answers))
        if "copies" in asked:
            shares.append(np.mean([_right(run[-1], copy, y) for copy in asked["copies"][0]], axis=0))
    trajectory = np.array(losses)
    own: dict[str, Any] = {}
    if "population" in asked:
        rows, answers = asked["population"]
        assert answers is not None
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


def _right(model: Any, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return right(_logits(model, features), labels)


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
            _require_logits(out, len(rows[start : start + _AT_ONCE]))
            parts.append(out.double().cpu().numpy())
    logits = np.concatenate(parts)
    if not np.isfinite(logits).all():
        raise ValueError(f"`models` must return finite logits, got {logits[~np.isfinite(logits)][0]}")
    return logits


def _require_logits(out: torch.Tensor | Any, rows: int) -> None:
    shape = tuple(getattr(out, "shape", ()))
    if len(shape) != 2 or shape[0] != rows:
        raise ValueError(f"`models` must return logits of shape ({rows}, classes), got {shape or type(out).__name__}")
