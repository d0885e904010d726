"""Where rows are timed: a CUDA card through torch, or the emulation, which shows that everything runs and measures
nothing.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.gpu.state import ROOT

ROUNDS, LEAST = 15, 0.02
"""Rounds at most, and seconds that a round lasts at least, by repetition."""
MEMORY_CLOCK, MEMORY_BUS, CLOCK, MULTIPROCESSORS = 36, 37, 13, 16
"""cuDeviceGetAttribute's numbers, of kHz, bits, kHz and a count."""


class Card:
    """A CUDA device. Times are of device events around calls, the median over rounds."""

    emulated = False
    like: Any

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.like = torch.empty(0, device="cuda")
        torch.backends.cuda.matmul.allow_tf32 = False

    def normal(self, *shape: int, dtype: str = "float32") -> Any:
        kind = getattr(self.torch, dtype)
        return self.torch.randn(shape, device="cuda", dtype=kind)

    def tensor(self, x: Any) -> Any:
        """What a peer in torch computes with."""
        return x

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], budget: float) -> list[float]:
        """Of one call, per round. The first call, which loads code and makes handles, is not counted."""
        events = self.torch.cuda.Event
        call()
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        number = max(1, min(10_000, int(LEAST / max(time.perf_counter() - begin, 1e-7))))
        out: list[float] = []
        start = time.monotonic()
        for round_ in range(ROUNDS):
            if round_ >= 3 and time.monotonic() - start > budget:
                break
            first, last = events(enable_timing=True), events(enable_timing=True)
            first.record()
            for _ in range(number):
                call()
            last.record()
            last.synchronize()
            out.append(first.elapsed_time(last) / 1e3 / number)
        return out

    def host_seconds(self, call: Callable[[], Any], number: int = 1000) -> list[float]:
        """Of one call until it returns, with the device idle before and after every round."""
        call()
        out = []
        for _ in range(ROUNDS):
            self.wait()
            begin = time.perf_counter()
            for _ in range(number):
                call()
            out.append((time.perf_counter() - begin) / number)
            self.wait()
        return out

    def facts(self) -> dict[str, Any]:
        torch = self.torch
        properties = torch.cuda.get_device_properties(0)
        attribute = _attributes()
        return {
            "card": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "driver": _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            **attribute,
        }

    def limits(self) -> dict[str, float]:
        """Measured: bytes that a device copy moves (read and written), multiply-adds of products. Stated: what the
        card's clocks and bus allow."""
        torch = self.torch
        source = torch.ones(2**30, device="cuda")
        target = torch.empty_like(source)
        out = {"copy_bytes": 2 * source.nbytes / min(self.seconds(lambda: target.copy_(source), 2))}
        for name in ("float64", "float32"):
            a = self.normal(8192, 8192, dtype=name)
            out[f"fma_{name}"] = 8192**3 / min(self.seconds(lambda a=a: a @ a, 2))
        fact = _attributes()
        if fact:
            out["stated_bytes"] = 2 * fact["memory_clock_khz"] * 1e3 * fact["memory_bus_bits"] / 8
            out["issue_slots"] = fact["multiprocessors"] * 4 * 32 * fact["clock_khz"] * 1e3
        return out

    def free(self) -> None:
        self.torch.cuda.empty_cache()

    def captured(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """A replay of the call's graph."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            call()
        return graph.replay  # type: ignore[no-any-return]


class Emulated:
    """The kernels' CUDA code run on the CPU (csrc/testing/cuda_emulation), with the tests' arrays."""

    emulated = True

    def __init__(self) -> None:
        load_emulated()
        import numpy as np

        from tests.kernels import devices

        self.np, self.array = np, devices.EmulatedArray
        self.like = self.array(np.zeros(1))

    def normal(self, *shape: int, dtype: str = "float32") -> Any:
        """float16 stands for bfloat16, which the emulation's array interface does not know."""
        kind = "float16" if dtype == "bfloat16" else dtype
        return self.array(self.np.random.default_rng(0).standard_normal(shape).astype(kind))

    def tensor(self, x: Any) -> Any:
        import torch

        return torch.from_numpy(x.values)

    def wait(self) -> None:
        pass

    def seconds(self, call: Callable[[], Any], budget: float) -> list[float]:
        begin = time.perf_counter()
        call()
        return [time.perf_counter() - begin]

    def host_seconds(self, call: Callable[[], Any], number: int = 1) -> list[float]:
        return self.seconds(call, 0)

    def facts(self) -> dict[str, Any]:
        return {"card": f"none: emulated on {platform.machine()}", "capability": "emulated"}

    def limits(self) -> dict[str, float]:
        return {}

    def free(self) -> None:
        pass

    def captured(self, call: Callable[[], Any]) -> Callable[[], Any]:
        raise RuntimeError("the emulation has no graphs")


def load_emulated() -> None:
    """Puts the emulated module in the place of leakcore._C, as the tests' conftest does."""
    folder = ROOT / "build" / f"emulated-{sys.implementation.cache_tag}"
    modules = [p for suffix in importlib.machinery.EXTENSION_SUFFIXES if (p := folder / f"_C{suffix}").exists()]
    if not modules:
        raise RuntimeError("there is no emulated module: the stage `build` makes it")
    import leakcore

    spec = importlib.util.spec_from_file_location("leakcore._C", modules[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["leakcore._C"] = leakcore._C = module  # type: ignore[attr-defined]
    spec.loader.exec_module(module)


def _attributes() -> dict[str, int]:
    """What the driver says of the first card; nothing where it does not answer."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    out = {}
    names = {"memory_clock_khz": MEMORY_CLOCK, "memory_bus_bits": MEMORY_BUS, "clock_khz": CLOCK}
    for name, number in {**names, "multiprocessors": MULTIPROCESSORS}.items():
        value = ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetAttribute(ctypes.byref(value), number, 0) or value.value <= 0:
            return {}
        out[name] = value.value
    return out


def _first_line(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return (done.stdout.strip().splitlines() or [""])[0]


def nvcc_version() -> str:
    """Its release, "" where there is none."""
    for program in ("nvcc", "/usr/local/cuda/bin/nvcc"):
        if shutil.which(program):
            text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
            return next((w.rstrip(",") for w in text.split() if w.startswith("V")), "")
    return ""
