"""The likelihood-ratio attack: how likely is a model's confidence if the row was in, and if it was out?"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from leakcore._base import validate
from leakcore.attacks.membership.observations import Observations, References, confidence

_LEAST_SPREAD = 1e-6


@dataclasses.dataclass(frozen=True)
class LiRA:
    """The likelihood-ratio attack (Carlini et al. 2022): a normal law of φ = log(p/(1 − p)) for each row.

    Online, the score is log N(φ; μ_in, s_in²) − log N(φ; μ_out, s_out²): positive where a row looks trained on. Offline
    it is (φ − μ_out)/s_out, the normal score of the text's one-sided test 1 − Pr[Z > φ].

    Args:
        offline: True needs each row out of one reference model; False in one and out of one.
        spread: "shared": one standard deviation for all rows, one in and one out, for few references (some row must be
            in two, and some row out of two). "row": each row's own, for many (at least two in and two out).

    Raises:
        ValueError: for another word.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.LiRA(spread="row")
        LiRA(offline=False, spread='row')
    """

    offline: bool = False
    spread: Literal["shared", "row"] = "shared"

    def __post_init__(self) -> None:
        validate.boolean(offline=self.offline)
        validate.one_of("shared", "row", spread=self.spread)

    def score(self, target: Observations, references: References) -> np.ndarray:
        """(models, rows) scores."""
        attack, least = f"{self}", 1 if self.spread == "shared" else 2
        references.require(0 if self.offline else least, least, attack=attack)
        attacked, known = confidence(target.losses), confidence(references.losses)
        mean, deviation = self._law(known, ~references.included, "out of")
        standard = (attacked - mean) / deviation
        if self.offline:
            return np.asarray(standard)
        scores = 0.5 * standard**2 + np.log(deviation)
        mean, deviation = self._law(known, references.included, "in")
        return np.asarray(scores - 0.5 * ((attacked - mean) / deviation) ** 2 - np.log(deviation))

    def _law(self, known: np.ndarray, who: np.ndarray, side: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of φ over the models that `who` names for each row."""
        number = who.sum(axis=0)
        if self.spread == "shared" and number.sum() == len(number):
            raise ValueError(
                f"`references.included` must have a row {side} two models for {self}, since one shows no spread: pass "
                "more models"
            )
        mean = (known * who).sum(axis=0) / number
        squares = ((known - mean) ** 2 * who).sum(axis=0)
        # One mean per row was fitted.
        variance = squares / (number - 1) if self.spread == "row" else squares.sum() / (number.sum() - len(number))
        return mean, np.maximum(np.sqrt(variance), _LEAST_SPREAD)
