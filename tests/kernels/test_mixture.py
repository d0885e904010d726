"""The mixture's samples, log ratios and tails against the reference; shards, extremes, identities in law; T = 1, where
four consecutive samples share a Philox block.
"""

from __future__ import annotations

import itertools
import math
import pickle

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from leakcore.reference import kernels as reference
from leakcore.reference import philox
from tests import tolerances
from tests.kernels.devices import kernels
from tests.kernels.layouts import checked, seeds

pytestmark = pytest.mark.usefixtures("device")

UNDER = ("null", "alternative")
sigmas = st.one_of(st.sampled_from([0.0, 1e-200, 0.02, 0.03, 0.05]), st.floats(0.05, 100))
rates = st.one_of(st.sampled_from([0.0, 1e-12, 0.5, 1.0]), st.floats(0, 1))
schedules = st.lists(st.tuples(sigmas, rates), max_size=14)


def reference_ratios(num_samples, sigma, rate, **arguments):
    sigma, rate = np.atleast_1d(sigma), np.atleast_1d(rate)
    x = reference.mixture_samples(num_samples, noise_multiplier=sigma, sample_rate=rate, **arguments)
    return reference.mixture_log_ratio(x, noise_multiplier=sigma, sample_rate=rate)


@checked
@given(seeds, st.integers(0, 300), schedules, st.sampled_from(UNDER), st.sampled_from([0, 1, 255, 2**32 - 100, 2**50]))
def test_schedules(seed, num_samples, schedule, under, first):
    sigma, rate = np.array([s for s, _ in schedule]), np.array([q for _, q in schedule])
    arguments = {"under": under, "seed": seed, "first_sample": first}
    got = kernels.mixture_log_ratio(
        num_samples, noise_multiplier=sigma, sample_rate=rate, steps=len(schedule), **arguments
    )
    wanted = reference_ratios(num_samples, sigma, rate, **arguments)
    assert got.shape == (num_samples,)
    assert not np.isnan(got).any()
    infinite = np.isinf(wanted)
    np.testing.assert_array_equal(got[infinite], wanted[infinite])
    error = tolerances.log_ratio(sigma[sigma > 1e-100], wanted[~infinite])
    assert (np.abs(got[~infinite] - wanted[~infinite]) <= error).all()


@pytest.mark.parametrize(
    ("sigma", "rate"),
    [(1.0, 0.01), (30.0, 1e-3), (1e4, 0.3), (0.5, 0.9), (2.0, 0.9999), (0.04, 0.2), (1e6, 0.9), (12.0, 0.7)],
)
@pytest.mark.parametrize("under", UNDER)
def test_log_ratio_in_forty_digits(sigma, rate, under):
    """Against the definition in high precision on the same points: relative to Σ|terms|, so small ratios count too."""
    steps = 7
    x = reference.mixture_samples(
        40, noise_multiplier=np.full(steps, sigma), sample_rate=np.full(steps, rate), under=under, seed=3
    )
    got = kernels.mixture_log_ratio(40, noise_multiplier=sigma, sample_rate=rate, steps=steps, under=under, seed=3)
    with mpmath.workdps(40):
        q = mpmath.mpf(rate)
        for row, ratio in zip(x, got, strict=True):
            terms = [
                mpmath.log(1 - q + q * mpmath.exp((2 * mpmath.mpf(v) - 1) / (2 * mpmath.mpf(sigma) ** 2))) for v in row
            ]
            # The points themselves are known to NORMAL_ABS·σ only, which moves each term by at most q·NORMAL_ABS/σ·e^…
            slack = sum(tolerances.NORMAL_ABS / sigma * float(abs(mpmath.expm1(t)) + q) for t in terms)
            assert abs(ratio - float(sum(terms))) <= slack + 40 * tolerances.U64 * float(sum(abs(t) for t in terms))


@checked
@given(
    seeds,
    st.integers(0, 500),
    st.lists(st.one_of(st.floats(-3, 3), st.sampled_from([-np.inf, np.inf])), max_size=6),
    st.sampled_from(UNDER),
)
def test_tails(seed, num_samples, thresholds, under):
    arguments = {"noise_multiplier": 0.7, "sample_rate": 0.3, "steps": 5, "under": under, "seed": seed}
    ratios = kernels.mixture_log_ratio(num_samples, **arguments)
    tail = kernels.mixture_tail(num_samples, thresholds, **arguments)
    counts, sums = reference.mixture_tail(ratios, np.array(thresholds))
    np.testing.assert_array_equal(tail.counts, counts)
    assert tail.counts.dtype == np.int64
    assert (np.abs(tail.sums - sums) <= tolerances.tail_sum(counts, sums, 0.0)).all()
    assert tail.num_samples == num_samples


def test_threshold_equal_to_a_ratio():
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.2, "steps": 9, "seed": 4}
    ratios = np.sort(kernels.mixture_log_ratio(100, **arguments))
    np.testing.assert_array_equal(kernels.mixture_tail(100, ratios, **arguments).counts, np.arange(100, 0, -1))


def test_threshold_shapes():
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.2, "steps": 3}
    flat = np.array([0.5, -0.5, 0.5, 0.0, np.inf, -np.inf])
    whole = kernels.mixture_tail(1000, flat, **arguments)
    square = kernels.mixture_tail(1000, flat.reshape(2, 3), **arguments)
    assert square.counts.shape == (2, 3)
    assert square.sums.shape == (2, 2, 3)
    np.testing.assert_array_equal(square.sums.reshape(2, 6), whole.sums)
    np.testing.assert_array_equal(whole.counts[[0, 4, 5]], [whole.counts[2], 0, 1000])
    lone = kernels.mixture_tail(1000, 0.5, **arguments)
    assert lone.counts.shape == ()
    assert lone.sums.shape == (2,)
    assert lone.counts == whole.counts[0]
    assert kernels.mixture_tail(1000, [], **arguments).sums.shape == (2, 0)


@checked
@given(seeds, st.lists(st.integers(0, 700), min_size=1, max_size=4), st.randoms())
def test_merged_shards(seed, sizes, random):
    arguments = {"noise_multiplier": 0.8, "sample_rate": 0.1, "steps": 6, "under": "alternative", "seed": seed}
    thresholds = [-np.inf, -0.3, 0.0, 0.4]
    total, first = sum(sizes), 2**33 + 5
    whole = kernels.mixture_tail(total, thresholds, first_sample=first, **arguments)
    ratios = kernels.mixture_log_ratio(total, first_sample=first, **arguments)
    shards, start = [], first
    for size in sizes:
        shards.append(kernels.mixture_tail(size, thresholds, first_sample=start, **arguments))
        part = kernels.mixture_log_ratio(size, first_sample=start, **arguments)
        np.testing.assert_array_equal(part, ratios[start - first : start - first + size])
        start += size
    random.shuffle(shards)
    merged = pickle.loads(pickle.dumps(shards[0]))  # as a process pool would return it # noqa: S301
    for shard in shards[1:]:
        merged = merged + shard
    np.testing.assert_array_equal(merged.counts, whole.counts)
    np.testing.assert_array_equal(merged.sums, whole.sums)
    assert merged.exact_sums == whole.exact_sums
    assert merged.num_samples == total
    assert merged.samples == (((first, first + total),) if total else ())


def test_floating_sums_of_shards():
    """The negative control: adding the rounded sums of the same shards gives other bits than the exact sum."""
    arguments = {"noise_multiplier": 0.8, "sample_rate": 0.1, "steps": 6, "under": "alternative"}
    whole = kernels.mixture_tail(30_000, [-0.3, 0.0], **arguments)
    shards = [kernels.mixture_tail(100, [-0.3, 0.0], first_sample=a, **arguments).sums for a in range(0, 30_000, 100)]
    assert (sum(shards) != whole.sums).any()


def test_bad_merges():
    arguments = {"noise_multiplier": 0.8, "sample_rate": 0.1, "steps": 6}
    tail = kernels.mixture_tail(10, [0.0], **arguments)
    with pytest.raises(ValueError, match="cannot merge: samples 5 to 9 are in both shards"):
        tail + kernels.mixture_tail(10, [0.0], first_sample=5, **arguments)
    with pytest.raises(ValueError, match="the shards have different thresholds"):
        tail + kernels.mixture_tail(10, [0.1], first_sample=10, **arguments)
    for change in (
        {"seed": 1},
        {"under": "alternative"},
        {"steps": 7},
        {"sample_rate": 0.2},
        {"noise_multiplier": 1.0},
    ):
        with pytest.raises(
            ValueError, match="the shards differ in noise_multiplier, sample_rate, steps, under or seed"
        ):
            tail + kernels.mixture_tail(10, [0.0], first_sample=10, **{**arguments, **change})
    with pytest.raises(TypeError):
        tail + 1


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.1, 10), (0.5, 0.02, 30), (3.0, 0.8, 5), (1.0, 1.0, 1)])
def test_two_laws(sigma, rate, steps):
    """E_ν[e^L 1{L<c}] = μ(L<c) and E_μ[e^{−L} 1{L≥c}] = ν(L≥c), two independent estimates each; p = 1e-4 for all 8."""
    n, cut = 400_000, 0.1
    arguments = {"noise_multiplier": sigma, "sample_rate": rate, "steps": steps, "seed": 20261121}
    null = kernels.mixture_log_ratio(n, **arguments)
    other = kernels.mixture_log_ratio(n, under="alternative", **arguments)
    pairs = [
        (np.where(null < cut, np.exp(null), 0), (other < cut).astype(float)),
        (np.where(other >= cut, np.exp(-other), 0), (null >= cut).astype(float)),
    ]
    for one, two in pairs:
        z = (one.mean() - two.mean()) / math.sqrt((one.var() + two.var()) / n)
        assert abs(z) < -special.ndtri(1e-4 / 8 / 2)


def test_full_batches():
    """q = 1: L ~ N(∓T/(2σ²), T/σ²), so B_κ has its closed form; counts within 4 standard errors, p = 6e-5."""
    n, sigma, steps, threshold = 500_000, 2.0, 4, 0.3
    for under, sign in (("null", -1), ("alternative", 1)):
        tail = kernels.mixture_tail(n, threshold, noise_multiplier=sigma, sample_rate=1.0, steps=steps, under=under)
        mean, spread = sign * steps / (2 * sigma**2), math.sqrt(steps) / sigma
        p = special.ndtr((mean - threshold) / spread)
        assert abs(tail.counts / n - p) < 4 * math.sqrt(p * (1 - p) / n)


def test_rate_of_picks():
    """At σ = 0 a sample is infinite iff a step picked: 1 − (1−q)^T, within 4 standard errors; q = 2^-40 never."""
    for rate, n in ((1e-3, 300_000), (0.3, 100_000)):
        hit = np.isinf(
            kernels.mixture_log_ratio(n, noise_multiplier=0.0, sample_rate=rate, steps=5, under="alternative")
        )
        p = 1 - (1 - rate) ** 5
        assert abs(hit.mean() - p) < 4 * math.sqrt(p * (1 - p) / n)
    never = kernels.mixture_log_ratio(100_000, noise_multiplier=0.0, sample_rate=2.0**-40, steps=5, under="alternative")
    assert np.isfinite(never).all()


def test_independence_of_the_laws():
    """|correlation| of 4 million pairs of exponents below 4 standard errors, p = 6e-5."""
    arguments = {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 1, "seed": 9}
    null = kernels.mixture_log_ratio(1_000_000, **arguments)
    other = kernels.mixture_log_ratio(1_000_000, under="alternative", **arguments)
    assert abs(np.corrcoef(null, other)[0, 1]) < 4e-3


def test_extreme_ratios():
    tail = kernels.mixture_tail(
        1000, [-np.inf, -2000.0, 0.0, np.inf], noise_multiplier=0.1, sample_rate=1.0, steps=100, under="null"
    )
    np.testing.assert_array_equal(tail.counts, [1000, 0, 0, 0])  # L is about −5000: e^{−L} is beyond float64
    assert np.isinf(tail.sums[1, 0])
    assert tail.sums[0, 0] == 1000
    tail = kernels.mixture_tail(
        1000, [-np.inf, 0.0, 2000.0, np.inf], noise_multiplier=0.1, sample_rate=1.0, steps=100, under="alternative"
    )
    np.testing.assert_array_equal(tail.counts, [1000, 1000, 1000, 0])
    np.testing.assert_array_equal(tail.sums, [[1000, 1000, 1000, 0], [0, 0, 0, 0]])


def test_no_noise():
    null = kernels.mixture_log_ratio(5, noise_multiplier=0.0, sample_rate=0.25, steps=4)
    np.testing.assert_allclose(null, 4 * math.log(0.75), rtol=1e-15)
    assert (kernels.mixture_log_ratio(5, noise_multiplier=0.0, sample_rate=1.0, steps=4) == -np.inf).all()
    assert (
        kernels.mixture_log_ratio(5, noise_multiplier=0.0, sample_rate=1.0, steps=4, under="alternative") == np.inf
    ).all()
    assert (kernels.mixture_log_ratio(5, noise_multiplier=1.0, sample_rate=0.0, steps=4) == 0).all()
    assert (kernels.mixture_log_ratio(5, noise_multiplier=1.0, sample_rate=0.5, steps=0) == 0).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_samples": -1}, ValueError, r"`num_samples` must be in \[0, 9223372036854775807\], got -1"),
        ({"num_samples": 1.5}, TypeError, r"`num_samples` must be an integer, got 1.5"),
        ({"noise_multiplier": -1.0}, ValueError, r"`noise_multiplier` must be at least 0 and finite, got -1.0"),
        ({"noise_multiplier": [1.0, -2.0, 1.0]}, ValueError, r"`noise_multiplier\[1\]` must be at least 0.*, got -2.0"),
        (
            {"noise_multiplier": [1.0, 1.0]},
            ValueError,
            r"`noise_multiplier` must be a number, an array of length steps=3, or one of shape.*, got shape \(2,\)",
        ),
        ({"noise_multiplier": float("inf")}, ValueError, "`noise_multiplier` must be at least 0 and finite, got inf"),
        ({"sample_rate": 1.01}, ValueError, r"`sample_rate` must be in \[0, 1\], got 1.01"),
        ({"sample_rate": float("nan")}, ValueError, r"`sample_rate` must be in \[0, 1\], got nan"),
        ({"sample_rate": "often"}, TypeError, r"`sample_rate` must be a real number or an array.*, got 'often'"),
        ({"steps": -1}, ValueError, r"`steps` must be in \[0, 16777216\], got -1"),
        ({"under": "both"}, ValueError, "`under` must be 'null' or 'alternative', got 'both'"),
        ({"seed": -1}, ValueError, r"`seed` must be in \[0, 18446744073709551615\], got -1"),
        ({"first_sample": -1}, ValueError, r"`first_sample` must be in \[0, 18446744073709551605\], got -1"),
        ({"first_sample": 2**64 - 5}, ValueError, r"`first_sample` must be in \[0,.*, got 18446744073709551611"),
        ({"like": 3}, TypeError, "`like` must be a NumPy array, a torch tensor or a DLPack array, got int"),
        ({"noise_multiplier": None}, TypeError, r"`noise_multiplier` must be a real number or an.*, got None"),
        ({"sample_rate": [0.1, None, 0.1]}, TypeError, "must be a real number or an array of them"),
        ({"sample_rate": True}, TypeError, "`sample_rate` must be a real number or an array of them, got True"),
        (
            {"noise_multiplier": np.ma.masked_array([1.0] * 3, [0, 1, 0])},
            TypeError,
            "`noise_multiplier` must be a plain array, got a masked one",
        ),
        ({"noise_multiplier": np.array(["1"] * 3, object)}, TypeError, "must be a real number or an array of them"),
    ],
)
def test_errors(change, error, message):
    arguments = {"num_samples": 10, "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 3, **change}
    n = arguments.pop("num_samples")
    with pytest.raises(error, match=message):
        kernels.mixture_log_ratio(n, **arguments)
    with pytest.raises(error, match=message):
        kernels.mixture_tail(n, [0.0], **arguments)


def test_thresholds_of_a_result():
    """A caller's array may be used again: shards of different thresholds must not merge, nor look as if they could."""
    arguments = {"noise_multiplier": 0.7, "sample_rate": 0.3, "steps": 5}
    thresholds = np.array([-0.5, 0.5])
    shard = kernels.mixture_tail(1000, thresholds, **arguments)
    thresholds[:] = [0.0, 2.0]
    np.testing.assert_array_equal(shard.thresholds, [-0.5, 0.5])
    with pytest.raises(ValueError, match="different thresholds"):
        shard + kernels.mixture_tail(1000, thresholds, first_sample=1000, **arguments)


def test_more_errors():
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 3}
    with pytest.raises(ValueError, match=r"`thresholds\[1\]` must be a number, not NaN, got nan"):
        kernels.mixture_tail(10, [0.0, np.nan], **arguments)
    with pytest.raises(TypeError, match="`dtype` must be 'float32' or 'float64', got 'float16'"):
        kernels.mixture_log_ratio(10, dtype="float16", **arguments)


DTYPES = ("float64", "float32")
# Inside a quad, a block of 256, and where the low half of the sample's or of the quad's index is full.
FIRSTS = (0, 1, 2, 3, 255, 257, 1001, 2**32 - 3, 2**34 - 70, 2**34 - 1, 2**50 + 3, 2**63 + 1)
# One of each route: usual, rarely and often beyond 1.41; factor; exponent alone; step by step; no noise; no sampling.
ROUTES = ((1.0, 0.01), (0.6, 0.1), (0.5, 0.4), (2.0, 0.9), (1.0, 1.0), (0.02, 0.2), (0.0, 0.3), (1.0, 0.0))


def assert_near(got, wanted, sigma):
    infinite = np.isinf(wanted)
    np.testing.assert_array_equal(got[infinite], wanted[infinite])
    error = tolerances.log_ratio(np.array([sigma] if sigma > 0 else []), wanted[~infinite])
    assert (np.abs(got[~infinite] - wanted[~infinite]) <= error).all()


@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize("under", UNDER)
def test_routes(first, under):
    for sigma, rate in ROUTES:
        for count in (1, 6, 700):
            arguments = {"under": under, "seed": 7, "first_sample": first}
            got = kernels.mixture_log_ratio(count, noise_multiplier=sigma, sample_rate=rate, steps=1, **arguments)
            assert_near(got, reference_ratios(count, sigma, rate, **arguments), sigma)


@checked
@given(seeds, st.integers(0, 600), st.floats(0.05, 100), st.floats(0, 1), st.sampled_from(UNDER), st.integers(0, 2**63))
def test_ranges(seed, num_samples, sigma, rate, under, first):
    arguments = {"under": under, "seed": seed, "first_sample": first}
    got = kernels.mixture_log_ratio(num_samples, noise_multiplier=sigma, sample_rate=rate, steps=1, **arguments)
    assert_near(got, reference_ratios(num_samples, sigma, rate, **arguments), sigma)


def test_draws_of_samples():
    """At q = σ = 1 the ratio is z − ½ under the null and z + ½ under the alternative, rounded once."""
    for step, shift in ((0, -0.5), (1, 0.5)):
        z = kernels.standard_normal((300, 4), seed=5, purpose="mixture_one", step=step, first_row=10).ravel()
        got = kernels.mixture_log_ratio(
            1190, noise_multiplier=1.0, sample_rate=1.0, steps=1, under=UNDER[step], seed=5, first_sample=43
        )
        np.testing.assert_array_equal(got, z[3:1193] + shift)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("under", UNDER)
def test_parts_of_a_call(under, dtype):
    thresholds = [-np.inf, -0.005, 0.0, 0.4]
    first, cuts = 2**34 - 1003, (0, 1, 6, 6, 263, 1002, 1005, 1900)
    for sigma, rate in ROUTES[:-2]:
        arguments = {"noise_multiplier": sigma, "sample_rate": rate, "steps": 1, "under": under, "dtype": dtype}
        ratios = kernels.mixture_log_ratio(1900, first_sample=first, **arguments)
        whole = kernels.mixture_tail(1900, thresholds, first_sample=first, **arguments)
        merged = kernels.mixture_tail(0, thresholds, **arguments)
        for a, b in itertools.pairwise(cuts):
            part = kernels.mixture_log_ratio(b - a, first_sample=first + a, **arguments)
            np.testing.assert_array_equal(part, ratios[a:b])
            merged = merged + kernels.mixture_tail(b - a, thresholds, first_sample=first + a, **arguments)
        assert merged.exact_sums == whole.exact_sums
        np.testing.assert_array_equal(merged.counts, whole.counts)
        np.testing.assert_array_equal(merged.sums, whole.sums)
        assert whole.counts[0] == 1900
        if dtype == "float64":
            np.testing.assert_array_equal(whole.counts, reference.mixture_tail(ratios, np.array(thresholds))[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("under", UNDER)
def test_blocks_of_a_long_call(under, dtype):
    """In a call of many blocks the words of one are drawn together with the logarithms of the block before, unless a
    logarithm's argument is beyond 1.41: never in the first route, sometimes in the second, always in the third."""
    first, count, block = 2**34 - 6144, 12_800, 256
    routes = ((4.0, 0.01), (1.0, 0.02), (0.6, 0.1), (2.0, 0.4))
    sigma, rate = np.array(routes).T[:, :, None]
    shared = {"noise_multiplier": sigma, "sample_rate": rate, "steps": 1, "under": under, "seed": 2, "dtype": dtype}
    blocks = [kernels.mixture_log_ratio(block, first_sample=first + a, **shared) for a in range(0, count, block)]
    wanted = np.concatenate(blocks, axis=1)
    np.testing.assert_array_equal(kernels.mixture_log_ratio(count, first_sample=first, **shared), wanted)
    for c, (own_sigma, own_rate) in enumerate(routes):
        own = {**shared, "noise_multiplier": own_sigma, "sample_rate": own_rate}
        got = kernels.mixture_log_ratio(count, first_sample=first, **own)
        np.testing.assert_array_equal(got, wanted[c])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("under", UNDER)
def test_configurations(under, dtype):
    shared = {"steps": 1, "under": under, "seed": 8, "first_sample": 1003, "dtype": dtype}
    for routes in (ROUTES, ((1.0, 0.01), (0.6, 0.1), (0.9, 0.3))):
        sigma, rate = np.array(routes).T[:, :, None]
        ratios = kernels.mixture_log_ratio(900, noise_multiplier=sigma, sample_rate=rate, **shared)
        tails = kernels.mixture_tail(900, [-0.01, 0.0, 0.3], noise_multiplier=sigma, sample_rate=rate, **shared)
        for c, (own_sigma, own_rate) in enumerate(routes):
            own = {"noise_multiplier": own_sigma, "sample_rate": own_rate, **shared}
            np.testing.assert_array_equal(ratios[c], kernels.mixture_log_ratio(900, **own))
            tail = kernels.mixture_tail(900, [-0.01, 0.0, 0.3], **own)
            np.testing.assert_array_equal(tails.counts[c], tail.counts)
            np.testing.assert_array_equal(tails.sums[:, c], tail.sums)


@pytest.mark.parametrize("under", UNDER)
def test_float32_error(under):
    for sigma, rate in ROUTES[:3]:
        arguments = {"noise_multiplier": sigma, "sample_rate": rate, "steps": 1, "under": under, "first_sample": 5}
        wide = kernels.mixture_log_ratio(50_000, **arguments)
        narrow = kernels.mixture_log_ratio(50_000, dtype="float32", **arguments)
        assert narrow.dtype == np.float32
        assert 0 < np.abs(narrow - wide).max() <= 2e-6 * (1 + 1 / sigma**2)


@pytest.mark.parametrize("steps", [1, 5])
def test_tie_in_the_leading_word(steps):
    """q·2³² = a drawn word + r: that draw picks iff its next 32 bits are below r·2³². At σ = 0 a pick is infinite."""
    arguments = {"under": "alternative", "seed": 3, "first_sample": 2}
    rows, first_row, purpose = (
        (75, 0, philox.MIXTURE_ONE_PICK) if steps == 1 else (300, 2, philox.MIXTURE_PICK)
    )  # at T = 1 a row is four samples
    drawn, low = (
        philox.words(rows, 4 if steps == 1 else 5, seed=3, purpose=purpose, step=half, first_row=first_row)
        for half in (0, 1)
    )
    visited = set()
    for at in (2, 3, 4, 17, 250):
        word, rest = (int(w.ravel()[at]) for w in (drawn, low))
        for share in (0.25, 0.75):
            rate = np.full(steps, (word + share) / 2**32)
            got = kernels.mixture_log_ratio(298, noise_multiplier=0.0, sample_rate=rate, steps=steps, **arguments)
            picked = reference.mixture_picks(298, rate, seed=3, first_sample=2).any(axis=1)
            np.testing.assert_array_equal(np.isinf(got), picked)
            visited.add(rest < share * 2**32)
    assert visited == {True, False}
