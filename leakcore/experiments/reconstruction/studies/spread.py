"""How much the Monte-Carlo estimate of the bound differs from call to call (Appendix A, "Estimating γ")."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from leakcore import bounds, kernels
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import mechanism as _mechanism
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import Check

_EPSILON = 10.0
_PRIORS = (2, 10, 100, 2048)
_PRINTED = {10_000: 0.019, 1_000_000: 0.0017}
_PIECE = {10_000: 50, 1_000_000: 2}
"""Calls per stored piece: seconds of work."""


@dataclasses.dataclass(frozen=True)
class _Mechanism:
    name: str
    sample_rate: float
    steps: int


_MECHANISMS = (_Mechanism("q = 1, T = 100", 1.0, 100), _Mechanism("q = 0.02, T = 1,000", 0.02, 1000))
"""Table 1 gives three rows the number of Figure 4: CIFAR-10 and the numbers of candidates, full batches, and q = "
"0.02."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Standard deviations over calls with seeds of their own of Algorithm 1, and of the estimate from μ."""
    stated, panels, deviations = [], [], {}
    for mechanism in _MECHANISMS:
        noise = _mechanism.noise_for(context, _EPSILON, mechanism.sample_rate, mechanism.steps)
        exact = np.array([_mechanism.upper(noise, mechanism.sample_rate, mechanism.steps, n) for n in _PRIORS])
        series = []
        for samples, role, printed_role in ((10_000, "attack", "baseline"), (1_000_000, "attack-2", "accountant")):
            for under, name in (("null", "Algorithm 1"), ("alternative", "from μ")):
                values = _values(context, mechanism, noise, samples, under)
                deviation = values.std(axis=0, ddof=1)
                deviations[mechanism.name, samples, under] = deviation
                below = (values < exact).mean(axis=0)
                low, high = _limits(deviation, len(values))
                if under == "null":
                    series.append(Series(name=f"{name}, {samples:,} samples", role=role, x=np.array(_PRIORS),
                                         y=deviation, low=low, high=high))  # fmt: skip
                    series.append(Series(name=f"printed, {samples:,} samples", role=printed_role, x=np.array(_PRIORS),
                                         y=np.full(len(_PRIORS), _PRINTED[samples])))  # fmt: skip
                    if mechanism.sample_rate == 1:
                        series.append(Series(name="theory", role="orthogonal", x=np.array(_PRIORS),
                                             y=_theory(noise, mechanism.steps, samples)))  # fmt: skip
                for j in (1,) if under == "alternative" else range(len(_PRIORS)):
                    theory = ""
                    if under == "null" and mechanism.sample_rate == 1:
                        theory = f"; theory {_theory(noise, mechanism.steps, samples)[j]:.4f}"
                    stated.append(
                        Stated(what=f"{mechanism.name}, prior {_PRIORS[j]}, {samples:,} samples, {name}",
                               paper=f"below {_PRINTED[samples]}" if under == "null" else "not considered",
                               ours=float(deviation[j]), interval=(float(low[j]), float(high[j])),
                               kind="estimate", confidence=0.95,
                               comment=f"{len(values)} calls; exact bound {exact[j]:.4f}, mean "
                                       f"{values[:, j].mean():.4f}, {100 * below[j]:.0f}% below it{theory}")
                    )  # fmt: skip
        panels.append(
            Panel(title=mechanism.name, x_label="number of candidates", y_label="standard deviation over calls",
                  series=tuple(series), log_x=True, log_y=True, y_range=None)
        )  # fmt: skip
    ten = {k: float(v[_PRIORS.index(10)]) for k, v in deviations.items()}
    ours = [[ten[m.name, samples, "null"] for m in _MECHANISMS] for samples in _PRINTED]
    gain = min(ten[m, n, "null"] / ten[m, n, "alternative"] for m, n, _ in ten)
    within = [o <= p for row, p in zip(ours, _PRINTED.values(), strict=True) for o in row]
    findings = Findings(
        stated=stated,
        panels=panels,
        checks=[
            Check(says="the standard deviation is below what is printed", holds=sum(within), cases=len(within)),
        ],
        conclusion="At ε = 10 and a prior of 10, the standard deviation of Algorithm 1 is "
        + "; ".join(
            f"{' and '.join(f'{o:.4f}' for o in row)} with {n:,} samples (printed: below {p})"
            for row, (n, p) in zip(ours, _PRINTED.items(), strict=True)
        )
        + f", for {' and '.join(m.name for m in _MECHANISMS)}. Estimates from μ spread at least {gain:.1f} times less; "
        "the exact method does not spread.",
        notes=(_mechanism.CALIBRATED, _THEORY, _INTERVALS, _SEEDS),
    )
    return experiment.result(
        context,
        findings,
        settings={"epsilon": _EPSILON, "delta": _mechanism.DELTA, "calls": _calls(context), "priors": _PRIORS},
    )


_THEORY = (
    "theory, full batches: N·Var → E_ν[(r − t)²; r ≥ t] − (B − tκ)² with t the (1 − κ)-quantile of r, "
    "E_ν[r²; r ≥ t] = e^{s²} Φ(Φ⁻¹(κ) + 2s), s = √T/σ"
)
_INTERVALS = "intervals: 95%, χ², as if estimates were normally distributed"
_SEEDS = "the calls of both numbers of samples, and of both samplers, use seeds of their own"


def _calls(context: Context) -> dict[int, int]:
    return {
        10_000: context.pick("calls with 10,000 samples", tiny=50, quick=1000, paper=1000),
        1_000_000: context.pick("calls with 1,000,000 samples", tiny=2, quick=20, paper=1000),
    }


def _values(context: Context, mechanism: _Mechanism, noise: float, samples: int, under: str) -> np.ndarray:
    """(calls, priors): the estimates, stored in pieces."""
    calls, size = _calls(context)[samples], _PIECE[samples]
    kappa = 1 / np.array(_PRIORS, dtype=np.float64)
    task = f"{mechanism.name}, {samples:,} samples, {under}"
    series = list(_PRINTED).index(samples) * 2 + (under == "null")
    settings = (noise, mechanism.sample_rate, mechanism.steps)
    method = bounds.methods.MonteCarlo(samples, under=under)
    parts = {
        f"spread-{mechanism.steps}-{samples}-{under}-{first}-{min(first + size, calls)}":
        range(first, min(first + size, calls)) for first in range(0, calls, size)
    }  # fmt: skip
    seed = functools.partial(kernels.subseed, context.seed, kernels.Stream.SPREAD_CALLS, step=series)
    jobs = {
        name: functools.partial(_estimates, settings, kappa, method, [seed(row=i) for i in many])
        for name, many in parts.items()
    }
    by_name: dict[str, list[list[float]]] = {}
    for name, piece in context.pieces.each(jobs, context.executor):
        by_name[name] = piece["values"]
        context.progress(task, sum(map(len, by_name.values())), calls)
    return np.array([row for name in parts for row in by_name[name]])


def _estimates(
    settings: tuple[float, float, int], kappa: np.ndarray, method: bounds.methods.MonteCarlo, seeds: list[int]
) -> dict[str, list[list[float]]]:
    drawn = [
        bounds.reconstruction(*settings, kappa=kappa, method=dataclasses.replace(method, seed=seed)).value
        for seed in seeds
    ]
    return {"values": [[float(v) for v in np.asarray(one)] for one in drawn]}


def _limits(deviation: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """95% limits of a standard deviation from `count` normal values."""
    degrees = count - 1
    low, high = (2 * special.gammaincinv(degrees / 2, p) for p in (0.975, 0.025))
    return deviation * math.sqrt(degrees / low), deviation * math.sqrt(degrees / high)


def _theory(noise: float, steps: int, samples: int) -> np.ndarray:
    """The standard deviation for large N, full batches."""
    shift = math.sqrt(steps) / noise
    kappa = 1 / np.array(_PRIORS, dtype=np.float64)
    quantile = special.ndtri(kappa)
    threshold = np.exp(-quantile * shift - shift**2 / 2)
    bound = special.ndtr(quantile + shift)
    second = np.exp(shift**2) * special.ndtr(quantile + 2 * shift)
    variance = second - 2 * threshold * bound + threshold**2 * kappa - (bound - threshold * kappa) ** 2
    out: np.ndarray = np.sqrt(variance / samples)
    return out
