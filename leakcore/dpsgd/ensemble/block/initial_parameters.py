"""Initial parameters of runs: which distribution, and whether all runs share one draw."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore._base import validate
from leakcore.dpsgd.ensemble.block.module_block import FlatLayout
from leakcore.dpsgd.ensemble.block.parameter_layout import ParameterLayout
from leakcore.dpsgd.ensemble.randomness import Streams

NAMES = ("per-run", "fixed", "glorot", "fixed-glorot")
"""torch.nn.Linear's uniform or Glorot's normal; each run draws its own or, if "fixed", all have that of run 0."""


@dataclasses.dataclass(frozen=True)
class Initialisation:
    """Initial parameters θ₀ = scale·base + noise·(Glorot normal).

    Jagielski, Ullman and Oprea (2020), Table 2, use "fixed-glorot", and "glorot" with scale 0.5, 1 and 2.

    Args:
        name: distribution of the base. "per-run" and "fixed" are torch.nn.Linear's default, uniform in ±1/√fan_in for
            weights and biases; "glorot" and "fixed-glorot" have weights N(0, 2/(fan_in + fan_out)) and biases 0 (Glorot
            and Bengio 2010). With the "fixed" names all runs have the base of run 0, otherwise each run draws its own.
        scale: factor of the base, at least 0.
        noise: factor, at least 0, of a Glorot normal that each run draws for its weights. It is also added to
            ready-made parameters (`PerRun.initial`).

    Raises:
        ValueError: for another name, or a negative number.

    Example:
        >>> from leakcore import dpsgd
        >>> network = dpsgd.Network((30, 1), initialisation=dpsgd.Initialisation("glorot", scale=0.5))
        >>> network.initialisation.scale
        0.5
    """

    name: str = "per-run"
    scale: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        validate.one_of(*NAMES, initialisation=self.name)
        object.__setattr__(self, "scale", validate.non_negative(scale=self.scale))
        object.__setattr__(self, "noise", validate.non_negative(noise=self.noise))

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
