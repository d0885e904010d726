"""Monte-Carlo estimates, the paper's interval, and the samples that they and the certificate share."""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds
from leakcore.bounds.methods import DKW, MonteCarlo
from leakcore.bounds.methods.certified import certify, dual_thresholds
from leakcore.bounds.methods.pairs import MixturePair

SETTINGS = [(1.0, 0.1, 10, 0.1), (0.8, 0.3, 5, 0.01), (2.0, 1.0, 4, 0.5)]


class GaussianPair:
    """N(s, 1) against N(0, 1), drawn by NumPy: a pair from outside, quick to sample, with a known B_κ."""

    def __init__(self, separation: float) -> None:
        self.separation = separation

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        s = self.separation
        # Sample i is a function of (seed, i): one generator, advanced.
        generator = np.random.Generator(np.random.PCG64DXSM(seed).advance(first_sample))
        from scipy import special

        x = special.ndtri(generator.random(num_samples)) + (s if under == "alternative" else 0.0)
        return s * x - 0.5 * s * s


def _coverage(repeats: int, count: int, confidence: float, setting: tuple[float, float, int, float]) -> tuple[int, int]:
    sigma, rate, steps, kappa = setting
    truth = bounds.reconstruction(sigma, rate, steps, kappa=kappa).log_value
    pair = MixturePair(sigma, rate, steps)
    low = high = 0
    for seed in range(repeats):
        limits = certify(
            pair, np.array([math.log(kappa)]), num_samples=count, confidence=confidence, seed=seed, executor=None
        )
        low += limits.log_low[0] > truth
        high += limits.log_high[0] < truth
    return low, high


# κN = 2 and 0.2, the calibration of ε = 100 (where draws of ν never meet the mass of μ), many quiet steps, a large κ.
SIX = [*SETTINGS[:2], (1.0, 0.1, 10, 0.001), (1.0, 1.0, 1, 0.0001), (0.9466991403, 1.0, 100, 0.1), (2.5, 0.02, 50, 0.9)]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("repeats", "setting"),
    [*((100, s) for s in SETTINGS), *(pytest.param(2000, s, marks=pytest.mark.slow) for s in SIX)],
)
def test_certificate_coverage(repeats: int, setting: tuple[float, float, int, float]) -> None:
    low, high = _coverage(repeats, 2000, 0.9, setting)
    # P(more misses) < 0.1% if each repetition misses with 10% in all, 5% on each side.
    assert low + high <= stats.binom.ppf(0.999, repeats, 0.1)
    assert max(low, high) <= stats.binom.ppf(0.999, repeats, 0.05)


def test_negative_control_printed_estimator() -> None:
    # Algorithm 1's estimate lies below the truth more often than not; taken for an upper bound it would fail
    # the test above.
    sigma, rate, steps, kappa = 1.0, 1.0, 9, 0.01
    truth = bounds.reconstruction(sigma, rate, steps, kappa=kappa).value
    repeats = 200
    below = sum(
        bounds.reconstruction(sigma, rate, steps, kappa=kappa, method=MonteCarlo(2000, seed, under="null")).value
        < truth
        for seed in range(repeats)
    )
    assert below > repeats / 2
    assert below > stats.binom.ppf(0.999, repeats, 0.1)


def test_certificate_width() -> None:
    bound = bounds.reconstruction(1.0, 0.1, 10, kappa=[0.001, 0.1], method="certified", num_samples=1_000_000, seed=1)
    truth = bounds.reconstruction(1.0, 0.1, 10, kappa=[0.001, 0.1]).value
    low, high = bound.interval
    assert (low <= truth).all()
    assert (truth <= high).all()
    assert (high - truth < 0.003).all()
    assert (truth - low < 0.007).all()
    np.testing.assert_array_equal(bound.value, high)
    assert bound.kind == "upper"
    assert bound.confidence == 0.999


def test_certificate_where_estimator_collapses() -> None:
    # q = 1, T = 100, ε = 100: draws of ν never meet the mass of μ.
    arguments = (0.9466991403, 1.0, 100)
    collapsed = bounds.reconstruction(*arguments, kappa=0.1, method=MonteCarlo(100_000, under="null"))
    assert collapsed.value < 0.5
    assert collapsed.warnings
    certified = bounds.reconstruction(*arguments, kappa=0.1, method="certified", num_samples=100_000)
    assert certified.interval[0] > 0.99
    assert certified.value == pytest.approx(1.0, abs=1e-12)
    good = bounds.reconstruction(*arguments, kappa=0.1, method="monte-carlo", num_samples=100_000)
    assert good.value == pytest.approx(1.0, abs=1e-6)


def test_certificates_with_executors() -> None:
    arguments = {"kappa": [0.5, 0.01], "method": "certified", "num_samples": 2_300_000, "seed": 9, "confidence": 0.99}
    alone = bounds.reconstruction(1.0, 0.2, 3, **arguments)
    with ThreadPoolExecutor(2) as pool:
        threads = bounds.reconstruction(1.0, 0.2, 3, executor=pool, **arguments)
    with ProcessPoolExecutor(2) as pool:
        processes = bounds.reconstruction(1.0, 0.2, 3, executor=pool, **arguments)
    other = bounds.reconstruction(1.0, 0.2, 3, **(arguments | {"seed": 10}))
    for bound in (threads, processes):
        np.testing.assert_array_equal(bound.log_interval, alone.log_interval)
    # Negative control: another seed does change the bits.
    assert (np.asarray(other.log_interval) != np.asarray(alone.log_interval)).any()


@pytest.mark.full
def test_estimates_with_executors() -> None:
    def each(method: MonteCarlo | DKW, pool: ThreadPoolExecutor) -> list[bounds.ReconstructionBound]:
        both = (dataclasses.replace(method, executor=executor) for executor in (None, pool))
        return [bounds.reconstruction(1.0, 0.2, 3, kappa=[0.5, 0.01], method=one) for one in both]

    with ThreadPoolExecutor(3) as pool:
        for under in ("alternative", "null"):
            alone, shared = each(MonteCarlo(2_300_000, seed=9, under=under), pool)
            np.testing.assert_array_equal(shared.log_value, alone.log_value)
            np.testing.assert_array_equal(shared.standard_error, alone.standard_error)
        alone, shared = each(DKW(2_300_000, seed=9), pool)
        np.testing.assert_array_equal(shared.log_interval, alone.log_interval)


@pytest.mark.parametrize("under", ["null", "alternative"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_precision_of_estimates(setting: tuple[float, float, int, float], under: str) -> None:
    sigma, rate, steps, kappa = setting
    truth = bounds.reconstruction(sigma, rate, steps, kappa=kappa).value
    scores = []
    for seed in range(40):
        bound = bounds.reconstruction(sigma, rate, steps, kappa=kappa, method=MonteCarlo(20_000, seed, under=under))
        assert bound.kind == "estimate"
        assert bound.confidence is None
        scores.append((bound.value - truth) / bound.standard_error)
    # 40 standardised errors: mean within 4/√40 and spread within a χ² interval of p = 1e-4 on each side.
    assert abs(np.mean(scores)) < 4.0 / math.sqrt(40)
    total = float(np.sum((np.array(scores) - np.mean(scores)) ** 2))
    assert stats.chi2.ppf(1e-4, 39) < total < stats.chi2.ppf(1 - 1e-4, 39)


def test_erratum_1_printed_factor() -> None:
    # q = T = σ = 1, κ = 0.1: exact 0.3891; dividing by N′ as printed would give 3.89.
    bound = bounds.reconstruction(1.0, 1.0, 1, kappa=0.1, method=MonteCarlo(under="null"))
    assert bound.value == pytest.approx(0.389143691645361, abs=5 * bound.standard_error)
    assert bound.value / 0.1 > 3.8


def test_spread_of_the_alternative() -> None:
    def errors(under: str) -> float:
        return float(
            bounds.reconstruction(
                0.5905018365, 0.01, 100, kappa=0.01, method=MonteCarlo(50_000, under=under)
            ).standard_error
        )

    assert errors("alternative") < errors("null") / 2.0


def test_pair_from_outside() -> None:
    truth = bounds.reconstruction(1.0 / 1.5, 1.0, 1, kappa=[0.001, 0.1, 0.9]).value
    bound = bounds.reconstruction_of(GaussianPair(1.5), kappa=[0.001, 0.1, 0.9], num_samples=300_000, seed=4)
    low, high = bound.interval
    assert (low <= truth).all()
    assert (truth <= high).all()
    assert (high - low < 0.03).all()
    assert bound.adjacency is None
    assert any("caller's theorem" in note for note in bound.assumptions.notes)
    stated = bounds.StatedPair(GaussianPair(1.5), adjacency="replacement")
    assert bounds.reconstruction_of(stated, kappa=0.1, num_samples=1000).adjacency == "replace"


def test_pair_that_sees_everything() -> None:
    class Revealed:
        def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
            return np.full(num_samples, np.inf)

    low, high = bounds.reconstruction_of(Revealed(), kappa=0.1, num_samples=10_000).interval
    assert low > 0.99
    assert high == 1.0


def test_bad_pairs() -> None:
    class Nan(GaussianPair):
        def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
            return np.full(num_samples, np.nan)

    class Short(GaussianPair):
        def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
            return np.zeros(3)

    with pytest.raises(TypeError, match="sample_log_ratio"):
        bounds.reconstruction_of(object(), kappa=0.1)
    with pytest.raises(ValueError, match="NaN"):
        bounds.reconstruction_of(Nan(1.0), kappa=0.1, num_samples=100)
    with pytest.raises(ValueError, match="shape"):
        bounds.reconstruction_of(Short(1.0), kappa=0.1, num_samples=100)
    with pytest.raises(
        ValueError, match=r"`num_samples` must be at least \d+ for any limit at confidence=0\.999, got 1"
    ):
        bounds.reconstruction_of(GaussianPair(1.0), kappa=0.1, num_samples=1)


def test_dual_threshold() -> None:
    sample = np.random.default_rng(3).normal(0.5, 1.0, 4000)
    for kappa in (0.5, 0.03):
        t = dual_thresholds(sample, np.log([kappa]))[0]

        def dual(at: float, kappa: float = kappa) -> float:
            return kappa * math.exp(at) + float(np.maximum(1.0 - np.exp(at - sample), 0.0).mean())

        assert dual(t) <= min(dual(at) for at in np.linspace(sample.min() - 1, sample.max() + 1, 2001)) + 1e-5


KAPPA = np.array([1e-6, 1e-3, 0.01, 0.1, 0.5])


@pytest.mark.parametrize("setting", [(1.0, 0.1, 10), (10.0, 1.0, 100), (0.5905018365, 0.01, 100)])
def test_widths_of_intervals(setting: tuple[float, float, int]) -> None:
    truth = bounds.reconstruction(*setting, kappa=KAPPA).value
    widths = {}
    for name, bound in {
        "dkw": bounds.reconstruction(*setting, kappa=KAPPA, method="dkw-bennett", num_samples=200_000),
        "certified": bounds.reconstruction(*setting, kappa=KAPPA, method="certified", num_samples=200_000),
        "importance": bounds.reconstruction(*setting, kappa=KAPPA, method="importance", num_samples=200_000),
    }.items():
        low, high = bound.interval
        assert (low <= truth).all(), name
        assert (truth <= high).all(), name
        widths[name] = high - low
    assert (widths["certified"] < widths["dkw"]).all()
    assert (widths["importance"] < widths["dkw"]).all()
    assert widths["importance"][0] < 0.1 * truth[0]
    # Vacuous from below at κ = 1e-3: η is larger than κ.
    eta = math.sqrt(math.log(4 / 0.001) / 400_000)
    assert eta > 1e-3
    vacuous = bounds.reconstruction(*setting, kappa=1e-3, method="dkw-bennett", num_samples=200_000)
    assert vacuous.interval[0] <= 1e-3


def test_dkw_limits_and_errors() -> None:
    bound = bounds.reconstruction(math.inf, 0.1, 3, kappa=[0.1, 1.0], method=DKW(1000))
    assert bound.kind == "estimate"
    assert bound.interval[1][1] == 1.0
    assert bound.value[0] == pytest.approx(0.1)
    # Draws of ν that never meet the mass of μ: the interval says nothing, rather than something false.
    wild = bounds.reconstruction(0.9466991403, 1.0, 100, kappa=0.1, method=DKW(10_000))
    assert wild.interval[1] == 1.0
    with pytest.raises(ValueError, match="`noise_multiplier` must be positive, got 0"):
        bounds.reconstruction(0.0, 0.1, 3, kappa=0.1, method=DKW())
    with pytest.raises(ValueError, match=r"`num_samples` must be in \[2, 67108864\], got 67108865"):
        DKW((1 << 26) + 1)


def test_method_by_its_own_name() -> None:
    named = bounds.reconstruction_dkw(1.0, 0.3, 5, kappa=0.1, num_samples=5000, confidence=0.99, seed=3)
    method = bounds.methods.DKW(num_samples=5000, confidence=0.99, seed=3)
    assert named.to_dict() == bounds.reconstruction(1.0, 0.3, 5, kappa=0.1, method=method).to_dict()
