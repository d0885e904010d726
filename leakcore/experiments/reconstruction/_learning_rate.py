"""The learning rate as the paper chooses it: a sweep from 0.001 to 100, by the accuracy of the released models."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np

from leakcore.experiments._context import Context
from leakcore.experiments.reconstruction import _games
from leakcore.experiments.reconstruction._data import Split

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


def at(setting: _games.Setting, rate: float) -> _games.Setting:
    """The setting with this learning rate."""
    return dataclasses.replace(setting, step=rate * setting.max_grad_norm)


def sweep(context: Context, split: Split, setting: _games.Setting, rates: tuple[float, ...]) -> list[Tried]:
    """`_RUNS` models at each rate, trained on the known rows and one of the pool; each rate is a kept piece."""
    return [_tried(context, split, at(setting, rate), rate) for rate in rates]


def best(tried: list[Tried], *, clipped: float = 0.0) -> Tried:
    """The most accurate rate that leaves at least this share clipped (or the most clipped one); ties: the smallest."""
    allowed = [t for t in tried if t.clipped >= clipped] or [max(tried, key=lambda t: t.clipped)]
    return max(allowed, key=lambda t: t.accuracy)


def _tried(context: Context, split: Split, setting: _games.Setting, rate: float) -> Tried:
    def measure() -> dict[str, Any]:
        last = slice(-_CANDIDATES, None)
        try:
            trained = _games.ensemble(context, split, setting).run(
                split.known_features, split.known_labels, runs=_RUNS, keep_steps=False,
                extra_features=split.pool_features[-1:], extra_labels=split.pool_labels[-1:],
                candidate_features=split.pool_features[last], candidate_labels=split.pool_labels[last],
            )  # fmt: skip
        except FloatingPointError:
            return {"accuracy": -1.0, "clipped": 0.0}
        assert trained.clipped is not None
        found = trained.accuracy(split.pool_features[:_TEST], split.pool_labels[:_TEST])
        share = trained.clipped.sum() / (_RUNS * _CANDIDATES * setting.steps)
        return {"accuracy": float(np.mean(found)), "clipped": float(share)}

    described = json.dumps([dataclasses.asdict(setting), split.content])
    name = f"learning-rate-{hashlib.sha256(described.encode()).hexdigest()[:20]}"
    piece = context.pieces.get_or_run(name, measure)
    context.progress(f"learning rates, ε = {setting.epsilon:g}, q = {setting.sample_rate:g}", 1, 1)
    return Tried(rate, float(piece["accuracy"]), float(piece["clipped"]))
