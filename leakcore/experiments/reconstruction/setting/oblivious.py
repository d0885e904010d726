"""The prior-oblivious gradient attack (Equation 1) on a number of targets, stored target by target."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from leakcore import attacks, dpsgd, kernels
from leakcore._base.digest import digest
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import games
from leakcore.experiments.reconstruction.setting.data import Split
from leakcore.experiments.result import Series
from leakcore.numerics import clopper_pearson

NOTE = (
    "Equation 1 is minimised by some hundred steps of Adam from uniform starts (settings, optimiser), where the paper "
    "takes 10⁶ steps of plain gradient descent with five restarts"
)
FEATURES = (
    "The last layer of the CIFAR-10 network reads 640 features of an image of 3,072 numbers, as in the paper. Many "
    "images share them, so its gradients cannot give the image back exactly, whatever ε"
)
_TRAINED = 32
"""Runs trained at once: an ensemble's block, which a part of one costs too."""
_PIECE = 4
"""Targets stored in one piece."""


@dataclasses.dataclass(frozen=True, eq=False)
class Reconstructions:
    """Reconstructions (targets, pixels), and the targets' rows of the pool."""

    points: np.ndarray
    index: np.ndarray

    def named(self, split: Split, num_candidates: int) -> Any:
        """Success when the nearest point of a prior is taken for the target."""
        return attacks.nearest_prior(self.points, self.index, split.images, num_candidates=num_candidates)

    def error(self, split: Split) -> np.ndarray:
        """Each reconstruction's mean squared error."""
        return attacks.mean_squared_error(self.points, split.images[self.index])


def settings(context: Context) -> dict[str, Any]:
    """The optimiser's settings: far fewer steps of Adam instead of the paper's five restarts of 10⁶ plain steps."""
    chosen = context.pick(
        tiny={"iterations": 5, "restarts": 1},
        quick={"iterations": 150, "restarts": 1},
        paper={"iterations": 1000, "restarts": 5},
    )
    context.departs(
        "optimiser of the gradient attack",
        "5 restarts of 1,000,000 plain steps",
        f"{chosen['restarts']} × {chosen['iterations']:,} steps of Adam",
    )
    return chosen


def attack(context: Context, split: Split, setting: games.GameSetting, *, targets: int) -> Reconstructions:
    """One run per target; the label is known, as in the text."""
    how = settings(context)
    key = digest(dataclasses.asdict(setting), how, split.shape, split.content)[:20]
    model = games.ensemble(context, split, setting)
    index = drawn_targets(context, split, targets)
    task = f"gradient attack, ε = {setting.epsilon:g}"
    embedding = None if split.embed is None else attacks.FrozenEmbedding(split.embed, split.shape)
    threads = None if context.executor is None else 1
    points: list[list[float]] = []
    for start in range(0, len(index), _TRAINED):
        rows = index[start : start + _TRAINED]
        train = functools.cache(functools.partial(_trained, model, split, rows, start))
        jobs: dict[str, Callable[[], dict[str, Any]]] = {}
        for low in range(0, len(rows), _PIECE):
            name, part = f"gradient-{key}-{start + low}-{len(rows)}", slice(low, min(low + _PIECE, len(rows)))
            # What is stored needs no training.
            jobs[name] = dict if context.pieces.has(name) else functools.partial(
                _reconstructed, _part(train(), part), split.pool_labels[rows[part]], seed=context.seed,
                descent=attacks.Descent(**how), embedding=embedding, execution=dpsgd.Execution(num_threads=threads),
            )  # fmt: skip
        by_name: dict[str, list[list[float]]] = {}
        for name, piece in context.pieces.each(jobs, context.executor):
            by_name[name] = piece["points"]
            context.progress(task, len(points) + sum(map(len, by_name.values())), len(index))
        points += [point for name in jobs for point in by_name[name]]
    return Reconstructions(np.array(points, dtype=np.float32), index)


def drawn_targets(context: Context, split: Split, count: int) -> np.ndarray:
    """Rows of the pool; fewer are the first of more."""
    draws = kernels.uniform((1, len(split.pool_labels)), seed=context.seed, purpose=kernels.Stream.GRADIENT_TARGETS)[0]
    return np.argsort(draws, kind="stable")[:count]


def _reconstructed(run: dpsgd.EnsembleRun, labels: np.ndarray, **how: Any) -> dict[str, Any]:
    recovered = attacks.gradient(run, labels, **how)
    return {"points": recovered.points.astype(np.float64).reshape(len(recovered.labels), -1).tolist()}


def _trained(model: dpsgd.Ensemble, split: Split, rows: np.ndarray, start: int) -> dpsgd.EnsembleRun:
    """Run start + i trains on the known rows and target i, every step recorded."""
    return model.run(
        split.known_features,
        split.known_labels,
        runs=range(start, start + len(rows)),
        per_run=dpsgd.PerRun(dpsgd.Rows(split.pool_features[rows][:, None], split.pool_labels[rows][:, None])),
        observer=dpsgd.Observer(record=True),
    )


def _part(run: dpsgd.EnsembleRun, rows: slice) -> dpsgd.EnsembleRun:
    """Some runs of a recorded training."""
    assert run.thetas is not None
    assert run.observed is not None
    return dataclasses.replace(
        run,
        first_run=run.first_run + rows.start,
        parameters=run.parameters[rows],
        thetas=run.thetas[rows],
        observed=run.observed[rows],
    )


def exact_ends(rate: Any) -> tuple[float, float]:
    """95% Clopper–Pearson limits of a rate whose outcomes are all 0 or 1."""
    low, high = clopper_pearson(round(float(rate.each.sum())), len(rate.each), confidence=0.95)
    return float(low), float(high)


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
