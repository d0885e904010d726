"""How close reconstructed inputs are to the originals: mean squared error, PSNR, SSIM, and which belongs to which."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from leakcore._base import array_memory, validate
from leakcore.gradients import numbers

_WINDOW, _SIGMA = 11, 1.5


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Quality:
    """How close n reconstructions are to n originals, each matched with one.

    Attributes:
        mse: (n,) float64, mean squared difference.
        psnr: (n,) float64, 10·log₁₀(range²/mse) in dB, ∞ where mse is 0.
        ssim: (n,) float64, as `ssim`.
        order: (n,) int64: reconstruction order[i] is compared with original i.
    """

    mse: np.ndarray
    psnr: np.ndarray
    ssim: np.ndarray
    order: np.ndarray


def compare(reconstructions: torch.Tensor, originals: torch.Tensor, value_range: float) -> Quality:
    """Match each original with one reconstruction and measure how close they are.

    A mean gradient does not show the order of its rows, so the matching minimises the sum of squared differences
    (Kuhn–Munkres).

    Args:
        reconstructions: (n, ...) tensor.
        originals: (n, ...) tensor of the same shape.
        value_range: width of the range of an input's numbers, > 0; 1 for images in [0, 1].

    Returns:
        `Quality`. A reconstruction that is not finite, or whose squares are not, has NaN throughout; the others are
        matched as without it.

    Raises:
        ValueError: for another shape or range.
        TypeError: for anything but tensors of real numbers.

    Guarantees:
        Deterministic.

    Example:
        >>> import torch
        >>> from leakcore.attacks import inversion
        >>> originals = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
        >>> quality = inversion.compare(originals.flip(0) * 0.9, originals, 1.0)
        >>> quality.order.tolist(), quality.psnr.round(1).tolist()  # dB; the zeros are perfect
        ([1, 0], [inf, 20.0])
    """
    from scipy.optimize import linear_sum_assignment

    span = validate.positive(value_range=value_range)
    array_memory.refuse_transforms("originals")
    originals = _images("originals", originals).detach()
    reconstructions = _images("reconstructions", reconstructions).detach()
    if originals.shape != reconstructions.shape:
        raise ValueError(
            f"`reconstructions` must have the shape of `originals`, {tuple(originals.shape)}, got "
            f"{tuple(reconstructions.shape)}"
        )
    a, b = originals.double().flatten(1), reconstructions.double().flatten(1)
    apart = (a[:, None] - b[None]).square().mean(-1).cpu().numpy()
    known = np.isfinite(apart)
    # Just above the largest: a far larger number would round the others' differences away.
    above = min(2 * float(apart[known].max(initial=0.0)) + 1, np.finfo(float).max)
    _, order = linear_sum_assignment(np.where(known, apart, above))
    mse = apart[np.arange(len(a)), order]
    mse[~np.isfinite(mse)] = np.nan
    with np.errstate(divide="ignore"):
        psnr = 10 * np.log10(span * span / mse)
    alike = ssim(originals, reconstructions[torch.as_tensor(order)], value_range).cpu().numpy()
    return Quality(mse=mse, psnr=psnr, ssim=np.where(np.isnan(mse), np.nan, alike), order=order)


def _images(name: str, images: Any) -> torch.Tensor:
    if not isinstance(images, torch.Tensor):
        raise TypeError(f"`{name}` must be a tensor, got a {type(images).__name__}")
    tensor = numbers(name, images)
    if tensor.ndim < 2 or tensor.numel() == 0:
        raise ValueError(
            f"`{name}` must hold real numbers in shape (n, ...), n ≥ 1, got {tuple(tensor.shape)}, {tensor.dtype}"
        )
    return tensor


def ssim(first: torch.Tensor, second: torch.Tensor, value_range: float) -> torch.Tensor:
    """Structural similarity (Wang et al. 2004) of pairs of images.

    Images (n, channels, height, width): a Gaussian window of 11 pixels and σ = 1.5 (the largest odd size that fits, if
    smaller), population covariances, mean over the positions where the window lies inside, and over channels. Anything
    else, (n, ...): one window over the whole, equal weights.

    Args:
        first: (n, ...) tensor.
        second: (n, ...) tensor of the same shape.
        value_range: width of the range of an input's numbers, > 0; 1 for images in [0, 1].

    Returns:
        (n,) float64 tensor, at most 1, which identical images reach.

    Raises:
        ValueError: for another shape or range.
        TypeError: for anything but tensors of real numbers.

    Guarantees:
        Deterministic for a machine and torch build.

    Example:
        >>> import torch
        >>> from leakcore.attacks import inversion
        >>> image = torch.linspace(0, 1, 144).reshape(1, 1, 12, 12)
        >>> [f"{float(inversion.ssim(image, other, 1.0)):.2f}" for other in (image, 1 - image)]
        ['1.00', '-0.93']
    """
    span = validate.positive(value_range=value_range)
    first, second = _images("first", first), _images("second", second)
    if first.shape != second.shape:
        raise ValueError(f"`second` must have the shape of `first`, {tuple(first.shape)}, got {tuple(second.shape)}")
    a, b = first.double(), second.double()
    if a.ndim == 4 and min(a.shape[-2:]) >= 3:
        size = min(_WINDOW, (min(a.shape[-2:]) - 1) // 2 * 2 + 1)
        steps = torch.arange(size, dtype=a.dtype, device=a.device) - size // 2
        line = torch.exp(-(steps**2) / (2 * _SIGMA**2))
        line = line / line.sum()
        kernel = (line[:, None] * line)[None, None].expand(a.shape[1], 1, size, size)

        def mean(values: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv2d(values, kernel, groups=a.shape[1]).flatten(1)
    else:

        def mean(values: torch.Tensor) -> torch.Tensor:
            return values.flatten(1).mean(1, keepdim=True)

    c1, c2 = (0.01 * span) * (0.01 * span), (0.03 * span) * (0.03 * span)
    ma, mb = mean(a), mean(b)
    va, vb, cov = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    windows = (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    return windows.mean(1)
