"""The prior-aware game at one setting, in stored portions, with the gap to the bound split in two."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from leakcore import attacks, dpsgd
from leakcore._base.digest import digest
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import mechanism
from leakcore.experiments.reconstruction.setting.data import Split
from leakcore.experiments.result import Panel, Series, Stated, ours

_PIECE = 256
SUCCESS = "probability of naming the target"
EPSILON = "ε at δ = 1e-5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GameSetting:
    """One configuration of DP-SGD; step = learning rate × C from 1,000 rows on, less in proportion to fewer rows."""

    epsilon: float
    hidden: tuple[int, ...] = (10,)
    max_grad_norm: float = 0.1
    sample_rate: float = 1.0
    steps: int = 100
    step: float = 1.0
    initialisation: str = "per-run"


def ensemble(context: Context, split: Split, setting: GameSetting) -> dpsgd.Ensemble:
    """The runs under attack; σ from ε."""
    return dpsgd.Ensemble(
        dpsgd.Network(
            (split.known_features.shape[1], *setting.hidden, split.classes), initialisation=setting.initialisation
        ),
        noise_multiplier=mechanism.noise_for(context, setting.epsilon, setting.sample_rate, setting.steps),
        max_grad_norm=setting.max_grad_norm,
        # Noise moves the parameters by σ·step/rows: few rows need short steps.
        learning_rate=setting.step / setting.max_grad_norm * min(1.0, (len(split.known_labels) + 1) / 1000),
        steps=setting.steps,
        sample_rate=dpsgd.PoissonBatches(
            setting.sample_rate, expected_batch_size=setting.sample_rate * (len(split.known_labels) + 1)
        ),
        seed=context.seed,
    )


def play(
    context: Context,
    split: Split,
    setting: GameSetting,
    *,
    num_candidates: int,
    runs: int,
    methods: tuple[str, ...] = ("sum",),
    subtract_known: bool = True,
    task: str,
) -> dict[str, attacks.ReconstructionGame]:
    """All methods on the same runs, `_PIECE` at a time, each portion stored as a piece."""
    described = [dataclasses.asdict(setting), num_candidates, methods, subtract_known, task, split.content]
    key = digest(described)[:20]
    model = ensemble(context, split, setting)
    known, pool = (
        dpsgd.Rows(split.known_features, split.known_labels), dpsgd.Rows(split.pool_features, split.pool_labels)
    )  # fmt: skip
    rules = attacks.GameRules(num_candidates, subtract_known=subtract_known)
    counts = {first: min(_PIECE, runs - first) for first in range(0, runs, _PIECE)}
    firsts = {f"game-{key}-{first}": first for first in counts}
    done = 0
    jobs: dict[str, Callable[[], dict[str, attacks.ReconstructionGame]]] = {}
    for name, first in firsts.items():
        how = dpsgd.Execution(num_threads=1)
        if context.executor is None:
            how = dpsgd.Execution(progress=lambda more, _: context.progress(task, done + more, runs))
        jobs[name] = functools.partial(
            _portion, model, known, pool, rules, methods=methods, runs=range(first, first + counts[first]),
            execution=how,
        )  # fmt: skip
    pieces = {}
    for name, piece in context.pieces.each(jobs, context.executor, dict[str, attacks.ReconstructionGame]):
        pieces[firsts[name]] = piece
        done += counts[firsts[name]]
        context.progress(task, done, runs)

    def merged(method: str) -> attacks.ReconstructionGame:
        # In the order of runs, not in the order in which workers finished.
        parts: Iterator[attacks.ReconstructionGame] = (pieces[first][method] for first in counts)
        return functools.reduce(lambda total, part: total.merge(part), parts)

    return {method: merged(method) for method in methods}


def _portion(*args: Any, **how: Any) -> dict[str, attacks.ReconstructionGame]:
    """`attacks.reconstruction_games`, by a name that workers can import."""
    return attacks.reconstruction_games(*args, **how)


def series(name: str, role: str, x: tuple[float, ...], games: list[attacks.ReconstructionGame]) -> Series:
    """Success rates with their intervals."""
    ends = [g.interval or (g.value, g.value) for g in games]
    return Series(
        name=name,
        role=role,
        x=np.array(x),
        y=np.array([float(g.value) for g in games]),
        low=np.array([float(low) for low, _ in ends]),
        high=np.array([float(high) for _, high in ends]),
    )


def interval(game: attacks.ReconstructionGame) -> tuple[float, float] | None:
    """The interval of the success rate, as floats."""
    return None if game.interval is None else (float(game.interval[0]), float(game.interval[1]))


def bound(context: Context, setting: GameSetting, num_candidates: int) -> float:
    """The exact bound on success in this setting."""
    noise = mechanism.noise_for(context, setting.epsilon, setting.sample_rate, setting.steps)
    return mechanism.upper(noise, setting.sample_rate, setting.steps, num_candidates)


def gap(context: Context, setting: GameSetting, game: attacks.ReconstructionGame, paper: str) -> Stated:
    """Attack and bound, and the gap between them in two parts: bound − orthogonal optimum, and optimum − attack."""
    noise = mechanism.noise_for(context, setting.epsilon, 1.0, setting.steps)
    limits = mechanism.BoundsAtNoise.at(noise, setting.steps, game.num_candidates)
    rate = float(game.value)
    return Stated(
        what=f"ε = {setting.epsilon:g}, C = {setting.max_grad_norm:g}, prior {game.num_candidates}: attack",
        paper=paper,
        **ours(game),
        comment=f"bound {limits.bound:.4f}; gap {limits.bound - rate:+.4f} = "
        f"{limits.bound - limits.orthogonal:+.4f} (bound − "
        f"optimum of orthogonal candidates, {limits.orthogonal:.4f}; simplex {limits.simplex:.4f}) "
        f"{limits.orthogonal - rate:+.4f} (that optimum − attack); {100 * game.clipped_share:.1f}% of gradients "
        f"clipped, "
        f"cosine to the nearest candidate {game.nearest_cosine:.3f}",
    )


def panel(
    context: Context,
    title: str,
    epsilons: tuple[float, ...],
    num_candidates: int,
    drawn: tuple[Series, ...],
    steps: int = 100,
) -> Panel:
    """Success over ε: bound and reference curves, and the attacks."""
    return Panel(
        title=title,
        x_label=EPSILON,
        y_label=SUCCESS,
        series=(*mechanism.curves(context, epsilons, steps, num_candidates), *drawn),
        log_x=True,
    )
