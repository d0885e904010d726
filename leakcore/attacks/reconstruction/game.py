"""The reconstruction game: hide one of n candidates in a training set, train, attack, count."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.digest import digest
from leakcore._base.workers import answers
from leakcore.attacks.arguments import counting_on
from leakcore.attacks.reconstruction import game_result, prior_aware
from leakcore.attacks.reconstruction.game_result import COUNTS, FIXED_POINT, ReconstructionGame, result
from leakcore.dpsgd import arguments

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble, Execution

_PORTION = 1024
"""Runs trained per call of the ensemble: 32 blocks, whose parameters fit in tens of megabytes."""
_TASK = 128
"""Runs per task of an executor: seconds of work for the papers' settings."""
_BYTES_AHEAD, _LEAST_AHEAD = 2**32, 64
"""A task carries the rows. A scheduler that is handed all tasks at once would hold as many copies of them."""
_COSINES = 256
"""Up to this many candidates all pairs' cosines cost less than the scores themselves."""


@dataclasses.dataclass(frozen=True, eq=False)
class GameRules:
    """How the target is hidden, and what the attacker knows.

    Args:
        num_candidates: n ≥ 2, how many distinct rows of the pool are candidates.
        prior: None (uniform), or the (n,) probabilities with which the first, second, … candidate drawn is the target,
            known to the attacker (method "likelihood").
        subtract_known: whether the attacker subtracts the known rows' gradients, as in `dpsgd.Observer`. False is the
            weaker attacker of Appendix E.
        nearest_cosines: measure how close candidates' gradients are; None: if there are at most 256 candidates.
    """

    num_candidates: int = 10
    prior: Any = None
    subtract_known: bool = True
    nearest_cosines: bool | None = None

    def __post_init__(self) -> None:
        n = validate.integer(2, None, num_candidates=self.num_candidates)
        object.__setattr__(self, "num_candidates", n)
        object.__setattr__(self, "subtract_known", validate.boolean(subtract_known=self.subtract_known))
        cosines = validate.optional_boolean(nearest_cosines=self.nearest_cosines)
        object.__setattr__(self, "nearest_cosines", n <= _COSINES if cosines is None else cosines)
        if self.prior is not None:
            prior = validate.plain_array(prior=self.prior)
            prior_aware.log_prior(prior, n)
            if prior.ndim != 1:
                raise ValueError(f"`prior` must have shape ({n},), one prior for all runs, got {prior.shape}")
            object.__setattr__(self, "prior", tuple(float(p) for p in prior))


def reconstruction_game(
    ensemble: Ensemble,
    known: Any,
    pool: Any,
    rules: GameRules | None = None,
    *,
    method: str = "auto",
    runs: int | range = 1000,
    confidence: float = 0.95,
    execution: Execution | None = None,
) -> ReconstructionGame:
    """Play the reconstruction game of Hayes et al. 2023 (Section 3.4, Algorithms 2 and 3, Appendix G) in many runs.

    Each run draws `num_candidates` distinct rows of the pool, makes one of them the target, and trains with DP-SGD on
    the known rows and the target. The attacker sees every released gradient, knows the known rows and the candidates,
    and guesses the target by `prior_aware`. He also knows which known rows are in each batch (Poisson, allocated), the
    order of every epoch (shuffled), or neither (fixed size). Memory grows with neither runs nor steps.

    Args:
        ensemble: mechanism and seed.
        known: D₋, an object with features (rows, inputs) and labels (rows,), such as `dpsgd.Rows` or a data set.
        pool: likewise, at least `num_candidates` rows held out from D₋, from which candidates are drawn.
        rules: number of candidates, prior, attacker; None: the defaults of `GameRules`.
        method: as in `prior_aware`; "auto" for allocated batches is "likelihood".
        runs: how many, or which, as range(first, stop). Multiples of 32 waste nothing.
        confidence: level of the interval, in (0, 1 − 1e-12].
        execution: device, threads, workers and progress; a game has no checkpoint.

    Returns:
        `ReconstructionGame`.

    Guarantees:
        Run r is a pure function of (seed, r) and the data: results over disjoint ranges `merge` to exactly one call's
        over all of them. Adjacency: add/remove; zero-out for shuffled batches, replace for fixed-size ones. ValueError
        or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks, dpsgd
        >>> x, y = np.eye(40, 50), np.arange(40) % 2
        >>> model = dpsgd.Ensemble((50, 2), noise_multiplier=1, max_grad_norm=1, learning_rate=0.1, steps=10, seed=0)
        >>> known, pool = dpsgd.Rows(x[:20], y[:20]), dpsgd.Rows(x[20:], y[20:])
        >>> game = attacks.reconstruction_game(model, known, pool, attacks.GameRules(num_candidates=4), runs=64)
        >>> game.value > game.interval[0] > game.chance, game.kind
        (True, 'estimate')
    """
    games = reconstruction_games(
        ensemble, known, pool, rules, methods=(method,), runs=runs, confidence=confidence, execution=execution
    )
    return games[method]


def reconstruction_games(
    ensemble: Ensemble,
    known: Any,
    pool: Any,
    rules: GameRules | None = None,
    *,
    methods: Sequence[str] = prior_aware.METHODS,
    runs: int | range = 1000,
    confidence: float = 0.95,
    execution: Execution | None = None,
) -> dict[str, ReconstructionGame]:
    """`reconstruction_game` for several attacks on the same runs.

    Training costs far more than attacking, so three attacks cost little more than one. They see the same gradients, so
    their difference is measured more precisely than on separate runs. Each interval holds by itself, not all at once:
    do not quote the best of several without a correction.

    Args:
        ensemble: as in `reconstruction_game`.
        known: as in `reconstruction_game`.
        pool: as in `reconstruction_game`.
        rules: as in `reconstruction_game`.
        methods: names of attacks, as in `prior_aware`.
        runs: as in `reconstruction_game`.
        confidence: level of each interval, in (0, 1 − 1e-12].
        execution: as in `reconstruction_game`. With an executor, ranges of 128 runs go to its workers, each with the
            rows; at most 4 GiB of them, but at least 64 ranges, are handed out at a time.

    Returns:
        {method: `ReconstructionGame`}.

    Guarantees:
        As `reconstruction_game`. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks, dpsgd
        >>> x, y = np.eye(40, 50), np.arange(40) % 2
        >>> model = dpsgd.Ensemble((50, 2), noise_multiplier=1, max_grad_norm=1, learning_rate=0.1, steps=10, seed=0)
        >>> known, pool = dpsgd.Rows(x[:20], y[:20]), dpsgd.Rows(x[20:], y[20:])
        >>> games = attacks.reconstruction_games(model, known, pool, methods=("sum", "likelihood"), runs=32)
        >>> {name: game.trials for name, game in games.items()}
        {'sum': 32, 'likelihood': 32}
    """
    from leakcore.dpsgd import Execution

    game = _checked(ensemble, known, pool, validate.settings(GameRules, rules=rules), methods)
    level = validate.confidence(confidence=confidence)
    first, stop = arguments.run_range(runs)
    how = validate.settings(Execution, execution=execution)
    if how.checkpoint is not None:
        raise ValueError(
            f"`execution.checkpoint` must be None, got {str(how.checkpoint)!r}: a game stores no runs; "
            "results over ranges of runs merge"
        )
    totals = {name: dict.fromkeys(COUNTS, 0) for name in game.methods}
    for part, done in _played(game, first, stop - first, how):
        for name, counts in part.items():
            for key, value in counts.items():
                totals[name][key] += value
        if how.progress is not None and done is not None:
            how.progress(done, stop - first)
    settings = {**game.settings(), "confidence": level}
    return {
        name: result({**settings, "method": which}, ((first, stop),), totals[name])
        for name, which in game.methods.items()
    }


@dataclasses.dataclass(frozen=True)
class _Game:
    """The checked game. methods: from each name that the caller used to the method it stands for ("auto" resolved)."""

    ensemble: Ensemble
    known: arguments.Samples
    pool: arguments.Samples
    rules: GameRules
    methods: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """What results must share to merge, except for the method and the confidence; JSON-ready."""
        rules = self.rules
        return {
            **{name: list(v) if isinstance(v, tuple) else v for name, v in self.ensemble.settings().items()},
            "num_candidates": rules.num_candidates,
            "prior": None if rules.prior is None else list(rules.prior),
            "subtract_known": rules.subtract_known,
            "nearest_cosines": rules.nearest_cosines,
            "known_rows": self.known.rows,
            "data": digest(self.known.features, self.known.labels, self.pool.features, self.pool.labels),
        }


_Counts = dict[str, dict[str, int]]


def _checked(ensemble: Ensemble, known: Any, pool: Any, rules: GameRules, methods: Sequence[str]) -> _Game:
    """The game; ValueError or TypeError before any run."""
    from leakcore.dpsgd import Ensemble

    if not isinstance(methods, Sequence) or isinstance(methods, str) or not methods:
        raise ValueError(f"`methods` must be a sequence of at least one method, got {methods!r}")
    named = [validate.one_of("auto", *prior_aware.METHODS, method=name) for name in methods]
    validate.instance(Ensemble, ensemble=ensemble)
    rows = {}
    for name, side in (("known", known), ("pool", pool)):
        if not hasattr(side, "features") or not hasattr(side, "labels"):
            raise TypeError(f"`{name}` must have features and labels, as dpsgd.Rows has, got {type(side).__name__}")
        if getattr(side, "index", None) is not None:
            raise ValueError(f"`{name}.index` must be None: all its rows take part")
        rows[name] = arguments.samples(
            side.features, side.labels, name=f"{name}.", layers=ensemble.layers, dtype=ensemble.dtype
        )
    if rows["pool"].rows < rules.num_candidates:
        raise ValueError(
            f"`num_candidates` must be at most the {rows['pool'].rows} rows of the pool, got {rules.num_candidates}"
        )
    trained = rows["known"].rows + 1
    resolved = {name: game_result.resolve(ensemble, name, rules.prior, trained) for name in named}
    for which in resolved.values():
        game_result.rule(ensemble, which, trained)
        if rules.prior is not None and which != "likelihood":
            raise ValueError(
                f"`prior` must be None with method={which!r}, which takes all candidates as equally likely"
            )
    return _Game(ensemble, rows["known"], rows["pool"], rules, resolved)


def _played(game: _Game, first: int, count: int, how: Execution) -> Iterator[tuple[_Counts, int | None]]:
    """Counts of each portion as it finishes, and how many runs are done where that has not been reported yet."""
    stop = first + count
    if how.executor is None:
        for start in range(first, stop, _PORTION):
            alone = counting_on(how, start - first, count)
            yield _play(game, range(start, min(start + _PORTION, stop)), alone), None
        return
    in_worker = dataclasses.replace(how, executor=None, progress=None, num_threads=how.num_threads or 1)
    cuts = [first, *range(first - first % _TASK + _TASK, stop, _TASK), stop]
    jobs = (
        (high - low, functools.partial(_play, game, range(low, high), in_worker))
        for low, high in itertools.pairwise(cuts)
    )
    done = 0
    carried = sum(part.features.nbytes + part.labels.nbytes for part in (game.known, game.pool))
    ahead = max(_LEAST_AHEAD, _BYTES_AHEAD // max(carried, 1))
    with contextlib.closing(answers(jobs, how.executor, ahead=ahead)) as finished:
        for runs, counts in finished:
            done += runs
            yield counts, done


def _play(game: _Game, runs: range, how: Execution) -> _Counts:
    """Play these runs: what each attack counted."""
    from leakcore.dpsgd import Observer, PerRun, Rows

    ensemble, rules, pool = game.ensemble, game.rules, game.pool
    candidates, target = draw_candidates(
        ensemble.seed, runs.start, len(runs), rules.num_candidates, pool.rows, rules.prior
    )
    trained = ensemble.run(
        game.known.features,
        game.known.labels,
        runs=runs,
        per_run=PerRun(extra=Rows(pool.features, pool.labels, np.take_along_axis(candidates, target[:, None], axis=1))),
        observer=Observer(
            Rows(pool.features, pool.labels, candidates),
            scorers={
                which: game_result.rule(ensemble, which, game.known.rows + 1) for which in set(game.methods.values())
            },
            keep_steps=False,
            subtract_known=rules.subtract_known,
            batches=game_result.scheme(ensemble).batches,
            cosines=bool(rules.nearest_cosines),
        ),
        execution=how,
    )
    assert trained.clipped is not None
    shared = {
        "clipped": int(trained.clipped.sum()),
        "gradients": candidates.size * ensemble.steps,
        "cosine_units": 0 if trained.cosine is None else _cosine_units(trained.cosine),
    }
    counts = {}
    for name, which in game.methods.items():
        scores = trained.scores[which]
        if rules.prior is not None:
            scores = scores + prior_aware.log_prior(rules.prior, rules.num_candidates)
        index, undecided = prior_aware.decide(scores)
        counts[name] = {"hits": int((index == target).sum()), "undecided": int(undecided.sum()), **shared}
    return counts


def draw_candidates(
    seed: int, first_run: int, runs: int, num_candidates: int, pool: int, prior: tuple[float, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates (runs, n), distinct rows of the pool in random order, and the target's place among them (runs,)."""
    keys = kernels.uniform((runs, pool + 1), seed=seed, purpose=kernels.Stream.GAME, first_row=first_run)
    order = np.argsort(keys[:, :pool], axis=1, kind="stable")[:, :num_candidates]
    if prior is None:
        place = (keys[:, pool] * num_candidates).astype(np.int64)
    else:
        # A candidate of probability zero is never the target: its step of the distribution function is empty.
        edges = np.cumsum(prior)
        place = np.searchsorted(edges / edges[-1], keys[:, pool], side="right")
    return order, np.minimum(place, num_candidates - 1)


def _cosine_units(cosines: np.ndarray) -> int:
    """Σ round(2⁴⁰·cosine); FloatingPointError where gradients were too long for their cosines to be numbers."""
    if not np.isfinite(cosines).all():
        run = int(np.argmin(np.isfinite(cosines)))
        raise FloatingPointError(
            f"run {run} of this piece: a candidate's gradient overflowed: take a smaller learning_rate, or "
            "nearest_cosines=False if the parameters themselves stayed finite"
        )
    return sum(round(float(c) * FIXED_POINT) for c in cosines)
