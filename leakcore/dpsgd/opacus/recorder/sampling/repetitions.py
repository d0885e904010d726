"""What comes again in a run whose generator was seeded again: a sampler's draws, and the noise of steps."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from scipy import special

from leakcore.dpsgd.opacus.recorder.sampling.drawn_batches import Draw

_CHANCE = 1e-9
"""Draws that are equal count as repeated if independent ones would be equal with less probability."""
_COORDINATES = 16
_FEWEST = 8
_ALIKE = 0.01
"""Standard deviations by which the same noise may differ, for rounding. By chance one in 10¹⁸ pairs is as alike."""


class RepeatedDraws:
    """The draws so far.

    Attributes:
        count: of the draws, those that equal an earlier one.
    """

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._draws = self.count = 0

    def is_repeated(self, draw: Draw, log_pair: float, log_likeliest: float) -> bool:
        """Whether more draws equal earlier ones than chance explains. This draw is counted first.

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


class RepeatedNoise:
    """The noise of the steps so far, at a few coordinates: a row each, a column a step."""

    def __init__(self) -> None:
        self._before, self._steps = np.empty((0, 0)), 0

    @staticmethod
    def places(size: int) -> np.ndarray:
        """Which of `size` coordinates are compared."""
        return np.unique(np.linspace(0, size - 1, _COORDINATES).astype(np.int64))

    def require_new(self, noise: np.ndarray, resolution: float) -> None:
        """ValueError if this is the noise of an earlier step.

        Args:
            noise: of a step at `places`, in standard deviations.
            resolution: the rounding error of these. Noise that rounding hides is not compared.
        """
        if len(noise) < _FEWEST or resolution > _ALIKE / 10:
            return
        if len(self._before) != len(noise):
            self._before, self._steps = np.empty((len(noise), 64)), 0
        before = self._before[:, : self._steps]
        near = np.flatnonzero(np.abs(before[0] - noise[0]) <= _ALIKE)
        if (np.abs(before[:, near] - noise[:, None]) <= _ALIKE).all(axis=0).any():
            raise ValueError(
                "optimizer: the noise of this step is that of an earlier step again (a generator was seeded again): "
                "the difference of the two releases has no noise, and no ε holds. Seed once, before the training"
            )
        if self._steps == self._before.shape[1]:
            self._before = np.hstack([self._before, np.empty_like(self._before)])
        self._before[:, self._steps] = noise
        self._steps += 1
