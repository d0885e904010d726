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
    """A small sigmoid network that gradient inversion recovers images from (Zhu, Liu and Han 2019, Section 4).

    Three 5×5 convolutions, each followed by a sigmoid, with strides 2, 2 and 1, and one linear layer. The network is
    twice differentiable everywhere and has no pooling, as deep leakage from gradients requires. Weights and biases are
    uniform on (−½, ½), as in the authors' code.

    Args:
        num_classes: outputs of the linear layer.
        shape: (channels, height, width) of an image.
        channels: filters of each convolution; the paper uses 12.
        pooled: use stride 1 and 2×2 mean pooling instead of stride 2. Such a network is much harder to invert.
        seed: of the weights; None draws them from torch's global generator.

    Returns:
        A torch module that maps (rows, *shape) float32 images to (rows, num_classes) logits.

    Raises:
        ValueError: for an image that is too small for the layers, or a size below 1.
        TypeError: for a size that is not an integer.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> net = models.dlg_lenet(10, shape=(1, 28, 28), seed=0)
        >>> net(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    sizes = check.sizes(shape=shape)
    if len(sizes) != 3:
        raise ValueError(f"`shape` must be (channels, height, width), got {sizes}")
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
        raise ValueError(f"`shape` must be large enough for these layers, got {sizes}")
    net = nn.Sequential(*modules, nn.Flatten(), nn.Linear(width * sides[0] * sides[1], outputs))
    generator = None if seed is None else kernels.torch_generator(seed, kernels.Stream.DLG_LENET)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return net
