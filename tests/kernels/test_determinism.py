"""No result depends on threads or chunks, bit for bit, for every kernel; a control shows that the check can fail."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from leakcore import _C, kernels
from leakcore.kernels.threads import schedule, schedule_now
from tests.kernels.layouts import normals

SCHEDULES = [(1, 0), (2, 0), (1, 1), (2, 1), (2, 7), (5, 3), (2, 1000)]


def bits(value):
    """Every array in a result, as bytes."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, (list, tuple)):
        return [bits(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return [bits(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


def distinct_results(compute):
    """How many different results the schedules give; races get three tries each."""
    calls = []
    for threads, chunk in SCHEDULES:
        for _ in range(3):
            with schedule(threads, chunk):
                result = bits(compute())
            if result not in calls:
                calls.append(result)
    return len(calls)


WIDE = normals(1, 3, 200_000, dtype="float32")
TALL = normals(2, 30_000, 7)
RUNS = normals(3, 8, 40, 500)
MIXTURE = {"noise_multiplier": 0.7, "sample_rate": 0.05, "steps": 30, "under": "alternative"}
PAIR = kernels.Allocation(0.7, 7, epochs=3)
BANDED = kernels.Allocation(0.7, 7, epochs=3, factor=np.tri(7) - np.tri(7, k=-3))
CASES = {
    "clip wide": lambda: kernels.clip_and_noise(WIDE, 1.0, 1.0, seed=1),
    "clip tall": lambda: kernels.clip_and_noise(TALL, 1.0, 1.0, seed=1),
    "clip runs": lambda: kernels.clip_and_noise(RUNS, 1.0, 1.0, runs=True, seed=1),
    "clip parameters": lambda: kernels.clip_and_noise([TALL, TALL[:, ::-2]], 1.0, 1.0, seed=1),
    "scores": lambda: kernels.clip_scores(RUNS[0], RUNS[1], 1.0),
    "float scores": lambda: kernels.clip_scores(WIDE, WIDE[::2], 1.0, product_dtype="float32"),
    "labels": lambda: kernels.solve_labels(normals(4, 40, 20, 35), normals(5, 40, 35)),
    "ratios": lambda: kernels.mixture_log_ratio(20_001, **MIXTURE),
    "tails": lambda: kernels.mixture_tail(20_001, [-1.0, 0.0, 0.5], **MIXTURE),
    "one step": lambda: kernels.mixture_log_ratio(20_001, **{**MIXTURE, "steps": 1, "first_sample": 7}),
    "one step, tails": lambda: kernels.mixture_tail(20_001, [-1.0, 0.0], **{**MIXTURE, "steps": 1, "first_sample": 7}),
    "allocation": lambda: kernels.allocation_log_ratio(PAIR, 20_001, first_sample=7, under="alternative"),
    "allocation, subsets": lambda: kernels.allocation_log_ratio(kernels.Allocation(0.7, 9, k=3), 20_001),
    "allocation, tails": lambda: kernels.allocation_tail(PAIR, 20_001, [-1.0, 0.0, 0.5], first_sample=7),
    "bands": lambda: kernels.allocation_log_ratio(BANDED, 20_001, first_sample=7, under="alternative"),
    "bands, tails": lambda: kernels.allocation_tail(BANDED, 20_001, [-1.0, 0.0, 0.5], first_sample=7),
    "normals": lambda: kernels.standard_normal((50, 5001), seed=1, purpose="init"),
}


@pytest.mark.parametrize("name", CASES)
def test_schedules(name):
    assert distinct_results(CASES[name]) == 1


def test_negative_control():
    """A sum whose pieces follow the chunks, in the same threads: the check above must see that it changes."""
    x = np.ascontiguousarray(normals(6, 100_000))

    def careless():
        now = schedule_now()
        return _C.chunk_dependent_sum(x.ctypes.data, x.size, now.chunk or 100, now.num_threads)

    assert distinct_results(careless) > 1


def test_choice_of_threads(monkeypatch):
    monkeypatch.delenv("LEAKCORE_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert kernels.num_threads() == 3
    for other in ("many", "\udcff", ""):
        monkeypatch.setenv("OMP_NUM_THREADS", other)
        assert kernels.num_threads() == len(os.sched_getaffinity(0))
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert kernels.num_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("LEAKCORE_NUM_THREADS", "5")
    assert kernels.num_threads() == 5
    kernels.set_num_threads(7)
    try:
        assert kernels.num_threads() == 7
        with kernels.thread_limit(2):
            assert kernels.num_threads() == 2
        assert kernels.num_threads() == 7
    finally:
        kernels.set_num_threads(None)
    monkeypatch.setenv("LEAKCORE_NUM_THREADS", "0")
    with pytest.raises(ValueError, match="`LEAKCORE_NUM_THREADS` must be a positive integer, got '0'"):
        kernels.num_threads()
    with pytest.raises(ValueError, match=r"`count` must be in \[1, 4096\], got 0"):
        kernels.set_num_threads(0)


def test_threads_of_torch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("LEAKCORE_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 11)
    assert kernels.num_threads() == 11
