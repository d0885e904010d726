"""The prior-aware game at one setting, in stored portions, with the gap to the bound split in two."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np

from leakcore import attacks, dpsgd
from leakcore.experiments._context import Context
from leakcore.experiments._result import Panel, Series, Stated
from leakcore.experiments.reconstruction import _mechanism
from leakcore.experiments.reconstruction._data import Split

_PIECE = 256
SUCCESS = "probability of naming the target"
EPSILON = "ε at δ = 1e-5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One configuration of DP-SGD; step = learning rate × C from 1,000 rows on, less in proportion to fewer rows."""

    epsilon: float
    hidden: tuple[int, ...] = (10,)
    max_grad_norm: float = 0.1
    sample_rate: float = 1.0
    steps: int = 100
    step: float = 1.0
    initialisation: str = "per-run"


def ensemble(context: Context, split: Split, setting: Setting) -> dpsgd.Ensemble:
    """The runs under attack; σ from ε."""
    return dpsgd.Ensemble(
        (split.known_features.shape[1], *setting.hidden, split.classes),
        noise_multiplier=_mechanism.noise_for(context, setting.epsilon, setting.sample_rate, setting.steps),
        max_grad_norm=setting.max_grad_norm,
        # Noise moves the parameters by σ·step/rows: few rows need short steps.
        learning_rate=setting.step / setting.max_grad_norm * min(1.0, (len(split.known_labels) + 1) / 1000),
        steps=setting.steps,
        sample_rate=setting.sample_rate,
        expected_batch_size=setting.sample_rate * (len(split.known_labels) + 1),
        initialisation=setting.initialisation,
        seed=context.seed,
    )


def play(
    context: Context,
    split: Split,
    setting: Setting,
    *,
    prior_size: int,
    runs: int,
    methods: tuple[str, ...] = ("sum",),
    subtract_known: bool = True,
    task: str,
) -> dict[str, attacks.ReconstructionGame]:
    """All methods on the same runs, `_PIECE` at a time, each portion kept."""
    described = [dataclasses.asdict(setting), prior_size, methods, subtract_known, task, split.content]
    key = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:20]
    model = ensemble(context, split, setting)
    totals: dict[str, attacks.ReconstructionGame] = {}
    for first in range(0, runs, _PIECE):
        count = min(_PIECE, runs - first)

        def portion(first: int = first, count: int = count) -> dict[str, object]:
            games = attacks.reconstruction_games(
                model,
                split.known_features,
                split.known_labels,
                split.pool_features,
                split.pool_labels,
                methods=methods,
                prior_size=prior_size,
                runs=count,
                first_run=first,
                subtract_known=subtract_known,
                progress=lambda done, _: context.progress(task, first + done, runs),
            )
            return {name: game.state() for name, game in games.items()}

        piece = context.pieces.get_or_run(f"game-{key}-{first}", portion)
        context.progress(task, first + count, runs)
        for name in methods:
            game = attacks.ReconstructionGame.from_state(piece[name])
            totals[name] = game if name not in totals else totals[name].merge(game)
    return totals


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
    """Of the success rate, as floats."""
    return None if game.interval is None else (float(game.interval[0]), float(game.interval[1]))


def bound(context: Context, setting: Setting, prior_size: int) -> float:
    """The exact bound on success in this setting."""
    noise = _mechanism.noise_for(context, setting.epsilon, setting.sample_rate, setting.steps)
    return _mechanism.upper(noise, setting.sample_rate, setting.steps, prior_size)


def gap(context: Context, setting: Setting, game: attacks.ReconstructionGame, paper: str) -> Stated:
    """Attack beside bound, and the gap split in two: bound − orthogonal optimum, and that optimum − attack."""
    noise = _mechanism.noise_for(context, setting.epsilon, 1.0, setting.steps)
    beside = _mechanism.Beside.at(noise, setting.steps, game.prior_size)
    rate = float(game.value)
    return Stated(
        what=f"ε = {setting.epsilon:g}, C = {setting.max_grad_norm:g}, prior {game.prior_size}: attack",
        paper=paper,
        ours=rate,
        interval=interval(game),
        comment=f"bound {beside.bound:.4f}; gap {beside.bound - rate:+.4f} = "
        f"{beside.bound - beside.orthogonal:+.4f} (bound − "
        f"optimum of orthogonal candidates, {beside.orthogonal:.4f}; simplex {beside.simplex:.4f}) "
        f"{beside.orthogonal - rate:+.4f} (that optimum − attack); {100 * game.clipped_share:.1f}% of gradients "
        f"clipped, "
        f"cosine to the nearest candidate {game.nearest_cosine:.3f}",
    )


def panel(
    context: Context,
    title: str,
    epsilons: tuple[float, ...],
    prior_size: int,
    drawn: tuple[Series, ...],
    steps: int = 100,
) -> Panel:
    """Success over ε: bound and reference curves, and the attacks."""
    return Panel(
        title=title,
        x_label=EPSILON,
        y_label=SUCCESS,
        series=(*_mechanism.curves(context, epsilons, steps, prior_size), *drawn),
        log_x=True,
    )
