"""T = 1, where four consecutive samples share a Philox block: samples, shards, configurations, from any first one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcore.reference import mixture as reference
from leakcore.reference import philox
from tests import tolerances
from tests.kernels.devices import kernels
from tests.kernels.layouts import checked, seeds

pytestmark = pytest.mark.usefixtures("device")

UNDER = ("null", "alternative")
DTYPES = ("float64", "float32")
# Inside a quad, a block of 256, and where the low half of the sample's or of the quad's index is full.
FIRSTS = (0, 1, 2, 3, 255, 257, 1001, 2**32 - 3, 2**34 - 70, 2**34 - 1, 2**50 + 3, 2**63 + 1)
# One of each route: usual, rarely and often beyond 1.41; factor; exponent alone; step by step; no noise; no sampling.
ROUTES = ((1.0, 0.01), (0.6, 0.1), (0.5, 0.4), (2.0, 0.9), (1.0, 1.0), (0.02, 0.2), (0.0, 0.3), (1.0, 0.0))


def reference_ratios(num_samples, sigma, rate, **arguments):
    sigma, rate = np.array([sigma]), np.array([rate])
    x = reference.samples(num_samples, noise_multiplier=sigma, sample_rate=rate, **arguments)
    return reference.log_ratio(x, noise_multiplier=sigma, sample_rate=rate)


def assert_near(got, wanted, sigma):
    infinite = np.isinf(wanted)
    np.testing.assert_array_equal(got[infinite], wanted[infinite])
    error = tolerances.log_ratio(np.array([sigma] if sigma > 0 else []), wanted[~infinite])
    assert (np.abs(got[~infinite] - wanted[~infinite]) <= error).all()


@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize("under", UNDER)
def test_every_route_equals_the_reference(first, under):
    for sigma, rate in ROUTES:
        for count in (1, 6, 700):
            arguments = {"under": under, "seed": 7, "first_sample": first}
            got = kernels.mixture_log_ratio(count, noise_multiplier=sigma, sample_rate=rate, steps=1, **arguments)
            assert_near(got, reference_ratios(count, sigma, rate, **arguments), sigma)


@checked
@given(
    seeds,
    st.integers(0, 600),
    st.floats(0.05, 100),
    st.floats(0, 1),
    st.sampled_from(UNDER),
    st.integers(0, 2**63),
)
def test_any_range_equals_the_reference(seed, num_samples, sigma, rate, under, first):
    arguments = {"under": under, "seed": seed, "first_sample": first}
    got = kernels.mixture_log_ratio(num_samples, noise_multiplier=sigma, sample_rate=rate, steps=1, **arguments)
    assert_near(got, reference_ratios(num_samples, sigma, rate, **arguments), sigma)


def test_sample_i_is_draw_i_mod_4_of_row_i_div_4():
    """At q = σ = 1 the ratio is z − ½ under the null and z + ½ under the alternative, rounded once."""
    for step, shift in ((0, -0.5), (1, 0.5)):
        z = kernels.standard_normal((300, 4), seed=5, purpose="mixture_one", step=step, first_row=10).ravel()
        got = kernels.mixture_log_ratio(
            1190, noise_multiplier=1.0, sample_rate=1.0, steps=1, under=UNDER[step], seed=5, first_sample=43
        )
        np.testing.assert_array_equal(got, z[3:1193] + shift)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("under", UNDER)
def test_parts_are_slices_of_the_whole_and_merge(under, dtype):
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
            np.testing.assert_array_equal(whole.counts, reference.tail(ratios, np.array(thresholds))[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("under", UNDER)
def test_a_long_call_equals_its_blocks(under, dtype):
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
def test_each_configuration_equals_a_call_of_its_own(under, dtype):
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
def test_float32_is_within_its_documented_error(under):
    for sigma, rate in ROUTES[:3]:
        arguments = {"noise_multiplier": sigma, "sample_rate": rate, "steps": 1, "under": under, "first_sample": 5}
        wide = kernels.mixture_log_ratio(50_000, **arguments)
        narrow = kernels.mixture_log_ratio(50_000, dtype="float32", **arguments)
        assert narrow.dtype == np.float32
        assert 0 < np.abs(narrow - wide).max() <= 2e-6 * (1 + 1 / sigma**2)


@pytest.mark.parametrize("steps", [1, 5])
def test_a_tie_in_the_leading_word_is_broken_by_the_next(steps):
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
            picked = reference.picks(298, rate, seed=3, first_sample=2).any(axis=1)
            np.testing.assert_array_equal(np.isinf(got), picked)
            visited.add(rest < share * 2**32)
    assert visited == {True, False}
