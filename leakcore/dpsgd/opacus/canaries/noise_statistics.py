"""Whether the noise of a run is what an audit by canaries assumes: independent, and of the stated size."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats


class NoiseStatistics:
    """`add` what is left in each step at coordinates without a canary, in units of σC: standard normals, if so."""

    def __init__(self) -> None:
        self._squares, self._count = 0.0, 0
        self._means: list[float] = []
        self._products, self._pairs = 0.0, 0
        self._last: np.ndarray | None = None

    def add(self, noise: np.ndarray, absent: np.ndarray) -> None:
        """The noise of one step. absent: (n,) bool, coordinates without a canary in it."""
        clean = np.where(absent, noise, np.nan)
        values = clean[absent]
        self._squares += float(values @ values)
        self._count += len(values)
        self._means.append(float(values.mean() * math.sqrt(len(values))) if len(values) else 0.0)
        if self._last is not None:
            both = np.isfinite(clean) & np.isfinite(self._last)
            self._products += float(clean[both] @ self._last[both])
            self._pairs += int(both.sum())
        self._last = clean

    @property
    def ratio(self) -> float:
        """Measured standard deviation over the stated one."""
        return math.sqrt(self._squares / self._count) if self._count else math.nan

    @property
    def common(self) -> float:
        """p-value of how far means over coordinates vary; independent noise makes them vary little."""
        scale = self.ratio or 1.0
        return float(stats.chi2.sf(sum((m / scale) ** 2 for m in self._means), len(self._means)))

    @property
    def repeated(self) -> float | None:
        """p-value of products of neighbouring steps' noise; None for one step."""
        if not self._pairs:
            return None
        scale = (self.ratio or 1.0) ** 2
        return float(2 * stats.norm.sf(abs(self._products / scale) / math.sqrt(self._pairs)))
