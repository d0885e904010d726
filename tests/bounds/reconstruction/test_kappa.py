"""Blind success probabilities: samples (with the erratum's counterexample), pixels, bad input."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds


def test_erratum_8_sample_centred_balls() -> None:
    # Points on a 50-sphere of radius 1: the ball of radius 1 about the origin holds all, those about samples few.
    points = np.random.default_rng(3).standard_normal((800, 51))
    points /= np.linalg.norm(points, axis=1)[:, None]
    bound = bounds.kappa_from_samples(points, 1.0)
    assert bound.value == 1.0
    assert bound.estimate is not None
    assert bound.estimate < 0.01
    assert bound.kind == "upper"
    assert bound.confidence == 0.99


def test_counts_by_hand() -> None:
    # 0, 1, 2 on a line and two far points: within 2η = 1 of the middle one there are 3 of 5.
    bound = bounds.kappa_from_samples(np.array([[0.0], [1.0], [2.0], [50.0], [90.0]]), 0.5, confidence=0.95)
    assert bound.value == pytest.approx(stats.beta.ppf(0.95, 4, 2), rel=1e-9)
    assert bound.estimate == 1 / 5
    assert bound.log_value == pytest.approx(math.log(bound.value))


@pytest.mark.parametrize("metric", ["euclidean", "manhattan", "chebyshev", "hamming"])
def test_metrics_against_direct_counts(metric: str) -> None:
    from scipy.spatial.distance import cdist

    name = {"manhattan": "cityblock"}.get(metric, metric)
    points = np.random.default_rng(5).integers(0, 8, (300, 6)).astype(float)
    distance = cdist(points, points, name) * (6 if metric == "hamming" else 1)
    radius = 1.5
    expected = [int((distance <= r * (1 + 1e-9)).sum(axis=1).max()) for r in (radius, 2 * radius)]
    bound = bounds.kappa_from_samples(points, radius, metric=metric, confidence=0.9)
    assert bound.estimate == expected[0] / 300
    assert bound.value == pytest.approx(stats.beta.ppf(0.9, expected[1] + 1, 300 - expected[1]), rel=1e-9)
    own = bounds.kappa_from_samples(
        points, radius, metric=lambda a, b: cdist(a, b, name) * (6 if metric == "hamming" else 1), confidence=0.9
    )
    assert own.value == bound.value


def test_block_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(6).standard_normal((500, 3))
    whole = bounds.kappa_from_samples(points, 0.3).value
    monkeypatch.setattr(sys.modules["leakcore.bounds.reconstruction.kappa"], "_BLOCK_BYTES", 8 * 2048 * 37)
    assert bounds.kappa_from_samples(points, 0.3).value == whole


@pytest.mark.full
def test_limit_covers() -> None:
    # Uniform on [0, 1], η = 0.05: the best centre holds 0.1. Misses at 90% over 300 samples: below the 99.9% limit.
    rng = np.random.default_rng(9)
    repeats = 300
    misses = sum(
        float(bounds.kappa_from_samples(rng.random((60, 1)), 0.05, confidence=0.9).value) < 0.1 for _ in range(repeats)
    )
    assert misses <= stats.binom.ppf(0.999, repeats, 0.1)


def test_pixels() -> None:
    assert bounds.kappa_pixels(784).log_value == pytest.approx(-784 * math.log(4), rel=1e-14)
    assert bounds.kappa_pixels(3072).log_value == pytest.approx(-3072 * math.log(4), rel=1e-14)
    # E9: at ρ = .6 the printed 4^{-dρ} is 1e-283, the truth 1e-95.
    part = bounds.kappa_pixels(784, fraction=0.6)
    exact = sum(
        Fraction(math.comb(784, k)) * Fraction(1, 4) ** k * Fraction(3, 4) ** (784 - k)
        for k in range(math.ceil(0.6 * 784), 785)
    )
    assert part.log_value == pytest.approx(math.log(exact.numerator) - math.log(exact.denominator), rel=1e-12)
    assert -95.5 < part.log_value / math.log(10) < -94.5
    # .1 · 30 = 3.0000000000000004 in floats: 3 pixels, not 4.
    assert bounds.kappa_pixels(30, fraction=0.1).value == pytest.approx(stats.binom.sf(2, 30, 0.25), rel=1e-11)
    assert bounds.kappa_pixels(5, fraction=0.0).value == 1.0
    assert bounds.kappa_pixels(5, pixel_probability=1.0).value == 1.0
    assert bounds.kappa_pixels(100_000, fraction=0.5).log_value < -1e4


def test_pixel_tail_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ((3000, 0.5), (20_000, 0.3), (20_000, 0.9))
    whole = [bounds.kappa_pixels(n, fraction=f).log_value for n, f in sizes]
    assert min(whole) < -700
    monkeypatch.setattr(sys.modules["leakcore.bounds.reconstruction.kappa"], "_TERMS", 100)
    for (n, f), wanted in zip(sizes, whole, strict=True):
        assert bounds.kappa_pixels(n, fraction=f).log_value == pytest.approx(wanted, rel=1e-14)
    monkeypatch.undo()
    # A billion pixels: log P(half or more right) is −n·KL(1/2, 1/4) to first order.
    rate = 0.5 * math.log(2.0) + 0.5 * math.log(0.5 / 0.75)
    assert bounds.kappa_pixels(10**9, fraction=0.5).log_value == pytest.approx(-(10**9) * rate, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bounds.kappa_from_samples(np.zeros((0, 3)), 1.0),
            r"`samples` must have at least one row and one column, got shape \(0, 3\)",
        ),
        (lambda: bounds.kappa_from_samples([[math.nan]], 1.0), "samples"),
        (lambda: bounds.kappa_from_samples([[1.0]], -1.0), r"`radius` must be at least 0, got -1.0"),
        (
            lambda: bounds.kappa_from_samples([[1.0]], 1.0, metric="cosine"),
            r"`metric` must be 'euclidean',.*, got 'cosine'",
        ),
        (
            lambda: bounds.kappa_from_samples([[1.0]], 1.0, metric=lambda a, b: np.zeros(3)),
            r"`metric` must return shape \(1, 1\).*, got \(3,\)",
        ),
        (lambda: bounds.kappa_from_samples([[1.0]], 1.0, metric=lambda a, b: np.full((1, 1), -1.0)), "negative"),
        (
            lambda: bounds.kappa_from_samples([[1.0]], 1.0, confidence=1.0),
            r"`confidence` must be in \(0, 1 - 1e-12\], got 1.0",
        ),
        (lambda: bounds.kappa_pixels(0), "`num_pixels` must be at least 1, got 0"),
        (lambda: bounds.kappa_pixels(4, fraction=1.1), r"`fraction` must be in \[0, 1\], got 1.1"),
        (lambda: bounds.kappa_pixels(4, pixel_probability=0.0), r"`pixel_probability` must be in \(0, 1\], got 0\.0"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# (d, ρ, p, log κ) with mpmath at 40 digits: the leading term by loggamma, the others by ratios.
TAILS = [
    (784, 0.6, 0.25, -218.88044576418763),
    (196608, 0.25, 0.25, -0.6914171589501146),
    (10**6, 0.2505, 0.25, -2.0846049878332656),
    (10**5, 0.3, 0.25, -644.53740146709975),
    (10**4, 0.9, 0.25, -9517.7840743783892),
]


@pytest.mark.parametrize(("pixels", "fraction", "chance", "truth"), TAILS)
def test_pixel_rounding(pixels: int, fraction: float, chance: float, truth: float) -> None:
    bound = bounds.kappa_pixels(pixels, fraction=fraction, pixel_probability=chance).log_value
    allowed = 4e-12 if truth > math.log(1e-280) else 2e-14 * pixels * math.log(pixels)
    assert truth <= bound <= truth + allowed


def test_black_guess_on_real_digits():
    """κ of 64 uniform pixels at ρ = 0.4 is below 1%; an all-black guess has them right in over 90% of digits."""
    from sklearn.datasets import load_digits

    images = load_digits().data / 16
    bound = bounds.kappa_pixels(64, fraction=0.4)
    black = float(((images <= 32 / 255).mean(axis=1) >= 0.4).mean())
    assert bound.value < 0.01 < 0.9 < black
    notes = " ".join(bound.assumptions.notes)
    assert "uniform" in notes
    assert "all-black guess" in notes
