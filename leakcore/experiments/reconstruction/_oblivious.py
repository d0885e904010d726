"""The prior-oblivious gradient attack (Equation 1) on a number of targets, kept target by target."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np

from leakcore import attacks, kernels
from leakcore.experiments._context import Context
from leakcore.experiments._result import Series
from leakcore.experiments.reconstruction import _games
from leakcore.experiments.reconstruction._data import Split


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """Reconstructions (targets, pixels), and the targets' rows of the pool."""

    points: np.ndarray
    index: np.ndarray

    def named(self, split: Split, prior_size: int) -> Any:
        """Success when the nearest point of a prior is taken for the target."""
        return attacks.nearest_prior(self.points, self.index, split.images, prior_size=prior_size)

    def error(self, split: Split) -> np.ndarray:
        """Each reconstruction's mean squared error."""
        return attacks.mean_squared_error(self.points, split.images[self.index])


def settings(context: Context) -> dict[str, Any]:
    """Of the optimiser: the text's five restarts and 10⁶ plain steps are replaced by far fewer steps of Adam."""
    return context.pick(
        tiny={"iterations": 5, "restarts": 1},
        quick={"iterations": 150, "restarts": 1},
        paper={"iterations": 1000, "restarts": 5},
    )


def attack(context: Context, split: Split, setting: _games.Setting, *, targets: int) -> Found:
    """One run per target; the label is known, as in the text."""
    how = settings(context)
    key = json.dumps([dataclasses.asdict(setting), how, split.shape, len(split.known_labels)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:20]
    model = _games.ensemble(context, split, setting)
    draws = kernels.uniform(1, len(split.pool_labels), seed=context.seed, purpose=kernels.Purpose.ORDER, step=2)[0]
    index = np.argsort(draws, kind="stable")[:targets]
    task = f"gradient attack, ε = {setting.epsilon:g}"
    points = []
    for i, row in enumerate(index):

        def reconstruct(i: int = i, row: int = int(row)) -> dict[str, Any]:
            run = model.run(
                split.known_features,
                split.known_labels,
                runs=1,
                first_run=i,
                extra_features=split.pool_features[row][None],
                extra_labels=split.pool_labels[row][None],
                record=True,
            )
            network: dict[str, Any] = {} if split.embed is None else {"embed": split.embed, "shape": split.shape}
            found = attacks.gradient(
                run, split.pool_labels[row][None], seed=context.seed, num_threads=1, **network, **how
            )
            return {"point": np.asarray(found.points[0], dtype=np.float64).ravel().tolist()}

        points.append(context.pieces.get_or_run(f"gradient-{digest}-{i}", reconstruct)["point"])
        context.progress(task, i + 1, len(index))
    return Found(np.array(points, dtype=np.float32), index)


def series(name: str, epsilons: tuple[float, ...], rates: list[Any]) -> Series:
    """Success rates with their intervals."""
    return Series(
        name=name,
        role="attack-2",
        x=np.array(epsilons),
        y=np.array([float(r.value) for r in rates]),
        low=np.array([float(r.interval[0]) for r in rates]),
        high=np.array([float(r.interval[1]) for r in rates]),
    )
