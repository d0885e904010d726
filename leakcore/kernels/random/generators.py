"""Doors of the registry to other libraries' random numbers: NumPy's generators, torch's, and integers for the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from leakcore import _C
from leakcore._base import validate
from leakcore.kernels.random.streams import Stream, stream_word

if TYPE_CHECKING:
    import torch

_WORD = 2**32 - 1


def generator(seed: int, purpose: Stream | str, *, step: int = 0, row: int = 0) -> np.random.Generator:
    """NumPy's generator for one use: its numbers depend on (seed, purpose, step, row) alone.

    SFC64, its state hashed from the four by `np.random.SeedSequence`, so the uses of one seed are independent. The bits
    are the same on every machine; what a distribution makes of them is NumPy's, which may change it in a new version.
    purpose, step: as in `uniform`; row in [0, 2⁶³). Raises ValueError or TypeError that names the argument.
    """
    key, word, number = _read(seed, purpose, step, row)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key, spawn_key=(word, number))))


def subseed(seed: int, purpose: Stream | str, *, step: int = 0, row: int = 0, bits: int = 64) -> int:
    """A seed of `bits` ≤ 64 bits made from another one, for a library or a function that takes a seed of its own.

    The leading bits of Philox's first two words at (seed, purpose, step, row): seeds of different uses, or of different
    parents, are as good as independent, which sums and products of a seed are not. Arguments as in `generator`.
    """
    key, word, number = _read(seed, purpose, step, row)
    size = validate.integer(1, 64, bits=bits)
    low, high, *_ = _C.philox4x32((0, word, number & _WORD, number >> 32), (key & _WORD, key >> 32))
    return int(low | high << 32) >> (64 - size)


def torch_generator(seed: int, purpose: Stream | str, *, step: int = 0, row: int = 0) -> torch.Generator:
    """torch's generator on the CPU, seeded by `subseed`; arguments likewise."""
    import torch

    return torch.Generator().manual_seed(subseed(seed, purpose, step=step, row=row))


@contextlib.contextmanager
def torch_seeded(seed: int, purpose: Stream | str, *, step: int = 0, row: int = 0) -> Iterator[None]:
    """torch's default generator on the CPU, seeded by `subseed` while the block runs and put back after it: for what
    draws from it without being asked, as a new layer's weights and dropout do."""
    import torch

    key = subseed(seed, purpose, step=step, row=row)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        yield


def _read(seed: int, purpose: Stream | str, step: int, row: int) -> tuple[int, int, int]:
    """(seed, stream word, row), checked."""
    return (
        validate.seed(seed=seed),
        stream_word(purpose, step),
        validate.integer(0, 2**63 - 1, row=row),
    )
