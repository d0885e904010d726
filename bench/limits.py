"""What this machine does at best, measured in the same run: the denominators of "percentage of the limit"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench import environment, probe
from bench.case import Rates

LOOPS = ("fma_f64", "fma_f32", "exp_f64", "exp_f32", "philox_words")


def best(run: Callable[[], Any], repeats: int = 5) -> float:
    """The shortest of a few runs: what the hardware can do, not what it usually does."""
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def loops(threads: int, quick: bool) -> Rates:
    """Native loops of the process's tier, on every one of `threads` threads at once."""
    compute = probe.module().compute
    rates = {}
    for name in LOOPS:
        alone = 1_000_000 / best(lambda name=name: compute(name, 1_000_000), 3)
        count = int(alone * (0.005 if quick else 0.03))  # long enough that starting threads does not count

        def run(name: str = name, count: int = count) -> None:
            _together([lambda: compute(name, count)] * threads)

        rates[name] = threads * count / best(run)
    return rates


def streaming(threads: int, quick: bool) -> tuple[Rates, str]:
    """Bytes read per second from an array that no cache holds, by the fastest reader, and which one that was."""
    import torch

    total = max(4 * environment.last_level_cache(), 2**27) * (1 if quick else 2)
    long = np.ones(total // 8)
    single = long.view(np.float32)
    tensor = torch.from_numpy(single)
    readers: dict[str, Callable[[], Any]] = {
        "NumPy dot": lambda: np.dot(long, long),
        "torch sum": lambda: tensor.sum(),
        "torch norm": lambda: torch.linalg.vector_norm(tensor),
        "native loop": lambda: probe.module().read([(long.ctypes.data, long.nbytes)], threads),
    }
    speeds = {name: long.nbytes / best(run) for name, run in readers.items()}
    who = max(speeds, key=speeds.__getitem__)
    return {"read": speeds[who]}, who


def reading(arrays: Sequence[Any], threads: int) -> Callable[[], None]:
    """A call that reads every byte of these tensors once, with the native loop: what a kernel that must see them needs.

    Memory is read as fast as its pages allow, and those are the caller's: torch's are of 4 KiB here, and the arrays of
    `streaming` of 2 MiB. So the floor of a kernel is the time its own arrays take.
    """
    return lambda: probe.module().read([(array.data_ptr(), array.nbytes) for array in arrays], threads)


def multiplying(count: int, threads: int) -> Callable[[], None]:
    """A call that does `count` float64 multiply-adds and nothing else, as fast as the tier can."""
    return lambda: _together([lambda: probe.module().compute("fma_f64", count // threads)] * threads)


def products(quick: bool) -> Rates:
    """Multiply-adds per second in a large matrix product of NumPy or torch, with the threads they have been given."""
    import torch

    side = 600 if quick else 1500
    rates = {}
    for name in ("f64", "f32"):
        square = (
            np.random.default_rng(0).standard_normal((side, side)).astype(np.float64 if name == "f64" else np.float32)
        )
        tensor = torch.from_numpy(square)
        fastest = min(best(lambda a=square: a @ a, 3), best(lambda a=tensor: a @ a, 3))
        rates[f"matmul_{name}"] = side**3 / fastest
    return rates


def cuda(quick: bool) -> Rates:
    """Bytes per second that a device copy moves (reads and writes), and multiply-adds of large matrix products."""
    import torch

    def seconds(call: Callable[..., Any], *arrays: Any) -> float:
        def run() -> None:
            call(*arrays)
            torch.cuda.synchronize()

        return best(run, 10)

    source = torch.ones(2**26 if quick else 2**30, device="cuda")
    rates = {"read": 2 * source.nbytes / seconds(torch.Tensor.copy_, torch.empty_like(source), source)}
    for name, dtype in (("f64", torch.float64), ("f32", torch.float32)):
        square = torch.randn(4096, 4096, device="cuda", dtype=dtype)
        rates[f"fma_{name}"] = 4096**3 / seconds(torch.matmul, square, square)
    return rates


def _together(calls: list[Callable[[], Any]]) -> None:
    others = [threading.Thread(target=call) for call in calls[1:]]
    for other in others:
        other.start()
    calls[0]()
    for other in others:
        other.join()
