"""How the recorded steps were sampled: by the loaders that fed them, or as the caller says."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch.utils.data import DataLoader

from leakcore._base import validate as check
from leakcore.dpsgd.opacus.recorder.candidates.given_rows import leaves_of
from leakcore.dpsgd.opacus.recorder.sampling.loader_sampling import (
    draws_by_torch,
    is_divided,
    sampling_of_iterator,
    sampling_of_loader,
)
from leakcore.dpsgd.opacus.trace.sampling import Sampling, unknown

_WAITING = 8
"""Batches that may have been fetched ahead of the model."""
_NOT_FED = (
    "a step's batch is not one that a DataLoader gave since the step before (a loop of its own, a batch used twice, or "
    "changed in the loop while several loaders ran)"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The loader and the pass over the data from which a batch came.

    Attributes:
        divided: whether the sampler gives each process of the run a share of the rows.
    """

    sampling: Sampling
    number: int
    divided: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class _Fetched:
    source: Source
    tensors: tuple[torch.Tensor, ...]

    def holds(self, rows: torch.Tensor) -> bool:
        return any(
            t.shape[:1] == rows.shape[:1] and t.numel() == rows.numel() and _equal(t, rows) for t in self.tensors
        )

    def may_be(self, rows: torch.Tensor | None) -> bool:
        return rows is None or any(t.shape[:1] == rows.shape[:1] for t in self.tensors)


class SamplingOfSteps:
    """`fetched` for every batch of a DataLoader, `source_of` for every forward pass, `step` for every recorded step.

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
        if isinstance(stated, DataLoader):
            self._stated = sampling_of_loader(stated)
        elif stated is not None:
            self.rate = check.probability(sampling=stated)
            self._stated = Sampling(
                scheme="full-batch" if self.rate == 1 else "poisson", sample_rate=self.rate,
                evidence=f"the caller says so: sampling={self.rate:.6g}",
            )  # fmt: skip
        self._waiting: collections.deque[_Fetched] = collections.deque(maxlen=_WAITING)
        self._sources: weakref.WeakKeyDictionary[Any, Source] = weakref.WeakKeyDictionary()
        self._count = 0
        self._common: Sampling | None = None
        self._why = ""
        self._passes: dict[int, int] = {}

    def fetched(self, iterator: Any, batch: Any) -> None:
        """A DataLoader's iterator gave this batch."""
        source = self._sources.get(iterator)
        if source is None or iterator._num_yielded <= 1:
            self._count += 1
            sampling = sampling_of_iterator(iterator) if source is None else source.sampling
            divided = is_divided(iterator) if source is None else source.divided
            self._by_torch = draws_by_torch(iterator)
            source = self._sources[iterator] = Source(sampling, self._count, divided)
        tensors = tuple(t for _, t in leaves_of(batch) if isinstance(t, torch.Tensor) and t.ndim)
        self._waiting.append(_Fetched(source, tensors))

    def source_of(self, rows: torch.Tensor | None) -> Source | None:
        """Where the rows of a forward pass in training came from; None if no loader gave them.

        Rows that were changed on the way are taken for the batch that waits longest, if it has as many rows and only
        one loader is in use.
        """
        waiting = list(self._waiting)
        place = None if rows is None else next((i for i, f in enumerate(waiting) if f.holds(rows)), None)
        if place is None and len({f.source.sampling for f in waiting}) == 1 and waiting[0].may_be(rows):
            place = 0
        if place is None:
            return None
        for _ in range(place + 1):
            self._waiting.popleft()
        return waiting[place].source

    def step(self, sources: list[Source | None], batches: int, elsewhere: Sequence[list[Sampling | None]] = ()) -> None:
        """A step was recorded, that accumulates so many batches of these sources; `elsewhere`: `samplings_of` those of
        every process.
        """
        if self._why:
            return
        if not all(all_known(sampling) for sampling in (samplings_of(sources), *elsewhere)):
            self._why = _NOT_FED
            return
        if any(one != elsewhere[0] for one in elsewhere):
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
            sampling = _accumulated(source.sampling, batches, whole=len(passes) == 1)
            if self._common is None:
                self._common = sampling
            if sampling != self._common:
                self._why = f"steps were fed by different loaders: {self._common.evidence}; {sampling.evidence}"
        for number in passes:
            self._passes[number] = self._passes.get(number, 0) + 1

    def sampling(self) -> Sampling:
        """That of the recorded steps."""
        watched = self._watched()
        stated = self._stated
        if stated is None:
            return watched
        if self.rate is None:
            alike = dataclasses.replace(watched, passes=None) == stated
            return dataclasses.replace(stated, passes=watched.passes if alike else None)
        if watched.scheme in ("shuffled", "fixed-size") and max(self._passes.values(), default=0) > 1:
            return unknown(f"the caller says Poisson at q = {self.rate:.6g}, and steps were fed by {watched.evidence}")
        return stated

    def _watched(self) -> Sampling:
        if self._why or self._common is None:
            return unknown(self._why or _NOT_FED)
        if not self._common.is_known:
            return self._common
        if self.coins and self._by_torch and self._common.scheme == "poisson":
            return unknown(self.coins)
        return dataclasses.replace(self._common, passes=len(self._passes))


def _accumulated(sampling: Sampling, batches: int, *, whole: bool) -> Sampling:
    """That of steps that accumulate several batches. whole: whether all are of one pass."""
    if batches == 1 or not sampling.is_known:
        return sampling
    if sampling.batches == batches and sampling.all_rows and whole:
        return dataclasses.replace(
            sampling, scheme="full-batch", batches=1, batch_size=sampling.dataset_size,
            evidence=f"all {batches} batches of {sampling.evidence} in each step",
        )  # fmt: skip
    if sampling.scheme == "shuffled" and whole and sampling.batches and sampling.batches % batches == 0:
        size = None if sampling.batch_size is None else sampling.batch_size * batches
        return dataclasses.replace(
            sampling, batches=sampling.batches // batches, batch_size=size,
            evidence=f"{batches} batches of {sampling.evidence} in each step",
        )  # fmt: skip
    return unknown(f"a step accumulates {batches} batches of {sampling.evidence}: a row can be in several of them")


def samplings_of(sources: list[Source | None]) -> list[Sampling | None]:
    """How the batches of these sources were drawn, each way once; None for one that no loader gave."""
    return list(dict.fromkeys(None if source is None else source.sampling for source in sources))


def all_known(samplings: list[Sampling | None]) -> bool:
    """Whether loaders gave all batches of a step."""
    return bool(samplings) and None not in samplings


def is_shuffled(source: Source | None) -> TypeGuard[Source]:
    """Whether this source is known to be a shuffled loader."""
    return source is not None and source.sampling.scheme == "shuffled"


def _equal(values: torch.Tensor, rows: torch.Tensor) -> bool:
    return torch.equal(values.detach().to(rows.device, rows.dtype).reshape(rows.shape), rows)
