"""The network on which gradient inversion was first shown: Zhu, Liu and Han (2019), Section 4."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from leakcore import kernels
from leakcore._base import validate as check


def dlg_lenet(
    num_classes: int = 100,
    *,
    shape: Sequence[int] = (3, 32, 32),
    channels: int = 12,
    pooled: bool = False,
    seed: int | None = None,
) -> nn.Sequential:
    """Three 5×5 convolutions of 12 channels with sigmoid, strides 2, 2 and 1, and one linear layer.

    Twice differentiable everywhere, without pooling: what deep leakage from gradients needs. Weights and biases are
    uniform on (−½, ½), as its authors have them.

    shape: (channels, height, width) of an image. pooled: strides 1 and 2×2 mean pooling instead of stride 2, which
    inverts far worse. seed: of the weights; None: torch's global generator. Raises ValueError or TypeError that names
    the argument.
    """
    sizes = check.sizes(shape=shape)
    if len(sizes) != 3:
        raise ValueError(f"shape={sizes}: must be (channels, height, width)")
    outputs, width = check.integer(1, None, num_classes=num_classes), check.integer(1, None, channels=channels)
    modules: list[nn.Module] = []
    fan_in, sides = sizes[0], list(sizes[1:])
    for halved in (True, True, False):
        modules += [nn.Conv2d(fan_in, width, 5, padding=2, stride=2 if halved and not pooled else 1), nn.Sigmoid()]
        if halved and pooled:
            modules.append(nn.AvgPool2d(2))
        sides = [(side // 2 if pooled else -(-side // 2)) if halved else side for side in sides]
        fan_in = width
    if min(sides) < 1:
        raise ValueError(f"shape={sizes}: too small for these layers")
    net = nn.Sequential(*modules, nn.Flatten(), nn.Linear(width * sides[0] * sides[1], outputs))
    generator = None if seed is None else kernels.torch_generator(seed, kernels.Stream.DLG_LENET)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return net
