"""How likely it is to guess many coins rightly. A trade-off curve limits how much each coin changes the release."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

_ROUNDING = 1e-9
"""More than the recursion's rounding can move a probability, relative to it."""
_HALVINGS = 60


class Tangents(NamedTuple):
    """Lines above a trade-off curve: P(E) ≤ e^ε Q(E) + δ for every event E and each pair (ε, δ).

    P and Q are the laws of the release with a coin's two sides; where the two directions differ, δ is their mean.

    Attributes:
        epsilons: ε ≥ 0, (lines,).
        deltas: δ, (lines,).
    """

    epsilons: np.ndarray
    deltas: np.ndarray


class GuessTail:
    """The event {at least v of r guesses at m fair coins are right}.

    With p_c = P(c guesses are right), flipping the coin of a right guess turns c right guesses into c − 1. For each
    line (ε, δ) and each test θ_c ∈ [0, 1] of the number of right guesses

        Σ_c θ_c c p_c ≤ mδ + e^ε Σ_c θ_c (r − c + 1) p_(c−1)

    (Mahloujifar, Melis and Chaudhuri 2025, Theorem 9, for θ of an interval). θ_c = 1 for i ≤ c ≤ v and, above v, θ as
    the binomial law of odds e^ε has it, makes the part above v a multiple κ(ε) of γ = P(at least v are right):

        κ(ε)γ + A_i ≤ mδ + e^ε B_(i−1),  A_i = Σ_(i≤c<v) c p_c,  B_i = Σ_(i≤c<v) (r − c) p_c.

    From the top, B_(i−1) is at least the largest that a line demands, and A follows. All probabilities together are
    γ + (A_0 + B_0)/r; a γ for which that exceeds 1 is impossible.
    """

    def __init__(self, correct: int, guesses: int, canaries: int) -> None:
        self._correct, self._guesses, self._canaries = correct, guesses, canaries

    def exceeds(self, chance: float, lines: Tangents) -> bool:
        """Whether no release under these lines makes the event as likely as `chance`."""
        return self._correct > 0 and self._total(chance, lines, self._multiples(lines)) > 1.0 + _ROUNDING

    def chance(self, lines: Tangents) -> float:
        """No release under these lines makes the event likelier than this: a p-value of the lines."""
        if self._correct == 0:
            return 1.0
        multiples = self._multiples(lines)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high) if low > 0 or high > 1e-3 else high * 1e-3
            if middle < 1e-300:
                break
            if self._total(middle, lines, multiples) > 1.0 + _ROUNDING:
                high = middle
            else:
                low = middle
        return high

    def _multiples(self, lines: Tangents) -> np.ndarray:
        """κ(ε) = v·P(W = v)/P(W ≥ v) for W ~ Bin(r, e^ε/(1 + e^ε)), from below."""
        v, r = self._correct, self._guesses
        right = special.expit(lines.epsilons)
        tail = special.betainc(v, r - v + 1.0, right)
        log_mass = (
            special.gammaln(r + 1.0)
            - special.gammaln(v + 1.0)
            - special.gammaln(r - v + 1.0)
            + v * special.log_expit(lines.epsilons)
            + (r - v) * special.log_expit(-lines.epsilons)
        )
        with np.errstate(divide="ignore", over="ignore"):
            exact = np.exp(log_mass - np.log(tail))
            # Where the tail underflows: its terms fall at least as fast as the first two.
            ratio = (r - v) / (v + 1.0) * np.exp(lines.epsilons)
        share = np.where(tail > 1e-290, exact, np.maximum(1.0 - ratio, 0.0))
        return np.asarray(v * np.minimum(share, 1.0) * (1.0 - _ROUNDING))

    def _total(self, chance: float, lines: Tangents, multiples: np.ndarray) -> float:
        """The least sum of all probabilities, or a part of it that exceeds 1."""
        r = self._guesses
        scale = np.exp(-lines.epsilons)
        fixed = ((multiples * chance - self._canaries * lines.deltas) * scale).tolist()
        slopes = scale.tolist()
        right = wrong = 0.0
        for i in range(self._correct, 0, -1):
            demanded = max([a + right * b for a, b in zip(fixed, slopes, strict=True)])
            if demanded <= wrong:
                break
            right += (i - 1) / (r - i + 1) * (demanded - wrong)
            wrong = demanded
            if chance + (right + wrong) / r > 1.0 + _ROUNDING:
                break
        return chance + (right + wrong) / r
