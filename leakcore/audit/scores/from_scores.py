"""From membership scores of any tool to a report: rates with intervals, and what they prove about ε, if anything."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal, cast

import numpy as np

from leakcore import accounting, bounds
from leakcore._base import validate
from leakcore._base.progress import timed
from leakcore._base.results import Adjacency, Result, parse_adjacency
from leakcore._base.text import HOW_TO_CHOOSE
from leakcore.audit.scores.given_scores import Sides, sides_of
from leakcore.audit.scores.report import ScoresReport
from leakcore.audit.scores.statistics import PROVENANCE, area, area_limits, assumed, audited, rate_limits, require_fair
from leakcore.audit.shared.claimed_epsilon import claimed_under, is_pair, noted
from leakcore.audit.shared.doctor import environment
from leakcore.audit.shared.report import GATE, names
from leakcore.mechanisms import Mechanism

_AS_PAIR = "a replaced row counts as two rows, one that is taken out and one that is put in (group privacy)"
_FPRS = (0.001, 0.01, 0.05, 0.1)


@dataclasses.dataclass(frozen=True)
class Retrained:
    """Every score comes from its own model, which was trained with the rows in question or without them.

    Args:
        k: number of rows by which the two sides' training data differ. The proof is about one row, by group privacy.
        seed: seed of the order of equal scores, or of the random halves.
        select: how the threshold is chosen, fixed before you look. "simultaneous": by all scores, which are all counted
            (`bounds.SimultaneousThreshold`). "split": by one half of them; the other is counted
            (`bounds.SplitThreshold`).

    Raises:
        ValueError: for a number out of range, or another word.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import audit
        >>> audit.Retrained(k=4)
        Retrained(k=4, seed=0, select='simultaneous')
    """

    k: int = 1
    seed: int = 0
    select: Literal["simultaneous", "split"] = "simultaneous"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", validate.integer(1, None, k=self.k))
        object.__setattr__(self, "seed", validate.seed(seed=self.seed))
        validate.one_of("simultaneous", "split", select=self.select)

    @property
    def threshold(self) -> bounds.Threshold:
        """The way that `select` names."""
        if self.select == "simultaneous":
            return bounds.SimultaneousThreshold(seed=self.seed)
        return bounds.SplitThreshold(seed=self.seed)


@timed
def from_scores(
    members: Any = None,
    non_members: Any = None,
    *,
    scores: Any = None,
    coins: bool = False,
    retrained: bool | Retrained = False,
    delta: float = 1e-5,
    claimed_epsilon: float | None = None,
    claimed_adjacency: str | None = None,
    adjacency: str | None = None,
    confidence: float = 0.95,
    family: str | Mechanism = "dp",
) -> ScoresReport:
    """The report on membership scores of another tool.

    It gives rates and the area under the ROC curve, with intervals, and what the scores prove about ε. That depends on
    how the members were chosen; with neither `coins` nor `retrained` ε is an estimate (docs/explanation/reports.md).

    Args:
        members: (n,) scores of rows that were trained on, larger for likelier members (pass losses negated), no labels.
            Or a file for `audit.read_scores`, or its result. With `scores`: whether each row was trained on.
        non_members: (m,) scores of other rows, no labels.
        scores: (n,) scores of all rows; `members` then says who is one.
        coins: True if a fair coin decided for each row whether one training run used it, and all rows are here. Kind
            "lower".
        retrained: True, or a `Retrained`, if each score comes from its own model. Kind "lower".
        delta: δ in [0, 1).
        claimed_epsilon: ε that the model claims at δ; a proof at 99.9% above it contradicts it.
        claimed_adjacency: the relation of that ε, required with it.
        adjacency: "add-remove" if a non-member was left out, "replace" if another row took its place. Required without
            coins.
        confidence: level of every interval and of the quoted lower bound, in (0, 1).
        family: what is refuted, as in `bounds.Hypothesis`: "dp", "gdp" or the claimed mechanism.

    Returns:
        A `ScoresReport`.

    Raises:
        ValueError: names the argument, before any work; or the coins fell as fair ones do less than once in a million.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic.

    Example:
        >>> import numpy as np
        >>> from leakcore import audit
        >>> rng = np.random.default_rng(0)
        >>> report = audit.from_scores(rng.normal(1.0, size=500), rng.normal(size=500), coins=True)
        >>> report.epsilon.kind, f"{float(report.epsilon.value):.1f}"
        ('lower', '1.5')
    """
    start = time.monotonic()
    slack = validate.below_one(delta=delta)
    claim = None if claimed_epsilon is None else validate.non_negative(claimed_epsilon=claimed_epsilon)
    relation = _relation(adjacency, coins, family)
    claimed = claimed_under(claim, claimed_adjacency, relation)
    level = validate.confidence(confidence=confidence)
    validate.boolean(coins=coins)
    design = retrained if isinstance(retrained, Retrained) else Retrained()
    alone = design is retrained or validate.boolean(retrained=retrained)
    if coins and alone:
        raise ValueError(
            "`coins` and `retrained` must not both be True: one run with many coins, or one model for each score"
        )
    sides = sides_of(members, non_members, scores)
    if not alone and not coins and family != "dp":
        raise ValueError(f"`family` must be 'dp' without coins=True or retrained, got {family!r}")
    if coins:
        require_fair(len(sides.members), len(sides.members) + len(sides.non_members), "rows")
    if alone:
        bounds.Hypothesis(cast(Any, family))  # refuses another word
    request = ScoresRequest(
        sides=sides,
        coins=coins,
        retrained=alone,
        design=design,
        delta=slack,
        claimed_epsilon=claim,
        claimed_adjacency=claimed,
        adjacency=relation,
        confidence=level,
        family=family,
    )
    return ScoresReport(
        environment=environment(),
        **request.settings(),
        **separation(request),
        **proofs(request),
        seconds=time.monotonic() - start,
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScoresRequest:
    """The arguments of `audit.from_scores`, checked. retrained: whether each score comes from its own model."""

    sides: Sides
    coins: bool
    retrained: bool
    design: Retrained
    delta: float
    claimed_epsilon: float | None
    claimed_adjacency: Adjacency | None
    adjacency: Adjacency
    confidence: float
    family: str | Mechanism

    @property
    def notes(self) -> tuple[str, ...]:
        """What intervals and estimates take for granted."""
        if self.retrained:
            return ("every score is from a model trained on its own",)
        first = (
            "intervals are for rows drawn independently; scores of one model share its noise, which they do not count"
        )
        chosen = "members were not chosen by coins, so a difference may be one of the data"
        return (first,) if self.coins else (first, chosen)

    def settings(self) -> dict[str, Any]:
        """The fields of the report that repeat the request."""
        same = "coins retrained delta claimed_epsilon claimed_adjacency adjacency confidence"
        return {
            **{name: getattr(self, name) for name in names(same)},
            "source": self.sides.source,
            "higher": self.sides.higher,
            "k": self.design.k,
            "seed": self.design.seed,
            "select": "guesses" if self.coins else self.design.select,
            "family": self.family if isinstance(self.family, str) else repr(self.family),
            "members": len(self.sides.members),
            "non_members": len(self.sides.non_members),
        }


def separation(request: ScoresRequest) -> dict[str, Any]:
    """How well the scores tell members from others: the ROC curve, its area, and rates with their intervals."""
    inside, outside, *_ = request.sides
    level, notes = request.confidence, request.notes
    levels = np.unique(np.concatenate([inside, outside]))[::-1]
    if len(levels) > 2000:
        levels = levels[np.unique(np.geomspace(1, len(levels), 2000).astype(int)) - 1]
    false, true = (1 - np.searchsorted(np.sort(side), levels, side="left") / len(side) for side in (outside, inside))
    whole = area(inside, outside)
    return {
        "area": Result(
            quantity="area under the ROC curve",
            value=whole,
            kind="estimate",
            confidence=level,
            interval=area_limits(whole, min(len(inside), len(outside)), level),
            method="area under the ROC curve; Chernoff limits of a two-sample U-statistic",
            assumptions=assumed(notes),
            provenance=PROVENANCE,
        ),
        "at_fpr": tuple(rate_limits(inside, outside, f, level, notes) for f in _FPRS),
        "roc": (false, true),
    }


def proofs(request: ScoresRequest) -> dict[str, Any]:
    """What the scores prove of ε, quoted and at the gate's level; an estimate where nothing random chose members."""
    inside, outside, *_ = request.sides
    every, labels = np.concatenate([inside, outside]), np.arange(len(inside) + len(outside)) < len(inside)
    claimed, proves = request.claimed_adjacency, request.coins or request.retrained
    result = _proof(request, every, labels, request.confidence)
    if not proves:
        unproved = dataclasses.replace(result.assumptions, notes=(*request.notes, "no proof: see what is assumed"))
        result = dataclasses.replace(result, kind="estimate", confidence=None, assumptions=unproved)
    judged = request.claimed_epsilon is not None and proves
    return {
        "epsilon": result,
        "converted": _proof_for_claim(request, every, labels, request.confidence)
        if judged and claimed != request.adjacency
        else None,
        "gate": _proof_for_claim(request, every, labels, GATE) if judged else None,
        "ceiling": float(_proof_for_claim(request, labels.astype(float), labels, GATE).value) if judged else None,
        "p_value": getattr(result, "p_value", None) if proves else None,
    }


def _proof(
    request: ScoresRequest,
    scores: np.ndarray,
    labels: np.ndarray,
    level: float,
    k: int | None = None,
    under: Adjacency | None = None,
) -> Result:
    """What is proved at this level; k, under: of other rows and relation than the audit's."""
    rows, relation, family = k or request.design.k, under or request.adjacency, request.family
    if request.coins:
        return audited(scores, labels, request.delta, level, relation, family, rows)
    return bounds.epsilon_lower_bound_from_scores(
        scores[labels],
        scores[~labels],
        threshold=request.design.threshold,
        confidence=level,
        delta=request.delta,
        k=rows,
        adjacency=relation,
        hypothesis=bounds.Hypothesis(cast(Any, family)),
    )


def _proof_for_claim(request: ScoresRequest, scores: np.ndarray, labels: np.ndarray, level: float) -> Result:
    """The same under the relation of the claim."""
    claimed = request.claimed_adjacency
    if claimed is None or not is_pair(claimed, request.adjacency):
        return _proof(request, scores, labels, level)
    if isinstance(request.family, Mechanism):
        return _under(_proof(request, scores, labels, level), request.family, request.delta, claimed)
    return noted(_proof(request, scores, labels, level, 2 * request.design.k, claimed), _AS_PAIR)


def _relation(adjacency: str | None, coins: Any, family: Any) -> Adjacency:
    """Coins decide whether a row is there; otherwise only the user knows what took a non-member's place."""
    if isinstance(family, Mechanism):
        return family.relation(adjacency)
    if adjacency is not None:
        return parse_adjacency(adjacency)
    if validate.boolean(coins=coins):
        return "add-remove"
    raise TypeError(f"`adjacency` must be given to from_scores without coins=True: {HOW_TO_CHOOSE}")


def _under(result: Result, family: Mechanism, delta: float, claimed: Adjacency) -> Result:
    """What a bound on the noise of a mechanism says of its ε under another relation."""
    stated = vars(family).get("noise_multiplier")
    if claimed not in family.adjacencies or stated is None:
        raise ValueError(
            f"`claimed_adjacency` must be the audit's where `family` is {type(family).__name__}, got {claimed!r}: its "
            "ε under that relation does not follow; state the ε that is claimed under the audit's relation"
        )
    note = f"ε is that of the refuted noise under {claimed} adjacency"
    reached = getattr(result, "noise_multiplier", None)
    if reached is None:
        return noted(result, note, value=0.0, adjacency=claimed)
    sigma = np.asarray(stated, dtype=np.float64) * (reached / float(np.max(stated)))
    ran = family.with_noise(float(sigma) if sigma.ndim == 0 else sigma)
    spent = accounting.epsilon(ran, delta=delta, adjacency=claimed)
    value = float(spent.value if spent.interval is None else spent.interval[0])
    return noted(result, note, value=value, adjacency=claimed)
