"""Who trains a request's blocks: threads of this process, or the workers of an executor; and where the pieces go."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from leakcore._base.workers import Finished, answers
from leakcore.dpsgd.ensemble.arguments import Samples
from leakcore.dpsgd.ensemble.block import native_sums
from leakcore.dpsgd.ensemble.block.batches import SLOTS
from leakcore.dpsgd.ensemble.block.block import ARRAYS, BlockOutput, Plan, Trainer
from leakcore.dpsgd.ensemble.block.forward_backward import RowGroup
from leakcore.dpsgd.ensemble.block.poisson_gather import CHUNK, gathered_rows
from leakcore.dpsgd.ensemble.run_request import Request, ranges
from leakcore.kernels import EnsembleRows

_LEAST_RUNS, _MOST_SHARE, _SECONDS = 4 * SLOTS, 32, 5.0
"""The least runs of an executor's task; the least tasks into which many runs are cut; the seconds that a task should
take. Starting a task costs milliseconds, and a worker that dies loses one."""
_FIRST, _LAST = 16, 8
"""How many tasks of the least runs are timed first, so that no worker waits for another; one in how many of the other
runs is left for the end, in tasks of that share of the size, so that workers finish at about the same time."""

Piece = tuple[int, int, BlockOutput]
"""Runs [low, high) and their arrays, one row per run."""


class Collector:
    """The arrays of all runs, filled piece by piece; raises FloatingPointError where a run overflowed."""

    def __init__(self, request: Request, plan: Plan) -> None:
        self._first, self._count = request.first, request.stop - request.first
        self._keep_parameters = request.keep_parameters
        self._plan = plan
        self._found: dict[str, np.ndarray] = {}
        self._scores: dict[str, np.ndarray] = {}
        self._taken = np.zeros(self._count, bool)

    def put(self, low: int, high: int, piece: BlockOutput) -> BlockOutput:
        """Take the arrays of runs [low, high); returns the arrays to store."""
        bad = ~np.isfinite(piece.parameters).all(axis=1)
        if bad.any():
            raise FloatingPointError(
                f"run {low + int(bad.argmax())}: gradients or parameters overflowed {self._plan.dtype}: "
                f"learning_rate={self._plan.learning_rate} or the features are too large"
            )
        if not self._keep_parameters:
            piece = dataclasses.replace(piece, parameters=piece.parameters[:, :0])
        for name in ARRAYS:
            self._place(self._found, name, getattr(piece, name), low, high)
        for name, scores in piece.scores.items():
            self._place(self._scores, name, scores, low, high)
        self._taken[low - self._first : high - self._first] = True
        return piece

    @property
    def done(self) -> int:
        """Runs taken so far."""
        return int(self._taken.sum())

    def missing(self) -> list[tuple[int, int]]:
        """Ranges of runs not taken yet, ascending."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], self._taken, [True]]))) + self._first
        return [(int(low), int(high)) for low, high in edges.reshape(-1, 2)]

    def _place(self, into: dict[str, np.ndarray], name: str, array: np.ndarray | None, low: int, high: int) -> None:
        if array is not None:
            if name not in into:
                into[name] = np.empty((self._count, *array.shape[1:]), array.dtype)
            into[name][low - self._first : high - self._first] = array

    def arrays(self) -> dict[str, Any]:
        """All arrays, by the names of `EnsembleRun`."""
        return {**self._found, "scores": self._scores}


def train(plan: Plan, request: Request, threads: int) -> Generator[Piece, None, None]:
    """Each block as it finishes, trained by threads of this process; at most two blocks per thread are in memory."""
    outputs, dtype = plan.layers[-1], getattr(torch, plan.dtype)
    device = torch.device(request.device)
    chunks: list[RowGroup] | EnsembleRows
    if request.device == "cpu" and plan.module is None and native_sums.known(plan.layers, plan.activation):
        chunks = native_sums.shared_rows(request.common)
    else:
        chunks = _chunks(request.common, outputs, dtype, device, whole=_gathered(plan, request))
    probes = _chunks(request.probes, outputs, dtype, device) if isinstance(request.probes, Samples) else []
    local = threading.local()
    halt = threading.Event()

    def work(begin: int) -> BlockOutput:
        if not hasattr(local, "trainer"):
            torch.set_num_threads(1)
            extra = 0 if request.extra is None else request.extra.rows
            local.trainer = Trainer(
                plan, chunks, request.watch, extra=extra, candidates=request.scored, probes=probes, device=device
            )
        trainer: Trainer = local.trainer
        return trainer.train(request.block(begin, outputs, dtype), halt)

    begins = range(request.first - request.first % SLOTS, request.stop, SLOTS)
    waiting = iter(begins)
    running: dict[Future[BlockOutput], int] = {}
    finished: Finished[BlockOutput] = Finished()
    with finished.interrupted_between():
        before = torch.get_num_threads()
        pool = ThreadPoolExecutor(min(threads, len(begins)), thread_name_prefix="leakcore-dpsgd")
        try:
            while True:
                for begin in waiting:
                    future = pool.submit(work, begin)
                    running[future] = begin
                    finished.add(future)
                    if len(running) >= 2 * threads:
                        break
                if not running:
                    return
                future = next(finished)
                begin = running.pop(future)
                low, high = max(begin, request.first), min(begin + SLOTS, request.stop)
                yield low, high, _rows(future.result(), slice(low - begin, high - begin))
        finally:
            halt.set()
            pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(before)


def train_elsewhere(plan: Plan, request: Request, threads: int, executor: Executor) -> Generator[Piece, None, None]:
    """Each range of runs as some worker of `executor` finishes it. Where there are many runs, the time of the first
    ranges decides how long the others are."""
    cuts = ranges(request.first, request.stop, _LEAST_RUNS)
    if len(cuts) > _MOST_SHARE and not _heavy(request):
        seconds = 0.0
        for low, high, piece, taken in _pieces(plan, request, threads, executor, cuts[:_FIRST]):
            seconds += taken
            yield low, high, piece
        runs, first = request.stop - request.first, cuts[_FIRST][0]
        wanted = min(_FIRST * _LEAST_RUNS * _SECONDS / seconds, runs / _MOST_SHARE)
        cuts = _shrinking(first, request.stop, wanted)
    for low, high, piece, _ in _pieces(plan, request, threads, executor, cuts):
        yield low, high, piece


def _shrinking(first: int, stop: int, wanted: float) -> list[tuple[int, int]]:
    """[first, stop) in ranges of about `wanted` runs, and in shorter ones at the end."""

    def size(runs: float) -> int:
        return max(_LEAST_RUNS, int(runs) // SLOTS * SLOTS)

    end = max(first, (stop - (stop - first) // _LAST) // SLOTS * SLOTS)
    return [*ranges(first, end, size(wanted)), *ranges(end, stop, size(wanted / _LAST))]


def _heavy(request: Request) -> bool:
    """Whether runs carry much, there or back."""
    watch, ready = request.watch, (request.noise, request.batches)
    return watch.record or (watch.keep_steps and request.scored > 0) or any(array is not None for array in ready)


def _pieces(
    plan: Plan, request: Request, threads: int, executor: Executor, cuts: Sequence[tuple[int, int]]
) -> Generator[tuple[int, int, BlockOutput, float], None, None]:
    jobs = ((cut, functools.partial(_task, plan, request.part(*cut), threads)) for cut in cuts)
    with contextlib.closing(answers(jobs, executor)) as finished:
        for (low, high), (piece, seconds) in finished:
            yield low, high, piece, seconds


def _task(plan: Plan, request: Request, threads: int) -> tuple[BlockOutput, float]:
    """All runs of a request in this process, as one piece, and the seconds that they took."""
    start = time.perf_counter()
    collected = Collector(request, plan)
    for low, high, piece in train(plan, request, threads):
        collected.put(low, high, piece)
    return BlockOutput(**collected.arrays()), time.perf_counter() - start


def _rows(block: BlockOutput, which: slice) -> BlockOutput:
    arrays = {name: getattr(block, name) for name in ARRAYS}
    cut: dict[str, Any] = {name: None if array is None else array[which] for name, array in arrays.items()}
    return BlockOutput(**cut, scores={name: scores[which] for name, scores in block.scores.items()})


def _gathered(plan: Plan, request: Request) -> bool:
    """Whether batches are copied out of the common rows: they then need not be cut."""
    return gathered_rows(request.common.rows, plan.sampling, request.num_rows) is not None


def _chunks(
    common: Samples, outputs: int, dtype: torch.dtype, device: torch.device, *, whole: bool = False
) -> list[RowGroup]:
    parts = 1 if whole and common.rows else -(-common.rows // CHUNK)
    pieces: Sequence[np.ndarray] = np.array_split(np.arange(common.rows), parts) if parts else []
    return [RowGroup.of(common.features[p], common.labels[p], outputs, dtype, device) for p in pieces]
