"""What no reconstruction attack on DP-SGD can beat: the blow-up bound of Hayes, Mahloujifar and Balle (2023)."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from leakcore.bounds.methods import Certified, Method, method_of
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.bounds.reconstruction.pair import StatedPair


def reconstruction(
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
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

    B_κ = sup{μ(E) : ν(E) ≤ κ} for the dominating pair of DP-SGD with Poisson sampling (Hayes et al. 2023,
    Corollary 4 and equation 3): ν = N(0, σ²I_T), μ = Π_t [(1−q) N(0, σ²) + q N(1, σ²)]. For a uniform prior
    over n candidates κ = 1/n.

    Args:
        noise_multiplier: σ_t in [0, ∞], relative to the clipping norm; a scalar, or an array of length `steps`.
        sample_rate: q_t in [0, 1]; likewise.
        steps: T ≥ 0.
        kappa: κ in (0, 1], a float or an array of any shape. Exactly one of kappa and log_kappa.
        log_kappa: its natural logarithm, for priors too small for a float.
        method: a name in `bounds.methods`, whose table says what each covers, or one of its objects, which holds its
            own options (and some that have no keyword here: `methods.Certified(width=, resume=)`,
            `methods.MonteCarlo(under=)`).
        num_samples: of a method that samples, given by name; so are the next four.
        confidence: of "certified" and "importance".
        seed: of the samples.
        device: where "monte-carlo" and "certified" draw them: None or "cpu", "cuda" or "cuda:N".
        executor: maps shards of samples; the answer is bit-identical without it.

    Returns:
        A `ReconstructionBound`: kind "upper", but "estimate" of "monte-carlo" and "dkw-bennett". `interval` is the
        numerical error, rounded outward, or the confidence limits, whose upper end is the value.

    Raises:
        ValueError, TypeError: naming the argument. ImportError: "pld" lacks dp-accounting. AccuracyError: nothing
            covers the mechanism.

    Guarantees:
        Values are monotone in κ and in [κ, 1]; κ = 1 gives 1. Deterministic given the seed.
    """
    chosen = method_of(
        method, num_samples=num_samples, confidence=confidence, seed=seed, device=device, executor=executor
    )
    return chosen.bound(SampledGaussian.parse(noise_multiplier, sample_rate, steps), Kappa.parse(kappa, log_kappa))


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
    """Certified limits of B_κ = sup{μ(E) : ν(E) ≤ κ} for any pair (μ, ν) that can be sampled.

    It certifies B_κ of the pair. That no attack on some mechanism does better is a theorem about that mechanism, which
    is the caller's to prove.

    Args:
        pair: an object with `sample_log_ratio(num_samples, under, seed, first_sample)`, which returns log μ(x)/ν(x) of
            independent samples first_sample, first_sample + 1, … of μ (under="alternative"; "null" is not asked for
            here). Sample i may depend on (seed, under, i) only. Pickled where `executor` runs processes. With a method
            `fingerprint()`, a text that equal pairs alone have in common, runs can be continued. Its attributes
            `adjacency` and `dominates`, if it has them, say what it stands for; `bounds.StatedPair` says it for others.
            `bounds.fixed_batch_pair` and `bounds.measured_pair` make pairs.
        kappa, log_kappa: as in `reconstruction`.
        method: "certified", or a `bounds.methods.Certified`, which holds its own options.
        num_samples, confidence, seed, executor: as in `reconstruction`.

    Returns:
        A `ReconstructionBound` at `confidence`, interval = (lower, upper limit of the pair's B_κ); kind "upper", or
        "estimate" for a pair that is not proved to dominate.

    Raises:
        TypeError: a pair without the method. ValueError: samples of a wrong shape or NaN, other arguments by name.
    """
    stated = pair if isinstance(pair, StatedPair) else StatedPair(pair)
    chosen = method_of(method, num_samples=num_samples, confidence=confidence, seed=seed, executor=executor)
    if not isinstance(chosen, Certified):
        raise ValueError(f"method={method!r}: must be 'certified' or a bounds.methods.Certified, for any pair")
    return chosen.bound_of(stated, Kappa.parse(kappa, log_kappa))
