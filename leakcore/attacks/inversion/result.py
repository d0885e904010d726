"""What gradient inversion returns, and how close reconstructed inputs are to the originals: MSE, PSNR, SSIM."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from leakcore._base import array_memory, validate
from leakcore._base.results import Result
from leakcore.gradients import numbers, tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import torch
        >>> from leakcore.attacks import inversion
        >>> originals = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
        >>> quality = inversion.compare(originals.flip(0) * 0.9, originals, 1.0)
        >>> quality.order.tolist(), quality.psnr.round(1).tolist()  # dB; the zeros are perfect
        ([1, 0], [inf, 20.0])
    """
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

    Guarantees:
        Deterministic for a machine and torch build. ValueError or TypeError names an argument that does not fit.

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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Inversion(Result):
    """Inputs of B rows, reconstructed by R restarts; kind "estimate", since another search may reconstruct more.

    Attributes:
        value: the distance that the best restart reached (relative squared ℓ2, 1 − cosine, or Equation 1), comparable
            for one gradient only; ∞ where all diverged.
        best: index of the best restart, chosen by its distance alone, or −1 where all diverged.
        reconstructions: (B, ...) of the best restart.
        labels: (B,) classes, or targets, of the best restart.
        every: (R, B, ...) reconstructions of all restarts.
        distances: (R,) of all restarts.
        ends: (R,) "converged" (distance ≤ tolerance), "stalled", "iterations" (the budget was spent) or "diverged" (not
            finite).
        iterations: (R,) how many each restart took.
        originals: (B, ...) after `compared_with`, else None. All rows then follow the originals' order.
        quality: (R,) `Quality` of each restart after `compared_with`, else None.
        box: the inputs' range in the search, or None.
        value_range: range of an input's numbers: the box; without one [0, 1], or the originals' range where that is
            wider.
        kinked: names of the model's operations that are not twice differentiable.
    """

    quantity: str = "distance to the gradient"
    best: int
    reconstructions: np.ndarray
    labels: np.ndarray
    every: np.ndarray
    distances: np.ndarray
    ends: tuple[str, ...]
    iterations: np.ndarray
    originals: np.ndarray | None
    quality: tuple[Quality, ...] | None
    box: tuple[float, float] | None
    value_range: tuple[float, float]
    kinked: tuple[str, ...]

    def compared_with(self, originals: Any) -> Inversion:
        """The same result with `quality`, and each restart's rows in the order of the originals that they match.

        Args:
            originals: (B, ...), the truth, which the search did not see.
        """
        points = torch.from_numpy(self.every)
        truth = tensor(originals, "originals").to(points)
        if truth.shape != points.shape[1:]:
            raise ValueError(f"`originals` must have shape {tuple(points.shape[1:])}, got {tuple(truth.shape)}")
        low, high = _span(truth) if self.box is None else self.box
        quality = tuple(compare(each, truth, high - low) for each in points)
        every = np.stack([each[q.order] for each, q in zip(self.every, quality, strict=True)])
        return dataclasses.replace(
            self,
            originals=host(truth),
            quality=quality,
            value_range=(low, high),
            every=every,
            reconstructions=every[self.best] if self.best >= 0 else self.reconstructions,
            labels=self.labels[quality[max(self.best, 0)].order],
        )

    @property
    def failed(self) -> tuple[int, ...]:
        """Restarts that diverged, or did not converge and ended more than nine times |best| above the best distance."""
        reference = abs(float(self.value)) * 9 + float(self.value)
        return tuple(
            i
            for i, (end, d) in enumerate(zip(self.ends, self.distances, strict=True))
            if end == "diverged" or (end != "converged" and not d <= max(reference, 0.0))
        )

    def summary(self) -> str:
        """One line per restart: how it ended, its distance and, with originals, its worst and mean SSIM and PSNR."""
        lines = []
        for i, (end, distance) in enumerate(zip(self.ends, self.distances, strict=True)):
            line = f"restart {i}  {end:<10}  distance {distance:.3g}"
            if self.quality is not None:
                q = self.quality[i]
                line += f"  SSIM {q.ssim.mean():.3f} (worst {q.ssim.min():.3f})  PSNR {q.psnr.mean():.1f} dB"
            lines.append(line + ("  <- best" if i == self.best else "  failed" if i in self.failed else ""))
        return "\n".join(lines)

    def figure(self) -> Figure:
        """Originals above, then the reconstructions of every restart, the best first; images or ValueError.

        Images are (1 or 3, height, width), or (height, width). A matplotlib Figure: `.savefig(path)`.
        """
        from matplotlib.figure import Figure

        shape = self.every.shape[2:]
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
            raise ValueError(f"figure: inputs of shape {shape} are not images (1 or 3, height, width)")
        order = sorted(range(len(self.every)), key=lambda i: (i != self.best, i))
        rows: list[tuple[str, np.ndarray, int | None]]
        rows = [] if self.originals is None else [("original", self.originals, None)]
        for i in order:
            marks = (", best" if i == self.best else "", ", failed" if i in self.failed else "")
            rows.append((f"restart {i}{marks[0]}\n{self.ends[i]}{marks[1]}", self.every[i], i))
        columns = self.every.shape[1]
        figure = Figure(figsize=(1.5 * columns + 1.4, 1.75 * len(rows) + 0.2), layout="constrained")
        grid = figure.subplots(len(rows), columns, squeeze=False)
        low, high = self.value_range
        for line, (name, images, restart) in zip(grid, rows, strict=True):
            for column, (axes, image) in enumerate(zip(line, images, strict=True)):
                pixels = np.clip((np.nan_to_num(image, nan=low) - low) / (high - low), 0, 1)
                if pixels.ndim == 3:
                    pixels = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)
                axes.imshow(pixels, cmap="gray", vmin=0, vmax=1)
                axes.set_xticks([])
                axes.set_yticks([])
                if restart is not None and self.quality is not None:
                    q = self.quality[restart]
                    axes.set_title(f"SSIM {q.ssim[column]:.2f}, {q.psnr[column]:.0f} dB", fontsize=7)
            line[0].set_ylabel(name, fontsize=8)
        return figure


def _span(truth: torch.Tensor) -> tuple[float, float]:
    """[0, 1] for what fits in it, as images do; else the least and largest value."""
    low, high = float(truth.min()), float(truth.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def host(values: torch.Tensor) -> np.ndarray:
    """A NumPy array of the values; bfloat16, which NumPy lacks, as float32."""
    here = values.detach().cpu()
    out: np.ndarray = (here.float() if here.is_floating_point() and here.element_size() < 4 else here).numpy()
    return out
