"""Canaries that a recording plants, and what it leaves of a run with them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from leakcore._base import validate
from leakcore._base.tables import Rows, short
from leakcore._base.version import __version__
from leakcore.dpsgd.trace.trace import Divisor, SavedTrace


@dataclasses.dataclass(frozen=True)
class Canaries:
    """Canaries that `leakcore.record` plants in a training run, with gradients on coordinates of their own.

    A fair coin decides for each canary whether it is in the data. If so, a copy of one of your rows joins the loader's
    data set, the sampler draws it like any row, and before the optimizer clips, a long gradient on a coordinate of the
    canary's own replaces the copy's. `audit.from_trace` proves ε from it. Sampler, clipping, accumulation and noise are
    audited; how layers compute per-sample gradients is not.

    Args:
        count: canaries. About half of them are in the data. The parameters need as many coordinates; up to four times
            as many others are watched as controls, which sharpen the proof.
        seed: seed of the coins and the coordinates.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an argument of another type.

    Example:
        >>> import leakcore
        >>> leakcore.Canaries(100, seed=1)
        Canaries(count=100, seed=1)
    """

    count: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", validate.integer(1, count=self.count))
        object.__setattr__(self, "seed", validate.seed(seed=self.seed))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CanaryTrace(SavedTrace):
    """A DP-SGD run in which canaries were planted, as scores for two attackers.

    One knows all rows but a canary, and their batches: per step it sees x = (released sum − clipped rows)/C at the
    canary's coordinate, and adds log(1 − q + q·exp((2x − 1)/(2σ²))). The other sees the released sum alone.

    Attributes:
        noise_multiplier: (steps,) σ_t.
        max_grad_norm: (steps,) C_t.
        sample_rate: q, the rate of the loader's Poisson samples.
        rows: number of rows of the data set, without canaries.
        parameters: coordinates of the model.
        coins: (canaries,) bool, which were in the data.
        times_seen: (canaries,) steps with the canary.
        scores: (canaries + controls,) scores of the first attacker; controls are coordinates without a canary.
        release_scores: (canaries + controls,) scores of the second attacker.
        noise_ratio: measured standard deviation of the noise over σC, at coordinates without a canary in the step.
        common_noise: p-value of noise that coordinates share.
        repeated_noise: p-value of noise that one step shares with the next; None for one step.
        interference: root mean square of what the other rows add at a coordinate, in units of σC.
        divisor: "rows" if what the program divides by, q or the number of steps depends on the number of rows;
            "constant" if all three were fixed; None if nobody said.
        version: leakcore's version.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> trace = dpsgd.CanaryTrace(
        ...     noise_multiplier=np.ones(5), max_grad_norm=np.ones(5), sample_rate=0.1, rows=90, parameters=50,
        ...     coins=np.arange(20) < 9, times_seen=np.zeros(20), scores=np.zeros(50), release_scores=np.zeros(50),
        ...     noise_ratio=1.0, common_noise=0.5, repeated_noise=0.5, interference=0.2,
        ... )
        >>> trace.steps, trace.canaries, trace.controls
        (5, 20, 30)
    """

    schema: ClassVar[str] = "leakcore.canary-trace/2"
    kind: ClassVar[str] = "a trace of canaries"
    arrays: ClassVar[dict[str, int]] = dict.fromkeys(
        ("noise_multiplier", "max_grad_norm", "coins", "times_seen", "scores", "release_scores"), 1
    )

    noise_multiplier: np.ndarray
    max_grad_norm: np.ndarray
    sample_rate: float
    rows: int
    parameters: int
    coins: np.ndarray
    times_seen: np.ndarray
    scores: np.ndarray
    release_scores: np.ndarray
    noise_ratio: float
    common_noise: float
    repeated_noise: float | None
    interference: float
    divisor: Divisor | None = None
    version: str = __version__

    def table_rows(self) -> Rows:
        """What is shown of it, as (name, value in words)."""
        return [
            ("steps", str(self.steps)),
            ("noise multiplier", short(np.unique(self.noise_multiplier))),
            ("clipping norm", short(np.unique(self.max_grad_norm))),
            ("sample rate", short(self.sample_rate)),
            ("canaries", f"{self.canaries}, {int(self.coins.sum())} of them in the data"),
            ("controls", str(self.controls)),
        ]

    @property
    def steps(self) -> int:
        """Optimizer steps recorded."""
        return len(self.noise_multiplier)

    @property
    def canaries(self) -> int:
        """Canaries, in the data or not."""
        return len(self.coins)

    @property
    def controls(self) -> int:
        """Coordinates without a canary."""
        return len(self.scores) - len(self.coins)

    def check_file(self) -> None:
        """ValueError for a trace that no recording can have made."""
        shapes = {name: getattr(self, name).shape for name in self.arrays}
        steps, canaries, all_scores = shapes["noise_multiplier"], shapes["coins"], shapes["scores"]
        if (
            any(len(shape) != 1 for shape in shapes.values())
            or shapes["max_grad_norm"] != steps
            or shapes["times_seen"] != canaries
            or shapes["release_scores"] != all_scores
            or not steps[0]
            or not 0 < canaries[0] <= all_scores[0]
            or self.coins.dtype != np.bool_
            or not 0 < self.sample_rate <= 1
            or not (self.rows >= 0 and self.parameters >= 0)
        ):
            raise ValueError("its arrays do not fit together")
        for name, kinds in (("times_seen", "iuf"), ("scores", "f"), ("release_scores", "f")):
            values = getattr(self, name)
            if values.dtype.kind not in kinds or np.isnan(values).any():
                raise ValueError(f"`{name}` must be {'floating' if kinds == 'f' else 'real'} numbers, without NaN")
        for name in ("noise_multiplier", "max_grad_norm"):
            values = getattr(self, name)
            if values.dtype.kind != "f" or not (np.isfinite(values) & (values > 0)).all():
                raise ValueError(f"`{name}` must be positive numbers")
