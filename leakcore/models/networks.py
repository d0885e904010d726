"""Convolutional networks for 32×32 images, without batch norm, which would mix the samples of a batch."""

from __future__ import annotations

import collections

import torch
from torch import nn

from leakcore._base import validate as check


def conv_extractor(width: int = 32, channels: int = 3, *, cells: int = 1) -> nn.Sequential:
    """A small convolutional network whose output is a feature vector.

    Three 3×3 convolutions of `width`, 2·`width` and 4·`width` channels, each with group norm, ELU and 2×2 mean pooling,
    then the mean over each of cells × cells parts of the image. It stands in for a pretrained network: train it on
    public images, freeze it, and train a last layer on its features privately. The initial values are torch's own, from
    its global generator.

    Args:
        width: channels of the first convolution, a multiple of 4.
        channels: of the images.
        cells: on a side; 1 forgets where in the image a feature was.

    Returns:
        A torch module that maps (rows, channels, height, width) images of at least 8×8 pixels to (rows, 4·width·cells²)
        features.

    Raises:
        ValueError: unless `width` is a multiple of 4 and at least 4, and `channels` and `cells` at least 1.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> models.conv_extractor(8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 32])
    """
    size = check.integer(4, None, width=width)
    if size % 4:
        raise ValueError(f"`width` must be a multiple of 4 (channels per group norm), got {width}")
    fan_in = check.integer(1, None, channels=channels)
    side = check.integer(1, None, cells=cells)
    modules: list[nn.Module] = []
    for fan_out in (size, 2 * size, 4 * size):
        modules += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.GroupNorm(4, fan_out), nn.ELU(), nn.AvgPool2d(2)]
        fan_in = fan_out
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(side), nn.Flatten())


def wide_resnet(depth: int = 28, width: int = 10, *, num_classes: int | None = 10, groups: int = 16) -> nn.Sequential:
    """A wide residual network (Zagoruyko and Komodakis 2016) with group norm and ELU (Hayes et al. 2023, Appendix A).

    Three groups of k pre-activation blocks, each of two 3×3 convolutions, with 16·width, 32·width and 64·width
    channels; the second and the third group halve the image. The names in the state dict are `stem.weight`;
    `group{1,2,3}.{block}.{norm1,conv1,norm2,conv2}.*` and `shortcut.weight` where shapes change; `norm.*`;
    `classifier.*`. Rename weights of other names before `load_safetensors`.

    Args:
        depth: 6k + 4, at least 10.
        width: factor of the number of channels.
        num_classes: outputs of the last layer; None leaves that layer out, and the result has 64·width features.
        groups: of every group norm; must divide 16.

    Returns:
        A torch module that maps (rows, 3, 32, 32) images to (rows, num_classes) logits, or to features.

    Raises:
        ValueError: if `depth` is not 6k + 4, if `groups` does not divide 16, or if a size is below 1.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> models.wide_resnet(10, 1, num_classes=None)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """
    blocks, rest = divmod(check.integer(10, None, depth=depth) - 4, 6)
    if rest:
        raise ValueError(f"`depth` must be 6k + 4, got {depth}")
    wide = check.integer(1, None, width=width)
    norms = check.integer(1, 16, groups=groups)
    if 16 % norms:
        raise ValueError(f"`groups` must divide 16, got {groups}")
    layers: list[tuple[str, nn.Module]] = [("stem", nn.Conv2d(3, 16, 3, padding=1, bias=False))]
    fan_in = 16
    for number, (channels, stride) in enumerate(((16, 1), (32, 2), (64, 2)), 1):
        fan_out = channels * wide
        parts = [
            _Block(fan_in if i == 0 else fan_out, fan_out, stride if i == 0 else 1, norms) for i in range(blocks)
        ]  # fmt: skip
        layers.append((f"group{number}", nn.Sequential(*parts)))
        fan_in = fan_out
    layers += [
        ("norm", nn.GroupNorm(norms, fan_in)),
        ("act", nn.ELU()),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
    ]
    if num_classes is not None:
        layers.append(("classifier", nn.Linear(fan_in, check.integer(1, None, num_classes=num_classes))))
    return nn.Sequential(collections.OrderedDict(layers))


def wrn_28_10(num_classes: int | None = 10) -> nn.Sequential:
    """The network WRN-28-10 with 36.5 million parameters, untrained.

    Args:
        num_classes: outputs of the last layer; None leaves that layer out, and the result has 640 features.

    Returns:
        `wide_resnet(28, 10, num_classes=num_classes)`. Load trained weights by `load_safetensors`.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> with torch.device("meta"):  # shapes only, no memory
        ...     network = models.wrn_28_10()
        >>> f"{sum(p.numel() for p in network.parameters()) / 1e6:.1f} million"
        '36.5 million'
    """
    return wide_resnet(28, 10, num_classes=num_classes)


class _Block(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, fan_in)
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        changes = stride != 1 or fan_in != fan_out
        self.shortcut = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False) if changes else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ready = nn.functional.elu(self.norm1(x))
        out = self.conv2(nn.functional.elu(self.norm2(self.conv1(ready))))
        skipped: torch.Tensor = x if self.shortcut is None else self.shortcut(ready)
        total: torch.Tensor = out + skipped
        return total
