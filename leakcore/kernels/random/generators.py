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
    """A NumPy generator for one use: its numbers depend on (seed, purpose, step, row) alone.

    It is SFC64, whose state `np.random.SeedSequence` hashes from these four, so the uses of one seed are independent.
    The bits are the same on every machine. Distributions are NumPy's, which may change them in a new version.

    Args:
        seed: 64-bit.
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: in [0, 2²⁴), or fewer if the stream has fewer.
        row: in [0, 2⁶³).

    Returns:
        A `numpy.random.Generator`.

    Raises:
        ValueError: names the argument that is out of range.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import kernels
        >>> first = kernels.generator(0, "caller").integers(100, size=5)
        >>> again = kernels.generator(0, "caller").integers(100, size=5)
        >>> bool((first == again).all())
        True
    """
    key, word, number = _read(seed, purpose, step, row)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key, spawn_key=(word, number))))


def subseed(seed: int, purpose: Stream | str, *, step: int = 0, row: int = 0, bits: int = 64) -> int:
    """A seed derived from another one, for a library or a function that takes a seed.

    It consists of the leading bits of Philox's first two words at (seed, purpose, step, row). Seeds of different uses,
    or of different parents, are as good as independent; sums and products of a seed are not.

    Args:
        seed: 64-bit.
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: in [0, 2²⁴), or fewer if the stream has fewer.
        row: in [0, 2⁶³).
        bits: length of the result, 1 to 64.

    Returns:
        An integer in [0, 2**bits).

    Raises:
        ValueError: names the argument that is out of range.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import kernels
        >>> seeds = [kernels.subseed(0, "caller", row=r, bits=32) for r in range(3)]
        >>> len(set(seeds)), max(seeds) < 2**32
        (3, True)
    """
    key, word, number = _read(seed, purpose, step, row)
    size = validate.integer(1, 64, bits=bits)
    low, high, *_ = _C.philox4x32((0, word, number & _WORD, number >> 32), (key & _WORD, key >> 32))
    return int(low | high << 32) >> (64 - size)


def torch_generator(seed: int, purpose: Stream | str, *, step: int = 0, row: int = 0) -> torch.Generator:
    """A torch generator on the CPU, seeded by `subseed`.

    Args:
        seed: 64-bit.
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: in [0, 2²⁴), or fewer if the stream has fewer.
        row: in [0, 2⁶³).

    Returns:
        A `torch.Generator`.

    Raises:
        ValueError: names the argument that is out of range.
        TypeError: for an argument of another type.

    Example:
        >>> import torch
        >>> from leakcore import kernels
        >>> first = torch.rand(3, generator=kernels.torch_generator(0, "caller"))
        >>> torch.equal(first, torch.rand(3, generator=kernels.torch_generator(0, "caller")))
        True
    """
    import torch

    return torch.Generator().manual_seed(subseed(seed, purpose, step=step, row=row))


@contextlib.contextmanager
def torch_seeded(seed: int, purpose: Stream | str, *, step: int = 0, row: int = 0) -> Iterator[None]:
    """Seed torch's default CPU generator within a block, and restore it afterwards.

    Use it for code that draws from the default generator implicitly, such as the weights of a new layer, or dropout.
    The seed is that of `subseed`.

    Args:
        seed: 64-bit.
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: in [0, 2²⁴), or fewer if the stream has fewer.
        row: in [0, 2⁶³).

    Returns:
        A context manager.

    Raises:
        ValueError: names the argument that is out of range.
        TypeError: for an argument of another type.

    Example:
        >>> import torch
        >>> from leakcore import kernels
        >>> with kernels.torch_seeded(0, "caller"):
        ...     first = torch.nn.Linear(3, 2)
        >>> with kernels.torch_seeded(0, "caller"):
        ...     second = torch.nn.Linear(3, 2)
        >>> torch.equal(first.weight, second.weight)
        True
    """
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
