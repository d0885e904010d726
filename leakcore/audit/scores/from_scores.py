"""From membership scores of any tool to a report: rates with intervals, and what they prove about ε, if anything."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from leakcore import bounds
from leakcore._base import validate as check
from leakcore._base.adjacency import HOW_TO_CHOOSE
from leakcore._base.results import Adjacency, Assumptions, Result, parse_adjacency
from leakcore.audit.doctor import environment
from leakcore.audit.report.area import area, area_limits
from leakcore.audit.report.report import GATE
from leakcore.audit.scores.coins import audited, require_fair
from leakcore.audit.scores.file import ScoreFile, read_scores
from leakcore.audit.scores.report import MeasuredRate, ScoresReport
from leakcore.mechanisms import Mechanism
from leakcore.numerics import clopper_pearson

_FPRS = (0.001, 0.01, 0.05, 0.1)


@dataclasses.dataclass(frozen=True)
class Retrained:
    """Every score comes from its own model, which was trained with the rows in question or without them.

    Args:
        k: number of rows by which the two sides' training data differ. The proof is about one row, by group privacy.
        seed: of the random halves: one chooses the threshold, the other is counted.

    Raises:
        ValueError: for a number out of range.
        TypeError: for a number that is not an integer.

    Example:
        >>> from leakcore import audit
        >>> audit.Retrained(k=4)
        Retrained(k=4, seed=0)
    """

    k: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check.integer(1, None, k=self.k))
        object.__setattr__(self, "seed", check.seed(seed=self.seed))


def from_scores(
    members: Any,
    non_members: Any = None,
    *,
    coins: bool = False,
    retrained: bool | Retrained = False,
    delta: float = 1e-5,
    claimed_epsilon: float | None = None,
    adjacency: str | None = None,
    confidence: float = 0.95,
    family: str | Mechanism = "dp",
) -> ScoresReport:
    """The report on membership scores of another tool.

    It gives true-positive rates at fixed false-positive rates and the area under the ROC curve, with intervals, and
    what the scores prove about ε. That depends on how the members were chosen; with neither `coins` nor `retrained` ε
    is an estimate (docs/explanation/reports.md).

    Args:
        members: (n,) scores of rows that were trained on, larger for likelier members (pass losses negated), at least
            two. Or the path of a file for `audit.read_scores`, or its result.
        non_members: (m,) scores of other rows, at least two.
        coins: True if they are all candidates of one training run, in which a fair coin decided for each row whether it
            was trained on (Steinke, Nasr and Jagielski 2023, Theorem 5.2). Kind "lower".
        retrained: True, or a `Retrained`, if each score comes from its own model (Jagielski, Ullman and Oprea 2020,
            Section 4.2). Kind "lower".
        delta: δ in [0, 1).
        claimed_epsilon: ε that the model claims at δ; a proof at 99.9% above it contradicts it.
        adjacency: "add-remove" if a non-member was left out, "replace" if another row took its place. Required without
            coins.
        confidence: of every interval and of the quoted lower bound.
        family: what the coins refute, as in `bounds.epsilon_lower_bound_one_run`: "dp", "gdp" or the claimed mechanism.

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
    slack = check.below_one(delta=delta)
    claim = None if claimed_epsilon is None else check.non_negative(claimed_epsilon=claimed_epsilon)
    relation = _relation(adjacency, coins, family)
    level = check.confidence(confidence=confidence)
    check.boolean(coins=coins)
    design = retrained if isinstance(retrained, Retrained) else Retrained()
    alone = design is retrained or check.boolean(retrained=retrained)
    if coins and alone:
        raise ValueError(
            "`coins` and `retrained` must not both be True: one run with many coins, or one model for each score"
        )
    inside, outside, source, upward = _sides(members, non_members)
    n, m = len(inside), len(outside)
    if not coins and family != "dp":
        raise ValueError(f"`family` must be 'dp' without coins=True, got {family!r}")
    if coins:
        require_fair(n, n + m, "rows")
    notes = _notes(coins, alone)
    scores, labels = np.concatenate([inside, outside]), np.arange(n + m) < n

    def proof(sure: float, scores: np.ndarray = scores) -> Result:
        if coins:
            return audited(scores, labels, slack, sure, relation, family)
        return bounds.epsilon_lower_bound_from_scores(
            scores[labels],
            scores[~labels],
            threshold=bounds.SplitThreshold(seed=design.seed),
            confidence=sure,
            delta=slack,
            k=design.k,
            adjacency=relation,
        )

    result = proof(level)
    if not (coins or alone):
        result = dataclasses.replace(
            result, kind="estimate", confidence=None,
            assumptions=dataclasses.replace(result.assumptions, notes=(*notes, "no proof: see what is assumed")),
        )  # fmt: skip
    judged = claim is not None and (coins or alone)
    whole = area(inside, outside)
    levels = np.unique(scores)[::-1]
    if len(levels) > 2000:
        levels = levels[np.unique(np.geomspace(1, len(levels), 2000).astype(int)) - 1]
    false, true = (1 - np.searchsorted(np.sort(side), levels, side="left") / len(side) for side in (outside, inside))
    return ScoresReport(
        environment=environment(),
        source=source,
        higher=upward,
        coins=coins,
        retrained=alone,
        k=design.k,
        delta=slack,
        claimed_epsilon=claim,
        adjacency=relation,
        confidence=level,
        seed=design.seed,
        family=family if isinstance(family, str) else repr(family),
        members=n,
        non_members=m,
        area=Result(
            quantity="area under the ROC curve",
            value=whole, kind="estimate", confidence=level, interval=area_limits(whole, min(n, m), level),
            method="area under the ROC curve; Chernoff limits of a two-sample U-statistic",
            assumptions=_assumed(notes), provenance=_PROVENANCE,
        ),
        at_fpr=tuple(rate_limits(inside, outside, f, level, notes) for f in _FPRS),
        epsilon=result,
        gate=proof(GATE) if judged else None,
        ceiling=float(proof(GATE, labels.astype(float)).value) if judged else None,
        p_value=result.p_value if isinstance(result, bounds.OneRunEpsilon) else None,
        roc=(false, true),
        seconds=time.monotonic() - start,
    )  # fmt: skip


def _relation(adjacency: str | None, coins: Any, family: Any) -> Adjacency:
    """Coins decide whether a row is there; otherwise only the user knows what took a non-member's place."""
    if isinstance(family, Mechanism):
        return family.relation(adjacency)
    if adjacency is not None:
        return parse_adjacency(adjacency)
    if check.boolean(coins=coins):
        return "add-remove"
    raise TypeError(f"`adjacency` must be given to from_scores without coins=True: {HOW_TO_CHOOSE}")


def _sides(members: Any, non_members: Any) -> tuple[np.ndarray, np.ndarray, str, str]:
    """Members and non-members with larger scores for members, where they are from, and who scored higher there."""
    if isinstance(members, (str, Path)):
        members = read_scores(members)
    if isinstance(members, ScoreFile):
        if non_members is not None:
            raise TypeError("`non_members` must be None with a file, which holds them")
        scores, upward = (members.members, members.non_members), members.higher
        source = f"{members.name} ({members.layout.tool})"
    elif non_members is None:
        raise TypeError("`non_members` must be given, or the file that holds the scores of both, got None")
    else:
        scores, upward, source = (members, non_members), "members", "scores as given"
    sign = 1.0 if upward == "members" else -1.0
    sides = []
    for name, values in zip(("members", "non_members"), scores, strict=True):
        side, _ = check.host_array(finite=False, **{name: values})
        if side.ndim != 1 or side.size < 2:
            raise ValueError(f"`{name}` must be one score per row, at least two, got shape {side.shape}")
        if np.isnan(side).any():
            raise ValueError(f"`{name}[{int(np.flatnonzero(np.isnan(side))[0])}]` must be a number, got nan")
        sides.append(sign * side)
    return sides[0], sides[1], source, upward


def _notes(coins: bool, retrained: bool) -> tuple[str, ...]:
    if retrained:
        return ("every score is from a model trained on its own",)
    first = "intervals are for rows drawn independently; scores of one model share its noise, which they do not count"
    return (first,) if coins else (first, "members were not chosen by coins, so a difference may be one of the data")


_ATTACKER = "sees the model (or what it was scored by) and the rows in question"


_PROVENANCE = (
    "Carlini et al. (2022) for rates at low false-positive rates; Hoeffding (1963), Clopper and Pearson (1934) for the "
    "limits"
)


def _assumed(notes: tuple[str, ...]) -> Assumptions:
    return Assumptions(adjacency=None, attacker=_ATTACKER, notes=notes)


def rate_limits(
    inside: np.ndarray, outside: np.ndarray, fpr: float, level: float, notes: tuple[str, ...]
) -> MeasuredRate | None:
    """True-positive rate at a false-positive rate; None where there are too few non-members to see it.

    The k-th highest of m non-members is exceeded with a probability distributed as Beta(k, m − k + 1), or less where
    there are ties. Four events of error (1 − level)/4 each: threshold too low or too high, and the members' two counts.
    """
    m, n = len(outside), len(inside)
    allowed = math.floor(fpr * m + 1e-9)
    if allowed < 1:
        return None
    ranked = np.sort(outside)[::-1]
    here = ranked[allowed] if allowed < m else -np.inf
    k = np.arange(1, m + 1)
    exceeded = special.betainc(k, m - k + 1.0, fpr)
    each = (1 - level) / 4
    strict, loose = np.flatnonzero(exceeded >= 1 - each), np.flatnonzero(exceeded <= each)
    low, high = 0.0, 1.0
    if len(strict):
        hits = int((inside > ranked[strict[-1]]).sum())
        low = float(clopper_pearson(hits, n, confidence=1 - each, side="lower")[0])
    if len(loose):
        hits = int((inside >= ranked[loose[0]]).sum())
        high = float(clopper_pearson(hits, n, confidence=1 - each, side="upper")[1])
    return MeasuredRate(
        value=float((inside > here).mean()), kind="estimate", confidence=level, interval=(low, high), fpr=fpr,
        method="threshold from the non-members; order-statistic and Clopper–Pearson limits",
        assumptions=_assumed(notes), provenance=_PROVENANCE,
    )  # fmt: skip
