"""How many canaries `record` plants, and by which coins."""

from __future__ import annotations

import dataclasses

from leakcore._base import validate


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
        seed: of the coins and the coordinates.

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
