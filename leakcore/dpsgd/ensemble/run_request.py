"""What an ensemble was asked to do, checked and ready to be cut into blocks and ranges of runs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import torch

from leakcore._base import validate
from leakcore.dpsgd.ensemble.arguments import Samples
from leakcore.dpsgd.ensemble.block.batches import SLOTS
from leakcore.dpsgd.ensemble.block.block import BlockInput, Watch
from leakcore.dpsgd.ensemble.block.forward_backward import RowGroup
from leakcore.dpsgd.ensemble.rows import Source, placed


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of `Ensemble.run` for runs first, …, stop − 1; arrays of runs begin with the first."""

    first: int
    stop: int
    common: Samples
    extra: Source | None
    candidates: Source | None
    probes: Samples | Source | None
    watch: Watch
    keep_parameters: bool
    device: str
    initial: np.ndarray | None
    noise: np.ndarray | None
    batches: np.ndarray | None
    crafted: np.ndarray | None
    crafted_batches: np.ndarray | None

    @property
    def num_rows(self) -> int:
        """Rows of one run's training set."""
        return self.common.rows + (0 if self.extra is None else self.extra.rows)

    @property
    def scored(self) -> int:
        """Candidates per run."""
        return 0 if self.candidates is None else self.candidates.rows

    @property
    def own_probes(self) -> Source | None:
        """Probes that differ between runs."""
        return self.probes if isinstance(self.probes, Source) else None

    def part(self, low: int, high: int) -> Request:
        """The same for the absolute runs [low, high)."""
        a, b = low - self.first, high - self.first

        def cut(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array[a:b]

        return dataclasses.replace(
            self,
            first=low,
            stop=high,
            extra=None if self.extra is None else self.extra.part(a, b),
            candidates=None if self.candidates is None else self.candidates.part(a, b),
            probes=self.probes.part(a, b) if isinstance(self.probes, Source) else self.probes,
            initial=cut(self.initial),
            noise=cut(self.noise),
            batches=cut(self.batches),
            crafted_batches=cut(self.crafted_batches),
        )

    def block(self, begin: int, outputs: int, dtype: torch.dtype) -> BlockInput:
        """What the block of runs begin, …, begin + SLOTS − 1 reads."""
        low, high = max(begin, self.first) - self.first, min(begin + SLOTS, self.stop) - self.first
        at = low + self.first - begin
        device = torch.device(self.device)

        def rows(source: Source | None) -> RowGroup | None:
            return None if source is None else source.take(low, high, at, outputs, dtype, device)

        def spread(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else placed(array[low:high], at)

        return BlockInput(
            first_run=begin,
            used=range(at, at + high - low),
            extra=rows(self.extra),
            candidates=rows(self.candidates),
            probes=rows(self.own_probes),
            initial=spread(self.initial),
            noise=spread(self.noise),
            batches=spread(self.batches),
            crafted=self.crafted,
            crafted_batches=spread(self.crafted_batches),
        )


def losses(logits: np.ndarray | None, at: Samples | Source | None) -> np.ndarray | None:
    """(runs, n) float64, log Σ_k e^{z_k} − z_y, or log(1 + e^z) − y·z for one logit; None without labels."""
    if logits is None or at is None:
        return None
    labels = at.labels if isinstance(at, Samples) else at.samples.labels
    z = logits.astype(np.float64)
    if z.shape[-1] == 1:
        return np.asarray(np.logaddexp(0, z[..., 0]) - labels * z[..., 0])
    top = z.max(axis=-1, keepdims=True)
    z -= top
    of_label = np.take_along_axis(z, np.broadcast_to(labels, z.shape[:-1])[..., None], -1)[..., 0]
    return np.asarray(np.log(np.exp(z).sum(axis=-1)) - of_label)


def ranges(first: int, stop: int, size: int) -> list[tuple[int, int]]:
    """[first, stop) cut at multiples of `size`, itself a multiple of SLOTS; none if first = stop."""
    size = validate.integer(1, None, size=size)
    cuts = [first, *range(first - first % size + size, stop, size), stop]
    return list(itertools.pairwise(cuts)) if first < stop else []
