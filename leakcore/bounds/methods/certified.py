"""B_κ by Monte Carlo with a finite-sample guarantee, of DP-SGD or of any pair that can be sampled."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor
from typing import Any, ClassVar

from leakcore._base import validate
from leakcore._base.results import Assumptions, parse_adjacency
from leakcore._base.version import difference
from leakcore.bounds.methods.method import POINTWISE, PROVENANCE, SampledLimits, assumptions
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.bounds.reconstruction.certificate import Certificate, CertificateState, certify, samples_needed
from leakcore.bounds.reconstruction.pair import StatedPair, computed_with, fingerprint, mixture_pair


@dataclasses.dataclass(frozen=True)
class Certified(SampledLimits):
    """Every mechanism: two limits that hold at `confidence` for a finite sample, in constant memory.

    Of no use for κ far below 1/num_samples, where `Importance` serves.

    Args:
        num_samples: drawn in all; with `width` at most.
        confidence: in (0, 1 − 1e-12], for each κ.
        seed: of the samples.
        device: where the samples are drawn: None, "cpu", "cuda" or "cuda:N" (in torch's or CuPy's memory).
        executor: maps shards of samples; the answer is bit-identical without it.
        width: stop as soon as every interval is at most this wide. The limits then hold for all sample sizes at once
            (Ville's inequality), a few per cent wider.
        resume: the `state` of an earlier result with the same mechanism, κ, seed and confidence; goes on up to
            num_samples in all. The answer is that of one run, to the bit (if the first had num_samples ≥ 200,000).

    Raises:
        ValueError: for a value that is not allowed, too few samples for the confidence, or a damaged state.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import bounds
        >>> method = bounds.methods.Certified(num_samples=20_000, confidence=0.99, seed=1)
        >>> bound = bounds.reconstruction(1.0, 0.5, 10, kappa=0.1, method=method)
        >>> low, high = bound.interval
        >>> low < bounds.reconstruction(1.0, 0.5, 10, kappa=0.1).value < high == bound.value
        True
    """

    name: ClassVar[str] = "certified"
    device: str | None = None
    executor: Executor | None = None
    width: float | None = None
    resume: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = samples_needed(self.confidence)
        if self.num_samples < needed:
            raise ValueError(
                f"`num_samples` must be at least {needed} for any limit at confidence={self.confidence:g}, got "
                f"{self.num_samples}"
            )
        if self.width is not None:
            object.__setattr__(self, "width", validate.positive(width=self.width))
        if self.resume is not None and not isinstance(self.resume, CertificateState):
            try:
                object.__setattr__(self, "resume", CertificateState.from_dict(self.resume))
            except ValueError as why:
                raise ValueError(
                    f"`resume` must be the `state` of an earlier result, but this one is damaged ({why})"
                ) from why

    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        """See `Method`."""
        limits = self._limits(mixture_pair(mechanism, self.device), prior)
        rest = limits.num_samples - limits.num_pilot
        notes = [f"chosen on a pilot of {limits.num_pilot} samples, certified on the other {rest}"]
        if limits.state is not None:
            notes.append("valid for all sample sizes at once: stopping and going on are allowed")
        if prior.shape:
            notes.append(POINTWISE)
        provenance = PROVENANCE + "; dual certificate by betting"
        return self._result(limits, prior, kind="upper", assumptions=assumptions(*notes), provenance=provenance)

    def bound_of(self, stated: StatedPair, prior: Kappa) -> ReconstructionBound:
        """B_κ of a pair from outside."""
        if self.device is not None:
            raise ValueError(
                f"`device` must be None, since a pair from outside draws its own samples, got {self.device!r}"
            )
        relation = None if stated.adjacency is None else parse_adjacency(stated.adjacency)
        limits = self._limits(stated.pair, prior)
        proof = (
            "bounds attacks on a mechanism only if the pair dominates it: the caller's theorem"
            if stated.dominates
            else "an estimate where attacks on a mechanism are concerned: that the pair dominates it is not claimed; "
            "the limits hold for the pair itself"
        )
        return self._result(
            limits,
            prior,
            kind="upper" if stated.dominates else "estimate",
            assumptions=Assumptions(adjacency=relation, attacker="as the pair says", notes=(proof, POINTWISE)),
            provenance="Hayes, Mahloujifar and Balle (2023), Theorem 2, equation (3); dual certificate by betting",
        )

    def _result(self, limits: Certificate, prior: Kappa, **statements: Any) -> ReconstructionBound:
        return ReconstructionBound(
            confidence=self.confidence,
            method=self.name,
            seed=self.seed,
            num_samples=limits.num_samples,
            state=None if limits.state is None else limits.state.to_dict(),
            **statements,
            **prior.fields(limits.log_high, limits.log_low, limits.log_high, proved=True),
        )

    def _limits(self, pair: Any, prior: Kappa) -> Certificate:
        if self.resume is not None:
            self._require_same(pair, prior, self.resume)
        return certify(
            pair,
            prior.log,
            num_samples=self.num_samples,
            confidence=self.confidence,
            seed=self.seed,
            executor=self.executor,
            width=self.width,
            resume=self.resume,
        )

    def _require_same(self, pair: Any, prior: Kappa, state: CertificateState) -> None:
        """ValueError unless the state is of this very question, and of samples with these bits."""
        if not callable(getattr(pair, "fingerprint", None)):
            raise ValueError(
                "`resume` must be None, since the pair has no fingerprint(), a text that only equal pairs have in "
                "common: another pair's state could be taken for its own"
            )
        same = state.log_kappa.shape == prior.log.shape and bool((state.log_kappa == prior.log).all())
        if not same or (state.seed, state.confidence, state.pair) != (self.seed, self.confidence, fingerprint(pair)):
            raise ValueError("`resume` must be of this mechanism, kappa, seed and confidence, but belongs to another")
        if apart := difference(dict(state.computed_with), computed_with(pair)):
            raise ValueError(f"`resume` was begun elsewhere ({apart}), where the last bits differ: begin again")
