"""The table of C functions for other extensions: the bits of the Python functions, refusals, a real extension."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import leakcore
from leakcore import _C, kernels

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "embed_kernel"
REAL, I64, U64, INT, ADDRESS = ctypes.c_double, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p


class Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        (
            "mixture_log_ratio",
            ctypes.CFUNCTYPE(ctypes.c_char_p, I64, I64, ADDRESS, ADDRESS, INT, U64, U64, INT, ADDRESS),
        ),
        (
            "clip_and_noise",
            ctypes.CFUNCTYPE(
                ctypes.c_char_p, I64, I64, ADDRESS, I64, REAL, REAL, U64, ctypes.c_uint32, INT, ADDRESS, ADDRESS
            ),
        ),
    ]


@pytest.fixture(scope="module")
def table():
    unwrap = ctypes.pythonapi.PyCapsule_GetPointer
    unwrap.restype, unwrap.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Table.from_address(unwrap(_C.kernels, b"leakcore._C.kernels"))


def log_ratio(table, count, sigma, rate, *, steps=None, alternative=0, seed=3, first=0, threads=1, out=None):
    sigma, rate = np.array(sigma, dtype=float), np.array(rate, dtype=float)
    out = np.full(max(count, 0), np.nan) if out is None else out
    steps = len(sigma) if steps is None else steps
    problem = table.mixture_log_ratio(
        count, steps, sigma.ctypes.data, rate.ctypes.data, alternative, seed, first, threads, out.ctypes.data
    )
    return problem, out


def clip(table, grads, *, clip_at=1.0, noise=0.0, seed=5, step=2, threads=1, cols=None):
    out, norms = np.full(grads.shape[1], np.nan, dtype=np.float32), np.full(len(grads), np.nan)
    cols = grads.shape[1] if cols is None else cols
    problem = table.clip_and_noise(
        len(grads),
        cols,
        grads.ctypes.data,
        grads.strides[0] // 4,
        clip_at,
        noise,
        seed,
        step,
        threads,
        out.ctypes.data,
        norms.ctypes.data,
    )
    return problem, out, norms


def test_the_table_says_what_it_is(table):
    assert table.version == 1
    assert table.size == ctypes.sizeof(Table)


@pytest.mark.parametrize("under", ["null", "alternative"])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_log_ratios_match_python(table, under, steps):
    sigma, rate = np.linspace(0.5, 2, steps), np.linspace(0.01, 0.9, steps)
    problem, got = log_ratio(table, 1500, sigma, rate, alternative=int(under == "alternative"), first=17, threads=2)
    assert problem is None
    arguments = {"noise_multiplier": sigma, "sample_rate": rate, "steps": steps, "under": under}
    np.testing.assert_array_equal(got, kernels.mixture_log_ratio(1500, seed=3, first_sample=17, **arguments))


def test_clipped_sums_match_python(table):
    grads = np.random.default_rng(0).standard_normal((9, 300)).astype(np.float32)[:, :200]
    problem, got, norms = clip(table, grads, clip_at=3.0, noise=0.7, threads=2)
    assert problem is None
    wanted = kernels.clip_and_noise(grads, 3.0, 0.7, seed=5, step=2)
    np.testing.assert_array_equal(got, wanted.sum)
    np.testing.assert_array_equal(norms.astype(np.float32), wanted.norms)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": -1}, b"`num_samples` must be at least 0"),
        ({"sigma": [-1.0]}, b"`noise_multiplier` must be in [0, inf)"),
        ({"sigma": [np.nan]}, b"`noise_multiplier` must be in [0, inf)"),
        ({"sigma": [np.inf]}, b"`noise_multiplier` must be in [0, inf)"),
        ({"rate": [1.5]}, b"`sample_rate` must be in [0, 1]"),
        ({"rate": [np.nan]}, b"`sample_rate` must be in [0, 1]"),
        ({"steps": -1}, b"`steps` must be in [0, 2^34]"),
        ({"first": 2**64 - 3}, b"`first_sample` plus `num_samples` must be at most 2^64"),
        ({"threads": 0}, b"`threads` must be in [1, 4096]"),
        ({"threads": 4097}, b"`threads` must be in [1, 4096]"),
    ],
)
def test_log_ratio_refuses_by_name_and_writes_nothing(table, change, message):
    problem, out = log_ratio(table, **{"count": 4, "sigma": [1.0], "rate": [0.1], **change})
    assert problem == message
    assert np.isnan(out).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_at": 0.0}, b"`max_grad_norm` must be in (0, inf)"),
        ({"clip_at": np.nan}, b"`max_grad_norm` must be in (0, inf)"),
        ({"noise": -1.0}, b"`noise_multiplier` must be in [0, inf)"),
        ({"threads": 0}, b"`threads` must be in [1, 4096]"),
        ({"cols": -1}, b"`num_cols` must be at least 0"),
        ({"noise": 1.0, "cols": 2**34 + 1}, b"`num_cols` must be at most 2^34 with noise"),
        ({"noise": 1e300, "clip_at": 1e300}, b"`noise_multiplier` times `max_grad_norm` must be within double"),
        # Masked to 24 bits it would repeat the noise of step 0.
        ({"step": 1 << 24}, b"`step` must be in [0, 2^24)"),
    ],
)
def test_clip_refuses_by_name_and_writes_nothing(table, change, message):
    problem, out, norms = clip(table, np.ones((3, 5), dtype=np.float32), **change)
    assert problem == message
    assert np.isnan(out).all()
    assert np.isnan(norms).all()


def test_a_row_that_is_not_finite_is_refused(table):
    grads = np.ones((3, 5), dtype=np.float32)
    grads[1, 2] = np.inf
    problem, out, norms = clip(table, grads)
    assert problem == b"`grads` must be finite in every row"
    assert np.isnan(out).all()
    np.testing.assert_allclose(norms, [5**0.5, np.inf, 5**0.5])


def test_null_pointers_are_refused(table):
    one = np.ones(1)
    at = one.ctypes.data
    assert table.mixture_log_ratio(1, 1, at, at, 0, 0, 0, 1, None) == b"`out` must not be NULL"
    assert table.mixture_log_ratio(1, 1, None, at, 0, 0, 0, 1, at) == b"`noise_multiplier` must not be NULL"
    assert table.mixture_log_ratio(1, 1, at, None, 0, 0, 0, 1, at) == b"`sample_rate` must not be NULL"
    assert table.mixture_log_ratio(0, 0, None, None, 0, 0, 0, 1, None) is None
    assert table.clip_and_noise(1, 1, None, 1, 1.0, 0.0, 0, 0, 1, at, at) == b"`grads` must not be NULL"
    assert table.clip_and_noise(1, 1, at, 1, 1.0, 0.0, 0, 0, 1, None, at) == b"`sum` must not be NULL"
    assert table.clip_and_noise(1, 1, at, 1, 1.0, 0.0, 0, 0, 1, at, None) == b"`norms` must not be NULL"


def test_the_header_is_in_the_package():
    header = Path(leakcore.get_include()) / "leakcore" / "kernels.h"
    assert '#define LEAKCORE_KERNELS_CAPSULE "leakcore._C.kernels"' in header.read_text()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_header_is_plain_c(tmp_path):
    (tmp_path / "use.c").write_text("#include <leakcore/kernels.h>\nint size = sizeof(leakcore_kernels);\n")
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{leakcore.get_include()}"]
    subprocess.run(["cc", *flags, "-c", "use.c"], cwd=tmp_path, check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.skipif(not EXAMPLE.exists(), reason="needs the source tree")
def test_the_example_builds_and_counts(tmp_path):
    pytest.importorskip("pybind11")
    for source in ("example.cpp", "setup.py"):
        shutil.copy(EXAMPLE / source, tmp_path)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tmp_path, check=True)
    (built,) = tmp_path.glob("embed_kernel*.so")
    spec = importlib.util.spec_from_file_location("embed_kernel", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 20, "seed": 4}
    tail = kernels.mixture_tail(100_000, 0.1, under="alternative", **arguments)
    assert module.share_above(0.1, 100_000, threads=2, **arguments) == int(tail.counts) / 100_000
    with pytest.raises(ValueError, match=r"sample_rate: must be in \[0, 1\]"):
        module.share_above(0.1, 10, **{**arguments, "sample_rate": 2.0})
