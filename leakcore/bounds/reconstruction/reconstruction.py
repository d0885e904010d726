"""What no reconstruction attack on DP-SGD can beat: the blow-up bound of Hayes, Mahloujifar and Balle (2023)."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from leakcore._base.progress import timed
from leakcore.bounds.methods import Certified, Method, method_of
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound
from leakcore.bounds.reconstruction.of_mechanism import bound_of_mechanism
from leakcore.bounds.reconstruction.pair import StatedPair
from leakcore.mechanisms import as_mechanism, over_grids


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
        noise_multiplier: a mechanism; or σ_t in [0, ∞], a number or an array of length `steps`.
        sample_rate: q_t in [0, 1]; likewise. None with a mechanism.
        steps: T ≥ 0. None with a mechanism.
        kappa: κ in (0, 1], a float or an array; 1/n for n equally likely candidates.
        log_kappa: log κ, for priors too small for a float.
        method: a name or an object of `bounds.methods`; an object holds its own options.
        num_samples: draws of a method that samples.
        confidence: of its limits.
        seed: of its draws.
        device: where "monte-carlo" and "certified" draw: "cpu", "cuda" or "cuda:N".
        executor: its workers share the draws.

    Returns:
        `ReconstructionBound` of kind "upper" ("estimate" for "monte-carlo" and "dkw-bennett").

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.
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
        confidence: of the limits, in (0, 1 − 1e-12], for each κ.
        seed: of the samples.
        executor: maps shards of samples; with processes the pair is pickled.

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
