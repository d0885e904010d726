"""How the recorded steps were sampled: by the draws of loaders that fed them, or as the caller says."""

from __future__ import annotations

import collections
import dataclasses
import math
import weakref
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch.utils.data import DataLoader

from leakcore._base import validate
from leakcore.dpsgd.opacus.recorder.sampling.deliveries import Deliveries, Source, Use
from leakcore.dpsgd.opacus.recorder.sampling.drawn_batches import Draw, Part
from leakcore.dpsgd.opacus.recorder.sampling.loader_sampling import (
    draws_by_torch,
    is_divided,
    is_of,
    sampling_of_iterator,
    sampling_of_loader,
)
from leakcore.dpsgd.opacus.recorder.sampling.repetitions import RepeatedDraws
from leakcore.dpsgd.opacus.recorder.sampling.sample_rate import Divisors
from leakcore.dpsgd.trace.trace import Sampling, Violation, unknown

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

_ORDER: tuple[Violation, ...] = ("", "sampling", "sensitivity")

Entries = Sequence[Sequence[Use | None]]
"""What each per-sample gradient that a step summed was computed from: the forward passes of one backward pass."""


@dataclasses.dataclass(frozen=True)
class Release:
    """What is known of the rows of a step, in one process.

    Attributes:
        sources: of its draws, one for each draw; None for rows that no loader is known to have drawn.
        why: why it is not one draw, or several whole ones; else "".
        violation: what that breaks.
    """

    sources: tuple[Source | None, ...]
    why: str = ""
    violation: Violation = ""


class SamplingOfSteps:
    """`fetched` for every batch of a DataLoader, `use_of` for every forward pass, `release` and `step` for every step.

    A step is a fresh sample only if its sum holds all rows of one draw that no step before it used.

    Args:
        stated: what the caller says: a DataLoader, or q of Poisson sampling; None: nothing.
        divided: whether several processes train, which must divide the rows among them.

    Attributes:
        coins: why processes do not draw by coins of their own, if that is known; else "".

    Raises:
        ValueError: for a q outside [0, 1].
        TypeError: for anything else.
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
        self._sources: weakref.WeakKeyDictionary[Any, Source] = weakref.WeakKeyDictionary()
        self._count = 0
        self._common: Sampling | None = None
        self._why = ""
        self._violation: Violation = ""
        self._passes: dict[int, int] = {}
        self._given: collections.Counter[int] = collections.Counter()
        self._used: collections.Counter[int] = collections.Counter()
        self._divisors = Divisors()
        self._released: weakref.WeakSet[Draw] = weakref.WeakSet()
        self._repeated, self._stale = RepeatedDraws(), False

    def fetched(self, iterator: Any, batch: Any, part: Part) -> None:
        """A DataLoader's iterator gave this batch."""
        if self._loader is not None and not is_of(iterator, self._loader):
            return
        source = self._sources.get(iterator)
        if source is None or iterator._num_yielded <= 1:
            self._count += 1
            sampling = sampling_of_iterator(iterator) if source is None else source.sampling
            divided = is_divided(iterator) if source is None else source.divided
            self._by_torch = draws_by_torch(iterator)
            source = self._sources[iterator] = Source(sampling, self._count, divided)
        self._given[source.number] += part.number == 0
        self._deliveries.delivered(source, part, batch)

    def use_of(self, rows: torch.Tensor | None) -> Use | None:
        """The rows of a draw that a forward pass in training has; None if no loader gave them."""
        return self._deliveries.use_of(rows)

    def release(self, entries: Entries | None) -> Release:
        """What a step's sum holds, by draws. None: rows that came into it before, or outside of, the recording."""
        if entries is None:
            return Release((None,), "a step's sum held rows from before the recording", "sensitivity")
        parts: dict[Draw, dict[int, list[Use]]] = {}
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
            left = (
                f"a step's sum holds a part of a batch{more} (a pass that was broken off, or a part that was left out)"
            )
            return Release(sources, left, "sensitivity" if more else "sampling")
        if again:
            return Release(sources, _USED_AGAIN, "sampling")
        for draw, source in zip(parts, sources, strict=True):
            if self._is_repeated(draw, source.sampling):
                why = (
                    "the sampler drew a batch again (its generator was seeded again), so that it is not a fresh sample"
                )
                return Release(sources, why, "sampling")
        return Release(sources)

    def _is_repeated(self, draw: Draw, sampling: Sampling) -> bool:
        """Whether a sample equals an earlier one, and chance does not explain that.

        A shuffled pass holds each row once in any order: of orders that come again it is noted that they are not fresh.
        """
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
        """A step ended.

        Args:
            release: what this process knows of its rows.
            elsewhere: what every process knows of them.
            rows: how many this process had.
            divisor: by which it divided their sum; None: by none.
        """
        if divisor is not None:
            self._divisors.add(divisor, rows)
        release = max([release, *elsewhere], key=lambda r: (_ORDER.index(r.violation), bool(r.why)))
        if _ORDER.index(release.violation) > _ORDER.index(self._violation):
            self._why, self._violation = release.why, release.violation
        if self._why:
            return
        sources = release.sources
        if release.why:
            self._why = release.why
            return
        samplings = [samplings_of(one.sources) for one in (release, *elsewhere)]
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
        for number in passes:
            self._passes[number] = self._passes.get(number, 0) + 1

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


def _disjoint(uses: list[Use]) -> bool:
    ends = 0
    for use in sorted(uses, key=lambda u: u.start):
        if use.start < ends or ends == -1:
            return False
        ends = -1 if use.stop is None else use.stop
    return True


def _whole(draw: Draw, parts: dict[int, list[Use]]) -> bool:
    """Whether all parts of a draw, and all rows of each, are among these disjoint uses."""
    if not draw.complete or sorted(parts) != list(range(len(draw.parts))):
        return False
    for uses in parts.values():
        ends: int | None = 0
        for use in sorted(uses, key=lambda u: u.start):
            if use.start != ends:
                return False
            ends = use.stop
        if ends is not None:
            return False
    return True


def _accumulated(sampling: Sampling, batches: int, *, whole: bool) -> Sampling:
    """That of steps that accumulate several batches. whole: whether all are of one pass."""
    if batches == 1 or not sampling.is_known:
        return sampling
    if sampling.batches == batches and sampling.all_rows and whole:
        return dataclasses.replace(
            sampling,
            scheme="full-batch",
            batches=1,
            batch_size=sampling.dataset_size,
            evidence=f"all {batches} batches of {sampling.evidence} in each step",
        )
    if sampling.scheme == "shuffled" and whole and sampling.batches and sampling.batches % batches == 0:
        size = None if sampling.batch_size is None else sampling.batch_size * batches
        return dataclasses.replace(
            sampling,
            batches=sampling.batches // batches,
            batch_size=size,
            evidence=f"{batches} batches of {sampling.evidence} in each step",
        )
    return unknown(f"a step accumulates {batches} batches of {sampling.evidence}: a row can be in several of them")


def samplings_of(sources: Sequence[Source | None]) -> list[Sampling | None]:
    """How the batches of these sources were drawn, each way once; None for one that no loader gave."""
    return list(dict.fromkeys(None if source is None else source.sampling for source in sources))


def is_shuffled(source: Source | None) -> TypeGuard[Source]:
    """Whether this source is known to be a shuffled loader."""
    return source is not None and source.sampling.scheme == "shuffled"
