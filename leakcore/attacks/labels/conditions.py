"""How the observed gradient came about: its noise, its clipping, and the precision of the arithmetic behind it."""

from __future__ import annotations

import dataclasses
from typing import Any

from leakcore._base import validate


@dataclasses.dataclass(frozen=True)
class Noise:
    """Independent Gaussian noise in each coordinate of the gradient that the attacker sees.

    Every label attack takes it. With std > 0 a label counts as determined only beyond a threshold,
    std·batch_size·√v_r·Φ⁻¹(1 − (1 − confidence)/n), with v the leverages and n the number of identifiable residuals
    (union bound). With known probabilities the threshold comes from the χ quantile of the whole noise vector.

    Args:
        std: standard deviation, in the units of the gradient; for a weight difference, of the gradient that it implies.
            0: the gradient is exact up to rounding.
        confidence: the probability, over the noise, that *no* determined label is wrong, in (0, 1 − 1e-12]. Required
            with std > 0, and refused with std = 0.

    Raises:
        ValueError: for std < 0, and for a confidence that is missing, superfluous or out of range.

    Example:
        >>> from leakcore.attacks import labels
        >>> exact = labels.Noise(0)
        >>> noisy = labels.Noise(0.01, confidence=0.99)
    """

    std: float
    confidence: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", validate.non_negative(std=self.std))
        if self.std > 0:
            if self.confidence is None:
                raise ValueError("`confidence` must be given with std > 0, for example 0.99")
            object.__setattr__(self, "confidence", validate.confidence(confidence=self.confidence))
        elif self.confidence is not None:
            raise ValueError("`confidence` is allowed only with std > 0")


@dataclasses.dataclass(frozen=True, eq=False)
class Clipping:
    """Each sample's gradient was multiplied by min(1, C/(norm + clip_slack)), as DP-SGD clips.

    `last_layer` and `general` take it, with known_probs and one logit. Each residual is then one of two values that C
    fixes as well, and determined labels are proved as without clipping. Without known_probs it is not needed, because
    clipping keeps every sign.

    Args:
        max_grad_norm: C > 0.
        grad_norms: (2, N), or (S, 2, N) for S steps: joint norms of each sample's gradient under both labels, in either
            order, over all parameters that were clipped together. None: the observed weights alone were clipped.
        clip_slack: what was added to the norm, at least 0; Opacus adds 1e-6.

    Raises:
        ValueError: for values out of range. The attack checks the shape of grad_norms.

    Example:
        >>> from leakcore.attacks import labels
        >>> labels.Clipping(max_grad_norm=1.0, clip_slack=1e-6).max_grad_norm
        1.0
    """

    max_grad_norm: float
    grad_norms: Any = None
    clip_slack: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_grad_norm", validate.positive(max_grad_norm=self.max_grad_norm))
        object.__setattr__(self, "clip_slack", validate.non_negative(clip_slack=self.clip_slack))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """The arithmetic of victim and attacker, where the arrays do not show it.

    Every label attack takes it.

    Args:
        unit_roundoff: of the arithmetic that computed the gradient, 2⁻²⁴ for float32. None: the coarsest among the
            arrays and the model. Set it where the arithmetic was coarser than the dtype shows (2⁻¹¹ for TF32), or where
            a float64 weight difference is of weights that were stored more coarsely and neither a model nor `weights`
            show it.
        rcond: singular values below rcond times the largest count as zero, in [0, 1). None: 2·max(N, d)·unit_roundoff.

    Raises:
        ValueError: for a unit_roundoff outside (0, 1) and for an rcond outside [0, 1).

    Example:
        >>> from leakcore.attacks import labels
        >>> tf32 = labels.Precision(unit_roundoff=2**-11)
    """

    unit_roundoff: float | None = None
    rcond: float | None = None

    def __post_init__(self) -> None:
        if self.unit_roundoff is not None:
            object.__setattr__(self, "unit_roundoff", validate.open_probability(unit_roundoff=self.unit_roundoff))
        if self.rcond is not None:
            object.__setattr__(self, "rcond", validate.below_one(rcond=self.rcond))

    def stored(self, roundoff: float) -> float:
        """Unit roundoff of stored weights: the coarser of what model and arrays show and what the caller states."""
        return roundoff if self.unit_roundoff is None else max(roundoff, self.unit_roundoff)


def read_precision(precision: Precision | None) -> Precision:
    """The caller's precision, checked, or one that is read off the arrays."""
    if precision is None:
        return Precision()
    validate.instance(Precision, precision=precision)
    return precision
