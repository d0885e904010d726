"""The prior-aware game at one setting, in stored portions, with the gap to the bound split in two."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
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


def ensemble(
    context: Context, split: Split, setting: GameSetting, *, noise_multiplier: float | None = None
) -> dpsgd.Ensemble:
    """The runs under attack; σ from ε, or as given."""
    if noise_multiplier is None:
        noise_multiplier = mechanism.noise_for(context, setting.epsilon, setting.sample_rate, setting.steps)
    return dpsgd.Ensemble(
        dpsgd.Network(
            (split.known_features.shape[1], *setting.hidden, split.classes), initialisation=setting.initialisation
        ),
        noise_multiplier=noise_multiplier,
        max_grad_norm=setting.max_grad_norm,
        learning_rate=learning_rate(split, setting),
        steps=setting.steps,
        sample_rate=dpsgd.PoissonBatches(
            setting.sample_rate, expected_batch_size=setting.sample_rate * (len(split.known_labels) + 1)
        ),
        seed=context.seed,
    )


def learning_rate(split: Split, setting: GameSetting) -> float:
    """η of the runs on this split."""
    return setting.step / setting.max_grad_norm * _shortened(split)


def with_learning_rate(split: Split, setting: GameSetting, rate: float) -> GameSetting:
    """The setting whose runs on this split have η = rate."""
    return dataclasses.replace(setting, step=rate * setting.max_grad_norm / _shortened(split))


def _shortened(split: Split) -> float:
    """Noise moves the parameters by σ·step/rows: few rows need short steps."""
    return min(1.0, (len(split.known_labels) + 1) / 1000)


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
    done = 0
    how = dpsgd.Execution(num_threads=1)
    if context.executor is None:
        how = dpsgd.Execution(progress=lambda more, _: context.progress(task, done + more, runs))
    rules = attacks.GameRules(num_candidates, subtract_known=subtract_known)
    jobs = _jobs(context, split, setting, rules, range(runs), methods, task, how)
    pieces = {}
    for name, piece in context.pieces.each(jobs, context.executor, dict[str, attacks.ReconstructionGame]):
        pieces[name] = piece
        done += piece[methods[0]].trials
        context.progress(task, done, runs)
    return _merged([pieces[name] for name in jobs], methods)


def try_each(
    context: Context,
    split: Split,
    settings: Sequence[GameSetting],
    *,
    num_candidates: int,
    runs: range,
    methods: tuple[str, ...],
    task: str,
) -> list[dict[str, attacks.ReconstructionGame] | None]:
    """The same runs in each setting, all at once for the workers; None where a run overflows."""
    how = dpsgd.Execution(num_threads=None if context.executor is None else 1)
    rules = attacks.GameRules(num_candidates)
    jobs = [_jobs(context, split, one, rules, runs, methods, task, how) for one in settings]
    allowed = {name: functools.partial(_unless_lost, job) for each in jobs for name, job in each.items()}
    pieces = {}
    for name, piece in context.pieces.each(allowed, context.executor, dict[str, attacks.ReconstructionGame]):
        pieces[name] = piece
        context.progress(task, len(pieces), len(allowed))
    parts = [[pieces[name] for name in each] for each in jobs]
    return [_merged(each, methods) if all(each) else None for each in parts]


def _jobs(
    context: Context,
    split: Split,
    setting: GameSetting,
    rules: attacks.GameRules,
    runs: range,
    methods: tuple[str, ...],
    task: str,
    how: dpsgd.Execution,
) -> dict[str, Callable[[], dict[str, attacks.ReconstructionGame]]]:
    """The portions by name, in the order of runs."""
    rule = rules.num_candidates, methods, rules.subtract_known
    described = [dataclasses.asdict(setting), *rule, task, split.content]
    key = digest(described)[:20]
    model = ensemble(context, split, setting)
    known, pool = (
        dpsgd.Rows(split.known_features, split.known_labels), dpsgd.Rows(split.pool_features, split.pool_labels)
    )  # fmt: skip
    return {
        f"game-{key}-{first}": functools.partial(
            _portion, model, known, pool, rules, methods=methods, runs=range(first, min(first + _PIECE, runs.stop)),
            execution=how,
        )
        for first in range(runs.start, runs.stop, _PIECE)
    }  # fmt: skip


def _merged(
    pieces: list[dict[str, attacks.ReconstructionGame]], methods: tuple[str, ...]
) -> dict[str, attacks.ReconstructionGame]:
    """In the order of runs, not in the order in which workers finished."""
    return {
        method: functools.reduce(lambda total, part: total.merge(part), (piece[method] for piece in pieces))
        for method in methods
    }


def _portion(*args: Any, **how: Any) -> dict[str, attacks.ReconstructionGame]:
    """`attacks.reconstruction_games`, by a name that workers can import."""
    return attacks.reconstruction_games(*args, **how)


def _unless_lost(
    job: Callable[[], dict[str, attacks.ReconstructionGame]],
) -> dict[str, attacks.ReconstructionGame]:
    """The portion, or nothing where a run overflows."""
    try:
        return job()
    except FloatingPointError:
        return {}


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
