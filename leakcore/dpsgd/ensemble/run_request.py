"""What an ensemble was asked to do, checked and ready to be cut into blocks and ranges of runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from leakcore._base import validate as check
from leakcore.dpsgd.ensemble import arguments
from leakcore.dpsgd.ensemble.arguments import Samples
from leakcore.dpsgd.ensemble.block.block import SLOTS, BlockInput
from leakcore.dpsgd.ensemble.block.forward_backward import RowGroup
from leakcore.dpsgd.ensemble.scorer import Scorer


@dataclasses.dataclass(frozen=True)
class Source:
    """Rows of each run: its own, features (runs, n, inputs), or row numbers (runs, n) of a pool that all runs share."""

    samples: Samples
    index: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return self.samples.rows if self.index is None else int(self.index.shape[1])

    def part(self, low: int, high: int) -> Source:
        """Runs [low, high) of these."""
        if self.index is not None:
            return Source(self.samples, self.index[low:high])
        return Source(Samples(self.samples.features[low:high], self.samples.labels[low:high]))

    def take(self, low: int, high: int, at: int, outputs: int, dtype: torch.dtype, device: torch.device) -> RowGroup:
        """Runs [low, high) at slots at, at + 1, …; zeros in the other slots."""
        x, y = self.samples.features, self.samples.labels
        if self.index is not None:
            x, y = x[self.index[low:high]], y[self.index[low:high]]
        else:
            x, y = x[low:high], y[low:high]
        return RowGroup.of(_placed(x, at), _placed(y, at), outputs, dtype, device)


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of `Ensemble.run`. Arrays of runs have one entry per run from `first` on."""

    first: int
    stop: int
    common: Samples
    extra: Source | None
    candidates: Source | None
    probes: Samples | None
    own_probes: Source | None
    scorers: Mapping[str, Scorer]
    keep_steps: bool
    keep_parameters: bool
    record: bool
    subtract_known: bool
    cosines: bool
    device: str
    initial: np.ndarray | None
    noise: np.ndarray | None
    batches: np.ndarray | None

    @property
    def num_rows(self) -> int:
        """Rows of one run's training set."""
        return self.common.rows + (0 if self.extra is None else self.extra.rows)

    @property
    def scored(self) -> int:
        """Candidates per run."""
        return 0 if self.candidates is None else self.candidates.rows

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
            own_probes=None if self.own_probes is None else self.own_probes.part(a, b),
            initial=cut(self.initial),
            noise=cut(self.noise),
            batches=cut(self.batches),
        )

    def block(self, begin: int, outputs: int, dtype: torch.dtype) -> BlockInput:
        """What the block of runs begin, …, begin + SLOTS − 1 reads."""
        low, high = max(begin, self.first) - self.first, min(begin + SLOTS, self.stop) - self.first
        at = low + self.first - begin
        device = torch.device(self.device)

        def rows(source: Source | None) -> RowGroup | None:
            return None if source is None else source.take(low, high, at, outputs, dtype, device)

        def spread(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else _placed(array[low:high], at)

        return BlockInput(
            first_run=begin,
            used=range(at, at + high - low),
            extra=rows(self.extra),
            candidates=rows(self.candidates),
            probes=rows(self.own_probes),
            initial=spread(self.initial),
            noise=spread(self.noise),
            batches=spread(self.batches),
        )


def _placed(array: np.ndarray, at: int) -> np.ndarray:
    """`array` at slots at, at + 1, …; zeros in the other slots."""
    out = np.zeros((SLOTS, *array.shape[1:]), array.dtype)
    out[at : at + len(array)] = array
    return out


def source(
    features: Any,
    labels: Any,
    index: Any,
    *,
    name: str,
    pool: Samples | None,
    runs: int,
    layers: tuple[int, ...],
    dtype: str,
) -> Source | None:
    """{name}_features with {name}_labels, or {name}_index into the pool, or None where none of them is given."""
    if (features is None) != (labels is None):
        raise ValueError(f"{name}_features and {name}_labels: give both or neither")
    if index is not None:
        if features is not None:
            raise ValueError(f"{name}_index: give it or {name}_features, not both")
        if pool is None:
            raise ValueError(f"{name}_index: needs pool_features and pool_labels")
        return Source(pool, _row_numbers(index, f"{name}_index", pool.rows, runs))
    if features is None:
        return None
    given = arguments.samples(features, labels, name=f"{name}_", layers=layers, dtype=dtype, leading=(runs,))
    if given.rows == 0:
        raise ValueError(f"{name}_features.shape={given.features.shape}: must hold at least one row per run")
    return Source(given)


def probes(features: Any, labels: Any, *, runs: int, layers: tuple[int, ...], dtype: str) -> Samples | Source | None:
    """Rows to read the final models at: for all runs (n, inputs), or (runs, n, inputs). Without labels, zeros."""
    if features is None:
        if labels is not None:
            raise ValueError("probe_labels: given without probe_features")
        return None
    shape = check.even_array(probe_features=features).shape
    leading = (runs,) if len(shape) == 3 else ()
    if labels is None:
        labels = np.zeros(shape[:-1], np.int64)
    given = arguments.samples(features, labels, name="probe_", layers=layers, dtype=dtype, leading=leading)
    if given.rows == 0:
        raise ValueError(f"probe_features.shape={shape}: must hold at least one row")
    return Source(given) if leading else given


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


def _row_numbers(index: Any, name: str, rows: int, runs: int) -> np.ndarray:
    out = check.even_array(**{name: index})
    if out.dtype.kind not in "iu":
        raise TypeError(f"{name}.dtype={out.dtype}: must be an integer type")
    if out.ndim != 2 or out.shape[0] != runs or out.shape[1] == 0:
        raise ValueError(f"{name}.shape={out.shape}: must be (runs={runs}, at least one row)")
    bad = (out < 0) | (out >= rows)
    if bad.any():
        raise ValueError(f"{name}={out[bad][0]}: must be in [0, {rows - 1}], a row of pool_features")
    return out.astype(np.int64, copy=False)


def scorers(given: Mapping[str, Scorer] | None) -> Mapping[str, Scorer]:
    """The scorers by name; TypeError where one cannot start."""
    if given is None:
        return {}
    check.instance(Mapping, scorers=given)
    for name, scorer in given.items():
        if not callable(getattr(scorer, "start", None)):
            raise TypeError(f"scorers[{name!r}]={scorer!r}: must have a start(shape) method, see dpsgd.Scorer")
    return dict(given)


def device(given: str) -> str:
    """The checked device; ValueError where it is neither the CPU nor a CUDA device that torch sees here."""
    kind, _, number = given.partition(":") if isinstance(given, str) else ("", "", "")
    if given == "cpu":
        return given
    if kind != "cuda" or not (number.isdigit() or given == "cuda"):
        raise ValueError(f"device={given!r}: must be 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise ValueError(f"device={given!r}: torch sees {count} CUDA devices here")
    return given


def ranges(first: int, stop: int, size: int) -> list[tuple[int, int]]:
    """[first, stop) cut at multiples of `size`, itself a multiple of SLOTS."""
    size = check.integer(1, None, size=size)
    cuts = [first, *range(first - first % size + size, stop, size), stop]
    return list(itertools.pairwise(cuts))
