"""Mechanisms, their compositions, claims, events of dp-accounting, and the table of schemes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import accounting, bounds, mechanisms
from leakcore.mechanisms import schemes

DELTA = 1e-5
SHUFFLED = mechanisms.Shuffled(1.0, 10, 1)


def test_three_numbers():
    training = mechanisms.Poisson(1.0, 0.01, 100)
    assert accounting.epsilon(training, delta=DELTA) == accounting.epsilon(1.0, 0.01, 100, delta=DELTA)
    assert bounds.reconstruction(training, kappa=0.1) == bounds.reconstruction(1.0, 0.01, 100, kappa=0.1)
    assert bounds.membership(training, fpr=0.1) == bounds.membership(1.0, 0.01, 100, fpr=0.1)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_gaussian_composition(adjacency):
    parts = mechanisms.FullBatch(2.0, 4) @ mechanisms.FullBatch(3.0, 9)
    mu = math.sqrt(4 / 4 + 9 / 9) * (2.0 if adjacency == "replace" else 1.0)
    wanted = accounting.epsilon(mechanisms.GDP(mu), delta=DELTA).value
    assert accounting.epsilon(parts, delta=DELTA, adjacency=adjacency).value == pytest.approx(wanted, rel=1e-9)


def test_gaussian_composition_on_the_lattice():
    # The claim that says nothing has no closed form together with another mechanism.
    nothing = mechanisms.ApproximateDP(0.0, 0.0)
    both = accounting.epsilon(mechanisms.GDP(1.0) @ nothing, delta=DELTA)
    alone = accounting.epsilon(mechanisms.GDP(1.0), delta=DELTA).value
    assert both.interval[0] - 1e-9 <= alone <= both.interval[1] + 1e-9
    assert both.interval[1] - both.interval[0] < 1e-5


@pytest.mark.full
def test_shuffled_bracket():
    training = mechanisms.Shuffled(0.7, 100, 1)
    spent = accounting.epsilon(training, delta=DELTA)
    low, high = spent.interval
    assert spent.value == high == pytest.approx(accounting.epsilon(0.7, 1.0, 1, delta=DELTA).value)
    assert spent.poisson_claim == accounting.epsilon(0.7, 0.01, 100, delta=DELTA).value
    assert spent.poisson_claim < low < high
    assert (spent.kind, spent.method, spent.adjacency) == ("upper", "bracket", "zero-out")
    bound = bounds.reconstruction(training, kappa=[0.01, 0.1])
    assert (bound.poisson_claim < bound.interval[0]).all()
    assert (bound.interval[0] < bound.value).all()


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("sigma", "batches"), [(0.5, 4), (1.0, 10), (1.0, 1000)])
def test_shuffled_lower_bound(sigma, batches):
    """The power of "M > c" on the very data sets, by its distribution functions, is no more than the lower bound's."""
    lower = accounting.epsilon(mechanisms.Shuffled(sigma, batches, 1), delta=DELTA).interval[0]

    def above(c, mean):
        return -np.expm1(stats.norm.logcdf((c - mean) / sigma) + (batches - 1) * stats.norm.logcdf(c / sigma))

    c = np.linspace(0.0, 2.0 + 10.0 * sigma, 4001)
    power, level = above(c, 2.0), above(c, 1.0)
    claimed = np.log(np.maximum(power - DELTA, 1e-300) / level).max()
    assert claimed <= lower + 1e-6
    assert claimed > 0.9 * lower  # one threshold does nearly as well as the likelihood ratio


@pytest.mark.full
def test_fixed_size():
    once = accounting.epsilon(mechanisms.FixedSize(1.0, 10, 1000, 1), delta=DELTA)
    assert once.method == "exact"
    assert once.interval[1] - once.interval[0] < 1e-4
    training = mechanisms.FixedSize(1.0, 10, 1000, 100)
    spent = accounting.epsilon(training, delta=DELTA)
    assert spent.adjacency == "replace"
    assert spent.method == "bracket"
    assert 0.95 * spent.value < spent.interval[0] < spent.value
    at = accounting.delta(training, epsilon=spent.value).value
    assert at == pytest.approx(DELTA, rel=1e-3)
    # Full batches leak more, and half of the rows more than a hundredth of them.
    more = accounting.epsilon(mechanisms.FixedSize(1.0, 500, 1000, 100), delta=DELTA).value
    assert spent.value < more < accounting.epsilon(mechanisms.FixedSize(1.0, 1000, 1000, 100), delta=DELTA).value


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    "training", [mechanisms.FixedSize(1.0, 10, 100, 20), mechanisms.ApproximateDP(1.0, 1e-3)], ids=["fixed", "claim"]
)
def test_exact_against_certified(training):
    kappa = [0.01, 0.1, 0.5]
    exact = bounds.reconstruction(training, kappa=kappa)
    sampled = bounds.reconstruction(training, kappa=kappa, method="certified", num_samples=200_000, seed=2)
    assert (exact.interval[0] <= sampled.interval[1]).all()
    assert (sampled.interval[0] <= exact.interval[1]).all()
    assert exact.assumptions.adjacency == sampled.assumptions.adjacency


def test_claims():
    claim = mechanisms.ApproximateDP(1.5, 1e-6)
    assert accounting.epsilon(claim, delta=1e-6).value == pytest.approx(1.5, abs=1e-9)
    assert accounting.epsilon(claim, delta=1e-7).value == math.inf
    assert accounting.epsilon(claim, delta=1e-3).value < 1.5
    # Twice (1.5, 1e-6) is no more than (3, 2e-6), by basic composition.
    assert accounting.epsilon(claim @ claim, delta=2e-6).value <= 3.0 + 1e-3
    assert bounds.reconstruction(claim, kappa=0.1).value == pytest.approx(0.1 * math.exp(1.5) + 1e-6, rel=1e-9)


@pytest.mark.full
@pytest.mark.parametrize("scheme", [mechanisms.Shuffled(1.0, 20, 3), mechanisms.FixedSize(1.0, 10, 1000, 50)])
def test_noise_multiplier(scheme):
    noise = accounting.noise_multiplier(scheme, epsilon=2.0, delta=DELTA).value
    assert accounting.epsilon(scheme.with_noise(noise), delta=DELTA).value <= 2.0 + 1e-9
    assert accounting.epsilon(scheme.with_noise(0.99 * noise), delta=DELTA).value > 2.0


def test_loss_directions():
    training = mechanisms.Poisson(1.0, 0.1, 10)
    spent = [training.loss(direction).epsilon(DELTA)[1] for direction in ("remove", "add")]
    assert max(spent) == pytest.approx(accounting.epsilon(training, delta=DELTA).value, rel=1e-9)
    low, high = training.loss("remove").delta(max(spent))
    assert low <= DELTA * (1.0 + 1e-6)
    assert high == pytest.approx(DELTA, rel=1e-6)


def test_composition_samples():
    both = mechanisms.FullBatch(2.0, 4) @ mechanisms.GDP(1.0)
    drawn = both.sample_log_ratio(100_000, "alternative", 5, 0)
    mu = math.sqrt(1.0 + 1.0)
    # N(μ²/2, μ²): a Kolmogorov–Smirnov test at p = 1e-4.
    assert stats.kstest(drawn, stats.norm(0.5 * mu * mu, mu).cdf).pvalue > 1e-4


def test_equality_and_json():
    one = mechanisms.Poisson([1.0, 2.0], 0.1, 2)
    assert one == mechanisms.Poisson(np.array([1.0, 2.0]), 0.1, 2)
    assert one != mechanisms.Poisson([1.0, 2.0], 0.2, 2)
    assert mechanisms.Poisson.from_dict(one.to_dict()) == one


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mechanisms.Shuffled(0.0, 10, 1), "noise_multiplier"),
        (lambda: mechanisms.Shuffled(1.0, 0, 1), "batches"),
        (lambda: mechanisms.FixedSize(1.0, 1, 2, 3) @ mechanisms.GDP(1.0, claimed_under="zero-out"), "`parts` must"),
        (
            lambda: accounting.epsilon(mechanisms.Shuffled(1.0, 10, 1), delta=DELTA, adjacency="add-remove"),
            "`adjacency`",
        ),
        (lambda: accounting.epsilon(SHUFFLED, delta=DELTA, method="rdp"), "`method` must be"),
        (lambda: bounds.reconstruction(SHUFFLED, kappa=0.1, method="pld"), "`method` must be"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_mechanism_instead_of_numbers():
    with pytest.raises(TypeError, match="`steps` must be left out"):
        accounting.epsilon(mechanisms.GDP(1.0), steps=3, delta=DELTA)
    with pytest.raises(TypeError, match="`sample_rate` must be passed"):
        accounting.epsilon(1.0, delta=DELTA)
    with pytest.raises(TypeError, match="noise_multiplier"):
        accounting.noise_multiplier(mechanisms.GDP(1.0), epsilon=1.0, delta=DELTA)


@pytest.mark.full
@pytest.mark.parametrize(
    "scheme",
    [mechanisms.Shuffled(1.0, 20, 3), pytest.param(mechanisms.FixedSize(1.0, 10, 1000, 50), marks=pytest.mark.slow)],
)
def test_calibrate_noise(scheme):
    noise = bounds.calibrate_noise(scheme, 0.3, kappa=0.1)
    assert bounds.reconstruction(scheme.with_noise(noise.value), kappa=0.1).value <= 0.3 + 1e-9
    assert bounds.reconstruction(scheme.with_noise(0.98 * noise.value), kappa=0.1).value > 0.3
    assert noise.savings > 1.0
    assert noise.adjacency == scheme.adjacency


def test_discrete_prior():
    prior = np.array([0.4, 0.3, 0.2, 0.05, 0.05])
    exact = bounds.discrete_prior(mechanisms.FullBatch(2.0, 1), prior=prior)
    # Composed with a claim that says nothing, it has no formula.
    composed = mechanisms.FullBatch(2.0, 1) @ mechanisms.ApproximateDP(0.0, 0.0)
    curve = bounds.discrete_prior(composed, prior=prior)
    assert exact.value * (1.0 - 1e-6) <= curve.value <= exact.value * 1.03
    assert curve.value <= curve.blow_up


def test_events():
    dp = pytest.importorskip("dp_accounting")
    step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
    assert mechanisms.from_event(dp.SelfComposedDpEvent(step, 1000)) == mechanisms.Poisson(1.0, 0.01, 1000)
    fixed = dp.SampledWithoutReplacementDpEvent(1000, 10, dp.GaussianDpEvent(1.0))
    assert mechanisms.from_event(dp.SelfComposedDpEvent(fixed, 5)) == mechanisms.FixedSize(1.0, 10, 1000, 5)
    assert mechanisms.from_event(dp.NoOpDpEvent()) == mechanisms.GDP(0.0)
    assert mechanisms.from_event(dp.ZCDpEvent(0.5)) == mechanisms.ZCDP(0.5, claimed_under="add-remove")
    both = mechanisms.from_event(dp.ComposedDpEvent([dp.SelfComposedDpEvent(step, 100), dp.GaussianDpEvent(5.0)]))
    assert both == mechanisms.Poisson(1.0, 0.01, 100) @ mechanisms.FullBatch(5.0, 1)


def test_events_against_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    step = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.2)), 200)
    event = dp.ComposedDpEvent([step, dp.GaussianDpEvent(4.0)])
    theirs = dp.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    ours = accounting.epsilon(mechanisms.from_event(event), delta=1e-5)
    assert ours.interval[0] <= theirs <= ours.value * 1.001


def test_other_events():
    dp = pytest.importorskip("dp_accounting")
    for event in (dp.NonPrivateDpEvent(), dp.SampledWithReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)), 3):
        with pytest.raises(ValueError, match="`event` must be an event"):
            mechanisms.from_event(event)


@pytest.mark.parametrize(("rho", "delta"), [(0.01, 1e-5), (0.5, 1e-5), (3.0, 1e-8)])
def test_zcdp_conversion(rho, delta):
    """A Gaussian of μ²/2 = ρ is ρ-zCDP; Bun and Steinke's ε = ρ + 2√(ρ·log(1/δ)) is looser."""
    spent = accounting.epsilon(mechanisms.ZCDP(rho), delta=delta).value
    assert accounting.epsilon(mechanisms.GDP(math.sqrt(2.0 * rho)), delta=delta).value < spent
    assert spent < rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))
    assert accounting.delta(mechanisms.ZCDP(rho), epsilon=spent).value == pytest.approx(delta, rel=1e-3)


@pytest.mark.full
def test_zcdp_composition():
    both = accounting.epsilon(mechanisms.ZCDP(0.5) @ mechanisms.GDP(1.0), delta=1e-5).value
    assert accounting.epsilon(mechanisms.GDP(math.sqrt(2.0)), delta=1e-5).value < both
    assert both < accounting.epsilon(mechanisms.ZCDP(1.0), delta=1e-5).value * 1.01


def test_zcdp_reconstruction():
    kappa = np.array([0.01, 0.1, 0.5])
    claimed = bounds.reconstruction(mechanisms.ZCDP(0.5), kappa=kappa).value
    assert (bounds.reconstruction(mechanisms.GDP(1.0), kappa=kappa).value < claimed).all()
    assert (claimed < 1.0).all()


VALUES: dict[str, Any] = {"sample_rate": 0.5, "steps": 3, "batch_size": 2, "dataset_size": 4, "batches": 5, "epochs": 6}


def _of(sampling: str) -> dict[str, Any]:
    return {name: VALUES[name] for name in schemes.SCHEMES[sampling].arguments}


@pytest.mark.parametrize(
    ("sampling", "mechanism"),
    [
        ("poisson", mechanisms.Poisson(2.0, 0.5, 3)),
        ("full", mechanisms.FullBatch(2.0, 3)),
        ("fixed", mechanisms.FixedSize(2.0, 2, 4, 3)),
        ("shuffled", mechanisms.Shuffled(2.0, 5, 6)),
        ("allocation", mechanisms.RandomAllocation(2.0, 5, 6)),
    ],
)
def test_schemes(sampling: str, mechanism: mechanisms.Mechanism) -> None:
    assert schemes.of_scheme(sampling, 2.0, _of(sampling)) == mechanism


@pytest.mark.parametrize("sampling", schemes.SCHEMES)
def test_scheme_arguments(sampling: str) -> None:
    own = _of(sampling)
    for name in schemes.ARGUMENTS:
        if name in own:
            with pytest.raises(ValueError, match=f"`{name}` must be given with sampling='{sampling}'"):
                schemes.of_scheme(sampling, 1.0, {**own, name: None})
        else:
            with pytest.raises(ValueError, match=f"`{name}` must be left out with sampling='{sampling}', got"):
                schemes.of_scheme(sampling, 1.0, {**own, name: VALUES[name]})
            assert sampling not in schemes.schemes_taking(name)


def test_unknown_scheme() -> None:
    with pytest.raises(ValueError, match="sampling"):
        schemes.of_scheme("cyclic", 1.0, {})


def test_scheme_words() -> None:
    assert schemes.scheme_words("shuffled", {"batches": 1}) == "1 shuffled batch an epoch"
    assert schemes.scheme_words("allocation", {"batches": 4}) == "random allocation to 4 batches an epoch"
    assert schemes.scheme_words("poisson", {"sample_rate": 1.0}) == "full batches"


def test_docs_follow_the_table() -> None:
    docs = Path(__file__).parents[2] / "docs" / "how-to"
    loaders = (docs / "which-mechanism.md").read_text(encoding="utf-8").splitlines()
    for name, scheme in schemes.SCHEMES.items():
        assert any(f"mechanisms.{scheme.mechanism}(" in row and f"`--sampling {name}`" in row for row in loaders), name
    keys = (docs / "config.md").read_text(encoding="utf-8")
    for argument in schemes.ARGUMENTS:
        takers = ", ".join(schemes.schemes_taking(argument))
        assert re.search(rf"^# {argument} +# {takers}: ", keys, re.MULTILINE), argument
