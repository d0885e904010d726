"""What the attacks on text return."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore._base.results import Result

END = -1
"""Fills the rows of an array of sequences after their last token."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TokenSet(Result):
    """The tokens of a batch, without their order.

    Attributes:
        value: how many different tokens are proved (kind "lower") or likely (kind "estimate") to be in the batch.
        kind: "lower" where it was stated that no other layer shares the weights, and that nothing but the batch moved
            them: a row of the gradient then differs from 0 only for a token of the batch. Else "estimate".
        present: (V,) bool, which tokens.
        sizes: (V,) float64, ℓ2 norms of the rows.
        dense: whether every row differs from 0, so that rows say nothing (the output layer shares the weights, or
            noise was added); the value is then 0.
    """

    quantity: str = "tokens in the batch"
    present: np.ndarray
    sizes: np.ndarray
    dense: bool


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TokenCounts(Result):
    """How often each token, or each class, was a label in the batch.

    Attributes:
        value: share of the positions whose label the lower limits count: Σ lows / positions.
        kind: "lower" where the limits are proved for the gradient that was stated, else "estimate".
        lows: (V,) int64, each count is at least this.
        highs: (V,) int64, and at most this.
        determined: (V,) bool, where both agree: proved as the limits are.
    """

    quantity: str = "share of labels counted"
    lows: np.ndarray
    highs: np.ndarray
    determined: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SequenceRecovery(Result):
    """Sequences of tokens whose layer inputs lie in the gradient's spans.

    Attributes:
        value: share of the batch's sequences that are determined.
        kind: "estimate": a true sequence passes every test, and a false one may pass too. That the gradient is of one
            batch, with nothing added but stated noise, is taken for granted.
        sequences: (S, length) int64, tokens, −1 after the end; at most as many as the batch has.
        determined: (S,) bool: all sequences together make up the second layer's span, every position of this one is
            needed for that, no more sequences pass than the batch has, and every direction is 10 times above stated
            noise. Any other sequence is a guess.
        distances: (S,) the largest relative distance of the sequence's positions from the second layer's span.
        tolerances: (S,) the tolerance at that position.
        candidates: (length,) int64, how many tokens pass the first layer's test at each position.
        ranks: of the first and the second layer's gradient: how many positions each can hold at most.
        width: dimension of the space of the layers' inputs; a gradient whose rank reaches it excludes nothing.
        causal: whether a position depends on earlier ones only, as in a decoder.
        complete: whether the search tried every sequence that the first layer allows.
    """

    quantity: str = "share of sequences determined"
    sequences: np.ndarray
    determined: np.ndarray
    distances: np.ndarray
    tolerances: np.ndarray
    candidates: np.ndarray
    ranks: tuple[int, int]
    width: int
    causal: bool
    complete: bool

    def exact(self, originals: Sequence[Any]) -> np.ndarray:
        """Which of the true sequences were recovered, token by token: the attack's success, which it cannot see.

        Args:
            originals: the true sequences, one (length,) each, without padding. A sequence that occurs k times counts
                k times.

        Returns:
            (B,) bool.
        """
        rows = {tuple(int(t) for t in row if t != END) for row in self.sequences}
        return np.array([tuple(int(t) for t in row) in rows for row in originals], dtype=bool)
