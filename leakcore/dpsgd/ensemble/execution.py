"""How runs are carried out: where, by how many threads or workers, and what is saved on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from leakcore._base import validate


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


def read_execution(execution: Execution | None) -> Execution:
    """The defaults for None; TypeError for anything but an `Execution`."""
    if execution is None:
        return Execution()
    validate.instance(Execution, execution=execution)
    return execution


def _check_device(device: object) -> None:
    """ValueError unless it is the CPU or a CUDA device that torch sees here."""
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if device == "cpu":
        return
    if kind != "cuda" or not (number.isdigit() or device == "cuda"):
        raise ValueError(f"`device` must be 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …, got {device!r}")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise ValueError(f"`device` must be one of the {count} CUDA devices that torch has here, got {device!r}")
