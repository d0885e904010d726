"""Noise that a step has again after an earlier one, whose difference then has none."""

from __future__ import annotations

import numpy as np

_COORDINATES = 16
_FEWEST = 8
_ALIKE = 0.01
"""Standard deviations by which the same noise may differ, for rounding. By chance one in 10¹⁸ pairs is as alike."""


class RepeatedNoise:
    """The noise of the steps so far, at a few coordinates."""

    def __init__(self) -> None:
        self._before = np.empty((0, 0))

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
        if self._before.shape[1] != len(noise):
            self._before = np.empty((0, len(noise)))
        alike = (np.abs(self._before - noise) <= _ALIKE).all(axis=1).nonzero()[0]
        if len(alike):
            raise ValueError(
                "optimizer: the noise of this step is that of an earlier step again (a generator was seeded again): "
                "the difference of the two releases has no noise, and no ε holds. Seed once, before the training"
            )
        self._before = np.vstack([self._before, noise])
