"""Work handed to an executor: a worker must be the same leakcore as its sender, and Ctrl-C ends the wait cleanly."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, Generic, TypeVar

from leakcore._base.version import difference, identity_text, process_identity

K = TypeVar("K")
T = TypeVar("T")


class Task(Generic[T]):
    """A job for a worker, and the identity of the process that sends it. Called where the identity differs, it raises a
    RuntimeError that names the machine, what differs, and both values."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job, self._identity = job, identity_text()

    def __call__(self) -> T:
        # A fork is asked, too: it may have chosen its instruction tier by a variable that was set there.
        if identity_text() != self._identity:
            text = difference(process_identity(), json.loads(self._identity))
            import socket

            raise RuntimeError(
                f"the worker on {socket.gethostname()} (process {os.getpid()}) is another leakcore: {text}. Its "
                "results could differ from the results of this process. Install the same versions on every machine, "
                "and set LEAKCORE_ISA and the variables of the libraries to the same values"
            )
        return self._job()


class Finished(Iterator["Future[T]"]):
    """Futures, in the order in which they finish; iteration ends when all that were added came out. The interpreter
    waits inside one call of C, which an interrupt leaves cleanly. Cancelled is finished, too."""

    def __init__(self, futures: Iterable[Future[T]] = ()) -> None:
        self._ready: queue.SimpleQueue[Future[T] | None] = queue.SimpleQueue()
        self._waiting = 0
        for future in futures:
            self.add(future)

    def add(self, future: Future[T]) -> None:
        """Wait for this one, too."""
        self._waiting += 1
        future.add_done_callback(self._ready.put)

    def __next__(self) -> Future[T]:
        if self._waiting == 0:
            raise StopIteration
        answer = self._ready.get()
        if answer is None:
            raise KeyboardInterrupt
        self._waiting -= 1
        return answer

    @contextlib.contextmanager
    def interrupted_between(self) -> Generator[None, None, None]:
        """While the block runs, Ctrl-C is a KeyboardInterrupt where the next future is asked for, or else at its end.

        However often it comes, threads are thus started, told to stop and joined undisturbed; one that is left at work
        while the interpreter ends is an abort. Only in the main thread, and only where Python's own handler of SIGINT
        is in place: a caller's handler, which may not raise at all, is left alone.
        """
        ours = threading.current_thread() is threading.main_thread()
        if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        came: list[int] = []

        def note(number: int, frame: Any) -> None:
            came.append(number)
            self._ready.put(None)  # may be called at any moment, in the middle of its own get as well

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if came:
                raise KeyboardInterrupt from None


def answers(
    jobs: Iterable[tuple[K, Callable[[], T]]], executor: Executor | None, *, ahead: int | None = None
) -> Generator[tuple[K, T], None, None]:
    """(key, answer) of each job: done here in order, or by the executor's workers, as they finish.

    ahead: how many at most are handed out at a time, if what they carry should not all be in memory; None: all. The end
    of the iteration, of whatever kind, calls off what has not begun. Jobs are pickled where workers are processes.
    RuntimeError: if a worker is another leakcore than this process (version, source, libraries or arithmetic).
    """
    if executor is None:
        for key, job in jobs:
            yield key, job()
        return
    waiting = iter(jobs)
    running: dict[Future[T], K] = {}
    finished: Finished[T] = Finished()
    try:
        while True:
            for key, job in itertools.islice(waiting, None if ahead is None else ahead - len(running)):
                future = executor.submit(Task(job))
                running[future] = key
                finished.add(future)
            if not running:
                return
            future = next(finished)
            yield running.pop(future), future.result()
    finally:
        for future in running:
            future.cancel()


def collected(
    jobs: Iterable[tuple[K, Callable[[], T]]],
    executor: Executor | None,
    progress: Callable[[int, int], object] | None,
    total: int,
    *,
    ahead: int | None = None,
) -> dict[K, T]:
    """{key: answer} of all jobs, as `answers`; progress is called as progress(done, total)."""
    out: dict[K, T] = {}
    with contextlib.closing(answers(jobs, executor, ahead=ahead)) as finished:
        for key, answer in finished:
            out[key] = answer
            if progress is not None:
                progress(len(out), total)
    return out


def in_order(function: Callable[[K], T], arguments: Iterable[K], executor: Executor | None) -> Generator[T, None, None]:
    """`map(function, arguments)`, whose calls are made by the executor's workers where there is one."""
    early: dict[int, T] = {}
    due = 0
    jobs = ((i, functools.partial(function, argument)) for i, argument in enumerate(arguments))
    with contextlib.closing(answers(jobs, executor)) as results:
        for i, answer in results:
            early[i] = answer
            while due in early:
                yield early.pop(due)
                due += 1
