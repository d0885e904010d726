"""Noise on what is released."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check
from leakcore.defenses.defense import Defense, like, need_seed, read_rows


@dataclasses.dataclass(frozen=True)
class GaussianNoise(Defense):
    """Adds N(0, std²) to every coordinate of the release.

    Args:
        std: at least 0, in units of the release itself.

    Raises:
        ValueError: for a std that is not allowed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> noisy = defenses.GaussianNoise(2.0).apply(np.zeros(10_000), seed=0)
        >>> f"{noisy.std():.1f}"
        '2.0'
    """

    std: float
    stage: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        check.non_negative(std=self.std)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`."""
        g = read_rows("GaussianNoise", gradients)
        return g + like(self.drawn(math.prod(g.shape[:-1]), g.shape[-1], seed=seed, step=step).reshape(g.shape), g)

    def drawn(self, rows: int, columns: int, *, seed: int | None, step: int = 0, first_row: int = 0) -> np.ndarray:
        """The noise, (rows, columns); each row depends only on seed, step and its own number."""
        key = need_seed("GaussianNoise", seed)
        z = kernels.standard_normal(
            (rows, columns), seed=key, purpose=kernels.Stream.DEFENSE_GAUSSIAN, step=step, first_row=first_row
        )  # fmt: skip
        return np.asarray(self.std * z)


@dataclasses.dataclass(frozen=True)
class Laplace(Defense):
    """Adds Lap(scale), of variance 2·scale², to every coordinate of the release.

    `bounds.laplace.noise_scale` says which scale an ε needs. This is not the mechanism that is safe in floating point;
    that is `bounds.laplace.mechanism`.

    Args:
        scale: at least 0, in units of the release itself.

    Raises:
        ValueError: for a scale that is not allowed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> noisy = defenses.Laplace(2.0).apply(np.zeros(10_000), seed=0)
        >>> f"{abs(noisy).mean():.1f}"
        '2.0'
    """

    scale: float
    stage: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        check.non_negative(scale=self.scale)

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """As `Defense.apply`."""
        g = read_rows("Laplace", gradients)
        return g + like(self.drawn(math.prod(g.shape[:-1]), g.shape[-1], seed=seed, step=step).reshape(g.shape), g)

    def drawn(self, rows: int, columns: int, *, seed: int | None, step: int = 0, first_row: int = 0) -> np.ndarray:
        """The noise, (rows, columns); each row depends only on seed, step and its own number."""
        key = need_seed("Laplace", seed)
        u = kernels.uniform(
            (rows, columns), seed=key, purpose=kernels.Stream.DEFENSE_LAPLACE, step=step, first_row=first_row
        )  # fmt: skip
        return np.asarray(self.scale * np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u))))
