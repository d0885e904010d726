"""Every native call with its first allocation failing, its second, …: run by `test_out_of_memory.py`, with the failing
operator new loaded. Prints one line of JSON per call: [call, threads, mode, failures met, blocks lost]."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore.kernels.ensemble import EnsembleRows, EnsembleSums

RNG = np.random.default_rng(0)
GRADS = RNG.normal(size=(3, 40, 700))
ROWS = GRADS[0].astype(np.float32)
JACOBIAN, GRADIENT = RNG.normal(size=(20, 6, 9)), RNG.normal(size=(20, 9))
FACTOR = kernels.Allocation(1.0, 7, factor=np.tri(7))
MIXTURE: dict[str, Any] = {"noise_multiplier": 1.0, "sample_rate": 0.1, "seed": 3}


def parts(result: Any) -> list[np.ndarray]:
    arrays = vars(result).values() if hasattr(result, "__dict__") else result if isinstance(result, tuple) else [result]
    flat = [x for part in arrays for x in (part if isinstance(part, list) else [part])]
    return [np.asarray(x) for x in flat if isinstance(x, (np.ndarray, np.generic, int, float))]


def ensemble() -> np.ndarray:
    weights = np.full((2, 3, 5), 0.25)
    into = np.zeros_like(weights)
    rows = EnsembleRows.of(np.linspace(-1, 1, 24).reshape(6, 4), np.arange(6) % 3)
    address = [int(a.__array_interface__["data"][0]) for a in (weights, into)]
    EnsembleSums(2, (4, 3), "identity", "float64", max_grad_norm=1.0, slack=0.0).add(
        address[:1], rows, None, address[1:], address[1:]
    )
    return into


CALLS: dict[str, Callable[[], Any]] = {
    "clip_and_noise": lambda: kernels.clip_and_noise(GRADS, 1.0, 1.0, runs=True, seed=1),
    "clip_and_noise of a list": lambda: kernels.clip_and_noise([ROWS, ROWS[:, ::3], ROWS[:, :5]], 1.0),
    "clip_and_noise of rows that are left out": lambda: kernels.clip_and_noise(ROWS, 1.0, mask=np.arange(40) % 3 == 0),
    "clip_scores": lambda: kernels.clip_scores(GRADS, GRADS[:, :5], 1.0, runs=True),
    "clip_scores in float32": lambda: kernels.clip_scores(ROWS, ROWS[:5], 1.0, product_dtype="float32"),
    "solve_labels": lambda: kernels.solve_labels(JACOBIAN, GRADIENT),
    "solve_labels, wide": lambda: kernels.solve_labels(RNG0(8, 300), RNG0(300)),
    "mixture_log_ratio": lambda: kernels.mixture_log_ratio(60_000, steps=7, **MIXTURE),
    "mixture_log_ratio of one step": lambda: kernels.mixture_log_ratio(600_000, steps=1, **MIXTURE),
    "mixture_tail": lambda: kernels.mixture_tail(60_000, np.linspace(-1, 1, 9), steps=7, **MIXTURE),
    "allocation_log_ratio": lambda: kernels.allocation_log_ratio(kernels.Allocation(1.0, 9, k=3), 60_000, seed=3),
    "allocation_log_ratio of a factor": lambda: kernels.allocation_log_ratio(FACTOR, 60_000, under="alternative"),
    "allocation_tail": lambda: kernels.allocation_tail(kernels.Allocation(1.0, 9), 60_000, np.linspace(-1, 1, 9)),
    "standard_normal": lambda: kernels.standard_normal((300, 70), seed=1, purpose="init"),
    "uniform": lambda: kernels.uniform((300, 70), seed=1, purpose="init"),
    "ensemble": ensemble,
}


def RNG0(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=shape)


def main() -> None:
    library = ctypes.CDLL(None)
    library.fail_allocation.argtypes = (ctypes.c_int64, ctypes.c_int)
    library.stop_failing.restype = library.blocks_held.restype = ctypes.c_int64
    for name, call in CALLS.items():
        for threads in (1, 3):
            kernels.set_num_threads(threads)
            wanted = parts(call())
            for _ in range(3):
                call()  # what is kept from call to call is there
            for and_all_after in (0, 1):
                blocks = library.blocks_held()
                met = -1
                failures = 1
                while failures:
                    met += 1
                    assert met < 2000, f"{name}: allocation {met} fails still"
                    error = result = None
                    library.fail_allocation(met, and_all_after)
                    try:
                        result = call()
                    except BaseException as raised:
                        error = raised
                    failures = library.stop_failing()
                    if error is not None:
                        assert isinstance(error, MemoryError), f"{name}, allocation {met}: {error!r}"
                        assert failures, f"{name}: {error!r} without a failure"
                        result = call()
                    for a, b in zip(parts(result), wanted, strict=True):
                        np.testing.assert_array_equal(a, b, err_msg=f"{name} after allocation {met} failed")
                call()
                sys.stdout.write(json.dumps([name, threads, and_all_after, met, library.blocks_held() - blocks]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
