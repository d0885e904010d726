"""How runs are carried out: where, by how many threads or workers, and what is written down on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from leakcore._base import validate as check


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Execution:
    """How runs are carried out. Nothing here changes a result, but for `device` in its last digits.

    Args:
        device: "cpu", "cuda" or "cuda:0", …: where products and activations are computed. Everything random is drawn on
            the CPU, so that the integers are the same; results agree with the CPU's to rounding, which training
            amplifies. Arrays go in and come back as NumPy's.
        num_threads: threads over blocks of 32 runs; None: all cores this process may use, or one thread in each worker
            of an executor. A range that is not aligned to 32 costs as much as the aligned range around it.
        executor: any `concurrent.futures.Executor`; ranges of runs go to its workers. The bits are the same for any
            number of workers on machines of one kind.
        checkpoint: a folder where finished runs are kept, in files that are each written atomically and never changed.
            The same call again, whether the last one was killed or wants more runs, reads them and trains what is
            missing, with the same result to the bit; pieces of another mechanism, data set, version or arithmetic
            (`kernels.arithmetic`) are not touched. Nobody but the caller deletes it. Scorers, and what a module holds,
            are told apart by value and code: TypeError names what has neither, as a lock.
        progress: called as progress(done, total) with numbers of runs, from the calling thread.

    Raises ValueError or TypeError that names the argument.
    """

    device: str = "cpu"
    num_threads: int | None = None
    executor: Executor | None = None
    checkpoint: str | Path | None = None
    progress: Callable[[int, int], object] | None = None

    def __post_init__(self) -> None:
        _check_device(self.device)
        if self.num_threads is not None:
            object.__setattr__(self, "num_threads", check.integer(1, None, num_threads=self.num_threads))
        check.executor(executor=self.executor)
        check.callback(progress=self.progress)
        if self.checkpoint is not None:
            check.instance(str, Path, checkpoint=self.checkpoint)


def read_execution(execution: Execution | None) -> Execution:
    """The defaults where it is None; TypeError where it is anything else."""
    if execution is None:
        return Execution()
    check.instance(Execution, execution=execution)
    return execution


def _check_device(device: object) -> None:
    """ValueError where it is neither the CPU nor a CUDA device that torch sees here."""
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if device == "cpu":
        return
    if kind != "cuda" or not (number.isdigit() or device == "cuda"):
        raise ValueError(f"device={device!r}: must be 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise ValueError(f"device={device!r}: torch sees {count} CUDA devices here")
