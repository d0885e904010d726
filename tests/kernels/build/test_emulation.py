"""The CUDA emulation finds the mistakes that were planted in kernels of its own, and runs a right one rightly."""

from __future__ import annotations

import numpy as np
import pytest

from leakcore import _C, kernels
from tests.kernels import devices

pytestmark = pytest.mark.skipif(not devices.EMULATED, reason="runs with the emulated build: make test-emulated")


def run(kernel, values):
    data = np.array(values, dtype=np.float64)
    _C.emulation_check(kernel, data.ctypes.data, len(data))
    return data


def test_block_sums():
    values = np.arange(1000.0)
    sums = run("sum", values)[:4]
    np.testing.assert_array_equal(sums, [values[k : k + 256].sum() for k in range(0, 1000, 256)])


def test_shuffles_as_in_cuda():
    lane = np.arange(32)
    down, up = np.where(lane + 3 < 32, lane + 3, lane), np.where(lane >= 2, lane - 2, lane)
    expected = down + 100.0 * up + 10000.0 * 5 + 1000000.0 * (lane ^ 1)
    np.testing.assert_array_equal(run("shuffles", lane), expected)


def test_missing_barrier():
    values = np.arange(1.0, 2561.0)
    sums = [values[k : k + 256].sum() for k in range(0, 2560, 256)]
    assert not np.array_equal(run("race", values)[:10], sums)


def test_race():
    values = np.arange(1.0, 2561.0)
    for kernel, alike in (("sum", True), ("race", False)):
        results = []
        for schedule in range(4):
            _C.emulation_schedule(schedule)
            results.append(run(kernel, values))
        assert all(np.array_equal(results[0], other) for other in results[1:]) is alike


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("diverging", r"threads wait at different barriers: .*selfcheck.cu:\d+ and .*selfcheck.cu:\d+"),
        ("early exit", r"thread \(3, 0, 0\) has left while thread .* waits at"),
        ("half a warp", "has left while its warp waits at"),
        ("past shared", "a write past the 256 bytes of dynamic shared memory"),
        ("large block", r"a block of \(1025, 1, 1\) threads"),
        ("no blocks", r"a grid of \(0, 1, 1\) blocks"),
        ("large shared", "232449 bytes of dynamic shared memory"),
    ],
)
def test_mistakes(kernel, message):
    with pytest.raises(RuntimeError, match=message):
        run(kernel, np.ones(256))


MIXTURE = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 8}
PAIR = kernels.Allocation(1.0, 8)
ROWS = np.ones((6, 40), np.float32)
CALLS = {
    "clip_and_noise": lambda x: kernels.clip_and_noise(x(ROWS), 1.0, 1.0, seed=1),
    "clip_scores": lambda x: kernels.clip_scores(x(ROWS), x(ROWS), 1.0),
    "solve_labels": lambda x: kernels.solve_labels(x(ROWS), x(ROWS[0])),
    "mixture_log_ratio": lambda x: kernels.mixture_log_ratio(10, like=x(ROWS), **MIXTURE),
    "mixture_tail": lambda x: kernels.mixture_tail(10, [0.0], like=x(ROWS), **MIXTURE),
    "allocation_log_ratio": lambda x: kernels.allocation_log_ratio(PAIR, 10, like=x(ROWS)),
    "allocation_tail": lambda x: kernels.allocation_tail(PAIR, 10, [0.0], like=x(ROWS)),
}


@pytest.mark.parametrize("name", CALLS)
def test_captured_stream(name):
    """A graph would replay one seed's noise, and read small tables where they no longer are."""
    CALLS[name](devices.EmulatedArray)
    _C.emulation_capture(True)
    try:
        with pytest.raises(RuntimeError, match="is being captured into a CUDA graph"):
            CALLS[name](devices.EmulatedArray)
        CALLS[name](np.asarray)
    finally:
        _C.emulation_capture(False)
