"""The native core, as leakcore.kernels calls it. Addresses are integers; strides are in elements."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Bad = tuple[int, str] | None

with_cuda: bool
sum_digits: int
streams: dict[str, int]
kernels: object  # a capsule: leakcore/kernels.h

class Rows:
    """A stack of rows: address, element type, strides of run and row, and the dimensions that make up the columns."""

    @staticmethod
    def of(array: np.ndarray, dtype: int, runs: bool, rows: bool, /) -> Rows: ...
    @staticmethod
    def by_stride(
        *, data: int, dtype: int, run_stride: int, row_stride: int, columns: int, column_stride: int
    ) -> Rows: ...
    def after(self, runs: int) -> Rows: ...

class Place:
    """Where arrays lie: the CPU, or a CUDA device with its stream and what allocates scratch there."""

    @staticmethod
    def cpu() -> Place: ...
    @staticmethod
    def cuda(*, device: int, stream: int, scratch: Callable[[int], int]) -> Place: ...
    @property
    def scratch(self) -> Callable[[int], int] | None: ...

class Schedule:
    @staticmethod
    def of(*, num_threads: int, chunk: int) -> Schedule: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def chunk(self) -> int: ...

class EnsembleRows:
    @staticmethod
    def none() -> EnsembleRows: ...
    @staticmethod
    def of(
        *, inputs: int, classes: int, squares: int, count: int, stride: int, run_stride: int, index: int, offsets: int
    ) -> EnsembleRows: ...

class Networks:
    """Their shape, and what is done with their gradients."""

    @staticmethod
    def of(
        *, float32: bool, num_runs: int, layers: list[int], activation: int, max_grad_norm: float, slack: float
    ) -> Networks: ...
    def scratch_bytes(self) -> int: ...

def environment(name: str, /) -> str | None: ...
def address(array: np.ndarray, /) -> int: ...
def merge(sizes: Sequence[int], strides: Sequence[int], /) -> tuple[list[int], list[int]]: ...
def clip_and_noise(
    *,
    grads: list[Rows],
    sums: list[Rows],
    num_runs: int,
    num_rows: int,
    norms: int,
    mask: int,
    mask_run_stride: int,
    mask_row_stride: int,
    max_grad_norm: float,
    noise_scale: float,
    noise: list[Rows],
    seed: int,
    step: int,
    first_run: int,
    check_finite: bool,
    place: Place,
    schedule: Schedule,
) -> _Bad: ...
def clip_scores(
    *,
    grads: Rows,
    observed: Rows,
    num_runs: int,
    num_rows: int,
    num_observed: int,
    dots: int,
    norms: int,
    max_grad_norm: float,
    float_products: bool,
    check_finite: bool,
    place: Place,
    schedule: Schedule,
) -> _Bad: ...
def solve_labels(
    *,
    jacobian: Rows,
    gradient: Rows,
    num_problems: int,
    num_samples: int,
    num_outputs: int,
    rcond: float,
    unit: float,
    lost: float,
    largest: float,
    residual: int,
    error: int,
    leverage: int,
    identifiable: int,
    rank: int,
    place: Place,
    schedule: Schedule,
) -> _Bad: ...
def mixture_log_ratio(
    *,
    seed: int,
    first_sample: int,
    num_samples: int,
    alternative: bool,
    single: bool,
    configs: int,
    steps: int,
    noise_multiplier: int,
    sample_rate: int,
    out: int,
    config_stride: int,
    written: bool,
    place: Place,
    schedule: Schedule,
) -> None: ...
def mixture_tail(
    *,
    seed: int,
    first_sample: int,
    num_samples: int,
    alternative: bool,
    single: bool,
    configs: int,
    steps: int,
    noise_multiplier: int,
    sample_rate: int,
    num_thresholds: int,
    thresholds: int,
    counts: int,
    sums: int,
    place: Place,
    schedule: Schedule,
) -> None: ...
def allocation_log_ratio(
    *,
    seed: int,
    first_sample: int,
    num_samples: int,
    alternative: bool,
    single: bool,
    noise_multiplier: float,
    bins: int,
    epochs: int,
    chosen: int,
    log_subsets: float,
    columns: int,
    row_column: int,
    row_start: int,
    values: int,
    out: int,
    place: Place,
    schedule: Schedule,
) -> None: ...
def allocation_tail(
    *,
    seed: int,
    first_sample: int,
    num_samples: int,
    alternative: bool,
    single: bool,
    noise_multiplier: float,
    bins: int,
    epochs: int,
    chosen: int,
    log_subsets: float,
    columns: int,
    row_column: int,
    row_start: int,
    values: int,
    num_thresholds: int,
    thresholds: int,
    counts: int,
    sums: int,
    place: Place,
    schedule: Schedule,
) -> None: ...
def fill_rows(
    *, normal: bool, out: Rows, num_rows: int, seed: int, stream: int, first_row: int, place: Place, schedule: Schedule
) -> None: ...
def ensemble_sums(
    *,
    networks: Networks,
    weights: list[int],
    common: EnsembleRows,
    extra: EnsembleRows,
    common_sums: list[int],
    extra_sums: list[int],
    scratch: int,
) -> None: ...
def philox4x32(counter: tuple[int, ...], key: tuple[int, ...], /) -> tuple[int, int, int, int]: ...
def elementary(name: str, x: int, out: int, count: int, /) -> None: ...
def selftest() -> str: ...
def chunk_dependent_sum(x: int, count: int, chunk: int, num_threads: int, /) -> float: ...
def build_info() -> dict[str, Any]: ...
def require_stream(device: int, stream: int, /) -> None: ...
