"""How runs are carried out: cut into blocks and ranges, trained by threads or by the workers of an executor."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakcore._base import validate
from leakcore._base.workers import Finished, answers
from leakcore.dpsgd.ensemble.arguments import Samples, Source, placed
from leakcore.dpsgd.ensemble.block import ARRAYS, BlockInput, BlockOutput, Plan, Trainer
from leakcore.dpsgd.ensemble.observer import Watch
from leakcore.dpsgd.ensemble.passes import RowGroup, has_native_sums
from leakcore.dpsgd.ensemble.sampling import CHUNK, SLOTS, gathered_rows
from leakcore.kernels import EnsembleRows


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Execution:
    """How runs are carried out. No option changes a result, except `device` in the last digits.

    Args:
        device: "cpu", "cuda" or "cuda:0", ...: where products and activations are computed. Everything random is drawn
            on the CPU. Results on CUDA agree with the CPU's to rounding, which training amplifies. Arrays are NumPy's.
        num_threads: threads over blocks of 32 runs. None: as many as the kernels use (`kernels.num_threads`), or one in
            each worker of an executor. A range of runs that is not aligned to 32 costs as much as the aligned range
            around it.
        executor: any `concurrent.futures.Executor`, whose workers train ranges of runs. The bits are the same for any
            number of workers on machines of one kind.
        checkpoint: a folder for finished runs. Each file is written atomically and never changed. The same call again
            reads them and trains only the missing runs, with the same bits. Files of another mechanism, data set,
            version or arithmetic (`kernels.arithmetic`) are ignored. leakcore never deletes the folder. Scorers and
            modules are compared by value and code, so an object that has neither, such as a lock, raises TypeError.
        progress: called as `progress(done, total)`, in runs, from the calling thread.

    Raises:
        ValueError: for a device that does not exist here, or a number out of range.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import dpsgd
        >>> dpsgd.Execution(num_threads=2).device
        'cpu'
    """

    device: str = "cpu"
    num_threads: int | None = None
    executor: Executor | None = None
    checkpoint: str | Path | None = None
    progress: Callable[[int, int], object] | None = None

    def __post_init__(self) -> None:
        _check_device(self.device)
        if self.num_threads is not None:
            object.__setattr__(self, "num_threads", validate.integer(1, None, num_threads=self.num_threads))
        validate.executor(executor=self.executor)
        validate.callback(progress=self.progress)
        if self.checkpoint is not None:
            validate.instance(str, Path, checkpoint=self.checkpoint)


def _check_device(device: object) -> None:
    """ValueError unless it is the CPU or a CUDA device that torch sees here."""
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if device == "cpu":
        return
    if kind != "cuda" or not (number.isdigit() or device == "cuda"):
        raise ValueError(f"`device` must be 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …, got {device!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise ValueError(f"`device` must be one of the {count} CUDA devices that torch has here, got {device!r}")


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of `Ensemble.run` for runs first, …, stop − 1; arrays of runs begin with the first."""

    first: int
    stop: int
    common: Samples
    extra: Source | None
    candidates: Source | None
    probes: Samples | Source | None
    watch: Watch
    keep_parameters: bool
    device: str
    initial: np.ndarray | None
    noise: np.ndarray | None
    batches: np.ndarray | None
    crafted: np.ndarray | None
    crafted_batches: np.ndarray | None

    @property
    def num_rows(self) -> int:
        """Rows of one run's training set."""
        return self.common.rows + (0 if self.extra is None else self.extra.rows)

    @property
    def scored(self) -> int:
        """Candidates per run."""
        return 0 if self.candidates is None else self.candidates.rows

    def _of_runs(self) -> tuple[dict[str, Source], dict[str, np.ndarray]]:
        """The rows and the arrays that differ between runs, by name."""
        names = "initial", "noise", "batches", "crafted_batches"
        rows = {n: source for n in ("extra", "candidates", "probes") if isinstance(source := getattr(self, n), Source)}
        return rows, {name: array for name in names if (array := getattr(self, name)) is not None}

    def part(self, low: int, high: int) -> Request:
        """The same for the absolute runs [low, high)."""
        a, b = low - self.first, high - self.first
        rows, arrays = self._of_runs()
        own: dict[str, Any] = {name: source.part(a, b) for name, source in rows.items()}
        own |= {name: array[a:b] for name, array in arrays.items()}
        return dataclasses.replace(self, first=low, stop=high, **own)

    def block(self, begin: int, outputs: int, dtype: torch.dtype) -> BlockInput:
        """What the block of runs begin, …, begin + SLOTS − 1 reads."""
        low, high = max(begin, self.first) - self.first, min(begin + SLOTS, self.stop) - self.first
        at, device = low + self.first - begin, torch.device(self.device)
        rows, arrays = self._of_runs()
        own: dict[str, Any] = {n: source.take(low, high, at, outputs, dtype, device) for n, source in rows.items()}
        own |= {name: placed(array[low:high], at) for name, array in arrays.items()}
        return BlockInput(first_run=begin, used=range(at, at + high - low), crafted=self.crafted, **own)


def losses(logits: np.ndarray | None, at: Samples | Source | None) -> np.ndarray | None:
    """(runs, n) float64, log Σ_k e^{z_k} − z_y, or log(1 + e^z) − y·z for one logit; None without labels."""
    if logits is None or at is None:
        return None
    labels = at.labels if isinstance(at, Samples) else at.samples.labels
    z = logits.astype(np.float64)
    if z.shape[-1] == 1:
        return np.asarray(np.logaddexp(0, z[..., 0]) - labels * z[..., 0])
    top = z.max(axis=-1, keepdims=True)
    z -= top
    of_label = np.take_along_axis(z, np.broadcast_to(labels, z.shape[:-1])[..., None], -1)[..., 0]
    return np.asarray(np.log(np.exp(z).sum(axis=-1)) - of_label)


def ranges(first: int, stop: int, size: int) -> list[tuple[int, int]]:
    """[first, stop) cut at multiples of `size`, itself a multiple of SLOTS; none if first = stop."""
    size = validate.integer(1, None, size=size)
    cuts = [first, *range(first - first % size + size, stop, size), stop]
    return list(itertools.pairwise(cuts)) if first < stop else []


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
    if request.device == "cpu" and plan.module is None and has_native_sums(plan.layers, plan.activation):
        chunks = EnsembleRows.of(request.common.features, request.common.labels)
    else:
        # Batches that are copied out of the common rows need no cutting.
        gathered = gathered_rows(request.common.rows, plan.sampling, request.num_rows) is not None
        chunks = _chunks(request.common, outputs, dtype, device, whole=gathered)
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
                yield low, high, future.result().part(slice(low - begin, high - begin))
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


def _chunks(
    common: Samples, outputs: int, dtype: torch.dtype, device: torch.device, *, whole: bool = False
) -> list[RowGroup]:
    parts = 1 if whole and common.rows else -(-common.rows // CHUNK)
    pieces: Sequence[np.ndarray] = np.array_split(np.arange(common.rows), parts) if parts else []
    return [RowGroup.of(common.features[p], common.labels[p], outputs, dtype, device) for p in pieces]
