"""The structs of leakcore/kernels.h for ctypes, and the table that the installed leakcore hands over."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from leakcore import _C

I32, U32, I64, U64 = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64
REAL, ADDRESS = ctypes.c_double, ctypes.c_void_p
DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}
ALLOCATE = ctypes.CFUNCTYPE(ADDRESS, ADDRESS, I64)


class Status(ctypes.Structure):
    _fields_ = [("code", I32), ("index", I64), ("message", ctypes.c_char_p)]


class Place(ctypes.Structure):
    _fields_ = [
        ("threads", I32), ("cuda", I32), ("device", I32), ("stream", ADDRESS), ("allocate", ALLOCATE),
        ("context", ADDRESS),
    ]  # fmt: skip


class Rows(ctypes.Structure):
    _fields_ = [
        ("data", ADDRESS), ("dtype", I32), ("columns", I64), ("run_stride", I64), ("row_stride", I64),
        ("column_stride", I64),
    ]  # fmt: skip


class ClipAndNoise(ctypes.Structure):
    _fields_ = [
        ("place", Place), ("num_runs", I64), ("num_rows", I64), ("num_params", I32), ("grads", ctypes.POINTER(Rows)),
        ("sum", ctypes.POINTER(Rows)), ("norms", ADDRESS), ("max_grad_norm", REAL), ("noise_multiplier", REAL),
        ("seed", U64), ("step", U32), ("first_run", U64), ("noise", ctypes.POINTER(Rows)), ("mask", ADDRESS),
        ("mask_run_stride", I64), ("mask_row_stride", I64),
    ]  # fmt: skip


class ClipScores(ctypes.Structure):
    _fields_ = [
        ("place", Place), ("num_runs", I64), ("num_rows", I64), ("num_observed", I64), ("grads", Rows),
        ("observed", Rows), ("max_grad_norm", REAL), ("float_products", I32), ("dots", ADDRESS), ("norms", ADDRESS),
    ]  # fmt: skip


class SolveLabels(ctypes.Structure):
    _fields_ = [
        ("place", Place), ("num_problems", I64), ("num_samples", I64), ("num_outputs", I64), ("jacobian", Rows),
        ("gradient", Rows), ("rcond", REAL), ("residual", ADDRESS), ("error", ADDRESS), ("leverage", ADDRESS),
        ("identifiable", ADDRESS), ("rank", ADDRESS),
    ]  # fmt: skip


class Mixture(ctypes.Structure):
    _fields_ = [
        ("num_samples", I64), ("first_sample", U64), ("seed", U64), ("alternative", I32), ("single", I32),
        ("configs", I64), ("steps", I64), ("noise_multiplier", ADDRESS), ("sample_rate", ADDRESS),
    ]  # fmt: skip


class Tail(ctypes.Structure):
    _fields_ = [("num_thresholds", I64), ("thresholds", ADDRESS), ("counts", ADDRESS), ("sums", ADDRESS)]


class MixtureLogRatio(ctypes.Structure):
    _fields_ = [("place", Place), ("mixture", Mixture), ("out", ADDRESS)]


class MixtureTail(ctypes.Structure):
    _fields_ = [("place", Place), ("mixture", Mixture), ("tail", Tail)]


class Allocation(ctypes.Structure):
    _fields_ = [
        ("num_samples", I64), ("first_sample", U64), ("seed", U64), ("alternative", I32), ("single", I32),
        ("noise_multiplier", REAL), ("bins", I64), ("epochs", I64), ("chosen", I64), ("columns", I64),
        ("row_column", ADDRESS), ("row_start", ADDRESS), ("values", ADDRESS),
    ]  # fmt: skip


class AllocationLogRatio(ctypes.Structure):
    _fields_ = [("place", Place), ("allocation", Allocation), ("out", ADDRESS)]


class AllocationTail(ctypes.Structure):
    _fields_ = [("place", Place), ("allocation", Allocation), ("tail", Tail)]


class Random(ctypes.Structure):
    _fields_ = [
        ("place", Place), ("normal", I32), ("num_rows", I64), ("out", Rows), ("seed", U64), ("purpose", U32),
        ("step", U32), ("first_row", U64),
    ]  # fmt: skip


def _function(arguments: type) -> Any:
    return ctypes.CFUNCTYPE(Status, ctypes.POINTER(arguments))


STRUCTS = {
    "clip_and_noise": ClipAndNoise, "clip_scores": ClipScores, "solve_labels": SolveLabels,
    "mixture_log_ratio": MixtureLogRatio, "mixture_tail": MixtureTail, "allocation_log_ratio": AllocationLogRatio,
    "allocation_tail": AllocationTail, "random": Random,
}  # fmt: skip
WORDS = ctypes.POINTER(U32)


class Table(ctypes.Structure):
    _fields_ = [
        ("version", U32), ("size", U32), ("cuda", I32), *((name, _function(a)) for name, a in STRUCTS.items()),
        ("philox4x32", ctypes.CFUNCTYPE(None, WORDS, WORDS, WORDS)),
        ("round_sum", ctypes.CFUNCTYPE(REAL, ctypes.POINTER(U64))),
    ]  # fmt: skip


def installed() -> Table:
    unwrap = ctypes.pythonapi.PyCapsule_GetPointer
    unwrap.restype, unwrap.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Table.from_address(unwrap(_C.kernels, b"leakcore._C.kernels"))


def rows_of(array: np.ndarray, dtype: str = "", *, runs: bool = False, rows: bool = True) -> Rows:
    """(runs, rows, columns), without the dimensions that are False; bfloat16 as the integers of its bits."""
    strides = [s // array.itemsize for s in array.strides]
    return Rows(
        array.ctypes.data, DTYPES[dtype or array.dtype.name], array.shape[-1], strides[0] if runs else 0,
        strides[int(runs)] if rows else 0, strides[-1],
    )  # fmt: skip


def called(table: Table, name: str, threads: int = 1, **arguments: Any) -> Status:
    """Arrays become their addresses; lists of Rows become arrays of them; other fields stay zero."""
    struct = STRUCTS[name]()
    struct.place.threads = threads
    alive = []  # until the call is over
    for field, value in arguments.items():
        if isinstance(value, np.ndarray):
            value = value.ctypes.data
        elif isinstance(value, list):
            value = (Rows * len(value))(*value)
            alive.append(value)
        setattr(struct, field, value)
    return getattr(table, name)(ctypes.byref(struct))  # type: ignore[no-any-return]


def filled(kind: type, **fields: Any) -> Any:
    """A struct, with arrays as their addresses."""
    struct = kind()
    for name, value in fields.items():
        setattr(struct, name, value.ctypes.data if isinstance(value, np.ndarray) else value)
    return struct
