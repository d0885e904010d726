"""What gradient inversion hands back: the best restart, and every other beside it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from leakcore._base.results import Result
from leakcore.attacks.inversion.image_quality import Quality

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Inversion(Result):
    """Reconstructed inputs; R restarts, B rows. kind "estimate": another search may find more.

    value: the distance that the best restart reached (relative squared ℓ2, 1 − cosine, or Equation 1), comparable for
    one gradient only. best: which restart, chosen by its distance alone, or −1 where all diverged.
    reconstructions: (B, ...) of the best. labels: (B,) classes, or targets, of the best.
    every: (R, B, ...) reconstructions of all restarts; distances: (R,); ends: (R,) "converged" (distance ≤ tolerance),
    "stalled", "iterations" (the budget was spent) or "diverged" (not finite); iterations: (R,).
    originals: (B, ...) where they were given, then quality: of each restart, and all rows are in the originals' order.
    kinked: operations without a second derivative to speak of.
    """

    best: int
    reconstructions: np.ndarray
    labels: np.ndarray
    every: np.ndarray
    distances: np.ndarray
    ends: tuple[str, ...]
    iterations: np.ndarray
    originals: np.ndarray | None
    quality: tuple[Quality, ...] | None
    value_range: tuple[float, float]
    kinked: tuple[str, ...]

    @property
    def failed(self) -> tuple[int, ...]:
        """Restarts that diverged, or did not converge and ended more than nine times |best| above the best distance."""
        reference = abs(float(self.value)) * 9 + float(self.value)
        return tuple(
            i for i, (end, d) in enumerate(zip(self.ends, self.distances, strict=True))
            if end == "diverged" or (end != "converged" and not d <= max(reference, 0.0))
        )  # fmt: skip

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
            raise ValueError(f"figure: inputs of shape {shape} are no images (1 or 3, height, width)")
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
                shown = np.clip((np.nan_to_num(image, nan=low) - low) / (high - low), 0, 1)
                if shown.ndim == 3:
                    shown = shown[0] if len(shown) == 1 else np.moveaxis(shown, 0, -1)
                axes.imshow(shown, cmap="gray", vmin=0, vmax=1)
                axes.set_xticks([])
                axes.set_yticks([])
                if restart is not None and self.quality is not None:
                    q = self.quality[restart]
                    axes.set_title(f"SSIM {q.ssim[column]:.2f}, {q.psnr[column]:.0f} dB", fontsize=7)
            line[0].set_ylabel(name, fontsize=8)
        return figure
