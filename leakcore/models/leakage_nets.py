"""The networks of Mo et al. (2021), Section 6.1: small, ReLU, no normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from leakcore._base import validate as check


def lenet(num_classes: int = 10, *, shape: Sequence[int] = (3, 32, 32)) -> nn.Sequential:
    """Two 5×5 convolutions of 6 and 16 filters, each with ReLU and 2×2 max-pooling, then 120, 84 and `num_classes`.

    shape: (channels, height, width) of an image. Initial values are torch's own. Raises ValueError where the image is
    too small for the layers.
    """
    return _network(shape, [(6, 5, 0, True), (16, 5, 0, True)], (120, 84), num_classes)


def alexnet(num_classes: int = 10, *, shape: Sequence[int] = (3, 32, 32)) -> nn.Sequential:
    """Five convolutions of 8 (5×5), 16, 32, 32 and 32 filters (3×3), the second and fifth with 2×2 max-pooling, then
    120, 84 and `num_classes`. The convolutions keep the image's size (the paper does not say). Else as `lenet`."""
    filters = [(8, 5, 2, False), (16, 3, 1, True), (32, 3, 1, False), (32, 3, 1, False), (32, 3, 1, True)]
    return _network(shape, filters, (120, 84), num_classes)


def vgg9(num_classes: int = 10, *, shape: Sequence[int] = (3, 32, 32)) -> nn.Sequential:
    """Six 3×3 convolutions of 8, 16, 16, 32, 32 and 32 filters (the paper says five and lists six), the third and sixth
    with 2×2 max-pooling, then 256, 128 and `num_classes`. The convolutions keep the image's size. Else as `lenet`."""
    filters = [(f, 3, 1, i in (2, 5)) for i, f in enumerate((8, 16, 16, 32, 32, 32))]
    return _network(shape, filters, (256, 128), num_classes)


def textclf(num_classes: int = 2, *, shape: Sequence[int] = (50, 100)) -> nn.Sequential:
    """Two convolutions along the text of 16 filters, 3 and 8 words wide, each with ReLU and max-pooling of 2, then 50
    and `num_classes`. shape: (embedding, words), its input is embedded text. Else as `lenet`."""
    return _network(shape, [(16, 3, 0, True), (16, 8, 0, True)], (50,), num_classes)


def _network(
    shape: Sequence[int], filters: Sequence[tuple[int, int, int, bool]], hidden: Sequence[int], num_classes: int
) -> nn.Sequential:
    """filters: (number, side, padding, pooled) of each convolution."""
    fan_in, *sides = (check.integer(1, None, shape=size) for size in shape)
    if len(sides) not in (1, 2):
        raise ValueError(f"shape={tuple(shape)}: must be (channels, height, width), or (embedding, words)")
    outputs = check.integer(1, None, num_classes=num_classes)
    convolution, pooling = (nn.Conv2d, nn.MaxPool2d) if len(sides) == 2 else (nn.Conv1d, nn.MaxPool1d)
    modules: list[nn.Module] = []
    for fan_out, side, padding, pooled in filters:
        modules += [convolution(fan_in, fan_out, side, padding=padding), nn.ReLU(), *([pooling(2)] if pooled else [])]
        fan_in = fan_out
        sides = [(size + 2 * padding - side + 1) // (2 if pooled else 1) for size in sides]
        if min(sides) < 1:
            raise ValueError(f"shape={tuple(shape)}: too small for these layers")
    modules.append(nn.Flatten())
    for size in sides:
        fan_in *= size
    for fan_out in hidden:
        modules += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        fan_in = fan_out
    return nn.Sequential(*modules, nn.Linear(fan_in, outputs))
