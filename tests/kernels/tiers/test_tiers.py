"""Instruction tiers: the forced one runs, AVX2 and AVX-512 give the same bits, baseline agrees to a bound, an unknown
one is refused. Short and long rows."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from leakcore import kernels
from leakcore.reference import kernels as reference
from tests import tolerances
from tests.kernels.layouts import normals
from tests.tolerances import HANG

TIERS = kernels.build_info()["simd_available"]


def results():
    """Every clipping result over the element types, layouts and odd sizes that the inner loops treat differently, each
    with how far another tier's may be from it: one more rounding of every product, then that of the result."""
    shapes = [(1, 1), (3, 7), (5, 1024), (9, 2067), (37, 333), (2, 40_001)]
    pairs = []
    for seed, (rows, columns) in enumerate(shapes):
        for dtype in ("float16", "float32", "float64"):
            grads, observed = normals(seed, rows, columns, dtype=dtype), normals(seed + 9, 6, columns, dtype=dtype)
            clip, keep = 0.7 * columns**0.5, np.arange(rows) % 5 != 1
            (clipped,) = np.abs(reference.clip([grads], clip))
            for g in (grads, np.asfortranarray(grads)):
                total = kernels.clip_and_noise(g, clip, mask=keep)
                scores = kernels.clip_scores(g, observed, clip)
                terms = clipped[keep].sum(axis=0)
                products = np.abs(observed.astype(np.float64)) @ clipped.T
                near, narrow = tolerances.norm(columns, total.norms.dtype), dtype == "float16"
                sums = tolerances.clipped_sum(rows, columns, terms, total.sum, total.sum.dtype, narrow)
                pairs += [
                    (total.sum, (1 + narrow) * sums),
                    (total.norms, near * total.norms),
                    (scores.dots, tolerances.score(columns, products, scores.dots, scores.dots.dtype)),
                    (scores.clipped_norms, near * scores.clipped_norms),
                ]
                if dtype != "float64":
                    dots = kernels.clip_scores(g, observed, clip, product_dtype="float32").dots
                    pairs.append((dots, tolerances.float_score(columns, products, dots)))
    runs = kernels.clip_and_noise(normals(3, 3, 300, 11), 1.0, runs=True)
    lists = kernels.clip_and_noise([normals(4, 40, 5, 7), normals(5, 40, 1500)], 1.0)
    rest = [runs.sum, runs.norms, *lists.sum, lists.norms]
    return pairs + [(r, tolerances.clipped_sum(300, 1535, np.full(r.shape, 300.0), r, r.dtype)) for r in rest]


def digest():
    return hashlib.sha256(b"".join(np.ascontiguousarray(r).tobytes() for r, _ in results())).hexdigest()


def label_systems():
    """Sizes around a stripe of samples and a panel of columns; every element type."""
    for seed, (n, d) in enumerate([(1, 1), (7, 9), (8, 8), (17, 40), (50, 200), (66, 301)]):
        for dtype in ("float16", "float32", "float64"):
            yield normals(seed, 3, n, d, dtype=dtype), normals(seed + 20, 3, d, 2, dtype=dtype)


def label_results():
    return [kernels.solve_labels(*system, rcond=1e-14) for system in label_systems()]


def label_bytes():
    return b"".join(getattr(r, name).tobytes() for r in label_results() for name in ("residual", "leverage", "error"))


def in_tier(tier, code, **variables):
    program = "from leakcore import kernels\nfrom tests.kernels.tiers import test_tiers\n" + code
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **variables}
    environment.pop("LEAKCORE_ISA", None)
    if tier is not None:
        environment["LEAKCORE_ISA"] = tier
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=HANG
    )


@pytest.mark.full
@pytest.mark.parametrize("tier", [t for t in TIERS if t != "baseline" or len(TIERS) == 1])
def test_forced_tier(tier):
    run = in_tier(tier, "print(kernels.build_info()['simd'], test_tiers.digest())")
    assert run.stdout.split() == [tier, in_tier(None, "print(test_tiers.digest())").stdout.strip()], run.stderr


@pytest.mark.full
def test_baseline_difference(tmp_path):
    file = tmp_path / "baseline.npz"
    save = f"import numpy as np\nnp.savez({str(file)!r}, *[r for r, _ in test_tiers.results()])"
    run = in_tier("baseline", f"{save}\nprint(kernels.build_info()['simd'])")
    assert run.stdout.split() == ["baseline"], run.stderr
    with np.load(file) as saved:
        for i, (here, bound) in enumerate(results()):
            there = saved[f"arr_{i}"]
            assert there.dtype == here.dtype
            assert (np.abs(there - here.astype(np.float64)) <= bound).all()


@pytest.mark.full
def test_float32_norms_and_scores():
    """A double holds their products exactly, so it makes no difference whether the sum fuses them."""
    program = (
        "import hashlib\nfrom tests.kernels.layouts import normals\n"
        "grads, observed = normals(1, 9, 5003, dtype='float32'), normals(2, 5, 5003, dtype='float32')\n"
        "scores = kernels.clip_scores(grads, observed, 1e3)\n"
        "print(hashlib.sha256(scores.dots.tobytes() + scores.clipped_norms.tobytes()).hexdigest())"
    )
    outputs = {in_tier(tier, program).stdout for tier in TIERS}
    assert len(outputs) == 1
    assert "" not in outputs


@pytest.mark.full
@pytest.mark.skipif("avx2" not in TIERS, reason="needs AVX2")
def test_solve_labels_with_fused_multiply_add():
    program = "print(test_tiers.hashlib.sha256(test_tiers.label_bytes()).hexdigest())"
    outputs = {in_tier(tier, program).stdout for tier in TIERS if tier != "baseline"}
    assert len(outputs) == 1
    assert "" not in outputs


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("tier", TIERS)
def test_labels_between_tiers(tier):
    """The baseline rounds products that the others fuse. Bounds on truth, so two results may differ by two of them."""
    run = in_tier(tier, "import sys; sys.stdout.write(test_tiers.label_bytes().hex())")
    there = bytes.fromhex(run.stdout)
    at = 0
    for (jacobian, _), here in zip(label_systems(), label_results(), strict=True):
        other = {}
        for name in ("residual", "leverage", "error"):
            mine = getattr(here, name)
            other[name] = np.frombuffer(there, mine.dtype, mine.size, at).reshape(mine.shape)
            at += mine.nbytes
        known = np.isfinite(here.error)
        off = np.abs(here.residual - other["residual"].astype(np.float64))
        assert (off[known] <= (here.error + other["error"])[known]).all()
        out = tolerances.rounding(here.leverage.dtype)
        for i in range(3):
            relative = tolerances.normal_leverage(*jacobian.shape[1:], jacobian[i].astype(np.float64), here.leverage[i])
            np.testing.assert_allclose(other["leverage"][i], here.leverage[i], rtol=relative + 2 * out)
    assert at == len(there)


def test_default_tier():
    run = in_tier(None, "print(kernels.build_info()['simd'])")
    assert run.stdout.split() == [TIERS[-1]], run.stderr


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="tiers beyond the baseline are for x86-64")
def test_tiers_of_this_processor():
    try:
        with open("/proc/cpuinfo") as file:
            flags = next(line for line in file if line.startswith("flags")).split()
    except OSError:
        pytest.skip("needs /proc/cpuinfo")
    assert ("avx2" in TIERS) is {"avx2", "fma"}.issubset(flags)
    assert ("avx512" in TIERS) is {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}.issubset(flags)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("call", ["build_info()", "clip_and_noise(test_tiers.normals(1, 2, 3), 1.0)"])
def test_unknown_tier(call):
    run = in_tier("avx9", f"kernels.{call}")
    assert run.returncode != 0
    assert (
        f"ValueError: `LEAKCORE_ISA` must be one of what this processor and build have ({', '.join(TIERS)})"
        in run.stderr
    )
    assert "got 'avx9'" in run.stderr


@pytest.mark.full(keep=9)
@pytest.mark.parametrize("rows", [15, 16, 31, 32, 33, 300, 513])
@pytest.mark.parametrize("columns", [5, 131_072, 131_073])
def test_rows_read_once_and_twice(rows, columns):
    """Around the sizes at which short rows are cut into blocks: the sum of float64 sums, to its rounding error."""
    if columns > 5:
        rows = min(rows, 40)
    grads = normals(rows, rows, columns, dtype="float32")
    keep = np.arange(rows) % 7 != 3
    norms = np.linalg.norm(grads.astype(np.float64), axis=1)
    factors = np.minimum(1, 2.0 / norms) * keep
    result = kernels.clip_and_noise(grads, 2.0, mask=keep)
    expected = factors @ grads.astype(np.float64)
    terms = np.abs(factors) @ np.abs(grads).astype(np.float64)
    assert (np.abs(result.sum - expected) <= tolerances.clipped_sum(rows, columns, terms, expected, np.float32)).all()
    np.testing.assert_allclose(result.norms, norms, rtol=tolerances.norm(columns, np.float32))

    grads[rows // 2, -1], grads[-1, 0] = np.nan, np.inf
    out = np.full(columns, 7.0, dtype=np.float32)
    with pytest.raises(ValueError, match=f"`grads` must be finite, but row {rows // 2} has norm nan"):
        kernels.clip_and_noise(grads, 2.0, out=out)
    assert (out == 7.0).all()
