"""Others' bounds, shown beside the blow-up bound: Fano's inequality (Guo et al. 2022b), squared error (2022a)."""

from __future__ import annotations

import dataclasses
import functools
import math
from concurrent.futures import Executor
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.futures import answers
from leakcore._base.results import Assumptions, Kind, Result, parse_adjacency
from leakcore.bounds.reconstruction.arguments import ATTACKER, SampledGaussian
from leakcore.bounds.reconstruction.kappa import parse_prior
from leakcore.numerics import PrivacyLoss, dot

_INFORMATION = ("rdp", "analytic", "monte-carlo")
_CHUNK = 1 << 14
_MAX_CANDIDATES = 1 << 22
"""Of a sampled estimate, which draws a number for each in every sample."""
_MAX_DRAWS = 1 << 42
"""Numbers of a sampled estimate: about a day of one core."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FanoBound(Result):
    """value: bound of the advantage (success − p_max)/(1 − p_max). success: bound of the success probability itself.

    mutual_information: the bound (or estimate) of I(Z; outputs) it follows from, in nats, with its standard error
    where it was sampled, else None. prior_size: candidates of positive probability.
    """

    success: float
    mutual_information: float
    standard_error: float | None
    prior_size: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MseLowerBound(Result):
    """value: least mean squared error per coordinate of an unbiased reconstruction.

    epsilon: the Rényi parameter of order 2 that it follows from. constant_guess: the error that the best constant guess
    never exceeds, Σ_i diam_i²/(4d); where `value` is larger the bound says nothing about biased attacks. warnings:
    says so there.
    """

    epsilon: float
    constant_guess: float
    warnings: tuple[str, ...]


def fano_advantage(
    noise_multiplier: Any,
    sample_rate: Any = 1.0,
    steps: int = 1,
    *,
    prior_size: int | None = None,
    prior: Any = None,
    information: str = "rdp",
    separation: float = math.sqrt(2.0),
    num_samples: int = 100_000,
    seed: int = 0,
    executor: Executor | None = None,
) -> FanoBound:
    """Fano's bound on the advantage of identifying which candidate of a discrete prior was trained on.

    With H(π) the prior's entropy, I the mutual information between the candidate and the outputs, and t the attacker's
    error, t ≥ the smallest t in [0, 1] with H(π) − I + t log t + (1−t) log(1−t) − t log(n−1) ≤ 0 (Guo et al. 2022b;
    Hayes et al. 2023, Section 5), so success ≤ 1 − t.

    information: where I comes from.
        "rdp"          I ≤ KL(μ‖ν) = E_μ[log r], the Rényi divergence at order 1, of the dominating pair: Σ1/(2σ²) at
                       q = 1. Any σ, q, T. Kind "upper".
        "analytic"     q = 1: I ≤ −Σ_i p_i log(p_i + (1−p_i) exp(−Δ²T/(2σ²))) with candidates at most Δ apart.
                       Kind "upper", for that Δ.
        "monte-carlo"  q = 1: I = E log p(w|z)/p(w), w ~ N(Δe_z/√2, σ²I_n), from `num_samples` draws. Kind "estimate".
    separation: Δ, of candidates' clipped gradients in units of the clipping norm; √2 for one-hot (orthogonal) ones, 2
        at most. Their Table 2 is reproduced to the last digit with √2, which their text does not state.

    prior_size: n ≥ 1 equally likely candidates; or prior: n probabilities. Exactly one.
    noise_multiplier, sample_rate, steps: as in `reconstruction` (schedules allowed).
    executor: "monte-carlo"; its workers take blocks of 2¹⁴ draws (of 2²² numbers, where candidates are many).
    Returns a `FanoBound`; no interval, confidence None. σ = 0 gives 1, one candidate 0. Deterministic given the seed,
    for any number of workers and none. Raises ValueError or TypeError that names the argument.
    """
    if (prior_size is None) == (prior is None):
        raise ValueError(f"prior_size={prior_size!r}, prior={prior!r}: exactly one must be given")
    if prior is None:
        n = validate.integer(1, 2**63 - 1, prior_size=prior_size)
        weights, times = np.array([1.0 / n]), n
    else:
        weights, times = parse_prior(prior), 1
        n = len(weights)
    source = validate.one_of(*_INFORMATION, information=information)
    apart = validate.positive(separation=separation)
    if apart > 2.0:
        raise ValueError(f"separation={separation!r}: must be in (0, 2], clipped gradients are no farther apart")
    count = validate.integer(2, num_samples=num_samples)
    key = validate.seed(seed=seed)
    validate.executor(executor=executor)
    if executor is not None and source != "monte-carlo":
        raise ValueError(f"executor={executor!r}: only information='monte-carlo' samples, not {source!r}")
    loss = SampledGaussian.parse(noise_multiplier, sample_rate, steps).loss()
    if source != "rdp" and (loss.groups or (math.isfinite(loss.log_no_escape) and loss.log_no_escape != 0.0)):
        raise ValueError(f"information={source!r}: covers sample_rate=1 only, use 'rdp'")
    precision = math.inf if loss.log_no_escape != 0.0 else loss.gaussian_variance
    entropy = math.log(n) if times > 1 else -dot(weights, np.log(weights))
    error: float | None = None
    notes: tuple[str, ...] = ()
    kind: Kind = "upper"
    if math.isinf(precision) or n == 1:
        nats = entropy
    elif source == "rdp":
        nats = loss.cumulants(1.0).mean if loss.groups or precision > 0.0 else 0.0
    elif source == "analytic":
        shrink = math.exp(-0.5 * apart**2 * precision)
        nats = -times * dot(weights, np.log(weights + (1.0 - weights) * shrink))
        notes = (f"for candidates whose clipped gradients are at most {apart:.6g} clipping norms apart",)
    else:
        if n > _MAX_CANDIDATES or count * n > _MAX_DRAWS:
            raise ValueError(
                f"prior_size={n}, num_samples={count}: information='monte-carlo' draws prior_size numbers for each "
                f"sample: must be at most {_MAX_CANDIDATES} candidates and {_MAX_DRAWS} numbers; use 'analytic'"
            )
        nats, error = _mixture_information(
            np.repeat(weights, times), apart * math.sqrt(0.5 * precision), count, key, executor
        )
        kind = "estimate"
        notes = (f"for one-hot gradients, {apart:.6g} clipping norms apart; a sampled estimate",)
    # What rounding may have taken from the information, or added to the entropy.
    slack = _ROUNDING * (1.0 + entropy + (loss.num_mixture_steps if kind == "upper" else 0)) if nats != 0.0 else 0.0
    success = 1.0 - _least_error(max(entropy - min(max(nats, 0.0), entropy) - slack, 0.0), n)
    blind = float(weights.max())
    success = max(success, blind)
    return FanoBound(
        value=0.0 if n == 1 else (success - blind) / (1.0 - blind),
        kind=kind,
        confidence=None,
        interval=None,
        method=f"fano ({source})",
        assumptions=Assumptions(adjacency="add-remove", attacker=ATTACKER, notes=notes),
        seed=key if error is not None else None,
        provenance="Guo, Sablayrolles and Sanjabi (2022), Fano's inequality; Hayes et al. (2023), Section 5, Table 2",
        success=success,
        mutual_information=nats,
        standard_error=error,
        prior_size=n,
    )


def _least_error(equivocation: float, n: int) -> float:
    """Smallest t in [0, 1 − 1/n] with log 2-ary entropy h(t) + t·log(n−1) ≥ equivocation; 0 at n = 1."""
    if n == 1 or equivocation <= 0.0:
        return 0.0

    def enough(t: float) -> bool:
        return -t * math.log(t) - (1.0 - t) * math.log1p(-t) + t * math.log(n - 1) >= equivocation

    # The left side rises up to t = 1 − 1/n, where it is log n.
    low, high = 0.0, 1.0 - 1.0 / n
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (low, middle) if enough(middle) else (middle, high)
    # The smaller end: success is rounded up.
    return low


def _mixture_information(
    weights: np.ndarray, scale: float, count: int, seed: int, executor: Executor | None
) -> tuple[float, float]:
    """(mean, standard error) of log p(w|z)/p(w), w = scale·e_z + N(0, I_n): a mixture of one-hot Gaussians."""
    rows = max(1, min(_CHUNK, 2**22 // len(weights)))
    jobs = (
        (start, functools.partial(_gain_sums, weights, scale, min(rows, count - start), seed, start))
        for start in range(0, count, rows)
    )
    # Summed in the order of draws, whoever drew them first.
    sums = np.array([part for _, part in sorted(answers(jobs, executor, ahead=256))])
    total, squares = (math.fsum(column) for column in sums.T)
    mean = total / count
    return mean, math.sqrt(max(squares / count - mean * mean, 0.0) / count)


def _gain_sums(weights: np.ndarray, scale: float, size: int, seed: int, first: int) -> tuple[float, float]:
    """(Σ g, Σ g²) of `size` draws, the first of which has this number."""
    rng = kernels.generator(seed, kernels.Stream.FANO, row=first)
    z = np.minimum(np.searchsorted(np.cumsum(weights), rng.random(size), side="right"), len(weights) - 1)
    logs = scale * rng.standard_normal((size, len(weights)))
    logs[np.arange(size), z] += scale * scale
    own = logs[np.arange(size), z]
    # log p(w|j) = scale·w_j + what all j share.
    logs += np.log(weights)
    peak = logs.max(axis=1)
    gain = own - peak - np.log(np.exp(logs - peak[:, None]).sum(axis=1))
    # Not a dot product, whose order is the linear algebra's own.
    return float(gain.sum()), float(np.square(gain).sum())


def mse_lower_bound(
    noise_multiplier: Any, sample_rate: Any, steps: int, *, diameters: Any, adjacency: str = "replace"
) -> MseLowerBound:
    """Least mean squared error of *unbiased* reconstruction: Σ_i diam_i(Z)²/(4d(e^ε − 1)) under (2, ε)-Rényi privacy.

    Guo, Karrer, Chaudhuri and van der Maaten (2022a), as Hayes et al. (2023) compare with it. Its proof compares two
    values of one record, so ε is that of *replacing* a record (adjacency="replace", the default): q = 1: Σ4/σ²;
    q < 1: at most Σ_t [1.5·D₄(μ‖ν) + D₃(ν‖μ)] through the data set without the record (Mironov 2017, Proposition
    11, with p = q = 2). "add-remove" takes the larger of D₂(μ‖ν) and D₂(ν‖μ) instead: what is often plugged in, and
    no bound, since a replaced record may err less: its kind is "estimate".

    diameters: diam_i > 0 of each of the d coordinates of a record, a 1-d array (1.0 each for images in [0, 1]^d).
    noise_multiplier, sample_rate, steps: as in `reconstruction`.
    Returns an `MseLowerBound` of kind "lower" ("estimate" under add-remove), deterministic. Biased attacks may err
    less: the constant guess never errs by more than Σ_i diam_i²/(4d), which the bound exceeds whenever ε < log 2, and
    then a warning says so. Nothing leaks: inf. σ = 0 with q > 0: 0. Raises ValueError or TypeError that names the
    argument.
    """
    relation = parse_adjacency(adjacency)
    widths = validate.real_array("in (0, 1e150)", lambda v: (v > 0.0) & (v < validate.LARGE), diameters=diameters)
    if widths.ndim != 1 or len(widths) == 0:
        raise ValueError(f"diameters of shape {widths.shape}: must be one-dimensional and not empty")
    loss = SampledGaussian.parse(noise_multiplier, sample_rate, steps).loss()
    epsilon = _renyi_of_order_two(loss, relation == "replace")
    guess = dot(widths, widths) / (4.0 * len(widths))
    value = math.inf if epsilon == 0.0 else (0.0 if epsilon > 700.0 else guess / math.expm1(epsilon))
    value *= 1.0 - _ROUNDING * (8.0 + min(epsilon, 700.0)) - 2.0**-52 * len(widths)  # a lower bound: rounded down
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ("unbiased reconstructions only",)
    if relation != "replace":
        notes += ("no lower bound: the proof compares two values of one record, so it needs adjacency 'replace'",)
    if value > guess:
        message = f"exceeds {guess:.6g}, which a constant guess achieves: the bound says nothing about biased attacks"
        warnings = (message,)
    return MseLowerBound(
        value=value,
        kind="lower" if relation == "replace" else "estimate",
        confidence=None,
        interval=None,
        method="Rényi divergence of order 2",
        assumptions=Assumptions(adjacency=relation, attacker=ATTACKER, notes=notes),
        provenance="Guo, Karrer, Chaudhuri and van der Maaten (2022), Theorem 1; Hayes et al. (2023), Section 5",
        epsilon=epsilon,
        constant_guess=guess,
        warnings=warnings,
    )


def _renyi_of_order_two(loss: PrivacyLoss, replace: bool) -> float:
    if loss.log_no_escape != 0.0:
        return math.inf
    if not loss.groups:
        return loss.gaussian_variance * (4.0 if replace else 1.0)
    # D_α(μ‖ν) = K(α)/(α − 1) and D_α(ν‖μ) = K(1 − α)/(α − 1).
    if replace:
        full = PrivacyLoss((), loss.gaussian_variance)
        rest = PrivacyLoss(loss.groups)
        found = 0.5 * (rest.cumulants(4.0).value + rest.cumulants(-2.0).value) + _ROUNDING * rest.num_mixture_steps
        if found < _TINY:
            found = 0.5 * (_whole_cumulant(rest, 4) + _whole_cumulant(rest, 3))
        return _renyi_of_order_two(full, True) + found
    found = max(loss.cumulants(2.0).value, loss.cumulants(-1.0).value) + _ROUNDING * loss.num_mixture_steps
    return _whole_cumulant(loss, 2) if found < _TINY else found


_ROUNDING = 2.0**-48
"""Of sums and exponentials, relative; of the moments of one step, absolute."""
_TINY = 1e-9
"""A divergence below it is lost in the rounding of an integral over densities; K(1 − α) ≤ K(α) (Mironov, Talwar and
Zhang 2019, Theorem 5) then leaves sums over the binomial."""


def _whole_cumulant(loss: PrivacyLoss, order: int) -> float:
    """log E_ν[r^order] to full relative accuracy: Σ_k C(n, k) q^k (1−q)^(n−k) (e^{k(k−1)/(2σ²)} − 1), k ≥ 2."""
    total = loss.gaussian_variance * order * (order - 1) / 2.0
    for group in loss.groups:
        q, unit = group.rate, 0.5 / (group.sigma * group.sigma)
        if order * (order - 1) * unit > 700.0:
            return math.inf
        moments = (
            math.comb(order, k) * q**k * (1.0 - q) ** (order - k) * math.expm1(k * (k - 1) * unit)
            for k in range(2, order + 1)
        )
        total += group.count * math.log1p(math.fsum(moments))
    return total
