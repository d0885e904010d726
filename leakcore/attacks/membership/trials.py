"""Models trained on random halves of the rows, and what an attacker observes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore.attacks.membership.canaries import batches_by_coins, fair_coins, read_labelled
from leakcore.attacks.membership.observations import Queries, References, columns, right
from leakcore.attacks.membership.scores import mean_training_loss

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MembershipTrials(References):
    """Models trained on random halves of the rows: attacked models, references, or both (`trials[64:]`, `trials[:64]`).

    The fields of `References` hold what the final models say of every row; `included` holds the coins.

    Attributes:
        first_run: number of the first model.
    """

    first_run: int

    @property
    def mean_training_loss(self) -> np.ndarray:
        """Mean loss over each model's own training rows, (runs,); DP-SGD does not release it."""
        return mean_training_loss(self)

    def _of(self, first: int, stop: int) -> dict[str, Any]:
        return {**super()._of(first, stop), "first_run": self.first_run + first}


def coins(runs: int | range, rows: int, *, seed: int) -> np.ndarray:
    """Fair coins that decide which rows `play` trains each model on.

    Args:
        runs: how many models, or which, as range(first, stop).
        rows: how many rows, at least 1.
        seed: the ensemble's.

    Returns:
        (runs, rows) bool, True for "in the training set".

    Guarantees:
        A pure function of (seed, run, row) on every machine. ValueError or TypeError names an argument that does not
        fit.

    Example:
        >>> from leakcore.attacks import membership
        >>> both = membership.coins(4, 100, seed=0)
        >>> bool((membership.coins(range(2, 4), 100, seed=0) == both[2:]).all())
        True
    """
    count = validate.integer(1, None, rows=rows)
    return fair_coins(runs, count, seed=seed, purpose=kernels.Stream.MEMBERSHIP_COINS, name="rows")


def play(
    ensemble: Ensemble,
    features: Any,
    labels: Any,
    *,
    runs: int | range,
    queries: Queries | None = None,
    checkpoints: Sequence[int] = (),
    execution: Execution | None = None,
) -> MembershipTrials:
    """Train models, each on the rows that its coins include, and observe them at all rows.

    The update is divided by the ensemble's expected batch size (q·rows by default) whatever the coins say, so that
    nothing but a row's own gradient depends on its coin: adjacency add/remove.

    Args:
        ensemble: the mechanism. Shuffled batches are refused: their size would depend on coins.
        features: (rows, inputs).
        labels: (rows,) class numbers.
        runs: how many models, or which, as range(first, stop); ranges may be computed separately and concatenated.
        queries: what is asked of the final models besides their losses at the rows.
        checkpoints: numbers of steps, rising and below the ensemble's, after which losses are observed as well. Each
            costs a training of that many steps.
        execution: as in `dpsgd.Ensemble.run`.

    Returns:
        `MembershipTrials`.

    Guarantees:
        Deterministic on one machine. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> from leakcore.attacks import membership
        >>> model = dpsgd.Ensemble(
        ...     (20, 2), noise_multiplier=0.1, max_grad_norm=1.0, learning_rate=1.0, steps=20, seed=0
        ... )
        >>> trials = membership.play(model, np.eye(12, 20), np.arange(12) % 2, runs=32)
        >>> trials.losses.shape
        (32, 12)
        >>> bool(trials.losses[trials.included].mean() < trials.losses[~trials.included].mean())
        True
    """
    from leakcore.dpsgd import PerRun, Rows

    x, y = read_labelled(ensemble, features, labels, by_coins="rows")
    steps = validate.sizes(0, checkpoints=checkpoints)
    if list(steps) != sorted(set(steps)) or (steps and steps[-1] >= ensemble.steps):
        raise ValueError(f"`checkpoints` must be rising and below the ensemble's {ensemble.steps} steps, got {steps}")
    asked = validate.settings(Queries, queries=queries).arrays(x)
    included = coins(runs, len(y), seed=ensemble.seed)

    def losses_and_logits(model: Ensemble, rows: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        run = model.run(
            x,
            y,
            runs=runs,
            per_run=PerRun(batches=batches_by_coins(model, runs, included)),
            probes=Rows(rows, answers),
            keep_parameters=False,
            execution=execution,
        )
        assert run.probe_losses is not None
        assert run.probe_logits is not None
        return run.probe_losses, run.probe_logits, run.first_run

    earlier = [losses_and_logits(ensemble.replace(steps=step), x, y)[0] for step in steps]
    flat = [own.reshape(-1, *x.shape[1:]) for _, own, _ in asked]
    answers = [np.resize(y, len(rows)) if own is None else own for rows, (_, _, own) in zip(flat, asked, strict=True)]
    losses, logits, first_run = losses_and_logits(ensemble, np.concatenate([x, *flat]), np.concatenate([y, *answers]))
    observed: dict[str, Any] = {}
    start = len(y)
    for (name, own, _), rows, labelled in zip(asked, flat, answers, strict=True):
        part = slice(start, start := start + len(rows))
        if name == "population":
            classes = int(max(y.max(), labelled.max())) + 1
            observed |= {
                "population_losses": losses[:, part],
                "features": columns(x, y, classes),
                "population_features": columns(own, labelled, classes),
            }
        else:
            share = right(logits[:, part], labelled).reshape(len(losses), len(own), len(y)).mean(axis=1)
            observed["copies_right"] = share
    own = losses[:, : len(y)]
    trajectory = np.stack([*earlier, own], axis=1) if earlier else None
    return MembershipTrials(
        losses=own, included=included, first_run=first_run, checkpoint_losses=trajectory, **observed
    )
