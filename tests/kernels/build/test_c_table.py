"""Each function of the C table: near its float64 definition, and of the bits of the Python function."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from leakcore import _C, kernels
from leakcore.reference import kernels as reference
from leakcore.reference import philox as philox_reference
from tests.kernels import devices
from tests.kernels.build.c_structs import (
    ALLOCATE,
    STRUCTS,
    U32,
    U64,
    Allocation,
    Mixture,
    Place,
    Table,
    Tail,
    called,
    filled,
    installed,
    rows_of,
)

TYPES = {"float16": 1e-6, "bfloat16": 1e-6, "float32": 1e-6, "float64": 1e-14}
"""Distance from the definition, which reads the same narrow numbers; sums of narrow types are float32."""


@pytest.fixture(scope="module")
def table() -> Table:
    return installed()


def narrowed(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The array as the table reads it, and its values in float64."""
    if dtype != "bfloat16":
        return (small := values.astype(dtype)), small.astype(np.float64)
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_table_header(table: Table) -> None:
    assert table.version == 2
    assert table.size == ctypes.sizeof(Table)
    assert bool(table.cuda) == _C.with_cuda


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_clipped_sums(table: Table, dtype: str, wide: str) -> None:
    """Two runs of two parameters, whose rows lie two elements apart, backwards; a row of run 1 is masked."""
    first, exact_first = narrowed(normals(2, 9, 200), dtype)
    second, exact_second = narrowed(normals(2, 9, 30, seed=1), dtype)
    first, exact_first = first[:, :, ::-2], exact_first[:, :, ::-2]
    sums = [np.full((2, n), np.nan, dtype=wide) for n in (100, 30)]
    norms, mask = np.full((2, 9), np.nan), np.ones((2, 9), dtype=np.uint8)
    mask[1, 4] = 0
    status = called(
        table, "clip_and_noise", 2, num_runs=2, num_rows=9, num_params=2,
        grads=[rows_of(first, dtype, runs=True), rows_of(second, dtype, runs=True)],
        sum=[rows_of(s, runs=True, rows=False) for s in sums], norms=norms, max_grad_norm=3.0, noise_multiplier=0.7,
        seed=5, step=2, first_run=4, mask=mask, mask_run_stride=9, mask_row_stride=1,
    )  # fmt: skip
    assert (status.code, status.index, status.message) == (0, -1, b"")
    noise = philox_reference.standard_normal(2, 130, seed=5, purpose=philox_reference.CLIP_NOISE, step=2, first_row=4)
    for run in range(2):
        wanted, lengths = reference.clip_and_noise(
            [exact_first[run], exact_second[run]], 3.0, 0.7, noise=[noise[run, :100], noise[run, 100:]],
            mask=mask[run].astype(bool),
        )  # fmt: skip
        np.testing.assert_allclose(norms[run], lengths, rtol=1e-6)
        for got, exact in zip(sums, wanted, strict=True):
            np.testing.assert_allclose(got[run], exact, atol=20 * TYPES[dtype if wide == "float64" else "float32"])
    if dtype == wide:
        python = kernels.clip_and_noise(first[0], 3.0, 0.7, seed=5, step=2, first_run=4)
        alone = np.full(100, np.nan, dtype=wide)
        called(
            table, "clip_and_noise", num_runs=1, num_rows=9, num_params=1, grads=[rows_of(first[0], dtype)],
            sum=[rows_of(alone, rows=False)], norms=norms, max_grad_norm=3.0, noise_multiplier=0.7, seed=5, step=2,
            first_run=4,
        )  # fmt: skip
        np.testing.assert_array_equal(alone, python.sum)


def test_given_noise_and_empty_batches(table: Table) -> None:
    noise, total = normals(50), np.full(50, np.nan)
    status = called(
        table, "clip_and_noise", num_runs=1, num_rows=0, num_params=1, grads=[rows_of(np.empty((0, 50)))],
        sum=[rows_of(total, rows=False)], max_grad_norm=2.0, noise_multiplier=0.5,
        noise=[rows_of(noise, rows=False)],
    )  # fmt: skip
    assert status.code == 0
    np.testing.assert_allclose(total, noise, rtol=1e-15)


@pytest.mark.parametrize("dtype", TYPES)
def test_clip_scores(table: Table, dtype: str) -> None:
    grads, exact = narrowed(normals(2, 11, 70), dtype)
    observed, exact_observed = narrowed(normals(2, 3, 70, seed=1), dtype)
    dots, norms = np.full((2, 3, 11), np.nan), np.full((2, 11), np.nan)
    status = called(
        table, "clip_scores", 2, num_runs=2, num_rows=11, num_observed=3, grads=rows_of(grads, dtype, runs=True),
        observed=rows_of(observed, dtype, runs=True), max_grad_norm=4.0, dots=dots, norms=norms,
    )  # fmt: skip
    assert status.code == 0
    for run in range(2):
        wanted, _ = reference.clip_scores(exact[run], exact_observed[run], 4.0)
        np.testing.assert_allclose(dots[run], wanted, atol=1e-12)
        np.testing.assert_allclose(norms[run], reference.norms([exact[run]]), rtol=max(TYPES[dtype] / 10, 1e-12))
    if dtype == "float64":
        np.testing.assert_array_equal(dots, kernels.clip_scores(grads, observed, 4.0, runs=True).dots)


def test_float_products(table: Table) -> None:
    grads, observed = normals(11, 70).astype(np.float32), normals(3, 70, seed=1).astype(np.float32)
    dots, norms = np.full((3, 11), np.nan), np.full(11, np.nan)
    status = called(
        table, "clip_scores", num_runs=1, num_rows=11, num_observed=3, grads=rows_of(grads), observed=rows_of(observed),
        max_grad_norm=4.0, float_products=1, dots=dots, norms=norms,
    )  # fmt: skip
    assert status.code == 0
    python = kernels.clip_scores(grads, observed, 4.0, product_dtype="float32")
    np.testing.assert_array_equal(dots.astype(np.float32), python.dots)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_label_systems(table: Table, dtype: str, outputs: int) -> None:
    """Two problems of four samples; the last sample of the second one shows nothing."""
    values = normals(2, 4, 12)
    values[1, 3] = 0.0
    jacobian, exact = narrowed(values, dtype)
    gradient, exact_gradient = narrowed(normals(2, outputs, 12, seed=1), dtype)
    residual, error = np.full((2, 4, outputs), np.nan), np.full((2, 4, outputs), np.nan)
    leverage, rank = np.full((2, 4), np.nan), np.full(2, -9, dtype=np.int64)
    identifiable = np.full((2, 4), 9, dtype=np.uint8)
    status = called(
        table, "solve_labels", num_problems=2, num_samples=4, num_outputs=outputs,
        jacobian=rows_of(jacobian, dtype, runs=True), gradient=rows_of(gradient, dtype, runs=True), rcond=-1.0,
        residual=residual, error=error, leverage=leverage, identifiable=identifiable, rank=rank,
    )  # fmt: skip
    assert status.code == 0
    spacing = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    for problem in range(2):
        wanted = reference.solve_labels(
            exact[problem], exact_gradient[problem].T, rcond=max(spacing, 12 * 2.0**-52)
        )
        assert rank[problem] == wanted.rank
        determined = identifiable[problem].astype(bool)
        np.testing.assert_array_equal(determined, [True, True, True, problem == 0])
        np.testing.assert_allclose(residual[problem][determined], wanted.residual[determined], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(leverage[problem][determined], wanted.leverage[determined], rtol=1e-9)
        assert np.isinf(error[problem][~determined]).all()
    if dtype in ("float32", "float64"):
        python = kernels.solve_labels(jacobian, np.swapaxes(gradient, 1, 2))
        np.testing.assert_array_equal(residual.astype(dtype), python.residual)
        np.testing.assert_array_equal(error.astype(dtype), python.error)


def mixture_of(**fields: Any) -> tuple[Any, dict[str, Any]]:
    sigma, rate = np.linspace(0.5, 2, fields["steps"]), np.linspace(0.01, 0.9, fields["steps"])
    struct = filled(Mixture, configs=1, noise_multiplier=sigma, sample_rate=rate, **fields)
    return struct, {"noise_multiplier": sigma, "sample_rate": rate}


@pytest.mark.parametrize("alternative", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_mixture_log_ratios(table: Table, alternative: int, steps: int) -> None:
    mixture, schedule = mixture_of(num_samples=1500, first_sample=17, seed=3, alternative=alternative, steps=steps)
    out = np.full(1500, np.nan)
    assert called(table, "mixture_log_ratio", 2, mixture=mixture, out=out).code == 0
    under = "alternative" if alternative else "null"
    x = reference.mixture_samples(1500, under=under, seed=3, first_sample=17, **schedule)
    np.testing.assert_allclose(out, reference.mixture_log_ratio(x, **schedule), atol=1e-11)
    python = kernels.mixture_log_ratio(1500, steps=steps, under=under, seed=3, first_sample=17, **schedule)
    np.testing.assert_array_equal(out, python)
    if steps:
        single = np.full(1500, np.nan, dtype=np.float32)
        mixture.single = 1
        assert called(table, "mixture_log_ratio", mixture=mixture, out=single).code == 0
        np.testing.assert_allclose(single, out, atol=1e-4)


def test_mixture_tails(table: Table) -> None:
    """Two parts into the same arrays; counts above a threshold and the exact sums of Python's tail."""
    thresholds = np.array([-0.5, 0.0, 1.0])
    counts, sums = np.zeros((3, 2), dtype=np.int64), np.zeros((3, 3, _C.sum_digits), dtype=np.uint64)
    tail = filled(Tail, num_thresholds=3, thresholds=thresholds, counts=counts, sums=sums)
    for begin, length in ((0, 700), (700, 1300)):
        mixture, schedule = mixture_of(num_samples=length, first_sample=begin, seed=3, alternative=1, steps=5)
        assert called(table, "mixture_tail", mixture=mixture, tail=tail).code == 0
    python = kernels.mixture_tail(2000, thresholds, steps=5, under="alternative", seed=3, **schedule)
    above = counts[:, 0][::-1].cumsum()[::-1]
    np.testing.assert_array_equal(above, python.counts)
    x = reference.mixture_samples(2000, under="alternative", seed=3, **schedule)
    wanted = reference.mixture_tail(reference.mixture_log_ratio(x, **schedule), thresholds)
    np.testing.assert_array_equal(above, wanted[0])
    rounded = [table.round_sum(sums[j, 0].ctypes.data_as(ctypes.POINTER(U64))) for j in range(3)]
    np.testing.assert_allclose(np.cumsum(rounded[::-1])[::-1], wanted[1][1], rtol=1e-12)


@pytest.mark.parametrize("digits", [[0], [1], [2**32 - 1] * 67, [5, 0, 2**31], [2**33 + 1, 2**40]])
def test_exact_sums(table: Table, digits: list[int]) -> None:
    array = np.zeros(_C.sum_digits, dtype=np.uint64)
    array[: len(digits)] = digits
    exact = sum(d << (32 * i) for i, d in enumerate(digits))
    try:
        wanted = float(exact / 2**1074)
    except OverflowError:
        wanted = np.inf
    assert table.round_sum(array.ctypes.data_as(ctypes.POINTER(U64))) == wanted


@pytest.mark.parametrize("case", ["bins", "subsets", "factor"])
@pytest.mark.parametrize("alternative", [0, 1])
def test_allocation_log_ratios(table: Table, case: str, alternative: int) -> None:
    factor = np.tril(np.abs(normals(6, 6))) / 3 + np.eye(6)
    more = {"bins": {"epochs": 3}, "subsets": {"k": 3}, "factor": {"factor": factor}}[case]
    pair = kernels.Allocation(1.3, 6, **more)
    fields: dict[str, Any] = {"noise_multiplier": 1.3, "bins": 6, "epochs": pair.epochs, "chosen": pair.k}
    packed = factor[np.tril_indices(6)]
    if case == "factor":
        start = np.concatenate([[0], np.arange(1, 7)]).cumsum()
        fields |= {"columns": 6, "row_column": np.zeros(6, dtype=np.int64), "row_start": start, "values": packed}
    allocation = filled(
        Allocation, num_samples=1200, first_sample=5, seed=7, alternative=alternative, **fields
    )
    out = np.full(1200, np.nan)
    assert called(table, "allocation_log_ratio", 2, allocation=allocation, out=out).code == 0
    under = "alternative" if alternative else "null"
    y = reference.allocation_samples(pair, 1200, under=under, seed=7, first_sample=5)
    np.testing.assert_allclose(out, reference.allocation_log_ratio(y, pair), atol=1e-11)
    python = kernels.allocation_log_ratio(pair, 1200, under=under, seed=7, first_sample=5)
    np.testing.assert_allclose(out, python, rtol=0 if case != "subsets" else 1e-13, atol=0 if case != "subsets" else 1e-13)

    counts, sums = np.zeros((1, 2), dtype=np.int64), np.zeros((1, 3, _C.sum_digits), dtype=np.uint64)
    tail = filled(Tail, num_thresholds=1, thresholds=np.zeros(1), counts=counts, sums=sums)
    assert called(table, "allocation_tail", allocation=allocation, tail=tail).code == 0
    assert counts[0, 0] == (out >= 0).sum()


@pytest.mark.parametrize("normal", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_streams(table: Table, normal: int, dtype: str) -> None:
    out = np.full((5, 40), np.nan, dtype=dtype)[:, ::2]
    status = called(
        table, "random", normal=normal, num_rows=5, out=rows_of(out), seed=11, purpose=255, step=9, first_row=2**40
    )
    assert status.code == 0
    define = philox_reference.standard_normal if normal else philox_reference.uniform
    wanted = define(5, 20, seed=11, purpose=255, step=9, first_row=2**40)
    np.testing.assert_allclose(out, wanted, atol=1e-6 if dtype == "float32" else 1e-14)
    settings = {"seed": 11, "purpose": "caller", "step": 9, "first_row": 2**40}
    if normal:
        np.testing.assert_array_equal(out, kernels.standard_normal((5, 20), dtype=dtype, **settings))
    elif dtype == "float64":
        np.testing.assert_array_equal(out, kernels.uniform((5, 20), **settings))


def test_philox_blocks(table: Table) -> None:
    counter, key, out = (np.array(v, dtype=np.uint32) for v in ([1, 2, 3, 4], [5, 6], [0] * 4))
    words = [v.ctypes.data_as(ctypes.POINTER(U32)) for v in (counter, key, out)]
    table.philox4x32(*words)
    assert tuple(out) == tuple(philox_reference.philox4x32(counter, key).tolist())


@pytest.mark.skipif(not devices.EMULATED, reason="runs with the emulated build: make test-emulated")
@pytest.mark.parametrize("name", STRUCTS)
def test_emulated_device_entries(table: Table, name: str) -> None:
    """The same arguments on the emulated device, whose memory is the host's; scratch comes from `allocate`.

    A kernel without a race gives the same bits in whatever order blocks and threads take their turns.
    """
    grads, observed = normals(9, 64), normals(3, 64, seed=1)
    sigma, rate, thresholds = np.linspace(0.5, 2, 7), np.linspace(0.01, 0.9, 7), np.array([0.0, 1.0])
    mixture = filled(
        Mixture, num_samples=600, configs=1, steps=7, noise_multiplier=sigma, sample_rate=rate, alternative=1
    )
    allocation = filled(Allocation, num_samples=600, noise_multiplier=1.3, bins=6, epochs=2, chosen=1, alternative=1)
    scratch: list[np.ndarray] = []

    def allocate(context: int | None, count: int) -> int:
        scratch.append(np.full(count + 256, 0xFF, dtype=np.uint8))
        return int(scratch[-1].ctypes.data + -scratch[-1].ctypes.data % 256)

    results: list[list[np.ndarray]] = []
    for on_device, schedule in ((0, 0), (1, 0), (1, 1), (1, 2)):
        _C.emulation_schedule(schedule)
        place = Place(threads=1, cuda=on_device, allocate=ALLOCATE(allocate))
        out, norms = np.full((3, 9), np.nan), np.full(9, np.nan)
        more, rank = np.full((9, 3), np.nan), np.zeros(1, dtype=np.int64)
        total, samples, flags = np.full(64, np.nan), np.full(600, np.nan), np.zeros(9, dtype=np.uint8)
        counts, sums = np.zeros((2, 2), dtype=np.int64), np.zeros((2, 3, _C.sum_digits), dtype=np.uint64)
        tail = filled(Tail, num_thresholds=2, thresholds=thresholds, counts=counts, sums=sums)
        arguments: dict[str, dict[str, Any]] = {
            "clip_and_noise": {
                "num_runs": 1, "num_rows": 9, "num_params": 1, "grads": [rows_of(grads)],
                "sum": [rows_of(total, rows=False)], "norms": norms, "max_grad_norm": 3.0, "noise_multiplier": 0.5,
            },
            "clip_scores": {
                "num_runs": 1, "num_rows": 9, "num_observed": 3, "grads": rows_of(grads),
                "observed": rows_of(observed), "max_grad_norm": 3.0, "dots": out, "norms": norms,
            },
            "solve_labels": {
                "num_problems": 1, "num_samples": 9, "num_outputs": 3, "jacobian": rows_of(grads),
                "gradient": rows_of(observed), "rcond": -1.0, "residual": more, "error": out, "leverage": norms,
                "identifiable": flags, "rank": rank,
            },
            "mixture_log_ratio": {"mixture": mixture, "out": samples},
            "mixture_tail": {"mixture": mixture, "tail": tail},
            "allocation_log_ratio": {"allocation": allocation, "out": samples},
            "allocation_tail": {"allocation": allocation, "tail": tail},
            "random": {"normal": 1, "num_rows": 1, "out": rows_of(total, rows=False), "purpose": 255},
        }  # fmt: skip
        status = called(table, name, place=place, **arguments[name])
        assert (status.code, status.message) == (0, b"")
        errors = [] if name == "solve_labels" else [out]  # bounds, of another order of operations
        results.append([norms, more, rank, total, samples, flags, counts, *errors])
    for on_cpu, *on_device in zip(*results, strict=True):
        np.testing.assert_allclose(on_device[0], on_cpu, rtol=1e-9, atol=1e-11)
        for other in on_device[1:]:
            np.testing.assert_array_equal(other, on_device[0])
    _C.emulation_capture(True)
    try:
        for array in results[-1]:
            array.fill(7)
        status = called(table, name, place=place, **arguments[name])
    finally:
        _C.emulation_capture(False)
    assert status.code == 5
    assert b"is being captured into a CUDA graph" in status.message
    assert all((array == 7).all() for array in results[-1])
