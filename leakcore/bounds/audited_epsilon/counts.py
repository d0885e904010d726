"""What an audit by counting proves: a lower bound on ε from how often an event happens with and without k rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore._base.validate import asks_adjacency
from leakcore.bounds.audited_epsilon.families import PRIVATE, Hypothesis, RefutableClaim
from leakcore.numerics import clopper_pearson


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonLowerBound(Result):
    """A proof, at its confidence, that the mechanism is not (ε′, δ)-private for any ε′ < `value`.

    Attributes:
        value: ε for one row, 0 when the counts prove nothing.
        hits: event counts (with the k rows, without them).
        trials: numbers of trials (with the k rows, without them).
        limits: ((low, high), (low, high)), the confidence limits that were used for the event's two probabilities; ()
            if it was tested without them.
        delta: as asked.
        k: as asked.
        direction: as asked.
        proved_by: which event and direction attained `value`; None where it is 0.
        family: as asked.
        mu: with family "gdp", the separation of unit Gaussians that was proved for one row; else None.
        noise_multiplier: with a mechanism as family, no larger σ is possible, at this confidence; else None.
        p_value: with a mechanism as family and a `SimultaneousThreshold`: if it ran, scores are ordered as well as
            these with at most this probability; else None.
    """

    quantity: str = "ε"
    hits: tuple[int, int]
    trials: tuple[int, int]
    limits: tuple[tuple[float, float], ...]
    delta: float
    k: int
    direction: str
    proved_by: str | None
    family: str = "dp"
    mu: float | None = None
    noise_multiplier: float | None = None
    p_value: float | None = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonCeiling(Result):
    """The largest ε that an audit of this size can prove, however leaky the mechanism, as `epsilon_opt` returns it.

    Attributes:
        value: that ε, the resolution of the audit.
        trials: numbers of trials (with the k rows, without them).
        audit_confidence: confidence of the audit that it limits.
        delta: as asked.
        k: as asked.
    """

    quantity: str = "ε"
    trials: tuple[int, int]
    audit_confidence: float
    delta: float
    k: int


@asks_adjacency
def epsilon_lower_bound(
    hits_in: int,
    hits_out: int,
    trials: int | tuple[int, int],
    *,
    adjacency: str,
    confidence: float = 0.99,
    delta: float = 0.0,
    k: int = 1,
    hypothesis: Hypothesis = PRIVATE,
) -> EpsilonLowerBound:
    """Lower bound on ε from event counts on two datasets that differ in k rows.

    With p_hi the lower confidence limit on the side where the event is likelier and p_lo the upper limit on the other
    side, group privacy p_hi ≤ x^k p_lo + δ(1 + x + … + x^(k−1)), x = e^ε, fails for every ε below `value`; at δ = 0
    that is log(p_hi/p_lo)/k (Jagielski, Ullman and Oprea 2020, Algorithm 2 and Appendix A). More:
    docs/explanation/bounds.md.

    Args:
        hits_in: how often the event happened with the k rows, in [0, trials].
        hits_out: how often it happened without them.
        trials: trials on each dataset, or a pair (with the k rows, without them).
        adjacency: what replaced the k rows where they are missing: nothing ("add-remove") or other rows ("replace").
            Only the trials can tell.
        confidence: probability that `value` does not exceed the true ε.
        delta: δ in [0, 1) of the (ε, δ)-privacy that is tested.
        k: rows in which the datasets differ; `value` is ε for one row.
        hypothesis: the family of guarantees that is tested, and the side on which the event is likelier.

    Returns:
        `EpsilonLowerBound` of kind "lower".

    Raises:
        ValueError: for a count, a probability or a word that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Assumes independent trials, and an event that was chosen on other trials. Compare it only with an ε of the same
        adjacency and δ. Deterministic given the counts.

    Example:
        >>> from leakcore import bounds
        >>> proof = bounds.epsilon_lower_bound(400, 100, 500, adjacency="add-remove")
        >>> f"{proof.value:.2f}", proof.kind, proof.confidence
        ('1.10', 'lower', 0.99)
    """
    claim = RefutableClaim.parse(confidence, delta, k, adjacency, hypothesis)
    n_in, n_out = _trials(trials)
    h_in = validate.integer(0, n_in, hits_in=hits_in)
    h_out = validate.integer(0, n_out, hits_out=hits_out)
    return from_counts((h_in, h_out), (n_in, n_out), claim)


def from_counts(hits: tuple[int, int], trials: tuple[int, int], claim: RefutableClaim) -> EpsilonLowerBound:
    """What checked counts (with the k rows, without them) prove."""
    (h_in, h_out), (n_in, n_out), level, side = hits, trials, claim.confidence, claim.direction
    # A two-sided interval has (1 − level)/2 in each tail: a fixed direction uses one tail of each, an open one both.
    interval_level = level if side != "both" else 1.0 - (1.0 - level) / 2.0
    proofs = {"nothing": 0.0}
    for name, likely, unlikely in (("in", (h_in, n_in), (h_out, n_out)), ("out", (h_out, n_out), (h_in, n_in))):
        if side in (name, "both"):
            (many, total), (few, others) = likely, unlikely
            event = _limits(many, total, interval_level)[0], _limits(few, others, interval_level)[1]
            # From the complementary counts: 1 − limit would cancel when the limit is close to 1.
            complement = (
                _limits(others - few, others, interval_level)[0],
                _limits(total - many, total, interval_level)[1],
            )
            proofs[f"event, likelier {name}"] = claim.proved(*event)
            proofs[f"complement of the event, which is likelier {name}"] = claim.proved(*complement)
    best = max(proofs, key=proofs.__getitem__)
    return EpsilonLowerBound(
        value=claim.epsilon(proofs[best]),
        **claim.fields(
            "event, k and direction were fixed before these trials were counted (chosen on separate trials)"
        ),
        method="Clopper–Pearson limits at " + ("α/4" if side == "both" else "α/2") + ", event and complement",
        provenance=claim.provenance,
        hits=(h_in, h_out),
        trials=(n_in, n_out),
        limits=(_limits(h_in, n_in, interval_level), _limits(h_out, n_out, interval_level)),
        proved_by=None if best == "nothing" else best,
        mu=proofs[best] if claim.family == "gdp" else None,
        noise_multiplier=None if claim.mechanism is None else claim.mechanism.noise_multiplier(proofs[best]),
    )


def epsilon_opt(
    trials: int | tuple[int, int],
    *,
    confidence: float,
    k: int = 1,
    delta: float = 0.0,
    adjacency: str | None = None,
    hypothesis: Hypothesis = PRIVATE,
) -> EpsilonCeiling:
    """The ε that `epsilon_lower_bound` reports for perfect counts: no event of an audit of this size proves more.

    A `SimultaneousThreshold` tests the order of all scores instead of two limits, and can prove about log 2 more.

    ε_OPT(T, α) of Jagielski, Ullman and Oprea (2020), Section 2: the event in all trials on one side and in none on the
    other. At δ = 0 it is log((α/2)^(1/T)/(1 − (α/2)^(1/T)))/k.

    Args:
        trials: as in `epsilon_lower_bound`.
        confidence: level 1 − α of the audit, in (0, 1 − 1e-12].
        k: as in `epsilon_lower_bound`.
        delta: as in `epsilon_lower_bound`.
        adjacency: the audit's relation, which the result states; None: it states none. The number is the same.
        hypothesis: as in `epsilon_lower_bound`.

    Returns:
        `EpsilonCeiling` of kind "upper"; 0 when even perfect counts prove nothing.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        Deterministic. It limits what an audit can prove, not what the mechanism leaks.

    Example:
        >>> from leakcore import bounds
        >>> f"{bounds.epsilon_opt(500, confidence=0.99).value:.4f}"
        '4.5419'
    """
    stated = None if adjacency is None else parse_adjacency(adjacency)
    claim = RefutableClaim.parse(confidence, delta, k, stated or "add-remove", hypothesis)
    n_in, n_out = _trials(trials)
    perfect = from_counts((0, n_out) if claim.direction == "out" else (n_in, 0), (n_in, n_out), claim)
    return EpsilonCeiling(
        value=perfect.value,
        kind="upper",
        confidence=None,
        interval=None,
        method="lower bound at perfect counts",
        assumptions=Assumptions(
            adjacency=stated,
            attacker="any, perfect inference included",
            notes=("limits what an audit with this many trials can prove, not what the mechanism leaks",),
        ),
        provenance="Jagielski, Ullman and Oprea (2020), Section 2, ε_OPT(T, α)",
        trials=perfect.trials,
        audit_confidence=claim.confidence,
        delta=perfect.delta,
        k=perfect.k,
    )


def _trials(trials: Any) -> tuple[int, int]:
    if isinstance(trials, (tuple, list)):
        if len(trials) != 2:
            raise ValueError(f"`trials` must be an integer or a pair (with the k rows, without them), got {trials!r}")
        return validate.integer(1, trials=trials[0]), validate.integer(1, trials=trials[1])
    both = validate.integer(1, trials=trials)
    return both, both


def _limits(hits: int, trials: int, level: float) -> tuple[float, float]:
    low, high = clopper_pearson(hits, trials, confidence=level)
    return float(low), float(high)
