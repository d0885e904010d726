"""The native core, as leakcore.kernels calls it. Addresses are integers; strides are in elements."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_View = tuple[int, int, int, int, list[int], list[int]]
_Place = tuple[int, int, int, Callable[[int], int] | None]
_Plan = tuple[int, int]
_Mixture = tuple[int, int, int, bool, bool, int, int, int, int]
_Bad = tuple[int, str] | None

with_cuda: bool
emulated: bool
sum_digits: int
max_dims: int
streams: dict[str, int]
kernels: object  # a capsule: leakcore/kernels.h

def environment(name: str, /) -> str | None: ...
def address(array: np.ndarray, /) -> int: ...
def merge(sizes: Sequence[int], strides: Sequence[int], /) -> tuple[list[int], list[int]]: ...
def rows_view(array: np.ndarray, dtype: int, runs: bool, rows: bool, /) -> _View | None: ...
def clip_and_noise(
    grads: list[_View],
    sums: list[_View],
    num_runs: int,
    num_rows: int,
    norms: int,
    mask: tuple[int, int, int],
    max_grad_norm: float,
    noise_scale: float,
    noise: list[_View],
    seed: int,
    step: int,
    first_run: int,
    check_finite: bool,
    place: _Place,
    plan: _Plan,
    /,
) -> _Bad: ...
def clip_scores(
    grads: _View,
    observed: _View,
    num_runs: int,
    num_rows: int,
    num_observed: int,
    dots: int,
    norms: int,
    max_grad_norm: float,
    float_products: bool,
    check_finite: bool,
    place: _Place,
    plan: _Plan,
    /,
) -> _Bad: ...
def ensemble_sums(
    single: bool,
    num_runs: int,
    sizes: list[int],
    activation: int,
    max_grad_norm: float,
    slack: float,
    weights: list[int],
    common: tuple[int, int, int, int, int, int, int, int],
    extra: tuple[int, int, int, int, int, int, int, int],
    common_sums: list[int],
    extra_sums: list[int],
    scratch: int,
    /,
) -> None: ...
def ensemble_bytes(single: bool, num_runs: int, sizes: list[int], /) -> int: ...
def solve_labels(
    jacobian: _View,
    gradient: _View,
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
    place: _Place,
    plan: _Plan,
    /,
) -> _Bad: ...
def mixture_log_ratio(
    mixture: _Mixture, out: int, config_stride: int, written: bool, place: _Place, plan: _Plan, /
) -> None: ...
def mixture_tail(
    mixture: _Mixture,
    num_thresholds: int,
    thresholds: int,
    counts: int,
    sums: int,
    place: _Place,
    plan: _Plan,
    /,
) -> None: ...
def fill_rows(
    normal: bool, out: _View, num_rows: int, seed: int, stream: int, first_row: int, place: _Place, plan: _Plan, /
) -> None: ...
def philox4x32(counter: tuple[int, ...], key: tuple[int, ...], /) -> tuple[int, int, int, int]: ...
def elementary(name: str, x: int, out: int, count: int, /) -> None: ...
def probe(name: str, count: int, /) -> float: ...
def probe_read(ranges: list[tuple[int, int]], threads: int, /) -> None: ...
def selftest() -> str: ...
def chunk_dependent_sum(x: int, count: int, chunk: int, num_threads: int, /) -> float: ...
def emulation_check(kernel: str, data: int, count: int, /) -> None: ...
def build_info() -> dict[str, Any]: ...
