"""Jobs of numbers alone: accounting, a curve of bounds, scores of an audit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.jobs.job import Call, Doer, Job

CONFIGURATIONS = (
    # noise_multiplier, sample_rate, steps, delta: trainings that papers describe, from MNIST to language models.
    (1.1, 256 / 60_000, 14_000, 1e-5), (4.0, 600 / 60_000, 10_000, 1e-5), (0.7, 0.004, 4_500, 1e-5),
    (1.5, 4096 / 50_000, 2_000, 1e-5), (9.4, 16_384 / 50_000, 875, 1e-5), (2.5, 16_384 / 1_281_167, 72_000, 8e-7),
    (1.0, 0.01, 1_000, 1e-6), (0.6, 0.001, 20_000, 1e-7),
)  # fmt: skip
SIZED = (1.1, 0.01, 1e-5)
_PART = 50


def _told(numbers: list[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in numbers]


def _accounting(size: Mapping[str, int]) -> Call:
    from leakcore import accounting

    def one(sigma: float, rate: float, steps: int, delta: float) -> list[float]:
        how: dict[str, Any] = {"adjacency": "add-remove"}
        epsilon = float(accounting.epsilon(sigma, rate, steps, delta=delta, **how).value)
        noise = float(accounting.noise_multiplier(rate, steps, epsilon=epsilon, delta=delta, **how).value)
        return [epsilon, noise, float(accounting.delta(sigma, rate, steps, epsilon=epsilon, **how).value)]

    one(1.0, 0.5, 1, 1e-5)  # imports what it needs
    if "steps" in size:
        sigma, rate, delta = SIZED
        return lambda: one(sigma, rate, size["steps"], delta)
    return lambda: _told([n for row in CONFIGURATIONS for n in one(*row)])


def _dp_accounting(size: Mapping[str, int]) -> Call:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def event(sigma: float, rate: float, steps: int) -> Any:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, steps)

    def one(sigma: float, rate: float, steps: int, delta: float) -> list[float]:
        epsilon = PLDAccountant().compose(event(sigma, rate, steps)).get_epsilon(delta)
        noise = dp_accounting.calibrate_dp_mechanism(
            PLDAccountant, lambda s: event(s, rate, steps), epsilon, delta, tol=1e-4
        )
        return [epsilon, noise, PLDAccountant().compose(event(sigma, rate, steps)).get_delta(epsilon)]

    return lambda: _told([n for row in CONFIGURATIONS for n in one(*row)])


def _opacus_prv(size: Mapping[str, int]) -> Call:
    import warnings

    from opacus.accountants import PRVAccountant
    from opacus.accountants.utils import get_noise_multiplier

    warnings.filterwarnings("ignore")

    def one(sigma: float, rate: float, steps: int, delta: float) -> list[float]:
        accountant = PRVAccountant()
        accountant.history = [(sigma, rate, steps)]
        epsilon = accountant.get_epsilon(delta)
        return [epsilon, get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant="prv",
            epsilon_tolerance=1e-3,
        )]  # fmt: skip

    return lambda: _told([n for row in CONFIGURATIONS for n in one(*row)])


def _jax_privacy(size: Mapping[str, int]) -> Call:
    from jax_privacy.accounting import accountants, analysis, calibrate

    accountant = analysis.DpsgdTrainingAccountant(dp_accountant_config=accountants.PldAccountantConfig())
    rows = 10**6

    def one(sigma: float, rate: float, steps: int, delta: float) -> list[float]:
        batch = round(rate * rows)
        stated = analysis.DpParams(noise_multipliers=sigma, num_samples=rows, delta=delta, batch_size=batch)
        epsilon = float(accountant.compute_epsilon(steps, stated))
        return [epsilon, calibrate.calibrate_noise_multiplier(
            target_epsilon=epsilon, accountant=accountant, batch_sizes=batch, num_updates=steps, num_samples=rows,
            target_delta=delta, tol=1e-3,
        )]  # fmt: skip

    return lambda: _told([n for row in CONFIGURATIONS for n in one(*row)])


def _curve(size: Mapping[str, int]) -> Call:
    from leakcore import bounds

    kappa = np.logspace(-4, -0.5, size["kappas"])
    bounds.reconstruction(1.0, 0.5, 1, kappa=0.1)

    def run() -> list[float]:
        bound = bounds.reconstruction(1.1, 0.01, size["steps"], kappa=kappa)
        return _told([float(bound.value[0]), float(bound.value[-1])])

    return run


def _curve_by_sampling(size: Mapping[str, int]) -> Call:
    """Hayes et al.'s Algorithm 1 and its inverse: sort log ratios of both worlds, in NumPy. A part of the steps."""
    sigma, rate, samples, kappa = 1.1, 0.01, 10**6, np.logspace(-4, -0.5, size["kappas"])
    rng = np.random.default_rng(0)

    def ratios(inside: bool) -> np.ndarray:
        total = np.zeros(samples)
        for _ in range(size["steps"] // _PART):
            x = rng.standard_normal(samples) * sigma
            if inside:
                x += rng.random(samples) < rate
            total += np.log1p(rate * np.expm1((2 * x - 1) / (2 * sigma**2)))
        return np.sort(total)

    def run() -> list[float]:
        without, within = ratios(False), ratios(True)
        threshold = np.quantile(without, 1 - kappa)
        success = 1 - np.searchsorted(within, threshold) / samples
        return _told([float(success[0]), float(success[-1])])

    return run


def _scores(size: Mapping[str, int]) -> Call:
    from leakcore import bounds

    how: dict[str, Any] = {"threshold": bounds.SimultaneousThreshold(), "confidence": 0.95, "delta": 1e-5}

    def prove(members: np.ndarray, others: np.ndarray) -> list[float]:
        bound = bounds.epsilon_lower_bound_from_scores(members, others, adjacency="replace", **how)
        return _told([float(bound.value)])

    prove(np.arange(9.0), np.arange(9.0))
    scores = _normal_scores(size["a_side"])
    return lambda: prove(*scores)


def _scores_by_jax_privacy(size: Mapping[str, int]) -> Call:
    from jax_privacy import auditing

    members, others = _normal_scores(size["a_side"])
    return lambda: _told([float(auditing.CanaryScoreAuditor(members, others).epsilon_clopper_pearson(0.05, 1e-5))])


def _scores_by_scipy(size: Mapping[str, int]) -> Call:
    from scipy import stats
    from sklearn import metrics

    members, others = _normal_scores(size["a_side"])
    n = size["a_side"]

    def run() -> list[float]:
        labels = np.concatenate([np.ones(n), np.zeros(n)])
        fpr, tpr, _ = metrics.roc_curve(labels, np.concatenate([members, others]))
        tries = math.ceil(len(fpr) * 2)
        false, true = np.rint(fpr * n), np.rint(tpr * n)
        most = stats.beta.ppf(1 - 0.05 / tries, false + 1, n - false)
        least = stats.beta.ppf(0.05 / tries, true, n - true + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return _told([float(np.nanmax(np.log(np.maximum(least - 1e-5, 0) / most)))])

    return run


def _normal_scores(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(1.0, size=n), rng.normal(size=n)


JOBS = {
    "accounting": Job(
        "ε, σ and δ of eight DP-SGD configurations",
        {
            "leakcore": Doer(_accounting),
            "dp-accounting, PLD": Doer(_dp_accounting),
            "jax_privacy": Doer(_jax_privacy, "ε and σ only"),
            "Opacus, PRV": Doer(_opacus_prv, "ε and σ only"),
        },
        {},
        {"steps": (100, 1_000, 10_000, 100_000)},
    ),
    "curve": Job(
        "a reconstruction bound at 100 κ, 1,000 steps",
        {
            "leakcore": Doer(_curve),
            "the paper's algorithm in NumPy": Doer(
                _curve_by_sampling,
                f"an estimate from 10⁶ samples, no guarantee; 1/{_PART} of the steps, times {_PART}",
                1 / _PART,
            ),
        },
        {"kappas": 100, "steps": 1_000},
        {"kappas": (10, 100, 1_000), "steps": (100, 1_000, 10_000)},
    ),
    "scores": Job(
        "the ε that 2·10⁶ scores a side prove",
        {
            "leakcore": Doer(_scores),
            "jax_privacy": Doer(_scores_by_jax_privacy, "thresholds by Bonferroni"),
            "scikit-learn and SciPy": Doer(_scores_by_scipy, "thresholds by Bonferroni, by hand"),
        },
        {"a_side": 2_000_000},
        {"a_side": (20_000, 200_000, 2_000_000)},
    ),
}
