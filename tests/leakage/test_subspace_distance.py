"""Subspace distance: scipy's angles, invariances, ranks, orientation, and sets of unequal size."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import subspace_angles
from scipy.stats import ortho_group

from leakcore import leakage

RNG = np.random.default_rng(3)


def _low_rank(out, rest, rank, n=4):
    return RNG.normal(size=(n, 1, 1)) * 0 + (RNG.normal(size=(out, rank)) @ RNG.normal(size=(rank, rest)))[None]


def test_angles_against_scipy():
    a, b = RNG.normal(size=(5, 40, 6)), RNG.normal(size=(5, 40, 6))
    measured = leakage.subspace_distance(a, b)
    angles = subspace_angles(a.mean(0), b.mean(0))
    np.testing.assert_allclose(measured.angles, angles, atol=1e-12)
    assert measured.value == measured.columns == pytest.approx(math.sqrt((angles**2).sum()), rel=1e-12)
    assert (measured.space, measured.ranks, measured.kind) == ("columns", (6, 6), "estimate")


def test_wide_gradients():
    # 6×75, a first convolution: its columns span everything, so their distance says nothing.
    a, b = RNG.normal(size=(3, 6, 3, 5, 5)), RNG.normal(size=(3, 6, 3, 5, 5))
    measured = leakage.subspace_distance(a, b)
    assert measured.space == "rows"
    assert measured.columns == pytest.approx(0, abs=1e-6)
    angles = subspace_angles(a.mean(0).reshape(6, -1).T, b.mean(0).reshape(6, -1).T)
    assert measured.value == pytest.approx(math.sqrt((angles**2).sum()), rel=1e-10)


def test_invariances():
    a, b = _low_rank(30, 8, 3), _low_rank(30, 8, 3)
    plain = leakage.subspace_distance(a, b)
    q = ortho_group.rvs(30, random_state=1)
    turned = leakage.subspace_distance(q @ a, q @ b)
    scaled = leakage.subspace_distance(a * np.array([1, 9, 0.1, 2, 3, 4, 5, 6]), b)
    assert turned.value == pytest.approx(plain.value, rel=1e-9)
    assert scaled.value == pytest.approx(plain.value, rel=1e-9)
    assert leakage.subspace_distance(a, -3 * a).value == pytest.approx(0, abs=1e-7)
    assert plain.value <= plain.largest


def test_unequal_ranks():
    a = _low_rank(20, 6, 2)
    b = np.concatenate([a[:, :, :3], a[:, :, 3:] + _low_rank(20, 3, 1)], axis=2)  # a's span and one direction more
    measured = leakage.subspace_distance(a, b)
    assert measured.ranks == (2, 3)
    assert measured.value == pytest.approx(math.pi / 2, rel=1e-6)
    orthogonal = np.zeros((1, 8, 2)), np.zeros((1, 8, 2))
    orthogonal[0][0, 0, 0] = orthogonal[0][0, 1, 1] = orthogonal[1][0, 2, 0] = orthogonal[1][0, 3, 1] = 1
    far = leakage.subspace_distance(*orthogonal)
    assert far.value == far.largest == pytest.approx(math.sqrt(2) * math.pi / 2)
    zero = leakage.subspace_distance(np.zeros((1, 8, 2)), orthogonal[1])
    assert zero.ranks == (0, 2)
    assert zero.value == pytest.approx(math.sqrt(2) * math.pi / 2)


def test_tolerance_and_rank():
    a = _low_rank(20, 6, 2, n=1) + 1e-9 * RNG.normal(size=(1, 20, 6))
    assert leakage.subspace_distance(a, a).ranks == (6, 6)
    assert leakage.subspace_distance(a, a, rtol=1e-6).ranks == (2, 2)
    assert leakage.subspace_distance(a, a, rank=1).ranks == (1, 1)
    single = torch.from_numpy(a).float()
    assert leakage.subspace_distance(single, single).ranks == (2, 2)


def test_unequal_sets():
    # The inflation: the same distribution on both sides, a mean of 400 against a mean of 4.
    signal = _low_rank(30, 8, 1)[0]
    many, few = (signal + RNG.normal(size=(n, 30, 8)) for n in (400, 4))
    with pytest.raises(ValueError, match=r"must hold equally many gradients, got 400 and 4; unequal sets inflate"):
        leakage.subspace_distance(many, few)
    drawn = leakage.subspace_distance(many, few, seed=1)
    assert drawn.set_sizes == (4, 4)
    assert drawn.value == leakage.subspace_distance(many, few, seed=1).value


def test_layers_and_attributes():
    a, b, c = (RNG.normal(size=(4, 10, 3)) for _ in range(3))
    measured = leakage.subspace_distance({"x": {"1": a, "2": b}, "y": {"1": a}}, {"x": {"1": b, "2": c}, "y": {"1": c}})
    assert measured["x"]["2"].value == leakage.subspace_distance(b, c).value
    assert measured["y"]["1"].value == leakage.subspace_distance(a, c).value
    with pytest.raises(
        ValueError, match=r"`grads_without` and `grads_with` must have the same keys.*got \['1'\] and \['2'\]"
    ):
        leakage.subspace_distance({"1": a}, {"2": b})


def test_null():
    # Two far means stand out of their null; one and the same distribution does not, however far its means lie.
    signal, other = _low_rank(30, 6, 2)[0], _low_rank(30, 6, 2)[0]
    noise = RNG.normal(size=(2, 40, 30, 6)) * 0.3
    apart = leakage.subspace_distance(signal + noise[0], other + noise[1], rank=2, permutations=19, seed=0)
    alike = leakage.subspace_distance(signal + noise[0], signal + noise[1], rank=2, permutations=19, seed=0)
    assert apart.p_value == 0.05
    assert apart.above_null > 0.5
    assert alike.value > 0
    assert alike.p_value > 0.05
    assert alike.null.shape == (19,)
    assert math.isnan(leakage.subspace_distance(noise[0], noise[1]).null_mean)
    with pytest.raises(ValueError, match="`seed` is required with permutations"):
        leakage.subspace_distance(noise[0], noise[1], permutations=2)


def test_bad_input():
    good = np.ones((2, 3, 4))
    with pytest.raises(
        ValueError, match=r"`grads_without` must have shape \(n, out, \.\.\.\), none of them 0, got \(3, 4\)"
    ):
        leakage.subspace_distance(good[0], good)
    with pytest.raises(ValueError, match=r"`grads_with` must be gradients .*got shapes \(2, 3, 5\) and \(2, 3, 4\)"):
        leakage.subspace_distance(good, np.ones((2, 3, 5)))
    with pytest.raises(ValueError, match=r"grads_with.*must be finite"):
        leakage.subspace_distance(good, good * np.nan)
    with pytest.raises(ValueError, match=r"`rank` must be in \[1, 3\], got 4"):
        leakage.subspace_distance(good, good, rank=4)


@pytest.mark.full
def test_rounding_of_permutations():
    """Two of the 20 ways to choose three of six give the sets themselves: no p-value is below 2/20 except by chance."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 6, 2)), rng.normal(size=(3, 6, 2))
    b[:, :3] += 50
    a[:, 3:] += 50
    for seed in range(4):
        measured = leakage.subspace_distance(a, b, permutations=999, seed=seed)
        # P(fewer) < 1e-4 if each permutation is one of the two with probability 1/10.
        assert measured.p_value * 1000 >= stats.binom.ppf(1e-4, 999, 0.1)


@pytest.mark.full
def test_paired_null():
    """Pairs of two kinds, far apart, whose members differ by noise alone: dealt at random, kinds part the sets' means
    (a null too wide); swapped within pairs, the p-value is uniform (chi-square over 40 draws, p > 1e-4)."""
    rng = np.random.default_rng(3)
    kinds = rng.normal(size=(2, 12, 3)) * 20
    inside, anyhow = [], []
    for seed in range(40):
        sets = kinds[np.arange(12) % 2] + rng.normal(size=(2, 12, 12, 3))
        paired = leakage.subspace_distance(*sets, permutations=19, paired=True, seed=seed)
        inside.append(paired.p_value)
        anyhow.append(leakage.subspace_distance(*sets, permutations=19, seed=seed).null_mean / paired.null_mean)
    counts = np.histogram(inside, bins=[0, 0.275, 0.525, 0.775, 1.025])[0]
    assert stats.chisquare(counts).pvalue > 1e-4
    assert np.median(anyhow) > 1.5
    with pytest.raises(ValueError, match=r"must hold equally many gradients with paired=True, got 6 and 5"):
        leakage.subspace_distance(sets[0][:6], sets[1][:5], paired=True, seed=0)
