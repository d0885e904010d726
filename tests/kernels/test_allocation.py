"""Random allocation's samples, log ratios and tails against the reference; shards, extremes, and identities in law."""

from __future__ import annotations

import copy
import itertools
import pickle

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, sparse, special, stats

from leakcore.reference import kernels as reference
from tests import tolerances
from tests.kernels.devices import kernels
from tests.kernels.layouts import LAYOUTS, checked, laid_out, normals, seeds

pytestmark = pytest.mark.usefixtures("device")

UNDER = ("null", "alternative")
FIRST = st.sampled_from([0, 1, 255, 2**32 - 100, 2**50])
sigmas = st.one_of(st.sampled_from([1e-60, 0.02, 0.05, 1e3, 1e30]), st.floats(0.05, 100))


def wanted(pair, num_samples, **arguments):
    if sparse.issparse(pair.factor):
        pair = kernels.Allocation(pair.noise_multiplier, pair.bins, epochs=pair.epochs, factor=pair.factor.toarray())
    return reference.allocation_log_ratio(reference.allocation_samples(pair, num_samples, **arguments), pair)


def check(pair, num_samples, **arguments):
    got = kernels.allocation_log_ratio(pair, num_samples, **arguments)
    expected = wanted(pair, num_samples, **arguments)
    assert got.shape == (num_samples,)
    assert (np.abs(got - expected) <= tolerances.allocation(pair, expected)).all()


@checked
@given(seeds, st.integers(0, 300), sigmas, st.integers(1, 13), st.data(), st.sampled_from(UNDER), FIRST)
def test_bins(seed, num_samples, sigma, bins, data, under, first):
    k, epochs = data.draw(st.integers(1, bins)), data.draw(st.integers(1, 5))
    pair = kernels.Allocation(sigma, bins, epochs=epochs, k=k)
    check(pair, num_samples, under=under, seed=seed, first_sample=first)


@checked
@given(seeds, st.integers(0, 300), sigmas, st.integers(1, 13), st.data(), st.sampled_from(UNDER), FIRST)
def test_factors(seed, num_samples, sigma, bins, data, under, first):
    columns, epochs = data.draw(st.integers(1, 13)), data.draw(st.integers(1, 4))
    factor = normals(seed, bins, columns, scale=data.draw(st.sampled_from([0.1, 1.0])))
    kind = data.draw(st.sampled_from(["dense", "band", "scattered", "zero"]))
    if kind == "band":
        factor = np.tril(np.triu(factor, -2))
    elif kind != "dense":
        factor[np.random.default_rng(seed).random(factor.shape) < (0.8 if kind == "scattered" else 1.1)] = 0.0
    shape = data.draw(st.sampled_from([np.asarray, sparse.csr_matrix, sparse.coo_array]))
    pair = kernels.Allocation(sigma, bins, epochs=epochs, factor=shape(factor))
    check(pair, num_samples, under=under, seed=seed, first_sample=first)


@pytest.mark.parametrize("under", UNDER)
@pytest.mark.parametrize(
    ("sigma", "bins", "k"),
    [(1.0, 100, 1), (1.0, 100, 99), (1.0, 60, 12), (0.5, 100, 3), (1.0, 200, 40), (0.4, 64, 32), (3.0, 1001, 1)],
)
def test_many_bins(sigma, bins, k, under):
    check(kernels.Allocation(sigma, bins, k=k), 40, under=under, seed=3)


@pytest.mark.parametrize(("sigma", "bins", "k"), [(1.0, 7, 1), (0.2, 7, 1), (30.0, 5, 1), (1e4, 9, 1), (2.0, 7, 3)])
@pytest.mark.parametrize("under", UNDER)
def test_log_ratio_in_forty_digits(sigma, bins, k, under):
    """Against the definition in high precision on the same points. Of one bin in a few, a small ratio keeps its digits:
    the error is relative to the mean size of the terms' deviations from 1."""
    pair = kernels.Allocation(sigma, bins, k=k)
    y = reference.allocation_samples(pair, 40, under=under, seed=3)[:, 0]
    got = kernels.allocation_log_ratio(pair, 40, under=under, seed=3)
    with mpmath.workdps(40):
        variance = mpmath.mpf(sigma) ** 2
        for row, ratio in zip(y, got, strict=True):
            weights = [mpmath.exp((mpmath.mpf(v) - 0.5) / variance) for v in row]
            levels = [mpmath.mpf(1)] + [mpmath.mpf(0)] * k
            for w in weights:
                for j in range(k, 0, -1):
                    levels[j] += w * levels[j - 1]
            exact = mpmath.log(levels[k] / mpmath.binomial(bins, k))
            deviation = float(sum(abs(w - 1) for w in weights) / bins / (levels[1] / bins)) if sigma > 2.7 else 1.0
            # The points themselves are known to NORMAL_ABS·σ only, which moves each exponent by NORMAL_ABS/σ.
            slack = k * (tolerances.NORMAL_ABS / sigma + 8 * tolerances.U64 * (7 / sigma + 1 / sigma**2))
            assert abs(ratio - float(exact)) <= slack + 40 * k * tolerances.U64 * deviation


@checked
@given(
    seeds,
    st.integers(0, 500),
    st.lists(st.one_of(st.floats(-3, 3), st.sampled_from([-np.inf, np.inf])), max_size=6),
    st.sampled_from(UNDER),
    st.booleans(),
)
def test_tails(seed, num_samples, thresholds, under, correlated):
    factor = np.tri(5) - np.tri(5, k=-2) if correlated else None
    pair = kernels.Allocation(0.7, 5, epochs=2, factor=factor)
    ratios = kernels.allocation_log_ratio(pair, num_samples, under=under, seed=seed)
    tail = kernels.allocation_tail(pair, num_samples, thresholds, under=under, seed=seed)
    counts, sums = reference.mixture_tail(ratios, np.array(thresholds))
    np.testing.assert_array_equal(tail.counts, counts)
    assert (np.abs(tail.sums - sums) <= tolerances.tail_sum(counts, sums, 0.0)).all()
    assert tail.num_samples == num_samples


@pytest.mark.parametrize("sigma", [0.02, 0.7])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_merged_shards(sigma, dtype):
    pair = kernels.Allocation(sigma, 6, epochs=2)
    arguments = {"under": "alternative", "seed": 9, "dtype": dtype}
    whole = kernels.allocation_tail(pair, 5000, [-1.0, 0.0, 2.0], first_sample=77, **arguments)
    cuts = [77, 78, 1000, 1024, 4000, 5077]
    parts = [
        kernels.allocation_tail(pair, b - a, [-1.0, 0.0, 2.0], first_sample=a, **arguments)
        for a, b in itertools.pairwise(cuts)
    ]
    merged = parts[3] + parts[0] + parts[4] + parts[2] + parts[1]
    assert merged.exact_sums == whole.exact_sums
    np.testing.assert_array_equal(merged.sums, whole.sums)
    assert merged.samples == ((77, 5077),)
    other = kernels.allocation_tail(kernels.Allocation(sigma, 6, epochs=3), 9, [-1.0, 0.0, 2.0], **arguments)
    with pytest.raises(ValueError, match=r"cannot merge: the shards differ in .* allocation"):
        whole + other


@pytest.mark.parametrize("under", UNDER)
def test_identity_as_factor(under):
    """Under the null to rounding, sample by sample; under the alternative, where J is drawn, in law."""
    plain, factor = kernels.Allocation(1.0, 6), kernels.Allocation(1.0, 6, factor=np.eye(6))
    a, b = (kernels.allocation_log_ratio(p, 20_000, under=under, seed=4) for p in (plain, factor))
    if under == "null":
        assert (np.abs(a - b) <= tolerances.allocation(factor, a)).all()
    else:
        assert (a != b).any()
        assert stats.ks_2samp(a, b).pvalue > 1e-3


@pytest.mark.parametrize(("bins", "k"), [(1, 1), (8, 8)])
def test_all_bins(bins, k):
    """L ~ N(∓k/2σ², k/σ²)."""
    for under, sign in zip(UNDER, (-1, 1), strict=True):
        ratios = kernels.allocation_log_ratio(kernels.Allocation(1.3, bins, k=k), 20_000, under=under, seed=6)
        law = stats.norm(sign * k / 2 / 1.3**2, np.sqrt(k) / 1.3)
        assert stats.kstest(ratios, law.cdf).pvalue > 1e-3


@pytest.mark.full
@pytest.mark.parametrize("rotation", [pytest.param(0.0, marks=pytest.mark.slow), 0.7])
def test_two_bins(rotation):
    """δ(ε) = E_Q[(e^L − e^ε)₊] of both directions: of independent bins, and of a factor whose rows form an angle."""
    sigma, epsilon, n = 0.8, 0.4, 200_000
    factor = None if rotation == 0.0 else np.array([[1.0, 0.0], [np.sin(rotation), np.cos(rotation)]])
    mean = np.eye(2) if factor is None else factor

    def log_ratio(x, z):
        return special.logsumexp((mean @ np.array([x, z]) * sigma - 0.5) / sigma**2) - np.log(2)

    def density(x, z, remove):
        e = np.exp(log_ratio(x, z))
        value = max(e - np.exp(epsilon), 0.0) if remove else max(1.0 - np.exp(epsilon) * e, 0.0)
        return value * np.exp(-0.5 * (x * x + z * z)) / (2 * np.pi)

    pair = kernels.Allocation(sigma, 2, factor=factor)
    for remove in (True, False):
        exact, _ = integrate.dblquad(lambda x, z, r=remove: density(x, z, r), -9, 9, -9, 9, epsabs=1e-6)
        ratios = kernels.allocation_log_ratio(pair, n, under="alternative" if remove else "null", seed=8)
        gain = np.maximum(1 - np.exp(epsilon - ratios if remove else epsilon + ratios), 0.0)
        assert abs(gain.mean() - exact) <= 4 * gain.std() / np.sqrt(n) + 1e-5


@pytest.mark.parametrize("pair", [(1.5, 10, 3, 1), (0.9, 9, 1, 4), (1.0, 5, 2, 2)])
def test_mean_of_the_likelihood_ratio(pair):
    """E_Q[e^L] = 1, and for an event of L both laws agree: P(L ≥ t) = E_Q[e^L·1{L ≥ t}]."""
    sigma, bins, epochs, k = pair
    drawn = kernels.Allocation(sigma, bins, epochs=epochs, k=k)
    null, alternative = (kernels.allocation_log_ratio(drawn, 100_000, under=u, seed=5) for u in UNDER)
    weights = np.exp(null)
    assert abs(weights.mean() - 1) <= 4 * weights.std() / np.sqrt(null.size)
    share, weighted = (alternative >= 0.3).mean(), weights * (null >= 0.3)
    error = np.hypot(np.sqrt(share / null.size), weighted.std() / np.sqrt(null.size))
    assert abs(share - weighted.mean()) <= 4 * error


@pytest.mark.parametrize("layout", LAYOUTS)
def test_factor_layouts(layout):
    factor = normals(3, 6, 4)
    pair = kernels.Allocation(1.0, 6, factor=laid_out(factor, layout))
    np.testing.assert_array_equal(pair.factor, factor)
    same = kernels.Allocation(1.0, 6, factor=factor)
    for under in UNDER:
        np.testing.assert_array_equal(*(kernels.allocation_log_ratio(p, 300, under=under) for p in (pair, same)))


@pytest.mark.parametrize(("sigma", "bins", "epochs"), [(1.0, 100, 1), (0.6, 10, 4), (5.0, 30, 3), (30.0, 7, 2)])
def test_float32_error(sigma, bins, epochs):
    """The documented bound on every sample, and a mean error far below the spread of L: no number of samples averages a
    bias away."""
    pair = kernels.Allocation(sigma, bins, epochs=epochs)
    for under in UNDER:
        wide = kernels.allocation_log_ratio(pair, 100_000, under=under, seed=2)
        narrow = kernels.allocation_log_ratio(pair, 100_000, under=under, seed=2, dtype="float32")
        assert narrow.dtype == np.float32
        error = narrow - wide
        assert 0 < np.abs(error).max() <= 2e-6 * (1 + 1 / sigma**2) * np.sqrt(epochs)
        assert abs(error.mean()) <= 5e-6 * wide.std()


def test_float32_fallback():
    for pair in (kernels.Allocation(0.3, 9), kernels.Allocation(1.0, 9, k=3), kernels.Allocation(1.0, 9, k=8),
                 kernels.Allocation(1.0, 4, factor=normals(1, 4, 3))):  # fmt: skip
        exact = kernels.allocation_log_ratio(pair, 500, under="alternative")
        narrow = kernels.allocation_log_ratio(pair, 500, under="alternative", dtype="float32")
        np.testing.assert_array_equal(narrow, exact.astype(np.float32))


def test_pairs(device):
    factor = normals(2, 3, 5)
    pair = kernels.Allocation(1, 3, epochs=2, factor=factor)
    before = kernels.allocation_log_ratio(pair, 50)
    factor[:] = 7.0  # the caller's own
    for other in (pickle.loads(pickle.dumps(pair)), copy.deepcopy(pair)):  # noqa: S301
        assert other == pair
        assert hash(other) == hash(pair)
        np.testing.assert_array_equal(kernels.allocation_log_ratio(other, 50), before)
    assert pair != kernels.Allocation(1.0, 3, epochs=2)
    assert pair == kernels.Allocation(1.0, 3, epochs=2, factor=sparse.csr_array(pair.factor))
    assert kernels.Allocation(1.0, 3) != "Allocation"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"noise_multiplier": 0.0}, r"`noise_multiplier` must be above 0, got 0.0"),
        ({"noise_multiplier": np.inf}, "`noise_multiplier` must be finite, got inf"),
        ({"noise_multiplier": 1e-150}, r"`noise_multiplier` must be finite, and not so small.*, got 1e-150"),
        ({"noise_multiplier": 1e-200}, r"`noise_multiplier` must be finite, and not so small.*, got 1e-200"),
        ({"bins": 0}, r"`bins` must be in \[1, 16777216\], got 0"),
        ({"k": 7}, r"`k` must be in \[1, 6\], got 7"),
        ({"k": 5000, "bins": 20_000}, "`k` must be at most 4096, or at least bins - 4096, got 5000"),
        ({"epochs": 2**34}, r"`epochs` must be in \[1, 2863311530\], got 17179869184"),
        ({"k": 2, "factor": np.eye(6)}, "`k` must be 1 with a factor, got 2"),
        ({"factor": np.eye(5)}, r"`factor` must have shape \(bins, columns\) with bins=6, got \(5, 5\)"),
        ({"factor": np.ones(6)}, r"`factor` must have shape .*, got \(6,\)"),
        ({"factor": np.full((6, 6), np.nan)}, r"`factor\[0, 0\]` must be finite, got nan"),
        ({"factor": sparse.csr_array(np.full((6, 1), np.inf))}, r"`factor\[0\]` must be finite, got inf"),
    ],
)
def test_bad_input(arguments, error):
    with pytest.raises(ValueError, match=error):
        kernels.Allocation(**{"noise_multiplier": 1.0, "bins": 6, **arguments})


def test_bad_types():
    with pytest.raises(TypeError, match="`allocation` must be of type Allocation, got float"):
        kernels.allocation_log_ratio(1.0, 5)
    with pytest.raises(TypeError, match="factor"):
        kernels.Allocation(1.0, 2, factor="eye")
    with pytest.raises(ValueError, match="`thresholds` must be a number, not NaN, got nan"):
        kernels.allocation_tail(kernels.Allocation(1.0, 2), 5, np.nan)
