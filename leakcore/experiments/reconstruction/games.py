"""The prior-aware game at one setting: its noise, the attack's success, and what this is compared with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from leakcore import accounting, attacks, bounds, dpsgd, kernels
from leakcore._base.digest import digest
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated, ours
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.reconstruction.data import Split

DELTA = 1e-5
"""δ of every experiment of the paper (Appendix A)."""
_SAMPLES = 200_000
CALIBRATED = "σ is calibrated to ε at δ = 1e-5, add/remove, by the exact accountant"


def noise_for(context: Context, epsilon: float, sample_rate: float, steps: int) -> float:
    """The σ of (ε, 1e-5)-DP; stored as a piece, since small q takes seconds."""

    def find() -> dict[str, float]:
        answer = accounting.noise_multiplier(epsilon=epsilon, delta=DELTA, sample_rate=sample_rate, steps=steps)
        return {"noise_multiplier": float(answer.value)}

    piece = context.pieces.get_or_run(f"noise-{epsilon!r}-{sample_rate!r}-{steps}", find)
    return float(piece["noise_multiplier"])


def upper(noise_multiplier: float, sample_rate: float, steps: int, num_candidates: int) -> float:
    """The exact bound on success for a uniform prior."""
    return float(bounds.reconstruction(noise_multiplier, sample_rate, steps, kappa=1 / num_candidates).value)


def orthogonal(context: Context, noise_multiplier: float, sample_rate: float, steps: int, num_candidates: int) -> float:
    """Success of the best attack on n orthogonal, clipped candidates: exact for full batches, else an estimate.

    A candidate's score is then the log ratio L of its own coordinate, drawn from μ for the target and from ν for the
    others, so success is E_μ[P_ν(L' < L)ⁿ⁻¹]; `_SAMPLES` draws of each have a standard error below 0.0012.
    """
    if sample_rate == 1.0:
        return float(bounds.orthogonal_success(noise_multiplier, steps, num_candidates).value)

    def find() -> dict[str, float]:
        target, other = (
            kernels.mixture_log_ratio(
                _SAMPLES,
                noise_multiplier=noise_multiplier,
                sample_rate=sample_rate,
                steps=steps,
                under=law,
                seed=context.seed,
            )
            for law in ("alternative", "null")
        )
        below = np.searchsorted(np.sort(other), target) / _SAMPLES
        return {"success": float(np.mean(below ** (num_candidates - 1)))}

    name = f"orthogonal-{noise_multiplier!r}-{sample_rate!r}-{steps}-{num_candidates}"
    return float(context.pieces.get_or_run(name, find)["success"])


@dataclasses.dataclass(frozen=True)
class BoundsAtNoise:
    """What an attack is compared with at one noise level and full batches: bound, RDP bound, the optimum among n
    orthogonal candidates, and the same for a simplex."""

    bound: float
    rdp: float
    orthogonal: float
    simplex: float

    @classmethod
    def at(cls, noise_multiplier: float, steps: int, num_candidates: int) -> BoundsAtNoise:
        """The bounds for T full-batch steps."""
        return cls(
            upper(noise_multiplier, 1.0, steps, num_candidates),
            float(bounds.reconstruction_rdp(noise_multiplier, 1.0, steps, kappa=1 / num_candidates).value),
            float(bounds.orthogonal_success(noise_multiplier, steps, num_candidates).value),
            float(bounds.orthogonal_success(noise_multiplier, steps, num_candidates, geometry="simplex").value),
        )


def curves(context: Context, epsilons: tuple[float, ...], steps: int, num_candidates: int) -> tuple[Series, ...]:
    """Bound and reference curves over a range of ε that covers `epsilons`, full batches."""
    noise = [noise_for(context, e, 1.0, steps) for e in (min(epsilons), max(epsilons))]
    grid = np.geomspace(noise[0] * 1.15, noise[1] / 1.15, 30)
    at = [float(accounting.epsilon(s, 1.0, steps, delta=DELTA).value) for s in grid]
    at_noise = [BoundsAtNoise.at(float(s), steps, num_candidates) for s in grid]
    drawn = (
        ("upper bound, exact", "bound", "bound"),
        ("upper bound from RDP", "rdp", "rdp"),
        ("optimum, orthogonal candidates", "orthogonal", "orthogonal"),
        ("optimum, simplex", "simplex", "simplex"),
    )
    curves_drawn = tuple(
        Series.of(name, role, at, [getattr(b, field) for b in at_noise]) for name, role, field in drawn
    )
    return (*curves_drawn, chance(np.array(at), num_candidates))


def sampled_curve(
    context: Context, epsilons: tuple[float, ...], sample_rate: float, steps: int, num_candidates: int
) -> Series:
    """The exact bound over a range of ε with mini-batches; stored as a piece, since each ε takes a moment."""

    def find() -> dict[str, list[float]]:
        noise = [noise_for(context, e, sample_rate, steps) for e in (max(epsilons), min(epsilons))]
        grid = np.geomspace(noise[0], noise[1], context.pick(tiny=3, quick=12, paper=30))
        at = [float(accounting.epsilon(s, sample_rate, steps, delta=DELTA).value) for s in grid]
        return {"epsilon": at, "bound": [upper(float(s), sample_rate, steps, num_candidates) for s in grid]}

    piece = context.pieces.get_or_run(f"curve-{sample_rate!r}-{steps}-{num_candidates}", find)
    return Series.of("upper bound, exact", "bound", piece["epsilon"], piece["bound"])


def chance(x: np.ndarray, num_candidates: int) -> Series:
    """A blind guess."""
    return Series.of("guessing", "chance", x, 1 / num_candidates)


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
        noise_multiplier = noise_for(context, setting.epsilon, setting.sample_rate, setting.steps)
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
    pieces = context.finish(task, allowed, dict[str, attacks.ReconstructionGame])
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
    known = dpsgd.Rows(split.known_features, split.known_labels)
    pool = dpsgd.Rows(split.pool_features, split.pool_labels)
    portion = functools.partial(_portion, model, known, pool, rules, methods=methods, execution=how)
    return {
        f"game-{key}-{first}": functools.partial(portion, runs=range(first, min(first + _PIECE, runs.stop)))
        for first in range(runs.start, runs.stop, _PIECE)
    }


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


def _unless_lost(job: Callable[[], dict[str, attacks.ReconstructionGame]]) -> dict[str, attacks.ReconstructionGame]:
    """The portion, or nothing where a run overflows."""
    try:
        return job()
    except FloatingPointError:
        return {}


def series(name: str, role: str, x: tuple[float, ...], games: list[attacks.ReconstructionGame]) -> Series:
    """Success rates with their intervals."""
    ends = [g.interval or (g.value, g.value) for g in games]
    return Series.of(
        name,
        role,
        x,
        [float(g.value) for g in games],
        low=[float(low) for low, _ in ends],
        high=[float(high) for _, high in ends],
    )


def interval(game: attacks.ReconstructionGame) -> tuple[float, float] | None:
    """The interval of the success rate, as floats."""
    return None if game.interval is None else (float(game.interval[0]), float(game.interval[1]))


def bound(context: Context, setting: GameSetting, num_candidates: int) -> float:
    """The exact bound on success in this setting."""
    noise = noise_for(context, setting.epsilon, setting.sample_rate, setting.steps)
    return upper(noise, setting.sample_rate, setting.steps, num_candidates)


def gap(context: Context, setting: GameSetting, game: attacks.ReconstructionGame, paper: str) -> Stated:
    """Attack and bound, and the gap between them in two parts: bound − orthogonal optimum, and optimum − attack."""
    noise = noise_for(context, setting.epsilon, 1.0, setting.steps)
    limits = BoundsAtNoise.at(noise, setting.steps, game.num_candidates)
    rate = float(game.value)
    return Stated(
        f"ε = {setting.epsilon:g}, C = {setting.max_grad_norm:g}, prior {game.num_candidates}: attack",
        paper,
        **ours(game),
        comment=f"bound {limits.bound:.4f}; gap {limits.bound - rate:+.4f} = {limits.bound - limits.orthogonal:+.4f} "
        f"(bound − optimum of orthogonal candidates, {limits.orthogonal:.4f}; simplex {limits.simplex:.4f}) "
        f"{limits.orthogonal - rate:+.4f} (that optimum − attack); {clipped(game)}",
    )


def clipped(game: attacks.ReconstructionGame) -> str:
    """How many gradients are clipped, and how alike they are."""
    share, cosine = 100 * game.clipped_share, game.nearest_cosine
    return f"{share:.1f}% of gradients clipped, cosine to the nearest candidate {cosine:.3f}"


def panel(
    context: Context,
    title: str,
    epsilons: tuple[float, ...],
    num_candidates: int,
    drawn: tuple[Series, ...],
    steps: int = 100,
) -> Panel:
    """Success over ε: bound and reference curves, and the attacks."""
    return Panel(title, EPSILON, SUCCESS, (*curves(context, epsilons, steps, num_candidates), *drawn), log_x=True)


_STEP = (
    "learning rate × C is fixed (settings, step) where the paper sweeps the learning rate per ε: shorter steps "
    "leave more gradients clipped and bring the attack nearer to the bound, longer ones teach more"
)
_AVERAGED = "success is averaged over random targets, priors and initial parameters, with 95% Clopper–Pearson intervals"


def report(
    result: ExperimentResult,
    *,
    splits: Sequence[Split],
    setting: GameSetting,
    runs: int | dict[int, int],
    attacked: Sequence[tuple[attacks.ReconstructionGame, float]] = (),
    learning_rate_note: str | None = None,
    **settings: Any,
) -> ExperimentResult:
    """The result with the notes and settings that all figures share.

    attacked: every game and the bound on its success. That a bound is too low is tested, and said first: no attack's
    success may exceed it. learning_rate_note: None for that of a fixed step.
    """
    if learning_rate_note is None:
        learning_rate_note = f"{_STEP}; {_AVERAGED}" if attacked else _STEP
    if attacked:
        result = _held_to_bounds(result, attacked)
    return dataclasses.replace(
        result,
        notes=(*result.notes, CALIBRATED, learning_rate_note),
        data=tuple(dict.fromkeys(split.described for split in splits)),
        settings={**dataclasses.asdict(setting), "runs": runs, "delta": DELTA, **settings},
    )


def _held_to_bounds(
    result: ExperimentResult, attacked: Sequence[tuple[attacks.ReconstructionGame, float]]
) -> ExperimentResult:
    """What a binomial test of every game against its bound says: as a note, and first where a bound is too low."""
    least = min(float(special.bdtrc(g.hits - 1, g.trials, bound)) if g.hits else 1.0 for g, bound in attacked)
    if least * len(attacked) < 0.001:
        return dataclasses.replace(
            result,
            conclusion=f"An attack beats its bound (p = {least:.2g}): an error. {result.conclusion}",
            checks=(*result.checks, Check(says="no attack beats its bound", holds=0, cases=1)),
            notes=(*result.notes, "a bound lies below an attack"),
        )
    said = (
        f"no attack is significantly above its bound: of {len(attacked)} binomial tests the least p-value is "
        f"{least:.2g}"
    )
    return dataclasses.replace(result, notes=(*result.notes, said))
