"""The reconstruction game: hide one of n candidates in a training set, train, attack, count."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from leakcore import _validate as check
from leakcore import kernels
from leakcore._results import Assumptions, Result, jsonable
from leakcore.attacks._prior_aware import prior_aware
from leakcore.dpsgd import _inputs
from leakcore.numerics._binomial import clopper_pearson

if TYPE_CHECKING:
    from leakcore.dpsgd import Ensemble

_PORTION = 1024
"""Runs trained per call of the ensemble: 32 blocks, whose candidates and scores fit in tens of megabytes."""
_COUNTS = ("hits", "undecided", "clipped", "gradients", "cosine_units")
_FIXED_POINT = 2**40
"""Cosines are summed as integers of this unit, so that partial results merge to the same bits in any order."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ReconstructionGame(Result):
    """Success rate of the prior-aware attack over independent runs, with its Clopper–Pearson interval.

    value = hits/trials estimates the success probability of *this* attack over everything the game draws (prior,
    target, initial parameters, batches, noise); `interval` holds it with probability `confidence`. It is kind
    "estimate": what a better attack achieves it does not say.

    hits, trials: integers. undecided: trials in which two candidates shared the best score; they count as misses, so a
        guess among them could add at most `undecided` hits.
    prior_size: n; chance is 1/n.
    clipped, gradients: how many of the candidates' gradients, over all runs, steps and candidates, had norm C after
        clipping, and how many there were. Unclipped gradients are weaker signals than the bound assumes.
    cosine_units: Σ over runs of round(2⁴⁰ · the run's mean cosine between a candidate's gradient and the nearest other
        candidate's). Near ones are hard to tell apart; the orthogonal curve assumes 0.
    run_ranges: [first, stop) of the runs counted, sorted, disjoint.
    settings: everything that defines the game; games merge only where it is equal.
    """

    schema: ClassVar[str] = "leakcore.reconstruction_game/1"

    hits: int
    trials: int
    undecided: int
    prior_size: int
    clipped: int
    gradients: int
    cosine_units: int
    run_ranges: tuple[tuple[int, int], ...]
    settings: Mapping[str, Any]

    @property
    def clipped_share(self) -> float:
        """Share of the candidates' gradients that clipping shortened to C; NaN without steps."""
        return self.clipped / self.gradients if self.gradients else float("nan")

    @property
    def nearest_cosine(self) -> float:
        """Cosine between a candidate's gradient and the nearest other's, mean over all of them; NaN without steps."""
        return self.cosine_units / (_FIXED_POINT * self.trials) if self.gradients else float("nan")

    def merge(self, other: ReconstructionGame) -> ReconstructionGame:
        """The game over both sets of runs: exactly what one call over their union returns.

        ValueError where the settings differ or a run would count twice.
        """
        if not isinstance(other, ReconstructionGame):
            raise TypeError(f"other={type(other).__name__}: must be a ReconstructionGame")
        for key in sorted(self.settings.keys() | other.settings.keys()):
            ours, theirs = self.settings.get(key), other.settings.get(key)
            if ours != theirs:
                raise ValueError(f"other: {key}={theirs!r} there, {ours!r} here: only equal games merge")
        return _result(
            self.settings,
            _joined(self.run_ranges + other.run_ranges),
            hits=self.hits + other.hits,
            undecided=self.undecided + other.undecided,
            clipped=self.clipped + other.clipped,
            gradients=self.gradients + other.gradients,
            cosine_units=self.cosine_units + other.cosine_units,
        )

    def state(self) -> dict[str, Any]:
        """What `from_state` needs to rebuild this result, JSON-ready: the integers, the runs and the settings."""
        return {
            "schema": self.schema,
            "settings": jsonable(self.settings),
            "run_ranges": [list(r) for r in self.run_ranges],
            **{name: getattr(self, name) for name in _COUNTS},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ReconstructionGame:
        """The result that `state` was taken from, also after a trip through JSON; ValueError if it cannot be one."""
        if state.get("schema") != cls.schema:
            raise ValueError(f"state: schema={state.get('schema')!r}: must be {cls.schema!r}")
        settings = dict(state["settings"])
        settings["layers"] = tuple(settings["layers"])
        ranges = tuple((check.integer(0, run=low), check.integer(0, run=high)) for low, high in state["run_ranges"])
        counts = {name: check.integer(**{name: state[name]}) for name in _COUNTS}
        trials = sum(high - low for low, high in ranges)
        if not (0 <= counts["hits"] <= counts["hits"] + counts["undecided"] <= trials):
            raise ValueError(f"state: {counts} over {trials} runs: hits and undecided must not exceed the runs")
        return _result(settings, _joined(ranges), **counts)


def reconstruction_game(
    ensemble: Ensemble,
    known_features: Any,
    known_labels: Any,
    pool_features: Any,
    pool_labels: Any,
    *,
    prior_size: int = 10,
    runs: int = 1000,
    first_run: int = 0,
    method: str = "auto",
    subtract_known: bool = True,
    confidence: float = 0.95,
    num_threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> ReconstructionGame:
    """Play the game of Hayes et al. 2023 (Section 3.4, Algorithms 2 and 3) in each of `runs` independent runs.

    In each run: draw `prior_size` distinct rows of the pool and make one of them, uniformly, the target; train with
    DP-SGD on the known rows and the target; the attacker, who sees every released gradient, knows the known rows,
    which of them were in each batch, and the candidates, guesses the target by `prior_aware`; count.

    Args:
        ensemble: the mechanism; its seed seeds the game. Every run has its own initial parameters unless the ensemble
            says `initialisation="fixed"`.
        known_features, known_labels: D₋, (rows, inputs) and (rows,). pool_features, pool_labels: where candidates come
            from; rows held out from D₋, at least `prior_size` of them.
        prior_size: n ≥ 2. runs ≥ 1, first_run ≥ 0: the range of runs to play. Multiples of 32 waste nothing.
        method, subtract_known: see `prior_aware` and `dpsgd.Ensemble.run`.
        confidence: of the interval, in (0, 1). num_threads, progress: as in `dpsgd.Ensemble.run`.

    Resume and shards: results over disjoint ranges `merge` to exactly what one call over all of them returns, since
    run r is a pure function of (seed, r) and the data, and all sums are integers. Adjacency: add/remove (the target is
    there or not).

    Raises ValueError or TypeError that names argument, value and what is allowed.
    """
    n = check.integer(2, None, prior_size=prior_size)
    count = check.integer(1, None, runs=runs)
    first = check.integer(0, 2**62, first_run=first_run)
    which = check.one_of("auto", "sum", "top", method=method)
    level = check.open_probability(confidence=confidence)
    layers, dtype = ensemble.layers, ensemble.dtype
    known = _inputs.samples(known_features, known_labels, name="known_", layers=layers, dtype=dtype)
    pool = _inputs.samples(pool_features, pool_labels, name="pool_", layers=layers, dtype=dtype)
    if pool.rows < n:
        raise ValueError(f"prior_size={n}: must be at most the {pool.rows} rows of pool_features")
    if which == "auto":
        which = "sum" if ensemble.sample_rate == 1 else "top"
    settings = {
        **ensemble.settings(),
        "prior_size": n,
        "method": which,
        "subtract_known": subtract_known,
        "confidence": level,
        "known_rows": known.rows,
        "data": _digest(known.features, known.labels, pool.features, pool.labels),
    }
    hits = undecided = clipped = gradients = cosine_units = 0
    bound = np.dtype(dtype).type(ensemble.max_grad_norm)
    for start in range(first, first + count, _PORTION):
        portion = min(_PORTION, first + count - start)
        candidates, target = _draw(ensemble.seed, start, portion, n, pool.rows)
        hidden = np.take_along_axis(candidates, target[:, None], axis=1)

        def report(done: int, total: int, before: int = start - first) -> None:
            if progress is not None:
                progress(before + done, count)

        trained = ensemble.run(
            known.features,
            known.labels,
            runs=portion,
            first_run=start,
            extra_features=pool.features[hidden],
            extra_labels=pool.labels[hidden],
            candidate_features=pool.features[candidates],
            candidate_labels=pool.labels[candidates],
            subtract_known=subtract_known,
            candidate_cosines=True,
            num_threads=num_threads,
            progress=report,
        )
        assert trained.dots is not None
        assert trained.norms is not None
        assert trained.cosine is not None
        guess = prior_aware(
            trained.dots, max_grad_norm=ensemble.max_grad_norm, sample_rate=ensemble.sample_rate, method=which
        )
        hits += int((guess.index == target).sum())
        undecided += int(guess.undecided.sum())
        clipped += int((trained.norms >= bound).sum())
        gradients += trained.norms.size
        cosine_units += sum(round(float(c) * _FIXED_POINT) for c in trained.cosine)
    return _result(
        settings,
        ((first, first + count),),
        hits=hits,
        undecided=undecided,
        clipped=clipped,
        gradients=gradients,
        cosine_units=cosine_units,
    )


def _draw(seed: int, first_run: int, runs: int, prior_size: int, pool: int) -> tuple[np.ndarray, np.ndarray]:
    """Candidates (runs, n), distinct rows of the pool in random order, and the target's place among them (runs,)."""
    # Step 1: step 0 of this purpose shuffles data sets.
    keys = kernels.uniform(runs, pool + 1, seed=seed, purpose=kernels.Purpose.ORDER, step=1, first_row=first_run)
    order = np.argsort(keys[:, :pool], axis=1, kind="stable")[:, :prior_size]
    return order, np.minimum((keys[:, pool] * prior_size).astype(np.int64), prior_size - 1)


def _digest(*arrays: np.ndarray) -> str:
    """SHA-256 of the arrays' shapes, types and bytes: shards of different data must not merge."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _joined(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Sorted and with neighbours united; ValueError where two overlap."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low < out[-1][1]:
            raise ValueError(f"other: run {low} is in both games and would count twice")
        if out and low == out[-1][1]:
            out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    return tuple(out)


def _result(
    settings: Mapping[str, Any],
    ranges: tuple[tuple[int, int], ...],
    *,
    hits: int,
    undecided: int,
    clipped: int,
    gradients: int,
    cosine_units: int,
) -> ReconstructionGame:
    trials = sum(high - low for low, high in ranges)
    algorithm = {"sum": "Algorithm 2", "top": "Algorithm 3"}[settings["method"]]
    subtracts = "subtracts" if settings["subtract_known"] else "does not subtract"
    return ReconstructionGame(
        value=hits / trials,
        kind="estimate",
        confidence=settings["confidence"],
        interval=clopper_pearson(hits, trials, confidence=settings["confidence"]),
        method=f"prior-aware attack, {algorithm}, {trials} independent runs; Clopper–Pearson interval",
        assumptions=Assumptions(
            adjacency="add-remove",
            attacker=f"sees every released gradient, knows the {settings['known_rows']} other training rows and which "
            f"of them were in each batch, {subtracts} their clipped gradients, knows {settings['prior_size']} equally "
            "likely candidates",
            notes=(
                "the success rate of this attack, averaged over priors, targets and training: others may do better",
            ),
        ),
        seed=settings["seed"],
        provenance=f"Hayes et al. 2023, Section 3.4, {algorithm}",
        hits=hits,
        trials=trials,
        undecided=undecided,
        prior_size=settings["prior_size"],
        clipped=clipped,
        gradients=gradients,
        cosine_units=cosine_units,
        run_ranges=ranges,
        settings=settings,
    )
