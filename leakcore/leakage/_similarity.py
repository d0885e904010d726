"""SSIM between inputs and what an attacker made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_WINDOW, _SIGMA = 11, 1.5


def ssim(first: torch.Tensor, second: torch.Tensor, value_range: float) -> torch.Tensor:
    """(n,) structural similarity (Wang et al. 2004), float64.

    Images (n, channels, height, width): a Gaussian window of 11 pixels and σ = 1.5 (the largest odd size that fits, if
    smaller), population covariances, mean over the places where the window lies inside, and over channels. Anything
    else, (n, ...): one window over the whole, equal weights.
    """
    import torch

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

    c1, c2 = (0.01 * value_range) ** 2, (0.03 * value_range) ** 2
    ma, mb = mean(a), mean(b)
    va, vb, cov = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    found = (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    return found.mean(1)
