"""The papers' convolutional networks, without batch norm, which would mix the samples of a batch."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import torch
from torch import nn

from leakcore import kernels
from leakcore._base import validate


def lenet(num_classes: int = 10, *, shape: Sequence[int] = (3, 32, 32)) -> nn.Sequential:
    """The LeNet of Mo et al. (2021), Section 6.1.

    Two 5×5 convolutions of 6 and 16 filters, each with ReLU and 2×2 max-pooling, then linear layers of 120, 84 and
    `num_classes` outputs. No normalisation. The initial values are torch's own, from its global generator.

    Args:
        num_classes: outputs of the last layer.
        shape: (channels, height, width) of an image.

    Returns:
        A torch module that maps (rows, *shape) images to (rows, num_classes) logits.

    Raises:
        ValueError: if the image is too small for the layers, or a size is below 1.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> models.lenet(10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    return _network(shape, [(6, 5, 0, True), (16, 5, 0, True)], (120, 84), num_classes)


def alexnet(num_classes: int = 10, *, shape: Sequence[int] = (3, 32, 32)) -> nn.Sequential:
    """The small AlexNet of Mo et al. (2021), Section 6.1.

    Five convolutions of 8 (5×5), 16, 32, 32 and 32 filters (3×3) with ReLU, the second and the fifth with 2×2
    max-pooling, then linear layers of 120, 84 and `num_classes` outputs. The convolutions preserve the size of the
    image; the paper does not state the padding. The initial values are torch's own, from its global generator.

    Args:
        num_classes: outputs of the last layer.
        shape: (channels, height, width) of an image.

    Returns:
        A torch module that maps (rows, *shape) images to (rows, num_classes) logits.

    Raises:
        ValueError: if the image is too small for the layers, or a size is below 1.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> models.alexnet(10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    filters = [(8, 5, 2, False), (16, 3, 1, True), (32, 3, 1, False), (32, 3, 1, False), (32, 3, 1, True)]
    return _network(shape, filters, (120, 84), num_classes)


def vgg9(num_classes: int = 10, *, shape: Sequence[int] = (3, 32, 32)) -> nn.Sequential:
    """The small VGG of Mo et al. (2021), Section 6.1.

    Six 3×3 convolutions of 8, 16, 16, 32, 32 and 32 filters with ReLU (the paper says five and lists six), the third
    and the sixth with 2×2 max-pooling, then linear layers of 256, 128 and `num_classes` outputs. The convolutions
    preserve the size of the image. The initial values are torch's own, from its global generator.

    Args:
        num_classes: outputs of the last layer.
        shape: (channels, height, width) of an image.

    Returns:
        A torch module that maps (rows, *shape) images to (rows, num_classes) logits.

    Raises:
        ValueError: if the image is too small for the layers, or a size is below 1.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> models.vgg9(10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    filters = [(f, 3, 1, i in (2, 5)) for i, f in enumerate((8, 16, 16, 32, 32, 32))]
    return _network(shape, filters, (256, 128), num_classes)


def textclf(num_classes: int = 2, *, shape: Sequence[int] = (50, 100)) -> nn.Sequential:
    """The text classifier of Mo et al. (2021), Section 6.1, on embedded text.

    Two convolutions along the text, of 16 filters that are 3 and 8 words wide, each with ReLU and max-pooling of 2,
    then linear layers of 50 and `num_classes` outputs. The initial values are torch's own, from its global generator.

    Args:
        num_classes: outputs of the last layer.
        shape: (embedding, words) of a text; `datasets.imdb` gives such features.

    Returns:
        A torch module that maps (rows, *shape) texts to (rows, num_classes) logits.

    Raises:
        ValueError: if the text is too short for the layers, or a size is below 1.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> models.textclf(2)(torch.zeros(3, 50, 100)).shape
        torch.Size([3, 2])
    """
    return _network(shape, [(16, 3, 0, True), (16, 8, 0, True)], (50,), num_classes)


def _network(
    shape: Sequence[int], filters: Sequence[tuple[int, int, int, bool]], hidden: Sequence[int], num_classes: int
) -> nn.Sequential:
    """filters: (number, side, padding, pooled) of each convolution."""
    fan_in, *sides = (validate.integer(1, None, shape=size) for size in shape)
    if len(sides) not in (1, 2):
        raise ValueError(f"`shape` must be (channels, height, width), or (embedding, words), got {tuple(shape)}")
    outputs = validate.integer(1, None, num_classes=num_classes)
    convolution, pooling = (nn.Conv2d, nn.MaxPool2d) if len(sides) == 2 else (nn.Conv1d, nn.MaxPool1d)
    modules: list[nn.Module] = []
    for fan_out, side, padding, pooled in filters:
        modules += [convolution(fan_in, fan_out, side, padding=padding), nn.ReLU(), *([pooling(2)] if pooled else [])]
        fan_in = fan_out
        sides = [(size + 2 * padding - side + 1) // (2 if pooled else 1) for size in sides]
        if min(sides) < 1:
            raise ValueError(f"`shape` must be large enough for these layers, got {tuple(shape)}")
    modules.append(nn.Flatten())
    for size in sides:
        fan_in *= size
    for fan_out in hidden:
        modules += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        fan_in = fan_out
    return nn.Sequential(*modules, nn.Linear(fan_in, outputs))


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
        seed: 64-bit seed of the weights; None draws them from torch's global generator.

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
    sizes = validate.sizes(shape=shape)
    if len(sizes) != 3:
        raise ValueError(f"`shape` must be (channels, height, width), got {sizes}")
    outputs, width = validate.integer(1, None, num_classes=num_classes), validate.integer(1, None, channels=channels)
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


def conv_extractor(width: int = 32, channels: int = 3, *, cells: int = 1) -> nn.Sequential:
    """A small convolutional network whose output is a feature vector.

    Three 3×3 convolutions of `width`, 2·`width` and 4·`width` channels, each with group norm, ELU and 2×2 mean pooling,
    then the mean over each of cells × cells parts of the image. It stands in for a pretrained network: train it on
    public images, freeze it, and train a last layer on its features privately. The initial values are torch's own, from
    its global generator.

    Args:
        width: channels of the first convolution, a multiple of 4.
        channels: channels of an image.
        cells: parts on a side of the image; 1 forgets where in the image a feature was.

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
    size = validate.integer(4, None, width=width)
    if size % 4:
        raise ValueError(f"`width` must be a multiple of 4 (channels per group norm), got {width}")
    fan_in = validate.integer(1, None, channels=channels)
    side = validate.integer(1, None, cells=cells)
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
        groups: number of groups of every group norm, a divisor of 16.

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
    blocks, rest = divmod(validate.integer(10, None, depth=depth) - 4, 6)
    if rest:
        raise ValueError(f"`depth` must be 6k + 4, got {depth}")
    wide = validate.integer(1, None, width=width)
    norms = validate.integer(1, 16, groups=groups)
    if 16 % norms:
        raise ValueError(f"`groups` must divide 16, got {groups}")
    layers: list[tuple[str, nn.Module]] = [("stem", nn.Conv2d(3, 16, 3, padding=1, bias=False))]
    fan_in = 16
    for number, (channels, stride) in enumerate(((16, 1), (32, 2), (64, 2)), 1):
        fan_out = channels * wide
        parts = [_Block(fan_in if i == 0 else fan_out, fan_out, stride if i == 0 else 1, norms) for i in range(blocks)]
        layers.append((f"group{number}", nn.Sequential(*parts)))
        fan_in = fan_out
    layers += [
        ("norm", nn.GroupNorm(norms, fan_in)),
        ("act", nn.ELU()),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
    ]
    if num_classes is not None:
        layers.append(("classifier", nn.Linear(fan_in, validate.integer(1, None, num_classes=num_classes))))
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
