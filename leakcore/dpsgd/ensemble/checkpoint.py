"""Finished runs on disk: one file per range of runs, each written atomically, none ever changed.

A killed run loses only the ranges that were being trained. Files lie in a folder of their own per identity (mechanism,
scorers, data, versions, source, arithmetic), so that those of another mechanism are never read, and each has the form
and the checksum of a run folder's pieces. Several processes may work in one folder, each on its own runs: nothing is
locked.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from leakcore._base.digest import digest
from leakcore._base.run_folder import seal, unseal
from leakcore._base.version import process_identity
from leakcore._base.writing import make_folder, place_in
from leakcore.dpsgd.ensemble.arguments import Samples, Source
from leakcore.dpsgd.ensemble.block import ARRAYS, BlockOutput, Plan
from leakcore.dpsgd.ensemble.object_hasher import ObjectHasher
from leakcore.dpsgd.ensemble.sampling import SLOTS
from leakcore.dpsgd.ensemble.workers import Request

_SAME_FOR_ALL_RUNS = {f"{name} {what}" for name in ("common", "probes", "pool") for what in ("features", "labels")} | {
    "crafted"
}
_NAME = re.compile(r"runs-(\d+)-(\d+)\.npz")


class Checkpoint:
    """The finished ranges of one request."""

    def __init__(self, folder: Path, plan: Plan, request: Request) -> None:
        self._folder = folder / _digest(plan, request)[:16]
        self._first, self._stop = request.first, request.stop
        try:
            make_folder(place_in(folder, self._folder.name))
        except OSError as why:
            raise ValueError(f"`checkpoint` must be writable, got {str(folder)!r} ({why.strerror})") from None

    def restore(self) -> Iterator[tuple[int, int, BlockOutput]]:
        """The finished runs [low, high) of the request, in ascending order, none twice."""
        at = self._first
        for low, high, path in sorted((*self._range(path), path) for path in self._folder.glob("runs-*.npz")):
            low, stop = max(low, at), min(high, self._stop)
            if low < stop:
                yield low, stop, _read(path, self._range(path), low, stop)
                at = stop

    def save(self, low: int, high: int, piece: BlockOutput) -> None:
        """Write runs [low, high)."""
        seal(self._folder, f"runs-{low}-{high}", piece)

    @staticmethod
    def _range(path: Path) -> tuple[int, int]:
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise ValueError(f"`checkpoint` must hold files of a checkpoint alone, got {str(path)!r}: remove it")
        return int(match[1]), int(match[2])


def _read(path: Path, within: tuple[int, int], low: int, stop: int) -> BlockOutput:
    """Read runs [low, stop) from the file of the range `within`; ValueError if the file was changed."""
    try:
        piece: BlockOutput = unseal(path, BlockOutput)
        arrays = [array for name in ARRAYS if (array := getattr(piece, name)) is not None]
        if any(len(a) != within[1] - within[0] for a in [*arrays, *piece.scores.values()]):
            raise ValueError(f"{path}: is damaged (its arrays do not hold the runs that its name says); remove it")
    except ValueError as why:
        raise ValueError(f"checkpoint: {why}") from why
    return piece.part(slice(low - within[0], stop - within[0]))


def _digest(plan: Plan, request: Request) -> str:
    """A digest of everything that the bits of a run depend on.

    If rows or numbers differ by run, the range of runs is part of it. TypeError names a scorer, or a part of the
    module, that cannot be distinguished from another of its type.
    """
    hasher = ObjectHasher()
    parts: list[bytes] = []

    def add(name: str, *values: object) -> None:
        parts.append(hasher.digest(values, name))

    def add_array(name: str, array: np.ndarray | None) -> None:
        if array is None:
            return
        if array.ndim and array.strides[0] == 0 and len(array):
            array = array[0]  # the same for all runs
        elif name not in _SAME_FOR_ALL_RUNS:
            add("runs", request.first, request.stop)
        add(name, name, array)

    def add_rows(name: str, rows: Samples | Source | None) -> None:
        if isinstance(rows, Source):
            add_array(f"{name} index", rows.index)
            name, rows = ("pool" if rows.index is not None else name), rows.samples
        if rows is not None:
            add_array(f"{name} features", rows.features)
            add_array(f"{name} labels", rows.labels)

    add("identity", process_identity(), SLOTS)
    add("device", _device(request.device))
    add("plan", dataclasses.replace(plan, module=None))
    for name, part in plan.module.named_modules() if plan.module is not None else ():
        where = f"module.{name}" if name else "module"
        # The values of the parameters are in `initial`.
        add(where, name, [(n, tuple(p.shape)) for n, p in part.named_parameters(recurse=False)])
        add(where, *part.named_buffers(recurse=False))
        parts.append(hasher.module_settings(part, where))
    watch, scorers = request.watch, request.watch.scorers
    add("request", request.device, request.keep_parameters, dataclasses.replace(watch, scorers={}))
    for name in sorted(scorers):
        add(f"scorers[{name!r}]", name)
        parts.append(hasher.digest(scorers[name], f"scorers[{name!r}]"))
    for name in ("common", "extra", "candidates"):
        add_rows(name, getattr(request, name))
    add_rows("own probes" if isinstance(request.probes, Source) else "probes", request.probes)
    for name in ("initial", "noise", "batches", "crafted", "crafted_batches"):
        add_array(name, getattr(request, name))
    return digest(*parts)


def _device(device: str) -> tuple[object, ...]:
    """What decides how a device rounds; for the CPU that is `kernels.arithmetic`."""
    if device == "cpu":
        return ()
    return torch.version.cuda, torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
