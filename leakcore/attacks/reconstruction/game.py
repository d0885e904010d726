"""The reconstruction game: hide one of n candidates in a training set, train, attack, count."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check
from leakcore._base.futures import answers
from leakcore.attacks.reconstruction import prior_aware, running_scores
from leakcore.attacks.reconstruction.game_result import COUNTS, FIXED_POINT, ReconstructionGame, result
from leakcore.dpsgd import arguments, run_request

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble

_PORTION = 1024
"""Runs trained per call of the ensemble: 32 blocks, whose parameters fit in tens of megabytes."""
_TASK = 128
"""Runs per task of an executor: seconds of work for the papers' settings."""
_BYTES_AHEAD, _LEAST_AHEAD = 2**32, 64
"""A task carries the rows. A scheduler that is handed all tasks at once would hold as many copies of them."""
_COSINES = 256
"""Up to this many candidates all pairs' cosines cost less than the scores themselves."""


def reconstruction_game(
    ensemble: Ensemble,
    known_features: Any,
    known_labels: Any,
    pool_features: Any,
    pool_labels: Any,
    *,
    prior_size: int = 10,
    prior: Any = None,
    runs: int = 1000,
    first_run: int = 0,
    method: str = "auto",
    subtract_known: bool = True,
    nearest_cosines: bool | None = None,
    confidence: float = 0.95,
    device: str = "cpu",
    num_threads: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> ReconstructionGame:
    """Play the game of Hayes et al. 2023 (Section 3.4, Algorithms 2 and 3, Appendix G) in `runs` independent runs.

    In each run: draw `prior_size` distinct rows of the pool and make one of them the target; train with DP-SGD on the
    known rows and the target; the attacker, who sees every released gradient, knows the known rows, which of them were
    in each batch, and the candidates, guesses the target by `prior_aware`; count. The scores are carried along step by
    step: no gradient is stored, and memory depends neither on the number of runs nor on the number of steps.

    Args:
        ensemble: the mechanism; its seed seeds the game. Every run has its own initial parameters unless the ensemble
            says `initialisation="fixed"`. Shuffled batches (`batch_size`) are refused: they are not add/remove's.
        known_features, known_labels: D₋, (rows, inputs) and (rows,). pool_features, pool_labels: where candidates come
            from; rows held out from D₋, at least `prior_size` of them.
        prior_size: n ≥ 2. prior: None, or the (n,) probabilities with which the first, second, … candidate drawn is the
            target, known to the attacker (method "likelihood").
        runs ≥ 1, first_run ≥ 0: the range of runs to play. Multiples of 32 waste nothing.
        method: see `prior_aware`. subtract_known: see `dpsgd.Ensemble.run`; False is the weaker attacker of Appendix E.
        nearest_cosines: measure how close candidates' gradients are; None: if there are at most 256 candidates.
        confidence: of the interval, in (0, 1 − 1e-12]. device, num_threads, progress: as in `dpsgd.Ensemble.run`.
        executor: ranges of 128 runs go to its workers, each using `num_threads` threads (None: one). Each carries the
            rows; at most 4 GiB of them, but at least 64 ranges, are handed out at a time.

    Resume and shards: results over disjoint ranges `merge` to exactly what one call over all of them returns, since
    run r is a pure function of (seed, r) and the data, and all sums are integers; for the same reason threads and
    workers change nothing. Adjacency: add/remove (the target is there or not).

    Raises ValueError or TypeError that names argument, value and what is allowed.
    """
    games = reconstruction_games(
        ensemble,
        known_features,
        known_labels,
        pool_features,
        pool_labels,
        methods=(method,),
        prior_size=prior_size,
        prior=prior,
        runs=runs,
        first_run=first_run,
        subtract_known=subtract_known,
        nearest_cosines=nearest_cosines,
        confidence=confidence,
        device=device,
        num_threads=num_threads,
        executor=executor,
        progress=progress,
    )
    return games[method]


def reconstruction_games(
    ensemble: Ensemble,
    known_features: Any,
    known_labels: Any,
    pool_features: Any,
    pool_labels: Any,
    *,
    methods: Sequence[str] = running_scores.METHODS,
    prior_size: int = 10,
    prior: Any = None,
    runs: int = 1000,
    first_run: int = 0,
    subtract_known: bool = True,
    nearest_cosines: bool | None = None,
    confidence: float = 0.95,
    device: str = "cpu",
    num_threads: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, ReconstructionGame]:
    """`reconstruction_game` for several attacks on the same runs: the result of each of `methods`, by its name.

    Training costs far more than attacking, so three attacks cost little more than one; and as they see the same
    gradients, their difference is measured more sharply than on runs of their own. Each interval holds by itself, not
    all at once: do not quote the best of several without a correction.
    """
    game, settings = _checked(
        ensemble, (known_features, known_labels), (pool_features, pool_labels), methods, prior_size, prior,
        subtract_known, nearest_cosines, confidence, device, num_threads,
    )  # fmt: skip
    count = check.integer(1, None, runs=runs)
    first = check.integer(0, 2**62, first_run=first_run)
    check.executor(executor=executor)
    check.callback(progress=progress)
    totals = {name: dict.fromkeys(COUNTS, 0) for name in game.methods}
    for part, done in _played(game, first, count, executor, progress):
        for name, counts in part.items():
            for key, value in counts.items():
                totals[name][key] += value
        if progress is not None and done is not None:
            progress(done, count)
    ranges = ((first, first + count),)
    return {name: result({**settings, "method": which}, ranges, **totals[name]) for name, which in game.methods.items()}


@dataclasses.dataclass(frozen=True)
class _Game:
    """The checked game. methods: what each was called, to what it is ("auto" resolved)."""

    ensemble: Ensemble
    known: arguments.Samples
    pool: arguments.Samples
    methods: dict[str, str]
    prior_size: int
    prior: tuple[float, ...] | None
    subtract_known: bool
    nearest_cosines: bool
    device: str
    num_threads: int | None


_Counts = dict[str, dict[str, int]]


def _checked(
    ensemble: Ensemble, known_given: tuple[Any, Any], pool_given: tuple[Any, Any], methods: Sequence[str],
    prior_size: int, prior: Any, subtract_known: bool, nearest_cosines: bool | None, confidence: float,
    device: str, num_threads: int | None,
) -> tuple[_Game, dict[str, Any]]:  # fmt: skip
    """The game, and the settings that results must share to merge (all but the method)."""
    n = check.integer(2, None, prior_size=prior_size)
    if not isinstance(methods, Sequence) or isinstance(methods, str) or not methods:
        raise ValueError(f"methods={methods!r}: must be a sequence of at least one method")
    named = [check.one_of("auto", *running_scores.METHODS, method=name) for name in methods]
    level = check.confidence(confidence=confidence)
    from leakcore.dpsgd import Ensemble

    check.instance(Ensemble, ensemble=ensemble)
    if ensemble.batch_size is not None:
        raise ValueError(
            f"ensemble: batch_size={ensemble.batch_size}: the target is there or not, use Poisson or full batches"
        )
    layers, dtype = ensemble.layers, ensemble.dtype
    known = arguments.samples(*known_given, name="known_", layers=layers, dtype=dtype)
    pool = arguments.samples(*pool_given, name="pool_", layers=layers, dtype=dtype)
    if pool.rows < n:
        raise ValueError(f"prior_size={n}: must be at most the {pool.rows} rows of pool_features")
    weights = None
    if prior is not None:
        prior = check.plain_array(prior=prior)
        prior_aware.log_prior(prior, n)
        if prior.ndim != 1:
            raise ValueError(f"prior.shape={prior.shape}: must be ({n},), one prior for all runs")
        weights = tuple(float(p) for p in prior)
    resolved = {name: prior_aware.resolve(name, ensemble.sample_rate, prior) for name in named}
    for which in resolved.values():
        _rule(ensemble, which)
        if prior is not None and which != "likelihood":
            raise ValueError(f"prior: given, but method={which!r} takes all candidates as equally likely")
    cosines = n <= _COSINES if nearest_cosines is None else check.boolean(nearest_cosines=nearest_cosines)
    subtract_known = check.boolean(subtract_known=subtract_known)
    where = run_request.device(device)
    game = _Game(ensemble, known, pool, resolved, n, weights, subtract_known, cosines, where, num_threads)
    settings = {
        **ensemble.settings(),
        "prior_size": n,
        "prior": None if weights is None else list(weights),
        "subtract_known": subtract_known,
        "nearest_cosines": cosines,
        "confidence": level,
        "known_rows": known.rows,
        "data": _digest(known.features, known.labels, pool.features, pool.labels),
    }
    return game, settings


def _rule(ensemble: Ensemble, method: str) -> running_scores.Rule:
    return running_scores.rule(
        method,
        max_grad_norm=ensemble.max_grad_norm,
        sample_rate=ensemble.sample_rate,
        steps=ensemble.steps,
        noise_multiplier=ensemble.noise_multiplier,
    )


def _played(
    game: _Game, first: int, count: int, executor: Executor | None, progress: Callable[[int, int], object] | None
) -> Iterator[tuple[_Counts, int | None]]:
    """Counts of each portion as it finishes, and how many runs are done where nobody has reported that yet."""
    stop = first + count
    if executor is None:
        for start in range(first, stop, _PORTION):

            def report(done: int, total: int, before: int = start - first) -> None:
                if progress is not None:
                    progress(before + done, count)

            yield _play(game, start, min(_PORTION, stop - start), report), None
        return
    cuts = [first, *range(first - first % _TASK + _TASK, stop, _TASK), stop]
    jobs = ((high - low, functools.partial(_play, game, low, high - low)) for low, high in itertools.pairwise(cuts))
    done = 0
    carried = sum(part.features.nbytes + part.labels.nbytes for part in (game.known, game.pool))
    ahead = max(_LEAST_AHEAD, _BYTES_AHEAD // max(carried, 1))
    with contextlib.closing(answers(jobs, executor, ahead=ahead)) as finished:
        for runs, counts in finished:
            done += runs
            yield counts, done


def _play(game: _Game, first: int, runs: int, report: Callable[[int, int], object] | None = None) -> _Counts:
    """Runs [first, first + runs): what each attack counted."""
    ensemble = game.ensemble
    candidates, target = draw_candidates(ensemble.seed, first, runs, game.prior_size, game.pool.rows, game.prior)
    trained = ensemble.run(
        game.known.features,
        game.known.labels,
        runs=runs,
        first_run=first,
        pool_features=game.pool.features,
        pool_labels=game.pool.labels,
        extra_index=np.take_along_axis(candidates, target[:, None], axis=1),
        candidate_index=candidates,
        scorers={which: _rule(ensemble, which) for which in set(game.methods.values())},
        keep_steps=False,
        subtract_known=game.subtract_known,
        candidate_cosines=game.nearest_cosines,
        device=game.device,
        num_threads=game.num_threads if report is not None else game.num_threads or 1,
        progress=report,
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
        if game.prior is not None:
            scores = scores + prior_aware.log_prior(game.prior, game.prior_size)
        index, undecided = running_scores.decide(scores)
        counts[name] = {"hits": int((index == target).sum()), "undecided": int(undecided.sum()), **shared}
    return counts


def draw_candidates(
    seed: int, first_run: int, runs: int, prior_size: int, pool: int, prior: tuple[float, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Candidates (runs, n), distinct rows of the pool in random order, and the target's place among them (runs,)."""
    keys = kernels.uniform(runs, pool + 1, seed=seed, purpose=kernels.Stream.GAME, first_row=first_run)
    order = np.argsort(keys[:, :pool], axis=1, kind="stable")[:, :prior_size]
    if prior is None:
        place = (keys[:, pool] * prior_size).astype(np.int64)
    else:
        # A candidate of probability zero is never the target: its step of the distribution function is empty.
        edges = np.cumsum(prior)
        place = np.searchsorted(edges / edges[-1], keys[:, pool], side="right")
    return order, np.minimum(place, prior_size - 1)


def _digest(*arrays: np.ndarray) -> str:
    """SHA-256 of the arrays' shapes, types and bytes: shards of different data must not merge."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _cosine_units(cosines: np.ndarray) -> int:
    """Σ round(2⁴⁰·cosine); FloatingPointError where gradients were too long for their cosines to be numbers."""
    if not np.isfinite(cosines).all():
        run = int(np.argmin(np.isfinite(cosines)))
        raise FloatingPointError(
            f"run {run} of this piece: a candidate's gradient overflowed: take a smaller learning_rate, or "
            "nearest_cosines=False if the parameters themselves stayed finite"
        )
    return sum(round(float(c) * FIXED_POINT) for c in cosines)
