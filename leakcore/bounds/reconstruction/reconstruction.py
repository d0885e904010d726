"""What no reconstruction attack on DP-SGD can beat: the blow-up bound of Hayes, Mahloujifar and Balle (2023)."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Adjacency, Assumptions, parse_adjacency
from leakcore.bounds.reconstruction.arguments import (
    ATTACKER,
    MAX_SAMPLES,
    Kappa,
    ReconstructionBound,
    SampledGaussian,
)
from leakcore.numerics import AccuracyError

METHODS = ("auto", "closed-form", "exact", "pld", "monte-carlo", "certified", "importance")
_MAX_SAMPLED_STEPS = 1 << 24
"""Of a sample by importance; the kernels' samples have as many."""
_SAMPLING = ("monte-carlo", "certified", "importance")
_PROVENANCE = "Hayes, Mahloujifar and Balle (2023), Theorem 2 and Corollary 4, equation (3)"
_LEAST_ROUNDING = 1e-10
"""Of the sums that make a blow-up of a discretised loss: one that its masses and suffix sums never reach."""
_POINTWISE = "confidence is pointwise in kappa"


def reconstruction(
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    *,
    kappa: Any = None,
    log_kappa: Any = None,
    method: str = "auto",
    num_samples: int = 1_000_000,
    confidence: float = 0.999,
    seed: int = 0,
    device: str | None = None,
    executor: Executor | None = None,
    under: str | None = None,
    width: float | None = None,
    resume: dict[str, Any] | None = None,
) -> ReconstructionBound:
    """The largest probability with which any attack reconstructs a record that it could guess with probability κ.

    B_κ = sup{μ(E) : ν(E) ≤ κ} for the dominating pair of DP-SGD with Poisson sampling (Hayes et al. 2023,
    Corollary 4 and equation 3): ν = N(0, σ²I_T), μ = Π_t [(1−q) N(0, σ²) + q N(1, σ²)]. For a uniform prior
    over n candidates κ = 1/n.

    noise_multiplier: σ_t in [0, ∞], relative to the clipping norm; sample_rate: q_t in [0, 1]. Scalars, or arrays of
        length `steps` (schedules). steps: T ≥ 0.
    kappa, log_kappa: exactly one of κ in (0, 1] and its natural logarithm, a float or an array of any shape.
    method, and what it covers:
        "auto"         closed-form where it applies; else exact; where exact raises AccuracyError (few steps of small q
                       and κ far out, as σ = 1, q = .001, T = 100, κ = 4⁻⁷⁸⁴), importance for all κ of the call; where
                       that does too, its AccuracyError: nothing covers it
        "closed-form"  q = 1 in every step: Φ(Φ⁻¹(κ) + √Σσ_t⁻²); one step: (1−q)κ + qΦ(Φ⁻¹(κ) + 1/σ); σ = 0:
                       1 − (1−q)^T(1−κ); nothing leaks (T = 0, q = 0, σ = ∞): κ. Else ValueError.
        "exact"        everything: Fourier inversion of the tilted privacy loss, or a recursion where it is too rough;
                       numerical error reported (1e-12 as a rule); AccuracyError above 1e-6
        "pld"          σ > 0, by dp-accounting: slower, not tight; interval (optimistic, pessimistic), value the latter
        "monte-carlo"  everything: an estimate from `num_samples` draws, memory 8 bytes each
        "certified"    everything: limits with a finite-sample guarantee at `confidence`, constant memory; of no use
                       for κ far below 1/num_samples
        "importance"   everything, made for κ ≪ 1/num_samples, down to 4⁻³⁰⁷² and below by log_kappa: limits with the
                       same guarantee from samples of the loss tilted to the saddle point of its threshold. With 10⁶
                       samples at 99.9% both are within 1.5% of B_κ where T ≥ 50 (the upper one within 1%, mostly both);
                       a few steps of small q are worse, up to 3% below. See `bounds._importance`
    num_samples, seed, confidence: of the sampling methods; confidence only of "certified" and "importance". For
        "importance" num_samples is shared by the two limits, and drawn anew for κ that need another tilt.
    under: of "monte-carlo" only. "alternative" (default) draws from μ and evaluates the dual
        min_t κe^t + E_μ(1 − e^{t−L})_+ at the sample's threshold. "null" is Algorithm 1 of Hayes et al. with E1: they
        print (1/N′)Σ_{i≤N′} r′_i, N′ = ⌈κN⌉, where the estimator of μ(E) is (1/N)Σ_{i≤N′} r′_i. It lies below the truth
        more often than not, and collapses where draws of ν miss the mass of μ.
    width: of "certified": stop as soon as every interval is at most this wide, with num_samples as the most drawn. The
        limits then hold for all sample sizes at once (Ville's inequality), a few per cent wider.
    resume: of "certified": the `state` of an earlier result with the same mechanism, κ, seed and confidence; goes on
        up to num_samples in all. The answer is that of one run, to the bit (if the first had num_samples ≥ 200,000).
    device: None or "cpu"; for "monte-carlo" and "certified" also "cuda" or "cuda:N", where the samples are drawn (in
        torch's or CuPy's memory). executor: "certified", "importance", "monte-carlo"; maps shards of samples, the
        answer is bit-identical without it.

    Returns a `ReconstructionBound`. kind "upper" for all methods but "monte-carlo" ("estimate"); `interval` is the
    numerical error, rounded outward, or for "certified" and "importance" the confidence limits, whose upper end is
    the value. Values are monotone in κ and in [κ, 1]; κ = 1 gives 1. Deterministic given the seed.

    Raises ValueError or TypeError that names the argument; ImportError when "pld" lacks dp-accounting.
    """
    name = validate.one_of(*METHODS, method=method)
    mechanism = SampledGaussian.parse(noise_multiplier, sample_rate, steps)
    prior = Kappa.parse(kappa, log_kappa)
    count = validate.integer(1, MAX_SAMPLES, num_samples=num_samples)
    level = validate.confidence(confidence=confidence)
    key = validate.seed(seed=seed)
    validate.executor(executor=executor)
    _check_device(device, name)
    if under is not None and name != "monte-carlo":
        raise ValueError(f"under={under!r}: only method='monte-carlo' takes it, not {name!r}")
    if executor is not None and name not in _SAMPLING:
        raise ValueError(f"executor={executor!r}: only methods that sample take it, {_SAMPLING}, not {name!r}")
    if name != "certified" and (width is not None or resume is not None):
        raise ValueError(f"width={width!r}, resume: only method='certified' takes them, not {name!r}")
    if name == "monte-carlo":
        side = validate.one_of("alternative", "null", under="alternative" if under is None else under)
        return _monte_carlo(mechanism, prior, count, key, side, device, executor)
    if name == "certified":
        return _certified(mechanism, prior, count, level, key, executor, width, resume, device)
    if name == "importance":
        return _importance(mechanism, prior, count, level, key, executor)
    try:
        return _deterministic(mechanism, prior, name)
    except AccuracyError as error:
        if name == "exact":
            raise AccuracyError(f"{error}; method='pld' or 'importance' gives an upper bound") from error
        if name != "auto":
            raise
    return _importance(mechanism, prior, count, level, key, executor)


def reconstruction_of(
    pair: Any,
    *,
    kappa: Any = None,
    log_kappa: Any = None,
    num_samples: int = 1_000_000,
    confidence: float = 0.999,
    seed: int = 0,
    executor: Executor | None = None,
    adjacency: str | None = None,
    dominates: bool | None = None,
    width: float | None = None,
    resume: dict[str, Any] | None = None,
) -> ReconstructionBound:
    """Certified limits of B_κ = sup{μ(E) : ν(E) ≤ κ} for any pair (μ, ν) that can be sampled.

    pair: an object with `sample_log_ratio(num_samples, under, seed, first_sample)`, which returns log μ(x)/ν(x) of
        independent samples first_sample, first_sample + 1, … of μ (under="alternative"; "null" is not asked for here).
        Sample i may depend on (seed, under, i) only. Pickled where `executor` runs processes. With a method
        `fingerprint()`, a text that equal pairs alone have in common, runs can be continued by `resume`.
    adjacency: the neighbouring relation that the pair stands for; None: the pair's attribute `adjacency`, or none.
    The rest as in `reconstruction` with method "certified".

    dominates: whether the pair may stand for a mechanism. True: kind "upper". False: kind "estimate", although the
        limits of the pair's own B_κ hold; so for shuffled batches, whose dominating pair nobody has proved, and for
        measured per-step norms, which are adaptive. None: the pair's attribute `dominates`, True where it has none.
        Fixed-size batches have adjacency "replace" (a record is swapped, and two clipped gradients are up to 2C apart)
        and a proved pair: `fixed_batch_pair`. ValueError where `adjacency` is another than the pair's.

    It certifies B_κ of the pair. That no attack on some mechanism does better is a theorem about that mechanism, which
    is the caller's to prove.

    Returns a `ReconstructionBound` at `confidence`, interval = (lower, upper limit of the pair's B_κ). Raises TypeError
    for a pair without the method, ValueError for samples of a wrong shape or NaN.
    """
    if not callable(getattr(pair, "sample_log_ratio", None)):
        raise TypeError(f"pair={pair!r}: must have a method sample_log_ratio(num_samples, under, seed, first_sample)")
    prior = Kappa.parse(kappa, log_kappa)
    count = validate.integer(2, MAX_SAMPLES, num_samples=num_samples)
    level = validate.confidence(confidence=confidence)
    key = validate.seed(seed=seed)
    validate.executor(executor=executor)
    relation = None if adjacency is None else parse_adjacency(adjacency)
    own = getattr(pair, "adjacency", None)
    if own is not None and relation not in (None, own):
        raise ValueError(f"adjacency={adjacency!r}: this pair stands for {own!r}")
    relation = relation or own
    proved = bool(getattr(pair, "dominates", True)) if dominates is None else dominates
    limits = _certify(pair, prior, count, level, key, executor, width, resume)
    proof = (
        "bounds attacks on a mechanism only if the pair dominates it: the caller's theorem"
        if proved
        else "an estimate where attacks on a mechanism are concerned: that the pair dominates it is not claimed; the "
        "limits are those of the pair itself"
    )
    return ReconstructionBound(
        kind="upper" if proved else "estimate",
        confidence=level,
        method="certified",
        assumptions=_assumptions(relation, "as the pair says", (proof, _POINTWISE)),
        seed=key,
        provenance="Hayes, Mahloujifar and Balle (2023), Theorem 2, equation (3); dual certificate by betting",
        num_samples=limits.num_samples,
        state=None if limits.state is None else limits.state.to_dict(),
        **prior.fields(limits.log_high, limits.log_low, limits.log_high, proved=True),
    )


def _certify(
    pair: Any,
    prior: Kappa,
    count: int,
    confidence: float,
    seed: int,
    executor: Executor | None,
    width: float | None,
    resume: dict[str, Any] | None,
) -> Any:
    from leakcore._store import difference
    from leakcore.bounds.reconstruction.certified import (
        CertificateState,
        certify,
        computed_with,
        fingerprint,
        samples_needed,
    )

    needed = samples_needed(confidence)
    if count < needed:
        raise ValueError(
            f"num_samples={count}: too few for confidence={confidence:g}, {needed} are needed for any limit at all"
        )
    wanted = None if width is None else validate.positive(width=width)
    state = None
    if resume is not None:
        if not callable(getattr(pair, "fingerprint", None)):
            raise ValueError(
                "resume: the pair has no fingerprint(), a text that equal pairs alone have in common, so that another "
                "pair's state would be taken for its own"
            )
        state = CertificateState.from_dict(resume)
        same = state.log_kappa.shape == prior.log.shape and bool((state.log_kappa == prior.log).all())
        if not same or state.seed != seed or state.confidence != confidence or state.pair != fingerprint(pair):
            raise ValueError("resume: belongs to another mechanism, kappa, seed or confidence")
        if apart := difference(dict(state.computed_with), computed_with(pair)):
            raise ValueError(f"resume: was begun elsewhere ({apart}), where the last bits are others: begin anew")
    return certify(
        pair,
        prior.log,
        num_samples=count,
        confidence=confidence,
        seed=seed,
        executor=executor,
        width=wanted,
        resume=state,
    )


def measured_pair(noise_multiplier: Any, sample_rate: Any, norms: Any) -> Any:
    """The pair for `reconstruction_of` when the target's clipped gradients are known to be shorter than C.

    With measured n_t = ‖clip_C(∇ℓ(θ_t, z))‖/C a step is (1−q) N(0, σ²) + q N(n_t, σ²): a step of noise multiplier σ/n_t
    (Hayes et al. 2023, Appendix K: unclipped gradients leak less). The norms depend on the run, so nothing is proved:
    the result is an estimate, conditional on the trace.

    norms: (T,) in [0, 1]. noise_multiplier > 0 and sample_rate as in `reconstruction`. Raises ValueError or TypeError.
    """
    lengths = validate.real_array("in [0, 1]", lambda v: (v >= 0.0) & (v <= 1.0), norms=norms)
    if lengths.ndim != 1:
        raise ValueError(f"norms of shape {lengths.shape}: must be one-dimensional, one per step")
    mechanism = SampledGaussian.parse(noise_multiplier, sample_rate, len(lengths))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sigma = np.where(lengths > 0.0, mechanism.sigma / lengths, np.inf)
    return dataclasses.replace(_pair(dataclasses.replace(mechanism, sigma=sigma)), dominates=False)


def _deterministic(mechanism: SampledGaussian, prior: Kappa, name: str) -> ReconstructionBound:
    from leakcore.numerics import blow_up

    loss = mechanism.loss()
    closed = blow_up.has_closed_form(loss)
    if name == "closed-form" and not closed:
        raise ValueError(
            "method='closed-form' covers sample_rate=1 in every step, a single step, or noise_multiplier=0: "
            f"this has {loss.num_mixture_steps} subsampled steps; use method='exact'"
        )
    notes: tuple[str, ...] = ()
    if name == "pld" and loss.silent:
        tail = blow_up.Tail(prior.log, prior.log, prior.log)
        notes = ("nothing leaks: no step samples and tells",)
    elif name == "pld":
        from leakcore.numerics import DiscreteLoss

        above, below = (DiscreteLoss(loss, pessimistic=side) for side in (True, False))
        rounding = max(above.rounding, below.rounding, _LEAST_ROUNDING)
        high = np.clip(np.logaddexp(above.log_blow_up(prior.log), np.log(rounding)), prior.log, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            low = np.log(np.maximum(np.exp(below.log_blow_up(prior.log)) - rounding, 0.0))
        low = np.minimum(np.clip(low, prior.log, 0.0), high)
        tail = blow_up.Tail(high, low, high)
        notes = (f"interval: dp-accounting's optimistic and pessimistic discretisation, {rounding:.2g} for rounding",)
    else:
        tail = blow_up.log_blow_up_exact(loss, prior.log, force_numerical=name == "exact")
        name = "closed-form" if closed and name != "exact" else "exact"
        notes = ("interval: numerical error, rounded outward",)
    return ReconstructionBound(
        kind="upper",
        confidence=None,
        method=name,
        assumptions=_assumptions("add-remove", ATTACKER, notes),
        provenance=_PROVENANCE,
        **prior.fields(tail.log_value, tail.log_low, tail.log_high, proved=name == "pld"),
    )


def _monte_carlo(
    mechanism: SampledGaussian,
    prior: Kappa,
    count: int,
    seed: int,
    under: str,
    device: str | None,
    executor: Executor | None,
) -> ReconstructionBound:
    from leakcore.bounds.reconstruction.monte_carlo import estimate

    pair = _pair(mechanism, device)
    found = estimate(pair, prior.log, num_samples=count, under=under, seed=seed, executor=executor)
    which = "Algorithm 1, erratum E1" if under == "null" else "equation (3) in dual form, samples of mu"
    return ReconstructionBound(
        kind="estimate",
        confidence=None,
        method=f"monte-carlo ({under})",
        assumptions=_assumptions("add-remove", ATTACKER, ("an estimate: it may lie below the truth",)),
        seed=seed,
        provenance=f"Hayes, Mahloujifar and Balle (2023), {which}",
        standard_error=prior.shaped(found.standard_error),
        effective_sample_size=prior.shaped(found.effective_sample_size),
        num_samples=count,
        warnings=found.warnings,
        **prior.fields(found.log_value, None, None),
    )


def _certified(
    mechanism: SampledGaussian,
    prior: Kappa,
    count: int,
    confidence: float,
    seed: int,
    executor: Executor | None,
    width: float | None,
    resume: dict[str, Any] | None,
    device: str | None,
) -> ReconstructionBound:
    limits = _certify(_pair(mechanism, device), prior, count, confidence, seed, executor, width, resume)
    rest = limits.num_samples - limits.num_pilot
    notes: tuple[str, ...] = (f"chosen on a pilot of {limits.num_pilot} samples, certified on the other {rest}",)
    if limits.state is not None:
        notes += ("valid for all sample sizes at once: stopping and going on are allowed",)
    return ReconstructionBound(
        kind="upper",
        confidence=confidence,
        method="certified",
        assumptions=_assumptions("add-remove", ATTACKER, (*notes, *((_POINTWISE,) if prior.shape else ()))),
        seed=seed,
        provenance=_PROVENANCE + "; dual certificate by betting",
        num_samples=limits.num_samples,
        state=None if limits.state is None else limits.state.to_dict(),
        **prior.fields(limits.log_high, limits.log_low, limits.log_high, proved=True),
    )


def _importance(
    mechanism: SampledGaussian, prior: Kappa, count: int, confidence: float, seed: int, executor: Executor | None
) -> ReconstructionBound:
    from leakcore.bounds.reconstruction.importance import importance_limits, samples_needed
    from leakcore.numerics import with_escape

    needed = samples_needed(confidence)
    if count < needed:
        raise ValueError(
            f"num_samples={count}: too few for confidence={confidence:g} by 'importance', {needed} are needed"
        )
    loss = mechanism.loss()
    if loss.num_mixture_steps > _MAX_SAMPLED_STEPS:
        raise AccuracyError(
            f"steps={mechanism.steps}: 'importance' draws each of a sample's steps, at most {_MAX_SAMPLED_STEPS}; "
            "'reconstruction_rdp' gives an upper bound for any number"
        )
    limits = importance_limits(loss, prior.log, num_samples=count, confidence=confidence, seed=seed, executor=executor)
    low, high = (with_escape(part, loss.log_no_escape) for part in (limits.log_low, limits.log_high))
    notes = (
        f"{limits.num_laws} tilted law(s) of {count} samples each",
        "exact but for float64 rounding: tables from both sides",
        *((_POINTWISE,) if prior.shape else ()),
    )
    return ReconstructionBound(
        kind="upper",
        confidence=confidence,
        method="importance",
        assumptions=_assumptions("add-remove", ATTACKER, notes),
        seed=seed,
        provenance=_PROVENANCE + "; exponential tilt, dual certificate by betting",
        num_samples=count,
        **prior.fields(high, low, high, proved=True),
    )


def _check_device(device: Any, method: str) -> None:
    if device is None or device == "cpu":
        return
    from leakcore.kernels import place

    place.check(device)
    if method not in ("monte-carlo", "certified"):
        raise ValueError(f"device={device!r}: only methods 'monte-carlo' and 'certified' sample on it, not {method!r}")


def _pair(mechanism: SampledGaussian, device: str | None = None) -> Any:
    from leakcore.bounds.reconstruction.certified import MixturePair

    # A step with infinite noise says nothing; the sampler wants finite numbers.
    silent = np.isinf(mechanism.sigma)
    sigma = np.where(silent, 1.0, mechanism.sigma)
    rate = np.where(silent, 0.0, mechanism.rate) if silent.any() else mechanism.rate
    return MixturePair(_plain(sigma), _plain(rate), mechanism.steps, device=device)


def _plain(array: np.ndarray) -> Any:
    return float(array) if array.ndim == 0 else array


def _assumptions(adjacency: Adjacency | None, attacker: str, notes: tuple[str, ...]) -> Assumptions:
    return Assumptions(adjacency=adjacency, attacker=attacker, notes=notes)
