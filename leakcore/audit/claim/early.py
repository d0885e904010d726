"""Trainings that stop when the claim has fallen, or cannot fall any more."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from leakcore import bounds
from leakcore.audit.claim.proofs import FAMILIES, Proof, Scores, families
from leakcore.audit.claim.sections import BLOCK, Audit
from leakcore.audit.report.claim import ClaimedEpsilon

_LOOKS = 20
"""At most, unless the chunks would be smaller than a block of models, which is trained at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopped:
    """When an audit stopped that may stop early.

    Attributes:
        trainings: models that were trained.
        planned: models of the whole audit.
        why: "refuted": the claim fell. "hopeless": not even perfect scores could have made it fall within the planned
            trials. "planned": neither happened.
    """

    trainings: int
    planned: int
    why: Literal["refuted", "hopeless", "planned"]

    def to_text(self) -> str:
        """In a sentence."""
        share = f"{self.trainings:,} of {self.planned:,} trainings"
        return {
            "refuted": f"The audit stopped after {share}: the claim has fallen.",
            "hopeless": f"The audit stopped after {share}: the others could not have made the claim fall, however they "
            "had turned out.",
            "planned": f"The audit took all {self.planned:,} trainings.",
        }[self.why]


def chunks(trials: int) -> list[range]:
    """The trials before each look."""
    size = BLOCK * math.ceil(trials / (BLOCK * _LOOKS))
    return [range(first, min(first + size, trials)) for first in range(0, trials, size)]


def until_decided(
    train: Callable[[range], Scores], claimed: ClaimedEpsilon, audit: Audit
) -> tuple[Scores, tuple[Proof, ...], Stopped]:
    """Train chunk by chunk; the scores of all that were trained, what they prove, and why no more were.

    The families share the error, and each tests all k at once.
    """
    names, level = families(claimed, audit.confidence)
    tests = {
        family: bounds.SequentialTest(
            claimed.epsilon, adjacency=claimed.adjacency, confidence=level, delta=claimed.delta, family=family
        )
        for family in names
    }
    parts: list[Scores] = []
    why: Literal["refuted", "hopeless", "planned"] = "planned"
    for part in chunks(audit.trials):
        parts.append(train(part))
        for test in tests.values():
            test.add(parts[-1])
        left = audit.trials - part.stop
        if any(test.refuted for test in tests.values()):
            why = "refuted"
        elif left and all(test.hopeless(left) for test in tests.values()):
            why = "hopeless"
        if why != "planned":
            break
    scores: Scores = {
        name: (*(np.concatenate([p[name][side] for p in parts]) for side in (0, 1)), k)  # type: ignore[misc]
        for name, (*_, k) in parts[0].items()
    }
    proofs = tuple(
        Proof(
            method=f"bets, {FAMILIES[family]}",
            what=" and ".join(scores),
            found=test.proof(),
            ceiling=test.ceiling(audit.trials),
        )
        for family, test in tests.items()
    )
    sides = 1 + len(scores)
    stopped = Stopped(trainings=sides * part.stop, planned=sides * audit.trials, why=why)
    return scores, proofs, stopped
