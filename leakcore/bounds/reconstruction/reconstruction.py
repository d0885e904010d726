"""What no reconstruction attack on DP-SGD can beat: the blow-up bound of Hayes, Mahloujifar and Balle (2023)."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor
from typing import Any

import numpy as np

from leakcore._base.process_wide import one_thread
from leakcore._base.progress import timed
from leakcore._base.results import Assumptions
from leakcore.bounds.methods import Auto, Certified, Exact, Method, method_of
from leakcore.bounds.methods.method import Kappa, ReconstructionBound, has_too_many_steps, poisson_with
from leakcore.bounds.methods.monte_carlo import DKW
from leakcore.bounds.methods.pairs import StatedPair
from leakcore.mechanisms import Mechanism, Poisson, as_mechanism, over_grids
from leakcore.numerics import gaussian_pair

_ATTACKER = (
    "sees every noisy gradient sum and all model states, knows every other record, the hyperparameters and the prior"
)


def bound_of_mechanism(mechanism: Mechanism, prior: Kappa, method: Method) -> ReconstructionBound:
    """The bound under the mechanism's own relation; ValueError for a method that does not cover it."""
    loss = mechanism.steps_loss(mechanism.adjacency)
    if isinstance(mechanism, Poisson):
        return method.bound(mechanism, prior)
    if loss is not None and not (isinstance(method, Auto | Exact) and has_too_many_steps(loss)):
        out = method.bound(poisson_with(loss), prior)
        return dataclasses.replace(out, **_statements(mechanism, out.assumptions.notes, out.provenance))
    if isinstance(method, Certified):
        out = method.bound_of(StatedPair(mechanism), prior)
        notes = out.assumptions.notes
        if not mechanism.is_exact(mechanism.adjacency):
            # The pair that is drawn dominates the mechanism, which may leak less than it.
            notes = (*notes, "interval: the pair dominates the mechanism, so that only the upper end is one of attacks")
            assert out.interval is not None
            assert out.log_interval is not None
            out = dataclasses.replace(
                out, interval=(out.kappa, out.interval[1]), log_interval=(out.log_kappa, out.log_interval[1])
            )
        return dataclasses.replace(out, **_statements(mechanism, notes, out.provenance))
    if not isinstance(method, Auto | Exact):
        raise ValueError(
            f"`method` must be 'auto', 'exact' or 'certified' for {type(mechanism).__name__}, got {method.name!r}"
        )
    low, high = limits(mechanism, prior.log)
    claimed = mechanism.poisson_claim
    exact = mechanism.is_exact(mechanism.adjacency)
    return ReconstructionBound(
        kind="upper",
        confidence=None,
        method="exact" if exact else "bracket",
        poisson_claim=None if claimed is None else bound_of_mechanism(claimed, prior, Auto()).value,
        **_statements(mechanism, ("interval: numerical error, rounded outward",) if exact else (), _SOURCE),
        **prior.fields(high, low, high, proved=True),
    )


_SOURCE = "Hayes, Mahloujifar and Balle (2023), Theorem 2 and equation (3)"


@one_thread()
def limits(mechanism: Mechanism, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of log B_κ under the mechanism's own relation, for each of a 1-d array."""
    low, high = mechanism.curve(mechanism.adjacency).log_blow_up(log_kappa)
    separation = mechanism.separation(mechanism.adjacency)
    if separation < np.inf:
        most = gaussian_pair.log_blow_up(log_kappa, separation) + gaussian_pair.log_blow_up_error(log_kappa, separation)
        high = np.minimum(high, most + 1e-14)
    high = np.clip(high, log_kappa, 0.0)
    return np.minimum(np.clip(low, log_kappa, 0.0), high), high


def _statements(mechanism: Mechanism, notes: tuple[str, ...], provenance: str) -> dict[str, Any]:
    """What the result assumes, and what it rests on."""
    relation = mechanism.adjacency
    return {
        "assumptions": Assumptions(adjacency=relation, attacker=_ATTACKER, notes=mechanism.notes(relation) + notes),
        "provenance": f"{provenance}; {mechanism.proof(relation)}",
    }


@timed
@over_grids
def reconstruction(
    noise_multiplier: Any,
    sample_rate: Any = None,
    steps: int | None = None,
    *,
    kappa: Any = None,
    log_kappa: Any = None,
    method: str | Method = "auto",
    num_samples: int = 1_000_000,
    confidence: float = 0.999,
    seed: int = 0,
    device: str | None = None,
    executor: Executor | None = None,
) -> ReconstructionBound:
    """The largest probability with which any attack reconstructs a record that it could guess with probability κ.

    B_κ = sup{μ(E) : ν(E) ≤ κ} for the mechanism's pair (μ, ν). Three numbers stand for Poisson sampling: ν = N(0,
    σ²I_T) and μ = Π_t [(1−q) N(0, σ²) + q N(1, σ²)] (Hayes et al. 2023, Corollary 4 and equation 3).

    Args:
        noise_multiplier: a mechanism, or σ_t in [0, ∞], a number or an array of length `steps`.
        sample_rate: q_t in [0, 1], a number or an array. None with a mechanism.
        steps: T ≥ 0. None with a mechanism.
        kappa: κ in (0, 1], a float or an array; 1/n for n equally likely candidates.
        log_kappa: log κ, for priors too small for a float.
        method: a name, or an object of `bounds.methods` with its own options.
        num_samples: number of draws of a method that samples.
        confidence: level of its limits.
        seed: seed of its draws.
        device: where "monte-carlo" and "certified" draw: "cpu", "cuda" or "cuda:N".
        executor: maps shards of the draws.

    Returns:
        `ReconstructionBound` of kind "upper" ("estimate" for "monte-carlo" and "dkw-bennett").

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.
        ImportError: for "pld" without dp-accounting.
        AccuracyError: (an ArithmeticError) where no method covers the mechanism.

    Guarantees:
        The mechanism's own adjacency, add-remove for Poisson sampling. Values lie in [κ, 1] and rise with κ. `interval`
        is the numerical error, or the confidence limits, whose upper end is the value. Deterministic given the seed.

    Example:
        >>> from leakcore import bounds
        >>> bound = bounds.reconstruction(1.0, 0.01, 100, kappa=0.1)  # ten candidates
        >>> f"{bound.value:.3f}", bound.kind, bound.method
        ('0.127', 'upper', 'exact')
    """
    chosen = method_of(
        method, num_samples=num_samples, confidence=confidence, seed=seed, device=device, executor=executor
    )
    return bound_of_mechanism(as_mechanism(noise_multiplier, sample_rate, steps), Kappa.parse(kappa, log_kappa), chosen)


def reconstruction_of(
    pair: Any,
    *,
    kappa: Any = None,
    log_kappa: Any = None,
    method: str | Certified = "certified",
    num_samples: int = 1_000_000,
    confidence: float = 0.999,
    seed: int = 0,
    executor: Executor | None = None,
) -> ReconstructionBound:
    """Certified limits of B_κ = sup{μ(E) : ν(E) ≤ κ} for any pair of laws (μ, ν) that can be sampled.

    Mechanisms are such pairs, and `bounds.measured_pair` makes one. The result is about the pair. Whether it also
    bounds attacks on a mechanism is a theorem about that mechanism, which the caller must prove.

    Args:
        pair: has a method `sample_log_ratio(num_samples, under, seed, first_sample)` that returns log μ(x)/ν(x),
            (num_samples,), of independent samples of μ (`under="alternative"`) numbered from first_sample. Sample i may
            depend on (seed, under, i) only. docs/explanation/bounds.md lists what else a pair may offer.
        kappa: as in `reconstruction`.
        log_kappa: as in `reconstruction`.
        method: "certified", or a `bounds.methods.Certified`, which holds its own options.
        num_samples: as in `reconstruction`.
        confidence: level of the limits for each κ, in (0, 1 − 1e-12].
        seed: seed of the draws.
        executor: maps shards of the draws; with processes the pair is pickled.

    Returns:
        `ReconstructionBound` of kind "upper", or "estimate" for a pair that is not proved to dominate.

    Raises:
        TypeError: for a pair without the method.
        ValueError: for samples of a wrong shape or NaN, and other values that are not allowed.

    Guarantees:
        `interval` holds the pair's B_κ with probability `confidence`; the value is its upper end. Deterministic given
        the seed.

    Example:
        >>> from leakcore import bounds, mechanisms
        >>> pair = mechanisms.FixedSize(1.0, 10, 1000, 10)
        >>> bound = bounds.reconstruction_of(pair, kappa=0.1, num_samples=20_000)
        >>> bound.kind, bound.adjacency, 0.1 <= bound.value < 0.3
        ('upper', 'replace', True)
    """
    stated = pair if isinstance(pair, StatedPair) else StatedPair(pair)
    chosen = method_of(method, num_samples=num_samples, confidence=confidence, seed=seed, executor=executor)
    if not isinstance(chosen, Certified):
        raise ValueError(f"`method` must be 'certified' or a bounds.methods.Certified, got {method!r}")
    return chosen.bound_of(stated, Kappa.parse(kappa, log_kappa))


def reconstruction_dkw(
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    *,
    kappa: Any = None,
    log_kappa: Any = None,
    num_samples: int = 1_000_000,
    confidence: float = 0.999,
    seed: int = 0,
) -> ReconstructionBound:
    """The confidence interval that Hayes et al. (2023, Section 3.3) put around their Algorithm 1.

    It is `reconstruction` by `methods.DKW`; docs/explanation/bounds.md has the formulas. To bound attacks use
    `reconstruction` itself.

    Args:
        noise_multiplier: σ > 0, as in `reconstruction`.
        sample_rate: as in `reconstruction`.
        steps: as in `reconstruction`.
        kappa: as in `reconstruction`.
        log_kappa: as in `reconstruction`.
        num_samples: number of draws, from 2 to 2²⁶.
        confidence: level of the interval, in (0, 1 − 1e-12].
        seed: seed of the draws.

    Returns:
        `ReconstructionBound` of kind "estimate", method "dkw-bennett".

    Raises:
        ValueError: for a value that is not allowed, noise_multiplier=0 among them; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic given the seed. Not a bound: the threshold is chosen on the samples that are counted.

    Example:
        >>> from leakcore import bounds
        >>> estimate = bounds.reconstruction_dkw(1.0, 0.01, 10, kappa=0.1, num_samples=20_000)
        >>> exact = bounds.reconstruction(1.0, 0.01, 10, kappa=0.1)
        >>> estimate.kind, abs(estimate.value - exact.value) < 0.01
        ('estimate', True)
    """
    method = DKW(num_samples=num_samples, confidence=confidence, seed=seed)
    return reconstruction(noise_multiplier, sample_rate, steps, kappa=kappa, log_kappa=log_kappa, method=method)
