"""The auditing paper's data, mechanism and attacks, and the scores of the models that they need, stored as pieces."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from leakcore import accounting, bounds, datasets, dpsgd
from leakcore._base.digest import digest
from leakcore.attacks import membership, poisoning
from leakcore.experiments.driver.context import Context
from leakcore.experiments.reconstruction import data as _data

SOURCE = (
    "Jagielski, Ullman and Oprea, Auditing Differentially Private Machine Learning: How Private is Private SGD?, 2020"
)
DELTA = 1e-5
CONFIDENCE = 0.99
EPOCHS = 24
_BATCHES = 24
"""Of an epoch of the paper's 6,000 rows of FMNIST."""
_STEP = 0.15 / 250
"""Learning rate over batch size: how far one clipped gradient moves the model, as in the authors' code. It, not the
number of rows, decides how the poison compares with a random start."""
_HELD_OUT = 200
_RUNS = 2**20
"""More runs than any cell trains."""
STARTS = {"fixed": ("fixed-glorot", 1.0), "0.5σ": ("glorot", 0.5), "σ": ("glorot", 1.0), "2σ": ("glorot", 2.0)}
"""One start for all models, or normal ones with a multiple of Glorot's deviation."""


@dataclasses.dataclass(frozen=True, eq=False)
class AuditingRows:
    """Training and held-out rows. shape: of images that a backdoor can patch. images, test_images, embed: where the
    features come from a frozen network."""

    name: str
    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    classes: int
    described: str
    shape: tuple[int, ...] | None = None
    images: np.ndarray | None = None
    test_images: np.ndarray | None = None
    embed: Any = None

    @functools.cached_property
    def content(self) -> str:
        """A digest of all rows."""
        return digest(self.features, self.labels, self.test_features, self.test_labels)[:20]


@dataclasses.dataclass(frozen=True)
class AuditedTraining:
    """DP-SGD as audited, for 24 epochs. noise: σ; 0 for ε_th = ∞. batches: of an epoch; each takes every row with
    probability 1/batches. start: of `STARTS`."""

    hidden: tuple[int, ...]
    noise: float
    batches: int
    clip: float = 1.0
    start: str = "fixed"

    def ensemble(self, rows: AuditingRows, seed: int) -> dpsgd.Ensemble:
        """Many runs of it."""
        size = len(rows.labels) / self.batches
        initialisation, scale = STARTS[self.start]
        return dpsgd.Ensemble(
            dpsgd.Network(
                (rows.features.shape[1], *self.hidden, rows.classes),
                "relu",
                initialisation=dpsgd.Initialisation(initialisation, scale=scale),
            ),
            noise_multiplier=self.noise,
            max_grad_norm=self.clip,
            learning_rate=_STEP * size,
            steps=EPOCHS * self.batches,
            sample_rate=dpsgd.PoissonBatches(1 / self.batches, expected_batch_size=size),
            seed=seed,
        )


def depart(context: Context) -> None:
    """What no scale has as the paper."""
    context.departs("how a batch is drawn", "shuffled rows", "each row by a coin, as the accountant of both supposes")


def batches(rows: AuditingRows) -> int:
    """Of an epoch: of 250 rows as in the paper, or 24 where that would be fewer."""
    return max(_BATCHES, len(rows.labels) // 250)


@functools.cache
def noise_for(epsilon: float, batches: int) -> float:
    """σ with which 24 epochs of Poisson batches are (ε, 1e-5)-private under add/remove; 0 for ε = ∞."""
    if math.isinf(epsilon):
        return 0.0
    steps = EPOCHS * batches
    return float(accounting.noise_multiplier(epsilon=epsilon, delta=DELTA, sample_rate=1 / batches, steps=steps).value)


@functools.cache
def provable(noise: float, batches: int, adjacency: str) -> float:
    """ε_th under an adjacency."""
    if noise == 0:
        return math.inf
    steps = EPOCHS * batches
    return float(accounting.epsilon(noise, 1 / batches, steps, delta=DELTA, adjacency=adjacency).value)


def fashion_mnist(context: Context, rows: int, name: str = "FMNIST") -> AuditingRows:
    """T-shirts and trousers."""
    train, test = (
        datasets.fashion_mnist(split, part="classes-0-1", path=context.data, download=False)
        for split in ("train", "test")
    )
    first, _ = train.split(rows, seed=context.seed)
    arrays = (first.features, first.labels, test.features, test.labels)
    what = f"Fashion-MNIST, T-shirt and trouser: {rows:,} of {len(train):,} training rows; {train.scaling}"
    return AuditingRows(name, *arrays, 2, what, train.shape)


def cifar10(context: Context, rows: int) -> AuditingRows:
    """Airplanes and automobiles as features of a small frozen network."""
    split = _data.cifar10_pair(context, 0)
    whole = len(split.pool_labels)
    rows = min(rows, whole - _HELD_OUT)
    return AuditingRows(
        "CIFAR-10",
        split.pool_features[:rows],
        split.pool_labels[:rows],
        split.pool_features[-_HELD_OUT:],
        split.pool_labels[-_HELD_OUT:],
        2,
        f"{rows:,} training rows of: {split.described}",
        shape=split.shape,
        images=split.images[:rows],
        test_images=split.images[-_HELD_OUT:],
        embed=split.embed,
    )


def purchase100(context: Context, rows: int) -> AuditingRows:
    """Purchase-100 where the user has its file, which nobody may redistribute, else Location-30."""
    try:
        data = datasets.purchase100(context.data or os.environ.get("LEAKCORE_DATA", "") or Path.cwd())
    except FileNotFoundError:
        context.departs("third data set", "Purchase-100", "Location-30, since Purchase-100's file is not there")
        return location30(context, rows)
    return _table(context, data, rows, "Purchase-100", "Purchase-100")


def location30(context: Context, rows: int) -> AuditingRows:
    """Location-30, where the paper has Purchase-100."""
    data = datasets.location30(path=context.data)
    return _table(context, data, rows, "Location-30", "Location-30, which stands in for Purchase-100 and is not it")


def _table(context: Context, data: datasets.Dataset, rows: int, name: str, what: str) -> AuditingRows:
    rows = min(rows, len(data) - _HELD_OUT)
    first, rest = data.split(rows, seed=context.seed)
    arrays = (first.features, first.labels, rest.features[:_HELD_OUT], rest.labels[:_HELD_OUT])
    sizes = f"{rows:,} of {len(data):,} rows, {data.features.shape[1]} features, {data.num_classes} classes"
    return AuditingRows(name, *arrays, data.num_classes, f"{what}: {sizes}")


def attack(rows: AuditingRows, name: str, k: int, seed: int) -> poisoning.Poisoning:
    """k rows replaced; before frozen features ClipBKD moves an image (Appendix C) and the patch sits on one."""
    if name == "backdoor":
        others = np.flatnonzero(rows.test_labels != 1)[:_HELD_OUT]
        x, held_out = (rows.features, rows.test_features) if rows.embed is None else (rows.images, rows.test_images)
        assert rows.shape is not None
        assert held_out is not None
        poisoned = poisoning.Backdoor(rows.shape, label=1).poison(
            x, rows.labels, held_out[others], rows.test_labels[others], k=k, seed=seed, adjacency="replace"
        )
        return poisoned if rows.embed is None else poisoning.through(poisoned, rows.embed, rows.shape)
    if rows.embed is not None:
        assert rows.shape is not None
        frozen = poisoning.FrozenClipBKD(rows.embed, rows.shape)
        return frozen.poison(rows.images, rows.labels, k=k, seed=seed, adjacency="replace")
    return poisoning.ClipBKD().poison(rows.features, rows.labels, k=k, seed=seed, adjacency="replace")


def audited(
    context: Context,
    rows: AuditingRows,
    mechanism: AuditedTraining,
    name: str,
    ks: tuple[int, ...],
    trials: int,
    task: str,
    *,
    draw: int = 0,
) -> bounds.EpsilonBest:
    """The best k: threshold and k are chosen on `trials` models per data set, others are counted.

    Cells with different `draw` share no start, batch or noise.
    """

    def run() -> dict[str, Any]:
        poisoned = attack(rows, name, max(ks), context.seed)
        swept = poisoning.poisoning_sweep(
            mechanism.ensemble(rows, context.seed),
            poisoned,
            ks,
            trials=drawn(draw, 2 * trials),
            execution=_execution(context, task),
        )
        return {"in": {str(k): swept[k].scores_in.tolist() for k in ks}, "out": swept[ks[0]].scores_out.tolist()}

    piece = context.pieces.get_or_run(f"{name}-{_digest(mechanism, rows, ks, trials, draw)}", run)
    scores = {f"k = {k}": (np.array(piece["in"][str(k)]), np.array(piece["out"]), k) for k in ks}
    return bounds.epsilon_lower_bound_best(
        scores,
        threshold=bounds.SplitThreshold(seed=context.seed),
        confidence=CONFIDENCE,
        delta=DELTA,
        adjacency="replace",
    )


def drawn(draw: int, count: int) -> range:
    """`count` numbers of runs, which no other draw has."""
    return range(draw * _RUNS, draw * _RUNS + count)


def ks_for(context: Context, start: str) -> tuple[int, ...]:
    """Numbers of poisoned rows: few are enough where nothing else moves the start."""
    fixed = start == "fixed"
    what = f"poisoned rows k, {'fixed start' if fixed else 'random starts'}"
    return context.pick(what, tiny=(1, 2), quick=(1, 4) if fixed else (8,), paper=(1, 2, 4, 8))


def _execution(context: Context, task: str) -> dpsgd.Execution:
    return dpsgd.Execution(executor=context.executor, progress=lambda done, total: context.progress(task, done, total))


@dataclasses.dataclass(frozen=True)
class Membership:
    """estimate: the paper's, from the accuracy. bound: what the guesses at coins prove. accuracy: of the guesses."""

    estimate: float
    bound: float
    accuracy: float


def guessed(
    context: Context, rows: AuditingRows, mechanism: AuditedTraining, models: int, task: str, *, draw: int = 0
) -> Membership:
    """Yeom's attack on `models` models trained by coins; its threshold is the mean training loss of as many others."""

    def run() -> dict[str, Any]:
        game = membership.play(
            mechanism.ensemble(rows, context.seed),
            rows.features,
            rows.labels,
            runs=drawn(draw, 2 * models),
            execution=_execution(context, task),
        )
        scores = membership.scores("loss", game[models:], references=game[:models])
        correct, number = membership.guess(scores).tally(game.included[models:])
        return {"correct": correct, "guesses": number}

    piece = context.pieces.get_or_run(f"membership-{_digest(mechanism, rows, (), models, draw)}", run)
    estimate = bounds.epsilon_from_membership(piece["correct"], piece["guesses"])
    proof = bounds.epsilon_from_membership(
        piece["correct"], piece["guesses"], coins="rows", confidence=CONFIDENCE, delta=DELTA
    )
    return Membership(float(estimate.value), float(proof.value), estimate.accuracy)


def _digest(mechanism: AuditedTraining, rows: AuditingRows, ks: tuple[int, ...], trials: int, draw: int) -> str:
    return digest(dataclasses.asdict(mechanism), rows.content, ks, trials, draw)[:20]
