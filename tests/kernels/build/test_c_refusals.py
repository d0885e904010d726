"""What the C table refuses: by name, with a code, and before anything is written."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from leakcore import _C
from tests.kernels.build.c_structs import (
    STRUCTS,
    Allocation,
    Mixture,
    Rows,
    Status,
    Table,
    Tail,
    called,
    filled,
    installed,
    rows_of,
)


@pytest.fixture(scope="module")
def table() -> Table:
    return installed()


ONES = np.ones((3, 5), dtype=np.float32)
OUT, NORMS, DOTS = np.empty(5, dtype=np.float32), np.empty(3), np.empty(3)
SIGMA, RATE = np.array([1.0]), np.array([0.1])
COUNTS, SUMS = np.zeros((2, 2), dtype=np.int64), np.zeros((2, 3, 68), dtype=np.uint64)


def _changed(rows: Rows, **fields: Any) -> Rows:
    copy = Rows.from_buffer_copy(rows)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


GRADS, SUM = rows_of(ONES), rows_of(OUT, rows=False)
CLIP = {
    "num_runs": 1, "num_rows": 3, "num_params": 1, "grads": [GRADS], "sum": [SUM], "norms": NORMS, "max_grad_norm": 1.0,
}  # fmt: skip
SCORES = {
    "num_runs": 1, "num_rows": 3, "num_observed": 1, "grads": GRADS, "observed": GRADS, "max_grad_norm": 1.0,
    "dots": DOTS, "norms": NORMS,
}  # fmt: skip
LABELS = {
    "num_problems": 1, "num_samples": 3, "num_outputs": 1, "jacobian": GRADS, "gradient": GRADS, "rcond": -1.0,
    "residual": DOTS, "error": DOTS, "leverage": NORMS, "identifiable": np.empty(3, dtype=np.uint8),
    "rank": np.empty(1, dtype=np.int64),
}  # fmt: skip
RANDOM = {"normal": 1, "num_rows": 1, "out": SUM, "purpose": 255}


def _mixture(**changes: Any) -> Any:
    fields = {"num_samples": 4, "configs": 1, "steps": 1, "noise_multiplier": SIGMA, "sample_rate": RATE}
    return filled(Mixture, **{**fields, **changes})


def _allocation(**changes: Any) -> Any:
    fields = {"num_samples": 4, "noise_multiplier": 1.0, "bins": 2, "epochs": 1, "chosen": 1}
    return filled(Allocation, **{**fields, **changes})


_THRESHOLDS = np.array([0.0, 1.0])


def _tail(**changes: Any) -> Any:
    fields = {"num_thresholds": 2, "thresholds": _THRESHOLDS, "counts": COUNTS, "sums": SUMS}
    return filled(Tail, **{**fields, **changes})


_BAD = {name: np.array([value]) for name, value in (("negative", -1.0), ("nan", np.nan), ("inf", np.inf), ("big", 1.5))}
_FALLING, _START, _FAR = np.array([1.0, 0.0]), np.array([0, 1, 2]), np.array([0, 5])
_ZERO = np.array([0, 0])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        *(
            ("clip_and_noise", {**CLIP, **change}, message)
            for change, message in (
                ({"num_runs": -1}, "`num_runs` must be at least 0"),
                ({"num_rows": -1}, "`num_rows` must be at least 0"),
                ({"num_params": 0}, "`num_params` must be in [1, 2^20]"),
                ({"max_grad_norm": 0.0}, "`max_grad_norm` must be in (0, inf)"),
                ({"max_grad_norm": np.nan}, "`max_grad_norm` must be in (0, inf)"),
                ({"noise_multiplier": -1.0}, "`noise_multiplier` must be in [0, inf)"),
                (
                    {"noise_multiplier": 1e300, "max_grad_norm": 1e300},
                    "`noise_multiplier` times `max_grad_norm` must be within double",
                ),
                # Masked to 24 bits it would repeat the noise of step 0.
                ({"step": 1 << 24}, "`step` must be in [0, 2^24)"),
                ({"first_run": 2**63 + 1}, "`first_run` must be at most 2^63"),
                ({"norms": None}, "`norms` must not be NULL"),
                ({"grads": None}, "`grads` must not be NULL"),
                ({"sum": None}, "`sum` must not be NULL"),
                ({"grads": [_changed(GRADS, data=None)]}, "the `data` of `grads` must not be NULL"),
                ({"grads": [_changed(GRADS, dtype=4)]}, "the `dtype` of `grads` must be one of the four"),
                ({"grads": [_changed(GRADS, columns=-1)]}, "the `columns` of `grads` must be at least 0"),
                ({"sum": [_changed(SUM, dtype=0)]}, "the `dtype` of `sum` must be float32 or float64"),
                ({"sum": [_changed(SUM, columns=4)]}, "`sum` must have the `columns` of `grads`"),
                ({"noise": [_changed(SUM, columns=4)]}, "`noise` must have the `columns` of `grads`"),
                (
                    {"num_params": 2, "grads": [GRADS, _changed(GRADS, dtype=3)], "sum": [SUM, SUM]},
                    "all `grads` must have one `dtype`",
                ),
                (
                    {
                        "noise_multiplier": 1.0, "grads": [_changed(GRADS, columns=2**34 + 1)],
                        "sum": [_changed(SUM, columns=2**34 + 1)],
                    },
                    "`columns` must add up to at most 2^34 with noise of a seed",
                ),
            )
        ),
        *(
            ("clip_scores", {**SCORES, **change}, message)
            for change, message in (
                ({"num_observed": -1}, "`num_observed` must be at least 0"),
                ({"observed": _changed(GRADS, columns=4)}, "`observed` must have the `columns` of `grads`"),
                ({"max_grad_norm": np.inf}, "`max_grad_norm` must be in (0, inf)"),
                (
                    {"float_products": 1, "observed": _changed(GRADS, dtype=3)},
                    "`float_products` must be 0 with a float64 array",
                ),
                ({"dots": None}, "`dots` must not be NULL"),
            )
        ),
        *(
            ("solve_labels", {**LABELS, **change}, message)
            for change, message in (
                ({"num_samples": -1}, "`num_samples` must be at least 0"),
                ({"rcond": 1.0}, "`rcond` must be below 1"),
                ({"rcond": np.nan}, "`rcond` must be below 1"),
                ({"gradient": _changed(GRADS, columns=2)}, "`gradient` must have the `columns` of `jacobian`"),
                ({"rank": None}, "`rank` must not be NULL"),
                ({"error": None}, "`error` must not be NULL"),
            )
        ),
        *(
            ("mixture_log_ratio", {"mixture": _mixture(**change), "out": DOTS}, message)
            for change, message in (
                ({"num_samples": -1}, "`num_samples` must be at least 0"),
                ({"noise_multiplier": _BAD["negative"]}, "`noise_multiplier` must be in [0, inf)"),
                ({"noise_multiplier": _BAD["nan"]}, "`noise_multiplier` must be in [0, inf)"),
                ({"noise_multiplier": _BAD["inf"]}, "`noise_multiplier` must be in [0, inf)"),
                ({"noise_multiplier": None}, "`noise_multiplier` must not be NULL"),
                ({"sample_rate": _BAD["big"]}, "`sample_rate` must be in [0, 1]"),
                ({"sample_rate": None}, "`sample_rate` must not be NULL"),
                ({"steps": 2**24 + 1}, "`steps` must be in [0, 2^24]"),
                ({"first_sample": 2**64 - 3}, "`first_sample` plus `num_samples` must be below 2^64"),
            )
        ),
        ("mixture_log_ratio", {"mixture": _mixture()}, "`out` must not be NULL"),
        *(
            ("mixture_tail", {"mixture": _mixture(), "tail": _tail(**change)}, message)
            for change, message in (
                ({"thresholds": _FALLING}, "`thresholds` must ascend, and not be NaN"),
                ({"num_thresholds": 1, "thresholds": _BAD["nan"]}, "`thresholds` must ascend, and not be NaN"),
                ({"sums": None}, "`thresholds`, `counts` and `sums` must not be NULL"),
            )
        ),
        (
            "mixture_tail", {"mixture": _mixture(num_samples=2**31), "tail": _tail()},
            "`num_samples` must be at most 2^31 - 2^20",
        ),
        *(
            ("allocation_log_ratio", {"allocation": _allocation(**change), "out": DOTS}, message)
            for change, message in (
                ({"noise_multiplier": 0.0}, "`noise_multiplier` must be in (0, inf)"),
                (
                    {"noise_multiplier": 1e-160},
                    "`noise_multiplier` must be so large that log ratios stay within 1e300",
                ),
                ({"bins": 0}, "`bins` must be in [1, 2^24]"),
                ({"chosen": 3}, "`chosen` must be in [1, bins]"),
                ({"epochs": 2**34}, "`epochs` times `bins`, or times `columns`, must be in [1, 2^34]"),
                ({"columns": 2, "chosen": 2}, "`chosen` must be 1 with a factor"),
                ({"columns": 2}, "`row_column` and `row_start` must not be NULL"),
                (
                    {"columns": 2, "row_column": _FAR, "row_start": _START, "values": RATE},
                    "each row must lie within `columns`",
                ),
                ({"columns": 2, "row_column": _ZERO, "row_start": _START}, "`values` must not be NULL"),
            )
        ),
        *(
            ("random", {**RANDOM, **change}, message)
            for change, message in (
                ({"purpose": 1}, "`purpose` must be LEAKCORE_PURPOSE_CLIP_NOISE or LEAKCORE_PURPOSE_CALLER"),
                ({"step": 2**24}, "`step` must be in [0, 2^24)"),
                ({"out": _changed(SUM, dtype=1)}, "the `dtype` of `out` must be float32 or float64"),
                ({"first_row": 2**64 - 1, "num_rows": 2}, "`first_row` plus `num_rows` must be below 2^64"),
            )
        ),
    ],
)  # fmt: skip
def test_bad_arguments(
    table: Table, name: str, arguments: dict[str, Any], message: str
) -> None:
    for array in (OUT, NORMS, DOTS):
        array.fill(-7.0)
    status = called(table, name, **arguments)
    assert (status.code, status.index, status.message.decode()) == (1, -1, message)
    assert all((array == -7.0).all() for array in (OUT, NORMS, DOTS))
    assert not COUNTS.any()


GOOD: dict[str, dict[str, Any]] = {
    "clip_and_noise": CLIP, "clip_scores": SCORES, "solve_labels": LABELS, "random": RANDOM,
    "mixture_log_ratio": {"mixture": _mixture(num_samples=3), "out": DOTS},
    "mixture_tail": {"mixture": _mixture(num_samples=0), "tail": _tail()},
    "allocation_log_ratio": {"allocation": _allocation(num_samples=3), "out": DOTS},
    "allocation_tail": {"allocation": _allocation(num_samples=0), "tail": _tail()},
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTS)
def test_bad_threads_and_places(table: Table, name: str) -> None:
    assert called(table, name, **GOOD[name]).code == 0
    for threads in (0, 4097):
        assert called(table, name, threads, **GOOD[name]).message == b"`threads` must be in [1, 4096]"
    status: Status = getattr(table, name)(None)
    assert status.message == b"`args` must not be NULL"
    struct = STRUCTS[name]()
    struct.place.cuda = 1
    assert getattr(table, name)(ctypes.byref(struct)).message == b"`allocate` must not be NULL on a device"
    struct.place.cuda = 2
    assert getattr(table, name)(ctypes.byref(struct)).message == b"`cuda` must be 0 or 1"


@pytest.mark.skipif(_C.with_cuda, reason="needs a build without CUDA")
def test_missing_cuda_kernels(table: Table) -> None:
    struct = STRUCTS["random"](normal=1, num_rows=1, out=SUM, purpose=255)
    struct.place.cuda = 1
    struct.place.allocate = type(struct.place.allocate)(lambda context, count: None)
    assert table.random(ctypes.byref(struct)).code == 4


def test_non_finite_rows(table: Table) -> None:
    grads = ONES.copy()
    grads[1, 2] = np.inf
    status = called(table, "clip_and_noise", **{**CLIP, "grads": [rows_of(grads)]})
    assert (status.code, status.index, status.message) == (2, 1, b"`grads` must be finite in every row")
    np.testing.assert_allclose(NORMS, [5**0.5, np.inf, 5**0.5])
    status = called(table, "clip_scores", **{**SCORES, "grads": rows_of(grads)})
    assert (status.code, status.index) == (2, 1)
    status = called(table, "solve_labels", **{**LABELS, "jacobian": rows_of(grads)})
    assert (status.code, status.index) == (2, 0)
