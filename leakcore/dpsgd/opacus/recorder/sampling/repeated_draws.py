"""Whether a sampler draws what it drew before, as after its generator was seeded again."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from scipy import special

from leakcore.dpsgd.opacus.recorder.sampling.drawn_batches import Draw

_CHANCE = 1e-9
"""Draws that are equal count as repeated if independent ones would be equal with less probability."""


class RepeatedDraws:
    """The draws so far.

    Attributes:
        count: of the draws, those that equal an earlier one.
    """

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._draws = self.count = 0

    def is_repeated(self, draw: Draw, log_pair: float, log_likeliest: float) -> bool:
        """Whether so many draws equal earlier ones, with this one, that chance does not explain it.

        Of T independent draws two are equal with probability at most T²/2·P(two are equal). A draw equals one of those
        before it with probability at most T·P(the likeliest draw), whatever these are, so that r do with probability at
        most binom(T, r)·(T·P)^r.

        Args:
            draw: with all its parts.
            log_pair: log of the probability that two independent draws are equal.
            log_likeliest: that of the likeliest draw.
        """
        if None in draw.parts:
            return False
        indices = np.sort(np.array([i for part in draw.parts for i in part or ()], dtype=np.int64))
        key = hashlib.blake2b(indices.tobytes(), digest_size=16).digest()
        again = key in self._known
        self._known.add(key)
        self._draws += 1
        self.count += again
        if not again:
            return False
        several = self.count * (2 * math.log(self._draws) + log_likeliest) - float(special.gammaln(self.count + 1))
        return min(2 * math.log(self._draws) - math.log(2) + log_pair, several) < math.log(_CHANCE)

    def is_repeated_sample(self, draw: Draw, rate: float, rows: int) -> bool:
        """For Poisson samples of `rows` rows at q = `rate`."""
        if not 0 < rate < 1 or not rows:
            return False
        log_pair = rows * math.log(rate**2 + (1 - rate) ** 2)
        return self.is_repeated(draw, log_pair, rows * math.log(max(rate, 1 - rate)))

    def is_repeated_subset(self, draw: Draw, size: int, rows: int) -> bool:
        """For subsets of `size` of `rows` rows, each equally likely."""
        if not 0 < size < rows:
            return False
        log = math.log(rows + 1) + float(special.betaln(size + 1, rows - size + 1))
        return self.is_repeated(draw, log, log)
