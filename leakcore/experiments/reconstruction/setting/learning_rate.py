"""The learning rate as the paper chooses it: a sweep from 0.001 to 100, by the accuracy of the released models."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from leakcore import dpsgd
from leakcore._base.digest import digest
from leakcore._base.one_thread import one_thread
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import games
from leakcore.experiments.reconstruction.setting.data import Split

PAPER = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Its range (Appendix A); the values in between are ours."""
CLIPPED = 0.99
"""Share of gradients that count as "all" in "all gradients are clipped" (Appendix K.1)."""
_RUNS = 32
_CANDIDATES = 10
_TEST = 2000
"""Held-out rows that accuracy is measured on: a standard error below 0.01 per run, and 32 runs are averaged."""
NOTE = (
    f"learning rates are chosen by the mean accuracy of {_RUNS} runs on held-out rows, as the paper sweeps, once among "
    f"all and once among those that leave {100 * CLIPPED:g}% of gradients clipped; the attack is not consulted"
)


@dataclasses.dataclass(frozen=True)
class Tried:
    """What one learning rate gives: accuracy, −1 where a run overflows, and the share of gradients clipped."""

    learning_rate: float
    accuracy: float
    clipped: float


def at(setting: games.GameSetting, rate: float) -> games.GameSetting:
    """The setting with this learning rate."""
    return dataclasses.replace(setting, step=rate * setting.max_grad_norm)


def sweep(context: Context, split: Split, setting: games.GameSetting, rates: tuple[float, ...]) -> list[Tried]:
    """`_RUNS` models at each rate, trained on the known rows and one of the pool; each rate is stored as a piece."""
    jobs, names = {}, []
    for rate in rates:
        tried = at(setting, rate)
        names.append(f"learning-rate-{digest(dataclasses.asdict(tried), split.content)[:20]}")
        jobs[names[-1]] = functools.partial(
            _tried, games.ensemble(context, split, tried), split.known_features, split.known_labels,
            split.pool_features, split.pool_labels,
        )  # fmt: skip
    pieces = {}
    for name, piece in context.pieces.each(jobs, context.executor):
        pieces[name] = piece
        context.progress(
            f"learning rates, ε = {setting.epsilon:g}, q = {setting.sample_rate:g}", len(pieces), len(jobs)
        )
    return [
        Tried(rate, float(pieces[name]["accuracy"]), float(pieces[name]["clipped"]))
        for rate, name in zip(rates, names, strict=True)
    ]


def best(tried: list[Tried], *, clipped: float = 0.0) -> Tried:
    """The most accurate rate that leaves at least this share clipped (or the most clipped one); ties: the smallest."""
    allowed = [t for t in tried if t.clipped >= clipped] or [max(tried, key=lambda t: t.clipped)]
    return max(allowed, key=lambda t: t.accuracy)


def _tried(
    ensemble: dpsgd.Ensemble, x: np.ndarray, y: np.ndarray, pool: np.ndarray, pool_labels: np.ndarray
) -> dict[str, Any]:
    last = slice(-_CANDIDATES, None)
    try:
        trained = ensemble.run(
            x,
            y,
            runs=_RUNS,
            per_run=dpsgd.PerRun(dpsgd.Rows(pool[-1:], pool_labels[-1:])),
            observer=dpsgd.Observer(dpsgd.Rows(pool[last], pool_labels[last]), keep_steps=False),
        )
    except FloatingPointError:
        return {"accuracy": -1.0, "clipped": 0.0}
    assert trained.clipped is not None
    with one_thread():
        accuracies = trained.accuracy(pool[:_TEST], pool_labels[:_TEST])
    share = trained.clipped.sum() / (_RUNS * _CANDIDATES * ensemble.steps)
    return {"accuracy": float(np.mean(accuracies)), "clipped": float(share)}
