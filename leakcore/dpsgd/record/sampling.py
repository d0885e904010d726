"""How the recorded steps were sampled: by the draws of loaders that fed them, or as the caller says."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import inspect
import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from scipy import special
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from leakcore._base import validate
from leakcore.dpsgd.rows.hooks import BatchSource, Deliveries, Draw, Part, UsedRows
from leakcore.dpsgd.trace.trace import Sampling, Violation, unknown

_CHANCE = 1e-9
"""Draws that are equal count as repeated if independent ones would be equal with less probability."""
_COORDINATES = 16
_FEWEST = 8
_ALIKE = 0.01
"""Standard deviations by which the same noise may differ, for rounding. By chance one in 10¹⁸ pairs is as alike."""
_NOT_FED = (
    "a step's batch is not one that a DataLoader gave since the step before (a loop of its own, or a batch changed in "
    "the loop while several loaders ran: then sampling=the loop's DataLoader tells them apart)"
)
_NOT_STATED = (
    "a step's batch is not one that the DataLoader of sampling= gave since the step before (a loop of its own, batches "
    "of another loader, or joined ones)"
)
_USED_AGAIN = (
    "a batch used twice: a step trained on rows that the loader had drawn for an earlier step, so that it is not a "
    "fresh sample"
)
DRAWN_AGAIN = "the sampler drew a batch again (its generator was seeded again), so that it is not a fresh sample"
_ORDER: tuple[Violation, ...] = ("", "sampling", "sensitivity")
Entries = Sequence[Sequence[UsedRows | None]]
"""What each per-sample gradient that a step summed was computed from: the forward passes of one backward pass."""


class RepeatedDraws:
    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._draws = self.count = 0  # of all draws, and of those that equal an earlier one

    def is_repeated(self, draw: Draw, log_pair: float, log_likeliest: float) -> bool:
        """Whether more draws equal earlier ones than chance explains. This draw, with all its parts, is counted first.

        Of T independent draws two are equal with probability at most T²/2·P(two are equal), whose log is `log_pair`. A
        draw equals one of those before it with probability at most T·P(the likeliest draw), whatever these are, so that
        r do with probability at most binom(T, r)·(T·P)^r.
        """
        if None in draw.parts:
            return False
        indices = np.sort(np.array([i for part in draw.parts for i in part or ()], dtype=np.int64))
        key = hashlib.blake2b(indices.tobytes(), digest_size=16).digest()
        again = key in self._known
        self._known.add(key)
        self._draws += 1
        self.count += again
        if not again:
            return False
        several = self.count * (2 * math.log(self._draws) + log_likeliest) - float(special.gammaln(self.count + 1))
        return min(2 * math.log(self._draws) - math.log(2) + log_pair, several) < math.log(_CHANCE)

    def is_repeated_sample(self, draw: Draw, rate: float, rows: int) -> bool:
        """For Poisson samples of `rows` rows at q = `rate`."""
        if not 0 < rate < 1 or not rows:
            return False
        log_pair = rows * math.log(rate**2 + (1 - rate) ** 2)
        return self.is_repeated(draw, log_pair, rows * math.log(max(rate, 1 - rate)))

    def is_repeated_subset(self, draw: Draw, size: int, rows: int) -> bool:
        """For subsets of `size` of `rows` rows, each equally likely."""
        if not 0 < size < rows:
            return False
        log = math.log(rows + 1) + float(special.betaln(size + 1, rows - size + 1))
        return self.is_repeated(draw, log, log)


class RepeatedNoise:
    """The noise of the steps so far, at a few coordinates: a row each, a column a step."""

    def __init__(self) -> None:
        self._before, self._steps = np.empty((0, 0)), 0

    @staticmethod
    def places(size: int) -> np.ndarray:
        """Which of `size` coordinates are compared."""
        return np.unique(np.linspace(0, size - 1, _COORDINATES).astype(np.int64))

    def require_new(self, noise: np.ndarray, resolution: float) -> None:
        """ValueError if this noise, at `places` in standard deviations, is that of an earlier step.

        Noise that rounding, of error `resolution`, hides is not compared.
        """
        if len(noise) < _FEWEST or resolution > _ALIKE / 10:
            return
        if len(self._before) != len(noise):
            self._before, self._steps = np.empty((len(noise), 64)), 0
        before = self._before[:, : self._steps]
        near = np.flatnonzero(np.abs(before[0] - noise[0]) <= _ALIKE)
        if (np.abs(before[:, near] - noise[:, None]) <= _ALIKE).all(axis=0).any():
            raise ValueError(
                "optimizer: the noise of this step is that of an earlier step again (a generator was seeded again): "
                "the difference of the two releases has no noise, and no ε holds. Seed once, before the training"
            )
        if self._steps == self._before.shape[1]:
            self._before = np.hstack([self._before, np.empty_like(self._before)])
        self._before[:, self._steps] = noise
        self._steps += 1


def _rate_of_hook(hook: Any) -> float | None:
    """The sampling rate that Opacus's accounting hook closes over."""
    if not inspect.isfunction(hook):
        return None
    rate = inspect.getclosurevars(hook).nonlocals.get("sample_rate")
    return float(rate) if isinstance(rate, (int, float)) and 0 <= rate <= 1 else None


class SampleRate:
    """q of a recording's steps so far, None if unknown: as the caller states it, or from Opacus's accounting hook."""

    def __init__(self, stated: float | None, hook: Any) -> None:
        self.value = stated
        self._of_batch = None if stated is not None else _rate_of_hook(hook)

    def begin_block(self, hook: Any, *, has_steps: bool) -> None:
        """A block of the recorder begins, with this hook. ValueError if the steps so far have another q."""
        rate = None if self._of_batch is None else _rate_of_hook(hook)
        if rate is not None and rate != self._of_batch and has_steps:
            raise ValueError(
                f"optimizer: its hook has q = {rate:.4g}, and this recorder's steps have q = {self._of_batch:.4g}: use "
                "another recorder for steps at another q"
            )
        self._of_batch = self._of_batch if rate is None else rate

    def add_step(self, batches: int, of_pass: int | None = None) -> None:
        """A step that accumulates several batches; ValueError if a row can be in several of them, or if q changes.

        Batches that together contain every row once are a full batch, as in Opacus's accounting. Of the `of_pass`
        batches into which a shuffled pass is cut, several are again one part of equal parts, if their number divides
        `of_pass`.
        """
        if self._of_batch is None:
            return
        before, of_batch = self.value, self._of_batch
        together = of_batch * batches
        rate = of_batch if batches == 1 else 1.0 if math.isclose(together, 1, rel_tol=1e-9) else None
        if rate is None and of_pass is not None and of_pass % batches == 0:
            rate = together
        if rate is not None and before is not None and rate != before:
            raise ValueError(
                f"optimizer: a step accumulates {batches} batch{'' if batches == 1 else 'es'} at q = {of_batch:.4g}, "
                f"together q = {rate:.4g}, and the steps before it have q = {before:.4g}: accumulate the same number "
                "in every step"
            )
        if rate is None:
            raise ValueError(
                f"optimizer: a step accumulates {batches} batches, each sampled at q = {of_batch:.4g}: together "
                "they are neither a Poisson sample nor one of equal parts of a shuffled pass. Sample once per step "
                "(Opacus's BatchMemoryManager computes such a batch in parts), or pass sampling=q if your loop does "
                "that"
            )
        self.value = rate


class Divisors:
    """What the steps so far divided their sums by, and how many rows each of these held."""

    def __init__(self) -> None:
        self._of_steps: set[tuple[float, int]] = set()

    def add(self, divisor: float, rows: int) -> None:
        self._of_steps.add((divisor, rows))

    @property
    def ends(self) -> tuple[float, float] | None:
        """The smallest and the largest, where they differ."""
        sizes = {size for size, _ in self._of_steps}
        return (min(sizes), max(sizes)) if len(sizes) > 1 else None

    @property
    def follow_the_draws(self) -> bool:
        """Whether they differ, and each is the number of rows that were drawn."""
        return self.ends is not None and all(size == max(rows, 1) for size, rows in self._of_steps)


def sampling_of_loader(loader: DataLoader[Any]) -> Sampling:
    """The scheme of a loader that the caller names."""
    return _sampling_of(loader.dataset, loader.batch_sampler)


def _sampling_of(dataset: Any, batches: Any) -> Sampling:
    if isinstance(dataset, IterableDataset):
        kind = type(dataset).__name__
        return unknown(f"the data set is a stream ({kind}), which decides the order of its rows itself")
    if batches is None:
        return unknown("the DataLoader has batch_size=None, so that the loop or the data set makes the batches")
    return sampling_of_batches(batches)


def is_divided(iterator: Any) -> bool:
    """Whether the sampler of the loader to which this iterator of torch's belongs draws from the share of a process."""
    batches = _batch_sampler(iterator)
    rows = getattr(batches, "sampler", None)
    return isinstance(batches, DistributedUniformWithReplacementSampler) or isinstance(rows, DistributedSampler)


def _batch_sampler(iterator: Any) -> Any:
    batches: Any = getattr(iterator, "_index_sampler", None)
    return batches.sampler if type(batches) is BatchSplittingSampler else batches


def sampling_of_batches(batches: Any) -> Sampling:
    """The scheme of a batch sampler. Types are compared exactly: a subclass may draw in another way."""
    if type(batches) is BatchSplittingSampler:  # parts of the batches behind it
        return sampling_of_batches(batches.sampler)
    if type(batches) is UniformWithReplacementSampler:
        return _poisson(batches, batches.num_samples)
    if type(batches) is DistributedUniformWithReplacementSampler:
        return _poisson(batches, batches.total_size)
    if type(batches) is BatchSampler:
        return _of_rows(batches)
    return unknown(f"the batch sampler is a {type(batches).__name__}, whose way of drawing is not known")


def _poisson(sampler: Any, rows: int) -> Sampling:
    q = float(sampler.sample_rate)
    evidence = f"{type(sampler).__name__}(sample_rate={q:.6g}) over {rows:,} rows"
    return Sampling(scheme="poisson", sample_rate=q, batch_size=round(q * rows), dataset_size=rows, evidence=evidence)


def _of_rows(batches: BatchSampler) -> Sampling:
    """The scheme of batches that are cut from the order of a sampler of rows."""
    sampler: Any = batches.sampler
    name = f"BatchSampler({type(sampler).__name__}, batch_size={batches.batch_size}, drop_last={batches.drop_last})"
    if type(sampler) is WeightedRandomSampler:
        return unknown(f"{name}: rows are drawn by weights, so that each has a rate of its own, up to several times")
    if type(sampler) is RandomSampler:
        total = len(sampler.data_source)
        if sampler.replacement:
            return unknown(f"{name}: rows are drawn with replacement, so that one can be in a batch several times")
        if sampler.num_samples > total:
            return unknown(f"{name}: {sampler.num_samples} rows of {total} a pass, so that some come several times")
        return _cut(batches, name, total, shuffles=True)
    if type(sampler) is SequentialSampler:
        return _cut(batches, name, len(sampler.data_source), shuffles=False)
    if type(sampler) is SubsetRandomSampler:
        if len({int(i) for i in sampler.indices}) < len(sampler.indices):
            return unknown(f"{name}: its indices hold a row several times")
        return _cut(batches, name, len(sampler.indices), shuffles=True)
    if type(sampler) is DistributedSampler:
        total, shares = len(sampler.dataset), sampler.num_replicas  # type: ignore[arg-type]
        if sampler.total_size > total:
            return unknown(
                f"{name}: {total:,} rows do not divide by {shares} processes, and some come twice in an epoch to fill "
                "up; use drop_last=True"
            )
        return _cut(batches, f"{name}, a share of each of {shares} processes", total, shuffles=False, shares=shares)
    return unknown(f"{name}: how {type(sampler).__name__} draws is not known")


def _cut(batches: BatchSampler, name: str, total: int, *, shuffles: bool, shares: int = 1) -> Sampling:
    """Each row is in at most one batch of a pass. A distributed sampler's order is fresh only if its epoch is set."""
    per_pass = len(batches)
    size = min(batches.batch_size, len(batches.sampler)) * shares  # type: ignore[arg-type]
    if per_pass == 0 or total == 0:
        return unknown(f"{name}: holds no batch")
    used = (batches.batch_size * per_pass if batches.drop_last else len(batches.sampler)) * shares  # type: ignore[arg-type]
    scheme: Any = "shuffled"
    if per_pass == 1 and used == total:
        scheme = "full-batch"
    elif per_pass == 1 and shuffles:
        scheme = "fixed-size"
    return Sampling(
        scheme=scheme,
        batch_size=size,
        dataset_size=total,
        batches=per_pass,
        all_rows=used == total,
        fresh=shuffles,
        evidence=f"{name} over {total:,} rows",
    )


@dataclasses.dataclass(frozen=True)
class Release:
    """A step's rows in one process: each draw's loader, if known; why they are not whole draws; what that breaks."""

    sources: tuple[BatchSource | None, ...]
    why: str = ""
    violation: Violation = ""


class SamplingOfSteps:
    """`fetched` for every batch of a DataLoader, `use_of` for every forward pass, `release` and `step` for every step.

    A step is a fresh sample only if its sum holds all rows of one draw that no step before it used. `stated` is what
    the caller says: a DataLoader, or q of Poisson sampling, or nothing. `divided`: several processes train, which must
    divide the rows among them; `coins` says why these do not draw by coins of their own, if that is known.
    """

    def __init__(self, stated: Any, *, divided: bool = False) -> None:
        self.rate: float | None = None
        self._divided, self.coins, self._by_torch = divided, "", True
        self._stated: Sampling | None = None
        self._loader: DataLoader[Any] | None = None
        if isinstance(stated, DataLoader):
            self._loader, self._stated = stated, sampling_of_loader(stated)
        elif stated is not None:
            self.rate = validate.probability(sampling=stated)
            self._stated = Sampling(
                scheme="full-batch" if self.rate == 1 else "poisson",
                sample_rate=self.rate,
                evidence=f"the caller says so: sampling={self.rate:.6g}",
            )
        self._deliveries = Deliveries()
        self._sources: weakref.WeakKeyDictionary[Any, BatchSource] = weakref.WeakKeyDictionary()
        self._count = 0
        self._common: Sampling | None = None
        self._why = ""
        self._violation: Violation = ""
        self._passes: collections.Counter[int] = collections.Counter()
        self._given: collections.Counter[int] = collections.Counter()
        self._used: collections.Counter[int] = collections.Counter()
        self._divisors = Divisors()
        self._released: weakref.WeakSet[Draw] = weakref.WeakSet()
        self._repeated, self._stale = RepeatedDraws(), False

    def fetched(self, iterator: Any, batch: Any, part: Part) -> None:
        """A DataLoader's iterator gave this batch."""
        if self._loader is not None:  # whole batches of its sampler, or parts
            stated = self._loader.batch_sampler
            own = _batch_sampler(iterator)
            if own is not stated and own is not getattr(stated, "sampler", stated):
                return
        source = self._sources.get(iterator)
        if source is None or iterator._num_yielded <= 1:
            self._count += 1
            if source is None:
                batches = iterator._index_sampler if iterator._auto_collation else None
                sampling, divided = _sampling_of(iterator._dataset, batches), is_divided(iterator)
            else:
                sampling, divided = source.sampling, source.divided
            self._by_torch = getattr(_batch_sampler(iterator), "generator", None) is None
            source = self._sources[iterator] = BatchSource(sampling, self._count, divided)
        self._given[source.number] += part.number == 0
        self._deliveries.delivered(source, part, batch)

    def use_of(self, rows: torch.Tensor | None) -> UsedRows | None:
        """The rows of a draw that a forward pass in training has; None if no loader gave them."""
        return self._deliveries.use_of(rows)

    def release(self, entries: Entries | None) -> Release:
        """What a step's sum holds, by draws. None: rows that came into it before, or outside of, the recording."""
        if entries is None:
            return Release((None,), "a step's sum held rows from before the recording", "sensitivity")
        parts: dict[Draw, dict[int, list[UsedRows]]] = {}
        for passes in entries:
            uses = list(dict.fromkeys(passes))  # one row gradient for several uses of the same rows
            if None in uses or not uses:
                return Release((None,), _NOT_FED if self._loader is None else _NOT_STATED)
            if len(uses) > 1:
                why = "a loss joins rows of several batches, whose gradients are summed before they are clipped"
                return Release((None,), why, "sampling")
            use = uses[0]
            assert use is not None
            parts.setdefault(use.part.draw, {}).setdefault(use.part.number, []).append(use)
        sources = tuple(next(iter(by.values()))[0].source for by in parts.values())
        if any(not _disjoint(uses) for by in parts.values() for uses in by.values()):
            return Release(sources, "a step's sum holds a row twice", "sensitivity")
        broken = [draw for draw, by in parts.items() if not _whole(draw, by)]
        again = any(draw in self._released for draw in parts)
        self._used.update(s.number for d, s in zip(parts, sources, strict=True) if d not in self._released)
        self._released.update(parts)
        if broken:
            more = " and rows of another batch" if len(parts) > 1 else ""
            why = (
                f"a step's sum holds a part of a batch{more} (a pass that was broken off, or a part that was left out)"
            )
            return Release(sources, why, "sensitivity" if more else "sampling")
        if again:
            return Release(sources, _USED_AGAIN, "sampling")
        for draw, source in zip(parts, sources, strict=True):
            if self._is_repeated(draw, source.sampling):
                return Release(sources, DRAWN_AGAIN, "sampling")
        return Release(sources)

    def _is_repeated(self, draw: Draw, sampling: Sampling) -> bool:
        """Whether a sample comes again, which chance does not explain. Such orders of a pass are noted as not fresh."""
        rows = sampling.dataset_size or 0
        if sampling.scheme == "poisson":
            return self._repeated.is_repeated_sample(draw, sampling.sample_rate or 0.0, rows)
        if sampling.scheme not in ("shuffled", "fixed-size") or not sampling.fresh:
            return False
        size = sum(len(part or ()) for part in draw.parts)
        again = self._repeated.is_repeated_subset(draw, size, rows)
        self._stale = self._stale or again
        return again and sampling.scheme == "fixed-size"

    def step(
        self, release: Release, elsewhere: Sequence[Release] = (), *, rows: int = 0, divisor: float | None = None
    ) -> None:
        """A step ended, of whose rows this process knows `release` and every process one of `elsewhere`. This process
        had `rows`, and divided their sum by `divisor`, if by anything.
        """
        if divisor is not None:
            self._divisors.add(divisor, rows)
        release = max([release, *elsewhere], key=lambda r: (_ORDER.index(r.violation), bool(r.why)))
        if _ORDER.index(release.violation) > _ORDER.index(self._violation):
            self._why, self._violation = release.why, release.violation
        if self._why:
            return
        self._why = release.why
        if self._why:
            return
        sources = release.sources
        samplings = [list(dict.fromkeys(s and s.sampling for s in one.sources)) for one in (release, *elsewhere)]
        if any(one != samplings[-1] for one in samplings[1:]):
            self._why = "the processes of the run were fed by different loaders"
            return
        if self._divided and not all(source is not None and source.divided for source in sources):
            self._why = (
                "several processes train, and the sampler of each draws from all its rows, so that a step can hold a "
                "row several times: make_private and DistributedSampler divide the rows among the processes"
            )
            return
        passes = {source.number for source in sources if source is not None}
        for source in sources:
            assert source is not None
            sampling = _accumulated(source.sampling, len(sources), whole=len(passes) == 1)
            if source.sampling.is_known and not sampling.is_known:
                self._why, self._violation = sampling.evidence, "sensitivity"
                return
            if self._common is None:
                self._common = sampling
            if sampling != self._common:
                self._why = f"steps were fed by different loaders: {self._common.evidence}; {sampling.evidence}"
        self._passes.update(passes)

    def sampling(self) -> Sampling:
        """That of the recorded steps."""
        if self._violation:
            return dataclasses.replace(unknown(self._why), violation=self._violation)
        sampling = self._watched() if self.rate is None or self._stated is None else self._as_stated(self.rate)
        ends = self._divisors.ends
        if sampling.scheme != "poisson" or ends is None:
            return sampling
        why = (
            f"optimizer: expected_batch_size, by which it divides the sum, changed from step to step ({ends[0]:.6g} to "
            f"{ends[1]:.6g})"
        )
        if self._divisors.follow_the_draws:
            why += (
                ": it is the number of rows that were drawn, so that the size of the noise tells how many these are, "
                "which no accountant of Poisson samples counts"
            )
            return dataclasses.replace(unknown(why), violation="sampling")
        return unknown(f"{why}, and nothing says that it does not depend on which rows were drawn")

    def require_stated(self, release: Release) -> None:
        """ValueError if the caller stated q of Poisson sampling, and this is a sample at another one."""
        drawn = release.sources[0].sampling if not release.why and len(release.sources) == 1 else None  # type: ignore[union-attr]
        if self.rate is None or drawn is None or drawn.scheme != "poisson":
            return
        if not math.isclose(drawn.sample_rate or 0.0, self.rate, rel_tol=1e-9):
            raise ValueError(
                f"`sampling` must be the q at which the rows were drawn, {drawn.sample_rate:.6g} "
                f"({drawn.evidence}), or that DataLoader, got {self.rate:.6g}"
            )

    def _as_stated(self, rate: float) -> Sampling:
        """What the caller says; unknown where the loader says otherwise."""
        assert self._stated is not None
        watched = self._watched()
        cut = watched.scheme in ("shuffled", "fixed-size") and max(self._passes.values(), default=0) > 1
        whole = watched.scheme == "full-batch" and rate < 1
        drawn = watched.sample_rate if watched.scheme == "poisson" else None
        if cut or whole or (drawn is not None and not math.isclose(drawn, rate, rel_tol=1e-9)):
            return unknown(f"the caller says Poisson at q = {rate:.6g}, and steps were fed by {watched.evidence}")
        return dataclasses.replace(self._stated, left_out=watched.left_out)

    def _watched(self) -> Sampling:
        if self._why or self._common is None:
            return unknown(self._why or _NOT_FED)
        if not self._common.is_known:
            return self._common
        if self.coins and self._by_torch and self._common.scheme == "poisson":
            return unknown(self.coins)
        left = sum(self._given[number] - self._used[number] for number in self._passes)
        fresh = self._common.fresh and not self._stale
        return dataclasses.replace(self._common, passes=len(self._passes), left_out=left, fresh=fresh)


def _disjoint(uses: list[UsedRows]) -> bool:
    ordered = sorted(uses, key=lambda u: u.start)
    return all(a.stop is not None and a.stop <= b.start for a, b in itertools.pairwise(ordered))


def _whole(draw: Draw, parts: dict[int, list[UsedRows]]) -> bool:
    """Whether all parts of a draw, and all rows of each, are among these disjoint uses."""
    if not draw.complete or sorted(parts) != list(range(len(draw.parts))):
        return False
    for uses in parts.values():
        ordered = sorted(uses, key=lambda u: u.start)
        if [u.start for u in ordered] != [0, *(u.stop for u in ordered[:-1])] or ordered[-1].stop is not None:
            return False
    return True


def _accumulated(sampling: Sampling, batches: int, *, whole: bool) -> Sampling:
    """That of steps that accumulate several batches. whole: whether all are of one pass."""
    if batches == 1 or not sampling.is_known:
        return sampling
    said = f"batches of {sampling.evidence} in each step"
    if sampling.batches == batches and sampling.all_rows and whole:
        full: dict[str, Any] = {"scheme": "full-batch", "batches": 1, "batch_size": sampling.dataset_size}
        return dataclasses.replace(sampling, **full, evidence=f"all {batches} {said}")
    if sampling.scheme == "shuffled" and whole and sampling.batches and sampling.batches % batches == 0:
        size = None if sampling.batch_size is None else sampling.batch_size * batches
        parts = sampling.batches // batches
        return dataclasses.replace(sampling, batches=parts, batch_size=size, evidence=f"{batches} {said}")
    return unknown(f"a step accumulates {batches} batches of {sampling.evidence}: a row can be in several of them")


def is_shuffled(source: BatchSource | None) -> TypeGuard[BatchSource]:
    """Whether this source is known to be a shuffled loader."""
    return source is not None and source.sampling.scheme == "shuffled"
