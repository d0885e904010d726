"""Runs by threads and executors, and Ctrl-C at any moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import concurrent.futures
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from leakcore import dpsgd, kernels
from leakcore._base.workers import Finished, Task
from leakcore.attacks.reconstruction import gradient_descent
from leakcore.dpsgd.ensemble import workers
from tests.tolerances import HANG

RNG = np.random.default_rng(0)
ROWS, LABELS = RNG.random((20, 3)), RNG.integers(0, 2, 20)
ENSEMBLE = dpsgd.Ensemble((3, 2), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=1, seed=0)


class Noted(Executor):
    """Does tasks at once, and notes the runs of each."""

    def __init__(self) -> None:
        self.cuts: list[tuple[int, int]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert isinstance(fn, Task)
        request = fn._job.args[1]
        self.cuts.append((request.first, request.stop))
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_trainings_keep_to_the_threads_of_the_kernels(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """However they were limited; a number of the call's own goes first."""
    pools: list[int] = []
    right = workers.ThreadPoolExecutor

    def pool(count: int, **names: Any) -> Any:
        pools.append(count)
        return right(count, **names)

    def train(execution: dpsgd.Execution | None = None) -> int:
        ENSEMBLE.run(ROWS, LABELS, runs=320, execution=execution)
        return pools[-1]

    monkeypatch.setattr(workers, "ThreadPoolExecutor", pool)
    with kernels.thread_limit(threads):
        assert train() == threads
        assert train(dpsgd.Execution(num_threads=4)) == 4
    monkeypatch.setenv("LEAKCORE_NUM_THREADS", str(threads))
    assert train() == threads
    kernels.set_num_threads(5)
    try:
        assert train() == 5
    finally:
        kernels.set_num_threads(None)


def test_the_gradient_attack_keeps_to_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[int] = []
    right = gradient_descent.ThreadPoolExecutor

    def pool(count: int) -> Any:
        pools.append(count)
        return right(count)

    run = ENSEMBLE.run(ROWS, LABELS, runs=3, observer=dpsgd.Observer(record=True))
    search = gradient_descent.Descent(iterations=1, restarts=1)
    alone = gradient_descent.gradient(run, descent=search, execution=dpsgd.Execution(num_threads=1))
    monkeypatch.setattr(gradient_descent, "ThreadPoolExecutor", pool)
    with kernels.thread_limit(2):
        for execution in (None, dpsgd.Execution(num_threads=3)):
            answer = gradient_descent.gradient(run, descent=search, execution=execution)
            assert (answer.points == alone.points).all()
    assert pools == [2, 3]


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("runs", [1, 128, 4095, 4097, 8192, 20_000])
def test_tasks_cover_all_runs_and_end_short(runs: int) -> None:
    noted = Noted()
    with kernels.thread_limit(1):
        there = ENSEMBLE.run(ROWS, LABELS, runs=range(64, 64 + runs), execution=dpsgd.Execution(executor=noted))
        here = ENSEMBLE.run(ROWS, LABELS, runs=range(64, 64 + runs))
    assert (there.parameters == here.parameters).all()
    cuts, lengths = noted.cuts, [high - low for low, high in noted.cuts]
    assert cuts[0][0] == 64
    assert cuts[-1][1] == 64 + runs
    assert all(before[1] == after[0] for before, after in itertools.pairwise(cuts))
    assert all(low % 32 == 0 for low, _ in cuts)
    if runs == 20_000:  # several workers have something to do from the beginning, and none waits for long at the end
        assert max(lengths[:16]) == 128
        assert max(lengths[16:]) > 512 >= 4 * max(lengths[-16:])


@pytest.mark.parametrize(("first", "stop"), [(0, 1), (0, 127), (2048, 2049), (2048, 100_000), (96, 4097)])
@pytest.mark.parametrize("wanted", [1.0, 480.0, 1e6])
def test_shrinking_ranges(first: int, stop: int, wanted: float) -> None:
    cuts = workers._shrinking(first, stop, wanted)
    assert cuts[0][0] == first
    assert cuts[-1][1] == stop
    assert all(low < high for low, high in cuts)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(cuts))


_ENSEMBLE = dpsgd.Ensemble((6, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=3, seed=0)
_ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
_LABELS = np.arange(40) % 2


@pytest.fixture(autouse=True)
def _in_the_foreground() -> Iterator[None]:
    """A shell starts what it puts in the background with SIGINT ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _run() -> np.ndarray:
    return _ENSEMBLE.run(_ROWS, _LABELS, runs=160, execution=dpsgd.Execution(num_threads=2)).parameters


class _InterruptAt:
    """Ctrl-C where the main thread enters a function of `threading`, which a signal may hit but once in thousands."""

    def __init__(self, name: str) -> None:
        self.name, self.fired = name, False

    def __enter__(self) -> _InterruptAt:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.fired and frame.f_code.co_name == self.name and frame.f_code.co_filename == threading.__file__:
            self.fired = True
            signal.raise_signal(signal.SIGINT)


def _slow_future(pool: ThreadPoolExecutor) -> Future[None]:
    return pool.submit(time.sleep, 0.05)


def test_the_standard_library_s_wait_turns_an_interrupt_into_another_error() -> None:
    """The reason for `Finished`. Where this fails, the standard library was mended and `Finished` may go."""
    with ThreadPoolExecutor(1) as pool:
        future = _slow_future(pool)
        with pytest.raises(RuntimeError, match="release unlocked lock"), _InterruptAt("_acquire_restore") as at:
            concurrent.futures.wait([future])
        assert at.fired


def test_finished_never_enters_that_moment() -> None:
    with ThreadPoolExecutor(1) as pool:
        futures = [_slow_future(pool) for _ in range(3)]
        with _InterruptAt("_acquire_restore") as at:
            finished = list(Finished(futures))
        assert not at.fired
    assert sorted(map(id, finished)) == sorted(map(id, futures))
    assert list(Finished()) == []


def test_an_interrupt_while_threads_start_or_wait_is_one() -> None:
    for name in ("_acquire_restore", "wait", "start", "join", "notify"):
        with _InterruptAt(name) as at:
            try:
                _run()
                assert not at.fired, f"lost: {name}"
            except KeyboardInterrupt:
                assert at.fired, name
        assert not [t for t in threading.enumerate() if t.name.startswith("leakcore-dpsgd")], name
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_waits_for_the_next_future_or_the_end() -> None:
    reached = []

    def hit(times: int, *, ask: bool) -> None:
        finished: Finished[None] = Finished()
        finished.add(Future())  # never done
        with finished.interrupted_between():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            reached.append(times)
            if ask:
                next(finished)
                reached.append(-1)

    for times in (1, 2, 3):
        for ask in (True, False):
            with pytest.raises(KeyboardInterrupt):
                hit(times, ask=ask)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert reached == [1, 1, 2, 2, 3, 3]


def test_a_handler_of_the_caller_and_other_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Finished().interrupted_between():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    handled: list[bool] = []

    def elsewhere() -> None:
        with Finished().interrupted_between():
            handled.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handled == [True]


_STORM = """
import collections, os, random, signal, sys, threading, time
import numpy as np
from leakcore import dpsgd

signal.signal(signal.SIGINT, signal.default_int_handler)
ensemble = dpsgd.Ensemble((6, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=3, seed=0)
rows, labels = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32), np.arange(40) % 2
alone = ensemble.run(rows, labels, runs=160, execution=dpsgd.Execution(num_threads=2)).parameters
draw = random.Random(1)
seen = collections.Counter()
for _ in range(int(sys.argv[1])):
    go, delay = threading.Event(), draw.random() * 0.02

    def fire():
        go.wait()
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=fire)
    thread.start()
    try:
        go.set()
        while True:
            ensemble.run(rows, labels, runs=160, execution=dpsgd.Execution(num_threads=2))
    except BaseException as error:
        seen[type(error).__name__] += 1
    thread.join()
assert set(seen) == {"KeyboardInterrupt"}, seen
assert [t.name for t in threading.enumerate() if t.name.startswith("leakcore")] == []
assert (ensemble.run(rows, labels, runs=160, execution=dpsgd.Execution(num_threads=2)).parameters == alone).all()
print(seen["KeyboardInterrupt"])
"""


@pytest.mark.parametrize("times", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_storm_of_interrupts_at_random_moments(times: int) -> None:
    """In a process of its own: what a library underneath prints when hit is not this test's business."""
    done = subprocess.run([sys.executable, "-c", _STORM, str(times)], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == times


_TWICE = """
import signal
import numpy as np
from leakcore import dpsgd

signal.signal(signal.SIGINT, signal.default_int_handler)
ensemble = dpsgd.Ensemble((300, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=4000, seed=0)
rows, labels = np.random.default_rng(0).normal(size=(2000, 300)).astype(np.float32), np.arange(2000) % 2
print("ready", flush=True)
ensemble.run(rows, labels, runs=640, execution=dpsgd.Execution(num_threads=2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.01, 0.1])
def test_an_impatient_second_interrupt_does_not_abort(pause: float) -> None:
    """A thread left at work while the interpreter ends is std::terminate, or minutes of waiting for its block."""
    command = [sys.executable, "-c", _TWICE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(2)
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(pause)
            _, errors = process.communicate(timeout=HANG)
        finally:
            process.kill()
    assert process.returncode in (-signal.SIGINT, 130), errors[-2000:]
    # With a colon where the second one hits a library's own clearing up at exit.
    assert errors.rstrip().splitlines()[-1] in ("KeyboardInterrupt", "KeyboardInterrupt:"), errors[-2000:]
    assert "terminate called" not in errors
