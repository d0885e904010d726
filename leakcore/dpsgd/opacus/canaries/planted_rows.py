"""Rows of canaries in the per-sample gradients of a batch, while the optimizer clips them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from leakcore.dpsgd.opacus.canaries.coordinates import Coordinates
from leakcore.dpsgd.opacus.recorder.sampling.drawn_batches import Part

SIZE = 4.0
"""Length of a canary's gradient in units of C: it must be clipped."""
_ADDED = 1e-6
"""What Opacus adds to a norm before it divides."""


class PlantedRows:
    """The canaries among the rows of one clipping, and what the other rows add at the coordinates.

    Args:
        parameters: of the optimizer.
        coordinates: of the canaries that are in the data, first, and of others.
        part_of: gives the waiting batch with that number of rows; None if there is none.
        rows: of the data set without canaries; index rows + i is canary i.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        coordinates: Coordinates,
        part_of: Callable[[int], Part | None],
        rows: int,
    ) -> None:
        self._parameters, self._coordinates = parameters, coordinates
        self._part_of, self._rows = part_of, rows

    @contextlib.contextmanager
    def planted(self, norm: float) -> Iterator[tuple[np.ndarray, np.ndarray, list[Part]]]:
        """While inside, rows of canaries hold their own gradients, of length SIZE·C.

        Gives (what the other rows add at each coordinate, clipped here and not by the optimizer; which canaries are in
        the batch; the batch, as parts of draws).
        """
        batches = [_batches(p) for p in self._parameters]
        if len({tuple(len(b) for b in several) for several in batches}) > 1:
            raise ValueError("model: all parameters must have per-sample gradients of the same rows")
        passes = list(zip(*batches, strict=True))
        saved: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        present: list[np.ndarray] = []
        parts: list[Part] = []
        added = np.zeros(len(self._coordinates.owner))
        with torch.no_grad():
            try:
                for samples in passes:
                    parts.append(self._part(len(samples[0])))
                    places, canaries = self._places(parts[-1])
                    present.append(canaries)
                    for i, grads in enumerate(samples):
                        at = places.to(grads.device)
                        saved.append((grads, at, grads[at].clone()))
                        grads[at] = 0
                        mine = np.flatnonzero(self._coordinates.owner[canaries] == i)
                        _put(grads, places[mine], self._coordinates.offset[canaries[mine]], SIZE * norm)
                    added += self._others(samples, places, norm)
                yield added, np.concatenate(present) if present else np.zeros(0, dtype=np.int64), parts
            finally:
                for grads, at, values in saved:
                    grads[at] = values

    def _part(self, rows: int) -> Part:
        part = self._part_of(rows)
        if part is None:
            raise ValueError(
                f"record: the optimizer clips {rows:,} rows, and `sampling` gave no such batch since the "
                "step before. The loop must train on its batches as they are, without cutting, joining or repeating "
                "them"
            )
        return part

    def _places(self, part: Part) -> tuple[torch.Tensor, np.ndarray]:
        numbers = np.array(part.indices, dtype=np.int64)
        places = np.flatnonzero(numbers >= self._rows)
        return torch.from_numpy(places), numbers[places] - self._rows

    def _others(self, samples: Sequence[torch.Tensor], places: torch.Tensor, norm: float) -> np.ndarray:
        """The sum of all clipped gradients but the canaries', at the coordinates."""
        device = samples[0].device
        squares = sum(
            torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1, dtype=torch.float64).square().to(device)
            for g in samples
        )
        factors = (norm / (torch.as_tensor(squares, device=device).sqrt() + _ADDED)).clamp(max=1.0)
        factors[places.to(device)] = 0.0
        sums = [
            torch.einsum("i,i...->...", factors.to(g.device, torch.promote_types(g.dtype, torch.float32)), _full(g))
            for g in samples
        ]
        return self._coordinates.read(sums)


def _batches(parameter: Any) -> list[torch.Tensor]:
    samples = getattr(parameter, "grad_sample", None)
    batches = samples if isinstance(samples, list) else [samples]
    gradients = [b.detach() for b in batches if isinstance(b, torch.Tensor)]
    if len(gradients) < len(batches):
        raise ValueError(
            "record: a parameter has no per-sample gradients: call backward before step, with the model that "
            "make_private returned"
        )
    return gradients


def _full(gradients: torch.Tensor) -> torch.Tensor:
    return gradients.to(torch.promote_types(gradients.dtype, torch.float32))


def _put(gradients: torch.Tensor, rows: torch.Tensor, offsets: np.ndarray, value: float) -> None:
    """Set one entry of each of these rows."""
    places = np.unravel_index(offsets, tuple(gradients.shape[1:])) if gradients.ndim > 1 else ()
    at = (rows.to(gradients.device), *(torch.as_tensor(p, device=gradients.device) for p in places))
    gradients[at] = value
