"""Several configurations over the same random numbers, and float32: against calls of their own, and float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakcore import kernels
from leakcore.reference import kernels as reference
from tests import tolerances

UNDER = ("null", "alternative")
STEPS = (1, 3, 4, 100, 1000)
SIGMAS = [[0.5], [1.0], [30.0], [0.02], [2.0]]
RATES = [[0.1], [0.01], [1.0], [0.3], [0.9]]
THRESHOLDS = [0.5, -np.inf, -0.01, 0.0, 3.0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("under", UNDER)
@pytest.mark.parametrize("steps", STEPS)
def test_configurations(steps, under, dtype):
    n = 20_000 // steps + 300
    shared = {"steps": steps, "under": under, "seed": 8, "first_sample": 1000, "dtype": dtype}
    ratios = kernels.mixture_log_ratio(n, noise_multiplier=SIGMAS, sample_rate=RATES, **shared)
    tails = kernels.mixture_tail(n, THRESHOLDS, noise_multiplier=SIGMAS, sample_rate=RATES, **shared)
    assert ratios.shape == (5, n)
    assert ratios.dtype == dtype
    assert tails.counts.shape == (5, 5)
    assert tails.sums.shape == (2, 5, 5)
    for c, (sigma, rate) in enumerate(zip(SIGMAS, RATES, strict=True)):
        own = {"noise_multiplier": sigma[0], "sample_rate": rate[0], **shared}
        np.testing.assert_array_equal(ratios[c], kernels.mixture_log_ratio(n, **own))
        tail = kernels.mixture_tail(n, THRESHOLDS, **own)
        np.testing.assert_array_equal(tails.counts[c], tail.counts)
        np.testing.assert_array_equal(tails.sums[:, c], tail.sums)


def test_shapes():
    schedule = np.linspace(0.5, 2.0, 6)
    shared = {"steps": 6, "seed": 2}
    one = kernels.mixture_log_ratio(99, noise_multiplier=schedule, sample_rate=0.1, **shared)
    two = kernels.mixture_log_ratio(99, noise_multiplier=schedule, sample_rate=[[0.1], [0.2]], **shared)
    both = kernels.mixture_log_ratio(99, noise_multiplier=np.stack([schedule] * 2), sample_rate=[0.1] * 6, **shared)
    np.testing.assert_array_equal(two[0], one)
    np.testing.assert_array_equal(both, [one, one])
    arguments = {"noise_multiplier": [[1.0], [2.0]], "sample_rate": 0.1, **shared}
    own = kernels.mixture_tail(99, [[0.0, 0.1], [0.2, -0.1]], **arguments)
    every = kernels.mixture_tail(99, [-0.1, 0.0, 0.1, 0.2], **arguments)
    np.testing.assert_array_equal(own.counts, [every.counts[0, [1, 2]], every.counts[1, [3, 0]]])
    np.testing.assert_array_equal(own.sums, [[s[0, [1, 2]], s[1, [3, 0]]] for s in every.sums])
    assert kernels.mixture_tail(99, 0.0, **arguments).counts.shape == (2,)
    assert kernels.mixture_tail(99, np.zeros((2, 3, 4)), **arguments).sums.shape == (2, 2, 3, 4)
    with pytest.raises(ValueError, match=r"`thresholds` must be a number, an array of one.*, got shape \(3, 1\)"):
        kernels.mixture_tail(99, np.zeros((3, 1)), **arguments)
    with pytest.raises(ValueError, match=r"`noise_multiplier` and `sample_rate` must have.*, got 2 and 3"):
        kernels.mixture_log_ratio(9, noise_multiplier=[[1.0], [2.0]], sample_rate=[[0.1]] * 3, steps=6)
    with pytest.raises(
        ValueError, match=r"`sample_rate` must be a number, an array of length steps=6, or one of.*, got shape \(2, 5\)"
    ):
        kernels.mixture_log_ratio(9, noise_multiplier=1.0, sample_rate=np.full((2, 5), 0.1), steps=6)


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_out(steps, dtype):
    for sigma, shape in ((1.0, (1001,)), ([[1.0], [2.0]], (2, 1001))):
        arguments = {"noise_multiplier": sigma, "sample_rate": 0.1, "steps": steps, "dtype": dtype, "first_sample": 3}
        out = np.full(np.prod(shape) + 2, np.nan, dtype=dtype)
        inner = out[1:-1].reshape(shape)
        assert kernels.mixture_log_ratio(1001, out=inner, **arguments) is inner
        np.testing.assert_array_equal(inner, kernels.mixture_log_ratio(1001, **arguments))
        assert np.isnan(out[[0, -1]]).all()
        with pytest.raises(ValueError, match=r"mixture_log_ratio: `out` must be contiguous, got strides of .* bytes"):
            kernels.mixture_log_ratio(1001, out=np.zeros((*shape, 2), dtype=dtype)[..., 0], **arguments)
        with pytest.raises(ValueError, match=r"`out` must have shape \((2, 1001|1001,)\), got \(1000,\)"):
            kernels.mixture_log_ratio(1001, out=np.zeros(1000, dtype=dtype), **arguments)
    with pytest.raises(TypeError, match=r"`out` must be of type float(32|64), got float16"):
        kernels.mixture_log_ratio(1001, out=np.zeros((2, 1001), dtype=np.float16), **arguments)


@pytest.mark.parametrize("shift", [0, 1, 5])
@pytest.mark.parametrize(
    ("dtype", "sigma", "shape"),
    [("float64", 1.0, (4_200_003,)), ("float64", [[1.0], [2.0]], (2, 2_100_003)), ("float32", 1.0, (8_400_003,))],
)
def test_large_out(dtype, sigma, shape, shift):
    """From 32 MiB on, one step's ratios are stored line by line, or their lines asked for beforehand: wherever the
    array and its rows begin."""
    arguments = {"noise_multiplier": sigma, "sample_rate": 0.01, "steps": 1, "first_sample": 3, "dtype": dtype}
    out = np.full(np.prod(shape) + 9, np.nan, dtype)
    inside = slice(shift, shift + np.prod(shape))
    kernels.mixture_log_ratio(shape[-1], out=out[inside].reshape(shape), **arguments)
    np.testing.assert_array_equal(out[inside].reshape(shape), kernels.mixture_log_ratio(shape[-1], **arguments))
    assert np.isnan(np.delete(out, inside)).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_merged_shards(dtype):
    arguments = {"noise_multiplier": SIGMAS, "sample_rate": RATES, "steps": 5, "under": "alternative", "dtype": dtype}
    whole = kernels.mixture_tail(1000, THRESHOLDS, **arguments)
    parts = [kernels.mixture_tail(b - a, THRESHOLDS, first_sample=a, **arguments) for a, b in ((600, 1000), (0, 600))]
    merged = parts[0] + parts[1]
    np.testing.assert_array_equal(merged.counts, whole.counts)
    np.testing.assert_array_equal(merged.sums, whole.sums)
    assert merged.exact_sums == whole.exact_sums
    other = "float32" if dtype == "float64" else "float64"
    with pytest.raises(ValueError, match="or in dtype"):
        whole + kernels.mixture_tail(10, THRESHOLDS, first_sample=1000, **{**arguments, "dtype": other})


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("under", UNDER)
def test_lengths_of_schedules(steps, under):
    sigma, rate = np.full(steps, 0.9), np.full(steps, 0.02)
    arguments = {"under": under, "seed": 6, "first_sample": 2**32 - 50}
    got = kernels.mixture_log_ratio(150, noise_multiplier=0.9, sample_rate=0.02, steps=steps, **arguments)
    x = reference.mixture_samples(150, noise_multiplier=sigma, sample_rate=rate, **arguments)
    wanted = reference.mixture_log_ratio(x, noise_multiplier=sigma, sample_rate=rate)
    assert (np.abs(got - wanted) <= tolerances.log_ratio(sigma, wanted)).all()


@pytest.mark.parametrize(
    ("sigma", "rate"),
    [(1.0, 0.01), (2.0, 0.5), (0.5, 0.1), (10.0, 0.01), (100.0, 0.1), (0.59014, 0.28036), (0.58401, 0.31903)],
)
@pytest.mark.parametrize("steps", STEPS)
def test_float32_error(sigma, rate, steps):
    """The documented bound on every sample, and a mean error below 5e-6 standard deviations of L: a bias adds up over
    steps, and no number of samples averages it away. (Its own standard error here is below 1e-7 of them.) The last two
    pairs are among the worst of 800,000, in which the roundings of σ and q, always the same, add up to 3.1e-6."""
    n = max(1_000_000 // steps, 20_000) if steps < 1000 else 5_000
    for under in UNDER:
        arguments = {"noise_multiplier": sigma, "sample_rate": rate, "steps": steps, "under": under, "seed": 20261121}
        wide = kernels.mixture_log_ratio(n, **arguments)
        error = kernels.mixture_log_ratio(n, dtype="float32", **arguments) - wide
        assert 0 < np.abs(error).max() <= 2e-6 * (1 + 1 / sigma**2) * math.sqrt(steps)
        assert abs(error.mean()) <= 5e-6 * wide.std()


def test_float32_fallback():
    """Small σ and q > 1/2: computed in float64 and rounded once, so that it is as near as float32 can be."""
    for sigma, rate in ((0.3, 0.1), (0.01, 0.3), (0.0, 0.3), (1.0, 0.9), (1.0, 1.0), (1.0, 1e-300)):
        arguments = {"noise_multiplier": sigma, "sample_rate": rate, "steps": 9, "under": "alternative"}
        with np.errstate(over="ignore"):
            wanted = kernels.mixture_log_ratio(500, **arguments).astype(np.float32)
        np.testing.assert_array_equal(kernels.mixture_log_ratio(500, dtype="float32", **arguments), wanted)


def test_float32_tails():
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 20, "dtype": "float32"}
    ratios = kernels.mixture_log_ratio(5000, **arguments)
    for count, threshold in zip(kernels.mixture_tail(5000, [-0.5, 0.1], **arguments).counts, [-0.5, 0.1], strict=True):
        assert abs(count - (ratios >= threshold).sum()) <= 1  # the tail's ratios are not rounded to float32


@pytest.mark.parametrize("thresholds", [3, 12, 13, 60])
def test_few_and_many_thresholds(thresholds):
    """Around the number at which the tally changes its way; ratios far apart, so that one window does not hold all."""
    for sigma, scale in ((0.7, 2.0), (0.11, 400.0)):
        arguments = {"noise_multiplier": sigma, "sample_rate": 0.3, "steps": 9, "under": "alternative", "seed": 5}
        ratios = kernels.mixture_log_ratio(3000, **arguments)
        levels = np.linspace(-scale, scale, thresholds)
        tail = kernels.mixture_tail(3000, levels, **arguments)
        counts, sums = reference.mixture_tail(ratios, levels)
        np.testing.assert_array_equal(tail.counts, counts)
        assert (np.abs(tail.sums - sums) <= tolerances.tail_sum(counts, sums, 0.0)).all()
