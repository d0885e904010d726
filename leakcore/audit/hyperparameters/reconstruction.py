"""The reconstruction section: for each noise level the accountant's ε, the bounds, and the attack played for real."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np

from leakcore import accounting, attacks, bounds, datasets, dpsgd, numerics
from leakcore._base.progress import Progress
from leakcore._base.results import Adjacency, Assumptions, Result
from leakcore._base.run_folder import PartialResults
from leakcore.audit.hyperparameters import scheme
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.shared.claimed_epsilon import proved_epsilon
from leakcore.numerics import AccuracyError

_PIECE = 256
"""Runs per stored piece: a few seconds of work, the most that an interruption can lose."""
_CURVE_POINTS, _FEW_CURVE_POINTS = 40, 8
"""Noise levels of the figure's curves, between the audited ones; few where a bound takes seconds."""
_ROOM = 1 + 1e-6
"""Factor on a σ that was found on lattices: another lattice's upper bound of its ε may be larger by a relative 1e-7."""
FPR = 0.01
"""False-positive rate of the bound on membership tests."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ReconstructionPoint:
    """One noise level.

    claimed: whether it is the audited configuration or a point of the sweep.
    epsilon: the accountant, under the mechanism's own adjacency. epsilon_pld, epsilon_rdp: other accountants, of
    Poisson and full batches. epsilon_replace: the same mechanism under replacement, where that is another adjacency;
    of some schemes only at the claimed level. bound: upper bound on reconstruction success at κ = 1/n. bound_rdp: the
    older one, of Poisson and full batches. membership: the largest true-positive rate at 1% false positives, at the
    claimed level. reference: the optimum for orthogonal candidates (full or shuffled batches only). attack: the game.
    attack_lower: its one-sided Clopper–Pearson lower limit at the gate's confidence, corrected for the number of noise
    levels. epsilon_audited: what it proves. attack_ceiling, epsilon_ceiling: both, had every answer been right;
    audit_ceiling: the latter in any number of trainings. Fields that need dp-accounting are None without it, and where
    it does not reach.
    """

    claimed: bool
    num_candidates: int
    noise_multiplier: float
    epsilon: Result
    epsilon_pld: Result | None
    epsilon_rdp: Result | None
    epsilon_replace: Result | None
    bound: Result
    bound_rdp: Result | None
    membership: Result | None
    reference: Result | None
    attack: attacks.ReconstructionGame
    attack_lower: float
    attack_ceiling: float
    epsilon_audited: Result
    epsilon_ceiling: float
    clipped_share: float
    nearest_cosine: float
    audit_ceiling: float

    @property
    def testable(self) -> bool:
        """Whether an attack that never errs, in this many trainings, would have contradicted the claim."""
        return self.attack_ceiling > float(self.bound.value) or self.epsilon_ceiling > float(self.epsilon.value)

    @property
    def drawable(self) -> bool:
        """Whether a logarithmic axis can show the accountant's ε."""
        return bool(_drawable(float(self.epsilon.value)))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BoundCurve:
    """Success probabilities over ε for the figure; None if there is no curve.

    bound: what no attacker beats; bound_rdp: the older bound. bound_lower: the lower end of a bracket. poisson_claim:
    what accounting as Poisson sampling would claim. reference: the optimum for orthogonal candidates.
    """

    delta: float
    chance: float
    epsilon: np.ndarray
    noise_multiplier: np.ndarray
    bound: np.ndarray
    bound_rdp: np.ndarray | None
    bound_lower: np.ndarray | None
    poisson_claim: np.ndarray | None
    reference: np.ndarray | None

    @property
    def drawable(self) -> np.ndarray:
        """Which points a logarithmic axis can show."""
        return np.asarray(_drawable(self.epsilon))


def _drawable(epsilon: Any) -> Any:
    """Which values of ε a logarithmic axis can show: neither 0, nor far beyond any mechanism's."""
    return (np.asarray(epsilon) > 1e-100) & (np.asarray(epsilon) < 1e100)


def noise_levels(config: AuditConfig) -> list[tuple[float, bool]]:
    """(σ, claimed) of every audited level, the least noise last."""
    if config.epsilon is None:
        assert config.noise_multiplier is not None
        claimed, others = config.noise_multiplier, list(config.sweep)
    else:
        claimed, others = _noise_for(config, config.epsilon), [e for e in config.sweep if e != config.epsilon]
    levels = [(claimed, True), *((_noise_for(config, e), False) for e in others)]
    return sorted(levels, reverse=True)


def study(
    config: AuditConfig, pieces: PartialResults, progress: Progress, executor: Executor | None = None
) -> tuple[list[ReconstructionPoint], BoundCurve]:
    """Every noise level of the audit, and the curves between them."""
    levels = noise_levels(config)
    games = _games(config, [noise for noise, _ in levels], pieces, progress, executor)
    points = [
        _point(config, noise, claimed, game, len(levels)) for (noise, claimed), game in zip(levels, games, strict=True)
    ]
    return points, _curve(config, points)


def _noise_for(config: AuditConfig, epsilon: float) -> float:
    answer = accounting.noise_multiplier(scheme.mechanism(config, 1.0), epsilon=epsilon, delta=config.delta)
    return float(answer.value) * (1.0 if _sampled(config, 1.0) else _ROOM)


def ensemble(config: AuditConfig, noise: float, *, dtype: str = "float32") -> dpsgd.Ensemble:
    """The configuration's training on digits, with this noise."""
    data = datasets.digits()
    return dpsgd.Ensemble(
        dpsgd.Network((data.features.shape[1], *config.hidden, data.num_classes), config.activation, dtype=dtype),
        noise_multiplier=noise,
        max_grad_norm=config.max_grad_norm,
        learning_rate=config.learning_rate,
        steps=scheme.total_steps(config),
        sample_rate=scheme.batches(config),
        seed=config.seed,
    )


def _games(
    config: AuditConfig, noises: list[float], pieces: PartialResults, progress: Progress, executor: Executor | None
) -> list[attacks.ReconstructionGame]:
    """The game at each noise level. Pieces of all levels may be at work at once; their sums are integers."""
    _require_rows(config)
    counts = {first: min(_PIECE, config.runs - first) for first in range(0, config.runs, _PIECE)}
    names = {f"game-{noise!r}-{first}": (number, first) for number, noise in enumerate(noises) for first in counts}
    done = [0] * len(noises)

    def show(number: int, more: int = 0, _: int = 0) -> None:
        if executor is None:
            task = f"attack {number + 1} of {len(noises)} (σ = {noises[number]:.3g})"
            progress(task, done[number] + more, config.runs)
        else:
            # One bar: workers finish pieces of several levels in any order.
            progress(f"attack, {len(noises)} noise levels", sum(done), config.runs * len(noises))

    jobs: dict[str, Callable[[], attacks.ReconstructionGame]] = {}
    for name, (number, first) in names.items():
        how = dpsgd.Execution(num_threads=1)
        if executor is None:
            how = dpsgd.Execution(progress=functools.partial(show, number))
        jobs[name] = functools.partial(_play, config, noises[number], first, counts[first], how)
    pieces_done = {}
    for name, game in pieces.each(jobs, executor, attacks.ReconstructionGame):
        number, first = names[name]
        pieces_done[name] = game
        done[number] += counts[first]
        show(number)
    # In the order of runs, not of finishing.
    return [
        functools.reduce(attacks.ReconstructionGame.merge, (pieces_done[f"game-{noise!r}-{first}"] for first in counts))
        for noise in noises
    ]


def _require_rows(config: AuditConfig) -> None:
    rows = len(datasets.digits().labels)
    if config.num_rows - 1 + config.num_candidates > rows:
        raise ValueError(
            f"`num_rows` and `num_candidates` must add up to at most {rows + 1}, for digits has {rows} rows and the "
            f"game takes num_rows - 1 and num_candidates more, got {config.num_rows} and {config.num_candidates}"
        )


def _play(
    config: AuditConfig, noise: float, first: int, count: int, execution: dpsgd.Execution
) -> attacks.ReconstructionGame:
    """Runs [first, first + count), created from the configuration alone, wherever it is called."""
    data = datasets.digits()
    known = config.num_rows - 1
    return attacks.reconstruction_game(
        ensemble(config, noise),
        dpsgd.Rows(data.features[:known], data.labels[:known]),
        dpsgd.Rows(data.features[known:], data.labels[known:]),
        attacks.GameRules(config.num_candidates),
        runs=range(first, first + count),
        confidence=config.confidence,
        execution=execution,
    )


def _point(
    config: AuditConfig, noise: float, claimed: bool, game: attacks.ReconstructionGame, levels: int
) -> ReconstructionPoint:
    mechanism = scheme.mechanism(config, noise)
    kappa = 1 / config.num_candidates
    miss = (1 - config.gate_confidence) / levels
    level = 1 - miss if miss < 1 else config.gate_confidence
    lower, most = (
        float(numerics.clopper_pearson(hits, game.trials, confidence=level, side="lower")[0])
        for hits in (game.hits, game.trials)
    )
    sampled = _sampled(config, noise)
    pld, rdp = (_by_peer(sampled, config.delta, method) for method in ("pld", "rdp"))
    replaces = "replace" in mechanism.adjacencies and mechanism.adjacency != "replace"
    return ReconstructionPoint(
        claimed=claimed,
        num_candidates=config.num_candidates,
        noise_multiplier=noise,
        epsilon=proved_epsilon(mechanism, delta=config.delta),
        epsilon_pld=pld,
        epsilon_rdp=rdp,
        epsilon_replace=proved_epsilon(mechanism, delta=config.delta, adjacency="replace")
        if replaces and (claimed or sampled)
        else None,
        bound=bounds.reconstruction(mechanism, kappa=kappa),
        bound_rdp=bounds.reconstruction_rdp(*sampled, kappa=kappa) if sampled else None,
        membership=bounds.membership(mechanism, fpr=FPR) if claimed else None,
        reference=_reference(config, noise, mechanism.adjacency),
        attack=game,
        attack_lower=lower,
        attack_ceiling=most,
        epsilon_ceiling=_log_excess(config, most),
        epsilon_audited=_audited(config, game, lower, 1 - miss * levels),
        clipped_share=game.clipped_share,
        nearest_cosine=game.nearest_cosine,
        audit_ceiling=math.log(config.num_candidates),
    )


def _sampled(config: AuditConfig, noise: float) -> tuple[float, float, int] | None:
    """(σ, q, T) of Poisson sampling and of full batches; None of other schemes."""
    if config.sampling not in ("poisson", "full"):
        return None
    return noise, 1.0 if config.sample_rate is None else config.sample_rate, scheme.total_steps(config)


def _reference(config: AuditConfig, noise: float, adjacency: Adjacency | None) -> Result | None:
    """The optimum for orthogonal candidates, where the attacker knows in which steps the target is."""
    known = scheme.gaussian_steps(config)
    if known is None:
        return None
    best = bounds.orthogonal_success(noise, known, config.num_candidates)
    if scheme.full_batches(config):
        return best
    attacker = "the prior-aware attack, which is optimal for these candidates and knows the order of every epoch"
    said = dataclasses.replace(best.assumptions, adjacency=adjacency, attacker=attacker)
    return dataclasses.replace(best, assumptions=said)


def _log_excess(config: AuditConfig, success: float) -> float:
    """ε ≥ log(n(s − δ)): under (ε, δ)-DP the target is named with probability s ≤ e^ε/n + δ, without it with 1/n."""
    return math.log(max(config.num_candidates * (success - config.delta), 1.0))


def _audited(config: AuditConfig, game: attacks.ReconstructionGame, lower: float, confidence: float) -> Result:
    """What a success of at least `lower` proves."""
    return accounting.Epsilon(
        delta=config.delta,
        value=_log_excess(config, lower),
        kind="lower",
        confidence=confidence,
        interval=None,
        method="naming the target against naming it when it is absent",
        assumptions=Assumptions(
            game.adjacency,
            game.assumptions.attacker,
            (f"simultaneous over the audited noise levels; cannot exceed log {config.num_candidates}",),
        ),
        seed=config.seed,
        provenance="definition of (ε, δ)-differential privacy, on the game of Hayes et al. 2023, Section 2",
    )


def _by_peer(sampled: tuple[float, float, int] | None, delta: float, method: str) -> Result | None:
    """ε by dp-accounting; None of other schemes, and where it is not installed or does not reach."""
    try:
        return None if sampled is None else accounting.epsilon(*sampled, delta=delta, method=method)
    except (ImportError, AccuracyError):
        return None


def _curve(config: AuditConfig, points: list[ReconstructionPoint]) -> BoundCurve:
    noise = np.array([p.noise_multiplier for p in points if p.noise_multiplier > 0])
    cheap = _sampled(config, 1.0) is not None
    many = _CURVE_POINTS if cheap else _FEW_CURVE_POINTS
    grid = np.geomspace(noise.max() * 1.25, noise.min() / 1.25, many) if noise.size else noise
    kappa = 1 / config.num_candidates
    mechanisms = [scheme.mechanism(config, float(s)) for s in grid]
    # One point that takes the detour: most of these would, and each try before it takes seconds.
    reached = all(p.epsilon.method == "exact" for p in points)
    methods = ("exact", "pld") if reached else ("pld",)
    limits = [bounds.reconstruction(m, kappa=kappa) for m in mechanisms]
    bracket = any(limit.method == "bracket" for limit in limits)
    claims = [float(limit.poisson_claim) for limit in limits if limit.poisson_claim is not None]
    sampled = [settings for s in grid if (settings := _sampled(config, float(s))) is not None]
    return BoundCurve(
        delta=config.delta,
        chance=kappa,
        noise_multiplier=grid,
        epsilon=np.array([float(proved_epsilon(m, delta=config.delta, methods=methods).value) for m in mechanisms]),
        bound=np.array([float(limit.value) for limit in limits]),
        bound_rdp=np.array([float(bounds.reconstruction_rdp(*s, kappa=kappa).value) for s in sampled])
        if cheap
        else None,
        bound_lower=np.array([float(limit.interval[0]) for limit in limits if limit.interval]) if bracket else None,
        poisson_claim=np.array(claims) if claims else None,
        reference=None
        if points[0].reference is None
        else np.array([float(best.value) for s in grid if (best := _reference(config, float(s), None)) is not None]),
    )
