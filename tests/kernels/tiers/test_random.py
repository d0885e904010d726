"""What random normals enter: equal to the bit on the tiers with fused multiply-add, within a bound on the baseline."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from leakcore import kernels
from tests import tolerances
from tests.tolerances import HANG

TIERS = kernels.build_info()["simd_available"]
SCHEDULES = {
    "one step": ([1.0], [0.01]),
    "one step, often large": ([0.5], [0.4]),
    "one step, dense": ([2.0], [0.9]),
    "three": ([0.6, 1.0, 30.0], [0.1, 0.0, 0.5]),
    "four": ([2.0] * 4, [0.3] * 4),
    "hundred": ([1.0] * 100, [0.01] * 100),
    "dense": ([3.0] * 7, [0.9] * 7),
    "mixed": ([0.0, 0.03, 1.0, 5.0, 0.5, 0.7, 2.0, 2.0, 1.0], [0.1, 0.2, 1.0, 0.6, 1.0, 1.0, 1.0, 1.0, 0.0]),
}
CASES = [(name, under, dtype) for name in SCHEDULES for under in ("null", "alternative") for dtype in ("64", "32")]
PAIRS = {
    "bins": kernels.Allocation(1.0, 100),
    "bins, large σ": kernels.Allocation(20.0, 10, epochs=3),
    "bins, small σ": kernels.Allocation(0.02, 9, epochs=2),
    "subsets": kernels.Allocation(1.0, 21, k=5, epochs=2),
    "subsets, small σ": kernels.Allocation(0.03, 11, k=3),
    "nearly all bins": kernels.Allocation(1.0, 11, k=8),
    "all bins": kernels.Allocation(1.0, 11, k=11),
    "bands": kernels.Allocation(1.0, 30, factor=0.5 * (np.tri(30) - np.tri(30, k=-4)), epochs=3),
    "factor, small σ": kernels.Allocation(0.05, 6, factor=np.cos(np.arange(30.0)).reshape(6, 5)),
}
DRAWN = [(name, under, dtype) for name in PAIRS for under in ("null", "alternative") for dtype in ("64", "32")]
THRESHOLDS = [-np.inf, -1.0, 0.0, 0.3, 2.0]


def results():
    """Everything that random numbers enter, by name, flat."""
    draws = {"uniform": kernels.uniform((3, 1001), seed=5, purpose="init").ravel()}
    draws["normal"] = kernels.standard_normal((3, 1001), seed=5, purpose="init").ravel()
    draws["noise"] = kernels.clip_and_noise(np.ones((4, 333)), 1.0, 0.5, seed=2).sum
    for name, under, dtype in CASES:
        sigma, rate = SCHEDULES[name]
        arguments = {"noise_multiplier": sigma, "sample_rate": rate, "steps": len(sigma), "under": under, "seed": 3}
        arguments |= {"first_sample": 2**32 - 100, "dtype": f"float{dtype}"}
        draws[f"{name} {under} {dtype}"] = kernels.mixture_log_ratio(700, **arguments).astype(np.float64)
        tail = kernels.mixture_tail(700, THRESHOLDS, **arguments)
        draws[f"tail {name} {under} {dtype}"] = np.concatenate([tail.counts, tail.sums.ravel()])
    for name, under, dtype in DRAWN:
        arguments = {"under": under, "seed": 3, "first_sample": 2**32 - 100, "dtype": f"float{dtype}"}
        draws[f"{name} {under} {dtype}"] = kernels.allocation_log_ratio(PAIRS[name], 700, **arguments).astype(float)
        tail = kernels.allocation_tail(PAIRS[name], 700, THRESHOLDS, **arguments)
        draws[f"tail {name} {under} {dtype}"] = np.concatenate([tail.counts, tail.sums.ravel()])
    return draws


@pytest.fixture(scope="module")
def by_tier(tmp_path_factory):
    draws = {}
    for tier in TIERS:
        path = tmp_path_factory.mktemp(tier) / "results.npz"
        program = f"import numpy, tests.kernels.tiers.test_random as t; numpy.savez({str(path)!r}, **t.results())"
        environment = {**os.environ, "LEAKCORE_ISA": tier, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=HANG)
        draws[tier] = dict(np.load(path))
    return draws


@pytest.mark.skipif(len(TIERS) < 3, reason="needs two tiers with fused multiply-add")
def test_fused_multiply_add(by_tier):
    for name, values in by_tier["avx2"].items():
        np.testing.assert_array_equal(values, by_tier["avx512"][name], err_msg=name)


@pytest.mark.skipif(len(TIERS) < 2, reason="needs a tier besides the baseline")
def test_baseline_error(by_tier):
    base, wide = by_tier["baseline"], by_tier[TIERS[-1]]
    assert any((base[name] != wide[name]).any() for name in base), "the baseline does not differ: what is tested here?"
    np.testing.assert_array_equal(base["uniform"], wide["uniform"])
    for name in ("normal", "noise"):
        assert np.abs(base[name] - wide[name]).max() <= tolerances.NORMAL_ABS, name
    for name, under, dtype in CASES:
        one, two = (tier[f"{name} {under} {dtype}"] for tier in (base, wide))
        infinite = np.isinf(two)
        np.testing.assert_array_equal(one[infinite], two[infinite])
        sigma, rate = (np.array(values) for values in SCHEDULES[name])
        bound = tolerances.log_ratio if dtype == "64" else tolerances.log_ratio_float32
        error = bound(sigma[(sigma > 0) & (rate > 0)], two[~infinite])
        assert (np.abs(one[~infinite] - two[~infinite]) <= error).all(), (name, under, dtype)
    for name, under, dtype in DRAWN:
        one, two = (tier[f"{name} {under} {dtype}"] for tier in (base, wide))
        bound = tolerances.allocation if dtype == "64" else tolerances.allocation_float32
        assert (np.abs(one - two) <= bound(PAIRS[name], two)).all(), (name, under, dtype)
