"""The networks of Mo et al. (2021), Section 6.1: small, ReLU, no normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from leakcore._base import validate as check


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
    fan_in, *sides = (check.integer(1, None, shape=size) for size in shape)
    if len(sides) not in (1, 2):
        raise ValueError(f"`shape` must be (channels, height, width), or (embedding, words), got {tuple(shape)}")
    outputs = check.integer(1, None, num_classes=num_classes)
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
