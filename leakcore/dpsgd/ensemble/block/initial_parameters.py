"""Initial parameters of runs: which distribution, and whether all runs share one draw."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore.dpsgd.ensemble.block.module_block import FlatLayout
from leakcore.dpsgd.ensemble.block.parameter_layout import ParameterLayout
from leakcore.dpsgd.ensemble.randomness import Streams

NAMES = ("per-run", "fixed", "glorot", "fixed-glorot")
"""torch.nn.Linear's uniform or Glorot's normal; each run's own or, where "fixed", that of run 0 for all."""


@dataclasses.dataclass(frozen=True)
class Initialisation:
    """θ₀ = scale·base + noise·Glorot normal."""

    name: str
    scale: float
    noise: float

    def base(self, streams: Streams, layout: ParameterLayout, runs: int, *, first_run: int) -> np.ndarray:
        """(runs, parameters) float64."""
        if self.name.startswith("fixed"):
            return np.repeat(self._drawn(streams, layout, 1, 0), runs, axis=0)
        return self._drawn(streams, layout, runs, first_run)

    def _drawn(self, streams: Streams, layout: ParameterLayout, runs: int, first_run: int) -> np.ndarray:
        if self.name.endswith("glorot"):
            drawn = streams.initial_normal(runs, layout.size, first_run=first_run) * layout.glorot()
        else:
            drawn = (2 * streams.initial(runs, layout.size, first_run=first_run) - 1) * layout.bounds()
        return np.asarray(drawn if self.scale == 1 else self.scale * drawn)

    def around(
        self, streams: Streams, layout: ParameterLayout | FlatLayout, base: np.ndarray, *, first_run: int
    ) -> np.ndarray:
        """`base` (runs, parameters) with each run's own noise added."""
        if self.noise == 0:
            return base
        draws = streams.initial_noise(len(base), layout.size, first_run=first_run)
        return np.asarray(base + self.noise * layout.glorot() * draws)
