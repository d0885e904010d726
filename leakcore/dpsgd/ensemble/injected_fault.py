"""Implementations that depart from DP-SGD on purpose, to show that an audit detects them."""

from __future__ import annotations

import dataclasses

from leakcore._base import validate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """How a faulty implementation departs from DP-SGD. The defaults change nothing.

    Use it to show that an audit detects the fault.

    Args:
        noise: factor, at least 0, on the standard deviation of all noise; 0.5 gives σ/2.
        bias_noise: further factor, at least 0, for the noise of biases; 0 leaves biases without noise.
        clip: "sample" clips each gradient to C, as DP-SGD must. "batch" clips the mean gradient instead, g = Σ
            ∇ℓ·min{1, C/‖(1/B) Σ ∇ℓ‖}: one row then moves the sum by up to B·C, while the noise covers C.
        clip_slack: added to the norm before dividing, at least 0. Opacus adds 1e-6, which departs from the definition
            but is not a fault.

    Raises:
        ValueError: for a negative number or another `clip`.

    Example:
        >>> from leakcore import dpsgd
        >>> settings = {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "learning_rate": 0.1, "steps": 1, "seed": 0}
        >>> broken = dpsgd.Ensemble((4, 2), fault=dpsgd.Fault(noise=0.5), **settings)
        >>> broken.fault.noise
        0.5
    """

    noise: float = 1.0
    bias_noise: float = 1.0
    clip: str = "sample"
    clip_slack: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", validate.non_negative(noise=self.noise))
        object.__setattr__(self, "bias_noise", validate.non_negative(bias_noise=self.bias_noise))
        validate.one_of("sample", "batch", clip=self.clip)
        object.__setattr__(self, "clip_slack", validate.non_negative(clip_slack=self.clip_slack))
