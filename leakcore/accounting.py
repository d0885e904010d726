"""ε, δ and σ of a DP-SGD configuration, under either neighbouring relation.

Three routes: "exact", our own privacy profile by tilted Fourier inversion (no discretisation, error reported);
"pld" and "rdp" by Google's dp-accounting (`pip install leakcore[accounting]`). Every result carries its adjacency.
Nothing converts between relations silently: σ = 1, one full-batch step, δ = 1e-5 is ε = 4.38 under add/remove and
9.997 under replacement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.one_thread import one_thread
from leakcore._base.results import Adjacency, Assumptions, Result, parse_adjacency
from leakcore.numerics import (
    BEST,
    AccuracyError,
    Curve,
    DiscreteCurve,
    Effort,
    ExactCurve,
    PrivacyLoss,
    fft_rounding,
    gaussian_pair,
    least_noise,
    parse_schedule,
    replacement,
    search,
)

METHODS = ("exact", "pld", "rdp")
_NEGLIGIBLE = 1e-6
"""An upper bound of ε that is as good as the exact value: what "exact" promises."""
_FAINT = 1e-6
"""Separation of the full batches' Gaussian pair below which the profile is left to that pair's."""
_HOPELESS = -41.0
"""log δ below which an upper bound of it is as good as the exact value."""
_TINY = sys.float_info.min
_STEPS = {"add-remove": 1.0, "replace": 2.0}
"""Add/remove steps of one change; of replacing where batches are sampled."""
_ATTACKER = "sees every noisy gradient sum and all model states, knows every other record and the hyperparameters"
_PROVENANCE = {
    "exact": "privacy profile of the dominating pair (Zhu, Dong and Wang 2022; Hayes et al. 2023, Corollary 4)",
    "exact, bounded": "privacy profile of the dominating pair, lattice laws from both sides (Doroshenko et al. 2022)",
    "pld": "dp-accounting, privacy loss distributions, pessimistic (Doroshenko et al. 2022)",
    "rdp": "dp-accounting, Renyi differential privacy (Mironov, Talwar and Zhang 2019; Canonne et al. 2020)",
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Epsilon(Result):
    """value: the smallest ε that the method proves at `delta`."""

    delta: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Delta(Result):
    """value: the smallest δ that the method proves at `epsilon`; log_value its logarithm (−inf at 0)."""

    epsilon: float
    log_value: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class NoiseMultiplier(Result):
    """value: the smallest σ (to a relative 1e-9) with which the method proves (`epsilon`, `delta`)."""

    epsilon: float
    delta: float


@one_thread()
def epsilon(
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    *,
    delta: float,
    adjacency: str = "add-remove",
    method: str = "exact",
    orders: Any = None,
) -> Epsilon:
    """The smallest ε ≥ 0 for which `steps` steps of DP-SGD with Poisson sampling are proved (ε, δ)-private.

    add-remove: the larger of the two directions' profiles δ_remove(ε) = E_μ(1 − e^{ε−L})_+ and
    δ_add(ε) = E_ν(1 − e^{ε+L})_+ of L = Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))).
    replace: at q = 1 a Gaussian pair with separation 2√Σσ_t⁻², exact; at q < 1 the composition of removing and adding
    through the dataset between (k = 2 add/remove steps), δ(ε) ≤ inf over ε₁ of δ_remove(ε₁) + e^{ε₁}·δ_add(ε − ε₁), an
    upper bound that the notes name.

    noise_multiplier: σ_t in [0, ∞]; sample_rate: q_t in [0, 1]; scalars, or arrays of length `steps` ≥ 0.
    delta: in [0, 1). method: "exact", "pld" or "rdp" (with replace and q < 1: "exact" or "pld"). "pld" adds to δ(ε)
        what its convolutions may round, 1e-13 + 1e-15 per step: at a δ of no more than that its ε is infinite.
    orders: of "rdp" only: None for dp-accounting's default, "authors" for 1.1, …, 10.9 and 11, …, 63 (released code of
        Hayes et al. 2023), or a sequence of orders above 1.

    Returns an `Epsilon` of kind "upper", deterministic; interval = numerical error for "exact", rounded outward, else
    None. T = 0, q = 0 or σ = ∞ give 0; δ = 0 or σ = 0 give inf where anything leaks beyond δ. Where "exact" cannot
    keep its promise of 1e-6 (little noise, rare large losses), lattice laws bound the profile from both sides: `method`
    is then "exact, bounded", value an upper bound all the same and interval wider; where no float holds the loss,
    value is ε of full batches or inf. Raises ValueError or TypeError that names the argument, ImportError when
    dp-accounting is missing, AccuracyError (an ArithmeticError) where a method has no answer.
    """
    loss, relation, name, grid = _parse(noise_multiplier, sample_rate, steps, adjacency, method, orders)
    target = validate.below_one(delta=delta)
    with _naming(noise_multiplier, sample_rate, steps):
        low, high = _epsilon(loss, target, relation, name, grid)
    return Epsilon(
        value=high,
        kind="upper",
        confidence=None,
        interval=(low, high) if name == "exact" else None,
        method=(label := _label(name, (low, high), high)),
        assumptions=_assumptions(loss, relation),
        provenance=_PROVENANCE[label],
        delta=target,
    )


@one_thread()
def delta(
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    *,
    epsilon: float,
    adjacency: str = "add-remove",
    method: str = "exact",
    orders: Any = None,
) -> Delta:
    """The smallest δ for which DP-SGD is proved (ε, δ)-private: the profile itself.

    epsilon: in [0, ∞). Other arguments as in `epsilon`.
    Returns a `Delta` of kind "upper"; 0 where nothing leaks, 1 at most. Where δ underflows it is 5e-324 or a few times
    that, the least positive floats, and `log_value` says how small it is.
    """
    loss, relation, name, grid = _parse(noise_multiplier, sample_rate, steps, adjacency, method, orders)
    target = validate.non_negative(epsilon=epsilon)
    with _naming(noise_multiplier, sample_rate, steps):
        log_low, log_high = _log_delta(loss, target, relation, name, grid)
    value = _above(log_high)
    return Delta(
        value=value,
        kind="upper",
        confidence=None,
        interval=(_below(log_low), value) if name == "exact" else None,
        method=(label := _label(name, (log_low, log_high), 0.0 if log_high > _HOPELESS else math.inf)),
        assumptions=_assumptions(loss, relation),
        provenance=_PROVENANCE[label],
        epsilon=target,
        log_value=log_high,
    )


@one_thread()
def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    adjacency: str = "add-remove",
    method: str = "exact",
    orders: Any = None,
) -> NoiseMultiplier:
    """The smallest σ, the same in every step, with which DP-SGD is proved (ε, δ)-private.

    epsilon: in [0, ∞); delta: in [0, 1); sample_rate: a scalar q. Other arguments as in `epsilon`.

    σ is on the safe side of a search to a relative 1e-9 (1e-6 for "pld" and "rdp"); where the search rests on upper
    bounds of ε that are not that tight, σ suffices and a note says that a little less may do.

    Returns a `NoiseMultiplier` of kind "upper": this much noise suffices. T = 0 or q = 0 give 0; δ = 0 gives inf where
    anything leaks. Raises as `epsilon` does, and ValueError for a δ too small for "pld".
    """
    wanted, slack = validate.non_negative(epsilon=epsilon), validate.below_one(delta=delta)
    rate = validate.probability(sample_rate=sample_rate)
    _, relation, name, grid = _parse(1.0, rate, steps, adjacency, method, orders)
    count = validate.integer(0, steps=steps)
    notes: tuple[str, ...] = ()

    def limits(sigma: float, **how: Any) -> tuple[float, float]:
        loss = PrivacyLoss.of_steps(np.asarray(sigma), np.asarray(rate), count)
        return _epsilon(loss, slack, relation, name, grid, **how)

    def split_at(sigma: float) -> float:
        loss = PrivacyLoss.of_steps(np.asarray(sigma), np.asarray(rate), count)
        return replacement.best_split(ExactCurve(loss), math.log(slack))

    if count == 0 or rate == 0.0:
        value = 0.0
    elif slack == 0.0:
        value = math.inf
    elif name == "exact" and limits(0.0)[1] <= wanted:
        value = 0.0
    elif name == "pld" and slack <= (least := _STEPS[relation] * fft_rounding(count)):
        raise ValueError(
            f"delta={slack!r}: must be above {least:.2g} with method='pld', whose convolutions round as much over "
            f"{count} steps; use method='exact'"
        )
    else:
        # Full batches leak at least as much as subsampled ones.
        separation = gaussian_pair.gaussian_separation(wanted, slack) * (0.5 if relation == "replace" else 1.0)
        guess = math.sqrt(count) / separation
        if name == "exact":
            value, tight = least_noise(
                limits, wanted, guess, split_at if relation == "replace" and rate < 1.0 else None
            )
            notes = () if tight else ("a little less noise may do: the search rests on upper bounds of epsilon here",)
        else:
            value, below = search.least_sigma(lambda sigma: limits(sigma)[1], wanted, guess, 1e-6)
            if value > below * (1.0 + 1e-5) and below > 0.0:
                notes = (f"noise_multiplier above {below:.9g} may do: epsilon could not be computed between",)
    return NoiseMultiplier(
        value=value,
        kind="upper",
        confidence=None,
        interval=None,
        method=name,
        assumptions=_assumptions(PrivacyLoss.of_steps(np.asarray(1.0), np.asarray(rate), count), relation, notes),
        provenance=_PROVENANCE[name],
        epsilon=wanted,
        delta=slack,
    )


def to_replacement(claim: Epsilon) -> Epsilon:
    """A claim under add/remove as one under replacement, by group privacy alone: (ε, δ) becomes (2ε, (1 + e^ε)δ).

    Replacing a record is removing one and adding another: k = 2. Loose; where the configuration is known,
    `epsilon(..., adjacency="replace")` is tighter and keeps δ. Raises ValueError for a claim not under add/remove.
    """
    if not isinstance(claim, Epsilon):
        raise TypeError(f"claim={claim!r}: must be an Epsilon, as accounting.epsilon returns it")
    if claim.adjacency != "add-remove":
        raise ValueError(f"claim is under {claim.adjacency} adjacency: must be under add-remove")
    value = float(claim.value)
    log_delta = -math.inf
    if claim.delta:  # e^ε may overflow
        log_delta = math.log(claim.delta) + max(value, 0.0) + math.log1p(math.exp(-abs(value)))
        log_delta += 1e-15 * (1.0 + abs(math.log(claim.delta)) + abs(value))
    return Epsilon(
        value=2.0 * value,
        kind="upper",
        confidence=None,
        interval=None,
        method=f"{claim.method}, group privacy",
        assumptions=Assumptions(
            adjacency="replace",
            attacker=claim.assumptions.attacker,
            notes=("k=2 add/remove steps; delta has grown too",),
        ),
        provenance=f"group privacy (Dwork and Roth 2014, Section 2.3); {claim.provenance}",
        delta=_above(min(log_delta, 0.0)),
    )


def _label(name: str, limits: tuple[float, float], size: float) -> str:
    """The method's name, which says where "exact" has limits further apart than it promises; `size` of the answer."""
    low, high = limits
    wide = name == "exact" and low < high and not high - low <= _NEGLIGIBLE * (1.0 + abs(size))
    return "exact, bounded" if wide else name


def _above(log_value: float) -> float:
    """e^log_value ≤ 1, rounded up where it is too small for a float's full precision: 0 for −inf only."""
    value = math.exp(log_value)
    return math.nextafter(value, 1.0) if value < _TINY and log_value > -math.inf else value


def _below(log_value: float) -> float:
    value = math.exp(log_value)
    return math.nextafter(value, 0.0) if value < _TINY else value


def _parse(
    sigma: Any, rate: Any, steps: Any, adjacency: str, method: str, orders: Any
) -> tuple[PrivacyLoss, Adjacency, str, Any]:
    relation = parse_adjacency(adjacency)
    name = validate.one_of(*METHODS, method=method)
    sigmas, rates, count = parse_schedule(sigma, rate, steps)
    if orders is not None and name != "rdp":
        raise ValueError(f"orders={orders!r}: only method='rdp' takes it, not {name!r}")
    grid = orders
    if isinstance(orders, str):
        from leakcore.numerics import AUTHORS_ORDERS

        validate.one_of("authors", orders=orders)
        grid = AUTHORS_ORDERS
    elif orders is not None:
        grid = validate.real_array("above 1", lambda v: v > 1.0, orders=orders).ravel()
    loss = PrivacyLoss.of_steps(sigmas, rates, count)
    if relation == "replace" and name == "rdp" and loss.groups:
        raise ValueError("method='rdp' does not cover adjacency='replace' with sample_rate < 1: use 'exact' or 'pld'")
    return loss, relation, name, grid


@contextlib.contextmanager
def _naming(sigma: Any, rate: Any, steps: Any) -> Iterator[None]:
    """Says which configuration could not be computed: where σ and q were swapped one sees it."""
    try:
        yield
    except AccuracyError as error:
        if str(error).startswith("noise_multiplier="):
            raise
        shown = [f"{float(v):g}" if np.ndim(v) == 0 else f"[{len(v)} values]" for v in (sigma, rate)]
        hint = "" if "method=" in str(error) else "; method='pld' gives an upper bound"
        raise AccuracyError(
            f"noise_multiplier={shown[0]}, sample_rate={shown[1]}, steps={steps}: {error}{hint}"
        ) from error


def _assumptions(loss: PrivacyLoss, relation: Adjacency, more: tuple[str, ...] = ()) -> Assumptions:
    notes: tuple[str, ...] = ("Poisson sampling; independent steps",)
    if relation == "replace" and loss.groups:
        notes += ("upper bound by group composition (k=2 add/remove steps), not tight",)
    return Assumptions(adjacency=relation, attacker=_ATTACKER, notes=notes + more)


def _doubled(loss: PrivacyLoss) -> PrivacyLoss:
    """Full-batch steps under replacement: two clipped gradients are up to 2C apart, twice the separation."""
    return PrivacyLoss((), 4.0 * loss.gaussian_variance, loss.log_no_escape)


def _epsilon(
    loss: PrivacyLoss,
    delta: float,
    relation: Adjacency,
    method: str,
    orders: Any,
    *,
    effort: Effort = BEST,
    directions: tuple[str, ...] = ("remove", "add"),
    split: float = math.nan,
) -> tuple[float, float]:
    """(low, high) of the smallest ε ≥ 0. directions: of the profile under "add-remove"; split: the logit of the part of
    δ that the removal takes where a replacement is composed."""
    if loss.silent:
        return 0.0, 0.0
    if delta == 0.0 or (loss.log_no_escape != 0.0 and method != "exact"):
        return math.inf, math.inf
    if relation == "replace" and not loss.groups:
        loss = _doubled(loss)
        relation = "add-remove"
    target = math.log(delta)
    if method == "rdp":
        from leakcore.numerics import dp_accounting_rdp

        value = dp_accounting_rdp.epsilon(loss, target, orders)
        return value, value
    if method == "exact" and (high := _next_to_nothing(loss, delta, relation)) < _NEGLIGIBLE:
        return 0.0, high
    curve: Curve = ExactCurve(loss) if method == "exact" else DiscreteCurve(loss)
    if relation == "replace":
        return replacement.epsilon(curve, target, effort=effort, split=split)
    low, high = -math.inf, -math.inf
    for direction in directions:
        # Full batches are a Gaussian pair, symmetric. ε of adding ends at −minimum.
        if direction == "add" and (not loss.groups or -loss.minimum - loss.log_no_escape <= low) and low > -math.inf:
            continue
        pair = curve.epsilon(target, direction, effort=effort)
        low, high = max(low, pair[0]), max(high, pair[1])
    return max(0.0, low), max(0.0, high)


def _next_to_nothing(loss: PrivacyLoss, delta: float, relation: Adjacency) -> float:
    """An upper bound of ε ≥ 0 for losses too small, or δ too large, for the profile: 0 where δ is beyond the total
    variation, else the full batches' ε."""
    if _STEPS[relation] * loss.total_variation() * (1.0 + 1e-12) <= delta:
        return 0.0
    separation = _STEPS[relation] * loss.full_batch_separation()
    return max(0.0, gaussian_pair.epsilon_limits(math.log(delta), separation)[1]) if separation < _FAINT else math.inf


def _log_delta(loss: PrivacyLoss, epsilon: float, relation: Adjacency, method: str, orders: Any) -> tuple[float, float]:
    """(low, high) of log δ(ε)."""
    if loss.silent:
        return -math.inf, -math.inf
    if loss.log_no_escape != 0.0 and method != "exact":
        return 0.0, 0.0
    if relation == "replace" and not loss.groups:
        loss = _doubled(loss)
        relation = "add-remove"
    if method == "rdp":
        from leakcore.numerics import dp_accounting_rdp

        out = dp_accounting_rdp.log_delta(loss, epsilon, orders)
        return out, out
    separation = _STEPS[relation] * loss.full_batch_separation()
    if method == "exact" and separation < _FAINT:
        bound = gaussian_pair.log_profile_limits(epsilon, separation)[1]
        if bound < math.log(1e-18):
            return -math.inf, bound
    curve: Curve = ExactCurve(loss) if method == "exact" else DiscreteCurve(loss)
    if relation == "replace":
        return replacement.log_delta(curve, epsilon)
    pairs = [
        curve.log_delta(epsilon, direction)
        for direction in (("remove", "add") if loss.groups or loss.log_no_escape else ("remove",))
    ]
    return max(low for low, _ in pairs), max(high for _, high in pairs)


__all__ = ["METHODS", "Delta", "Epsilon", "NoiseMultiplier", "delta", "epsilon", "noise_multiplier", "to_replacement"]
