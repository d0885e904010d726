"""Implementations that depart from DP-SGD: wrong on purpose, so that an audit can be shown to catch them."""

from __future__ import annotations

import dataclasses

from leakcore._base import validate as check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """How a faulty implementation departs from DP-SGD; the defaults depart in nothing.

    noise: factor ≥ 0 on the standard deviation of all noise (0.5: σ/2). bias_noise: a further factor ≥ 0 on that of the
    biases (0: biases get no noise). clip: "sample" clips each gradient to C, as DP-SGD must; "batch" clips their mean
    instead, g = Σ ∇ℓ·min{1, C/‖(1/B) Σ ∇ℓ‖}, so that one sample moves the sum by up to B·C where the noise covers C.
    clip_slack: added to the norm before dividing, ≥ 0: 1e-6 is what Opacus does, no fault but a departure, too.
    """

    noise: float = 1.0
    bias_noise: float = 1.0
    clip: str = "sample"
    clip_slack: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", check.non_negative(noise=self.noise))
        object.__setattr__(self, "bias_noise", check.non_negative(bias_noise=self.bias_noise))
        check.one_of("sample", "batch", clip=self.clip)
        object.__setattr__(self, "clip_slack", check.non_negative(clip_slack=self.clip_slack))
