"""What an audit of a claim could prove, before anything is trained."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np
from scipy import optimize, special

from leakcore import bounds
from leakcore._base import validate
from leakcore._base.progress import timed
from leakcore._base.results import Record
from leakcore._base.tables import Rows
from leakcore.audit.scores.statistics import audited
from leakcore.audit.shared.elements import Table, table_of
from leakcore.audit.shared.format import counted, number, power
from leakcore.audit.shared.report import Document
from leakcore.numerics import gaussian_pair_epsilon

_FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""By which the noise may be too small."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PlannedAudit(Record):
    """One design of an audit, and what it can prove.

    Attributes:
        design: "many runs" or "one run".
        family: "dp" or "gdp".
        trainings: models to train.
        canaries: rows that are in or out by coins; 1 where each model has one.
        ceiling: ε that it proves if every model or coin is told: no attack proves more.
        expected: ε that the best attack is expected to prove where the claim is kept exactly.
        noticed: by what factor the noise must be too small before the best attack is expected to contradict the claim;
            None if not even by 8.
    """

    design: str
    family: str
    trainings: int
    canaries: int
    ceiling: float
    expected: float
    noticed: float | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AuditPlan(Document):
    """What audits of a claim could prove, as `audit.plan` returns it.

    Attributes:
        epsilon: the claim.
        delta: its δ.
        confidence: level of each audit, in (0, 1).
        audits: the designs.
    """

    schema: ClassVar[str] = "leakcore.audit-plan/1"

    epsilon: float
    delta: float
    confidence: float
    audits: tuple[PlannedAudit, ...]

    @property
    def able(self) -> tuple[PlannedAudit, ...]:
        """The designs that can contradict the claim at all, the cheapest first."""
        return tuple(sorted((a for a in self.audits if a.ceiling > self.epsilon), key=lambda a: a.trainings))

    def table(self) -> Table:
        """The designs, one to a row; a mark where one can contradict the claim."""

        def notices(a: PlannedAudit) -> str:
            if a.ceiling <= self.epsilon:
                return "never"
            return f"over {_FACTORS[-1]:g} times" if a.noticed is None else f"{a.noticed:g} times"

        return table_of(
            f"Audits of the claim ε = {self.epsilon:g} at δ = {power(self.delta)}, at {100 * self.confidence:g}%",
            self.audits,
            {
                "design": lambda a: a.design,
                "what is\nrefuted": lambda a: _FAMILIES[a.family],
                "trainings": lambda a: f"{a.trainings:,}",
                "canaries": lambda a: f"{a.canaries:,}" if a.canaries > 1 else "—",
                "most it\ncan prove [upper]": lambda a: number(a.ceiling, kind="upper"),
                "expected if the\nclaim is kept [estimate]": lambda a: number(a.expected),
                "notices noise\ntoo small by [estimate]": notices,
            },
            "Expected of the best attack on a Gaussian mechanism. What the Gaussian rows prove holds "
            'if the mechanism is Gaussian. An audit of many runs with stop = "early" trains no more than it needs.',
            highlight=lambda a: a.ceiling > self.epsilon,
            marked="what can contradict the claim",
        )

    def to_text(self, width: int = 110) -> str:
        """The table for a terminal."""
        return self.table().to_text(width)

    def table_rows(self) -> Rows:
        """The designs that can contradict the claim, in a few words."""
        able = [
            (f"{a.design}, {_FAMILIES[a.family]}", f"{counted(a.trainings, 'training')}, at most ε = {a.ceiling:.3g}")
            for a in self.able
        ]
        return [("claim", f"ε = {self.epsilon:g} at δ = {power(self.delta)}"), *able]


_FAMILIES = {"dp": "(ε, δ)", "gdp": "Gaussian"}


@timed
def plan(
    epsilon: float,
    *,
    delta: float = 1e-5,
    trainings: Any = (1000, 2000, 10_000),
    canaries: Any = (500, 5000),
    confidence: float = 0.99,
) -> AuditPlan:
    """What an audit of a claim could prove, before anything is trained: nobody need run an audit that cannot fail.

    The best attack on a mechanism that just keeps the claim is taken to see N(μ, 1) with a row and N(0, 1) without it,
    where μ-GDP gives ε at δ; with noise f times too small it sees N(fμ, 1). Scores stand at the quantiles of these
    laws, so the answer is near the median over audits, not a proof.

    Args:
        epsilon: the claimed ε > 0.
        delta: δ in (0, 1).
        trainings: numbers of models, half of them with the row; even, at least 20 each.
        canaries: numbers of canaries of audits in one run, at least 20 each.
        confidence: level of the proof, in (0, 1 − 1e-12].

    Returns:
        `AuditPlan`: for each number, by (ε, δ) and by the Gaussian family.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic.

    Example:
        >>> from leakcore import audit
        >>> planned = audit.plan(4.0, trainings=[1000], canaries=[500])
        >>> [(a.design, a.family, a.noticed) for a in planned.able]
        [('one run', 'dp', 8.0), ('one run', 'gdp', 3.0), ('many runs', 'dp', 4.0), ('many runs', 'gdp', 1.25)]
    """
    claim, slack = validate.positive(epsilon=epsilon), validate.open_probability(delta=delta)
    level = validate.confidence(confidence=confidence)
    models, rows = _numbers("trainings", trainings), _numbers("canaries", canaries)
    apart = _separation(claim, slack)
    designs = [("many runs", n, 1) for n in models] + [("one run", 1, m) for m in rows]
    planned = []
    for (design, trained, coins), family in itertools.product(designs, _FAMILIES):
        proves = _Design(design, trained if coins == 1 else coins, family, slack, level)
        answers: dict[str, Any] = {
            "ceiling": proves.at_most(),
            "expected": proves.expected(apart),
            "noticed": next((f for f in _FACTORS if proves.expected(f * apart) > claim), None),
        }
        planned.append(PlannedAudit(design=design, family=family, trainings=trained, canaries=coins, **answers))
    return AuditPlan(epsilon=claim, delta=slack, confidence=level, audits=tuple(planned))


def _numbers(name: str, values: Any) -> list[int]:
    listed = list(values) if isinstance(values, (list, tuple, range)) else [values]
    return [validate.integer(20, 10**7, **{name: value}) // 2 * 2 for value in listed]


def _separation(epsilon: float, delta: float) -> float:
    """μ for which μ-GDP is (ε, δ)-private and no better."""
    high = 1.0
    while gaussian_pair_epsilon(high, delta=delta) < epsilon:
        high *= 2.0
    return float(optimize.brentq(lambda mu: gaussian_pair_epsilon(mu, delta=delta) - epsilon, 0.0, high))


@dataclasses.dataclass(frozen=True)
class _Design:
    """One design at one size: half of the scores are of members."""

    name: str
    size: int
    family: Any
    delta: float
    confidence: float

    def at_most(self) -> float:
        half = self.size // 2
        return self._proved(np.ones(half), np.zeros(half))

    def expected(self, separation: float) -> float:
        half = self.size // 2
        quantiles = special.ndtri((np.arange(half) + 0.5) / half)
        return self._proved(separation + quantiles, quantiles)

    def _proved(self, inside: np.ndarray, outside: np.ndarray) -> float:
        if self.name == "one run":
            scores, labels = np.concatenate([inside, outside]), np.arange(self.size) < len(inside)
            return float(audited(scores, labels, self.delta, self.confidence, family=self.family).value)
        proved = bounds.epsilon_lower_bound_from_scores(
            inside,
            outside,
            adjacency="add-remove",
            threshold=bounds.SimultaneousThreshold(),
            confidence=self.confidence,
            delta=self.delta,
            hypothesis=bounds.Hypothesis(self.family, "in"),
        )
        return float(proved.value)
