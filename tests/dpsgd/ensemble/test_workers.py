"""How many threads train, and how runs are cut into tasks for the workers of an executor."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from leakcore import dpsgd, kernels
from leakcore._base.workers import Task
from leakcore.attacks.reconstruction import gradient_descent
from leakcore.dpsgd.ensemble import workers

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

    monkeypatch.setattr(gradient_descent, "ThreadPoolExecutor", pool)
    with kernels.thread_limit(2):
        assert dict(gradient_descent._spread(abs, [(-1,), (-2,), (-3,)], None, None)) == {0: 1, 1: 2, 2: 3}
        assert dict(gradient_descent._spread(abs, [(-1,), (-2,), (-3,)], 3, None)) == {0: 1, 1: 2, 2: 3}
    assert pools == [2, 3]


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
