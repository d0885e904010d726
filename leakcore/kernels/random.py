"""Random numbers as a pure function of seed, purpose, step and index; seeds and generators for other libraries."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from leakcore import _C
from leakcore._base import memory_limit, validate
from leakcore.kernels import arrays, threads
from leakcore.kernels.streams import Stream, stream_word

if TYPE_CHECKING:
    import torch

MAX_DRAWS = 2**34
"""Draws of one stream and sample: the block counter has 32 bits, four draws each."""

_DRAWS_PER_CALL = 20_000_000  # some tenths of a second: how long Ctrl-C may have to wait, or for one row
_FLOATS = {name: np.dtype(name) for name in ("float32", "float64")}


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """One block of the generator Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011).

    Args:
        counter: four words in [0, 2³²).
        key: two words in [0, 2³²).

    Returns:
        Four words in [0, 2³²), equal to the known answers published with Random123.

    Raises:
        ValueError: for the wrong number of words, or a word out of range.
        TypeError: if they are not integers.

    Example:
        >>> from leakcore import kernels
        >>> [hex(word) for word in kernels.philox4x32((0, 0, 0, 0), (0, 0))]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    words, keys = _words(counter=counter), _words(key=key)
    if len(words) != 4 or len(keys) != 2:
        raise ValueError(f"`counter` and `key` must have 4 and 2 words, got {len(words)} and {len(keys)}")
    return _C.philox4x32(words, keys)


def _words(**kwargs: Any) -> tuple[int, ...]:
    ((name, _),) = kwargs.items()
    words = validate.even_array(**kwargs)
    if words.ndim != 1 or words.dtype.kind not in "iuO":
        raise TypeError(f"`{name}` must be a sequence of integers, got shape {words.shape}, {words.dtype}")
    return tuple(validate.integer(0, 2**32 - 1, **{f"{name}[{i}]": w}) for i, w in enumerate(words.tolist()))


def standard_normal(
    shape: tuple[int, int],
    *,
    seed: int,
    purpose: Stream | str,
    step: int = 0,
    first_row: int = 0,
    dtype: Any = "float64",
    out: Any = None,
    like: Any = None,
) -> Any:
    """Standard normal variates; row r depends only on (seed, purpose, step, first_row + r).

    Box–Muller on a 2³² × 2³² grid, with a fixed number of draws per variate: |z| ≤ 6.7637, and the probability of every
    interval is right to 2⁻³⁰. That is far below what a simulation can notice, and not enough for a secure release.
    `clip_and_noise` with the same seed and step adds exactly `standard_normal((runs, D), purpose="clip_noise")`.

    Args:
        shape: (rows, columns), at most 2³⁴ columns.
        seed: integer in [0, 2⁶⁴).
        purpose: a `Stream` or its name in lower case. Take "caller" for your own draws: nothing in leakcore uses it.
        step: integer in [0, 2²⁴), or below `purpose.steps` where the stream has fewer.
        first_row: index of the first row.
        dtype: "float64", or "float32" (rounded once).
        out: an array of either type, to fill.
        like: an array whose library and device the result follows.

    Returns:
        An array of that shape, or `out`.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        On CUDA the values equal those of CPUs with fused multiply-add, bit for bit.

    Example:
        >>> import numpy as np
        >>> from leakcore import kernels
        >>> z = kernels.standard_normal((1000, 3), seed=7, purpose="caller")
        >>> later = kernels.standard_normal((10, 3), seed=7, purpose="caller", first_row=990)
        >>> f"{z.std():.1f}", bool(np.array_equal(later, z[990:]))
        ('1.0', True)
    """
    return _Draws.parse("standard_normal", shape, seed, purpose, step, first_row).fill(dtype, out, like)


def uniform(
    shape: tuple[int, int],
    *,
    seed: int,
    purpose: Stream | str,
    step: int = 0,
    first_row: int = 0,
    out: Any = None,
    like: Any = None,
) -> Any:
    """Uniform variates (w + ½)·2⁻³² with w a 32-bit word; row r depends only on (seed, purpose, step, first_row + r).

    `u < q` has probability q to within 2⁻³³.

    Args:
        shape: (rows, columns), at most 2³⁴ columns.
        seed: integer in [0, 2⁶⁴).
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: integer in [0, 2²⁴), or below `purpose.steps` where the stream has fewer.
        first_row: index of the first row.
        out: a float64 array to fill.
        like: an array whose library and device the result follows.

    Returns:
        A float64 array of that shape in the open interval (0, 1), or `out`.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore import kernels
        >>> u = kernels.uniform((2, 1000), seed=7, purpose="caller")
        >>> f"{u.mean():.1f}", bool((u > 0).all() and (u < 1).all())
        ('0.5', True)
    """
    return _Draws.parse("uniform", shape, seed, purpose, step, first_row).fill("float64", out, like)


class _Draws(NamedTuple):
    """The rows of the stream that a kernel fills an array with."""

    kernel: str
    shape: tuple[int, int]
    seed: int
    stream: int
    first_row: int

    @classmethod
    def parse(
        cls, kernel: str, shape: tuple[int, int], seed: int, purpose: Stream | str, step: int, first_row: int
    ) -> _Draws:
        """The error names the argument."""
        extents = validate.sizes(0, shape=shape)
        if len(extents) != 2:
            raise ValueError(f"{kernel}: `shape` must be two integers, (rows, columns), got {extents}")
        return cls(
            kernel,
            (extents[0], validate.integer(0, MAX_DRAWS, **{"shape[1]": extents[1]})),
            validate.seed(seed=seed),
            stream_word(purpose, step),
            validate.integer(0, 2**63 - 1, first_row=first_row),
        )

    def fill(self, dtype: Any, out: Any, like: Any) -> Any:
        """`out`, or a new array, filled."""
        rows, columns = self.shape
        library = arrays.read_like(self.kernel, like)
        element = float_dtype(self.kernel, dtype)
        normal = self.kernel == "standard_normal"
        if out is None:
            memory_limit.require(rows * columns * element.itemsize, shape=self.shape)
            values = library.empty(self.shape, element)
            target = arrays.Array("out", library.header(values), arrays.dtype_name(element), values, library)
        else:
            # In float32 the largest uniforms would be 1.
            target = read_out(self.kernel, "out", out, self.shape, None if normal else element)
        place = target.library.place
        most = max(1, _DRAWS_PER_CALL // max(columns, 1)) if place is arrays.CPU else max(rows, 1)
        for at in range(0, rows, most):
            part = target if most >= rows else dataclasses.replace(target, values=target.values[at : at + most])
            _C.fill_rows(
                normal=normal,
                out=arrays.rows_of(part, rows=True),
                num_rows=min(most, rows - at),
                seed=self.seed,
                stream=self.stream,
                first_row=self.first_row + at,
                place=place,
                schedule=threads.schedule_now(),
            )
        return library.give(values) if out is None else out


def float_dtype(kernel: str, dtype: Any, argument: str = "dtype") -> np.dtype[Any]:
    """float64 or float32, by name, NumPy type or torch type."""
    if type(dtype) is str and dtype in _FLOATS:
        return _FLOATS[dtype]  # the usual case, in calls that may be short
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, type | np.dtype) else np.dtype(dtype).name
    if name not in _FLOATS:
        raise TypeError(f"{kernel}: `{argument}` must be 'float32' or 'float64', got {dtype!r}")
    return _FLOATS[name]


def read_out(
    kernel: str, name: str, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None
) -> arrays.Array:
    """A caller's array to write to: the right shape, a type the kernel writes, writeable."""
    target = arrays.read(kernel, name, out)
    if target.shape != shape:
        raise ValueError(f"{kernel}: `{name}` must have shape {shape}, got {target.shape}")
    allowed = ("float32", "float64") if dtype is None else (dtype.name,)
    if target.dtype not in allowed:
        raise TypeError(f"{kernel}: `{name}` must be of type {' or '.join(allowed)}, got {target.dtype}")
    if not target.values.flags.writeable:
        raise ValueError(f"{kernel}: `{name}` must be writeable, but is read-only")
    if arrays.is_torch(out) and out.is_neg():  # what it shows is not what its memory holds
        raise ValueError(f"{kernel}: `{name}` must be an array of its own, got a negated view (Tensor.is_neg)")
    if not _apart(target.values):
        raise ValueError(
            f"{kernel}: `{name}` must be an array of its own, but has elements that share memory, or lie across each "
            f"other (shape {shape}, strides of {target.values.strides} bytes)"
        )
    return target


def _apart(values: np.ndarray) -> bool:
    """Whether every step along a dimension leaves behind all that the finer ones reach: then no two elements meet."""
    if values.size == 0:
        return True
    reach = values.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(values.strides, values.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return False
            reach += stride * (size - 1)
    return True


_WORD = 2**32 - 1


def generator(seed: int, purpose: Stream | str, *, step: int = 0, row: int = 0) -> np.random.Generator:
    """A NumPy generator for one use: its numbers depend on (seed, purpose, step, row) alone.

    It is SFC64, whose state `np.random.SeedSequence` hashes from these four, so the uses of one seed are independent.
    The bits are the same on every machine. Distributions are NumPy's, which may change them in a new version.

    Args:
        seed: integer in [0, 2⁶⁴).
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: integer in [0, 2²⁴), or below `purpose.steps` where the stream has fewer.
        row: integer in [0, 2⁶³).

    Returns:
        A `numpy.random.Generator`.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
        seed: integer in [0, 2⁶⁴).
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: integer in [0, 2²⁴), or below `purpose.steps` where the stream has fewer.
        row: integer in [0, 2⁶³).
        bits: length of the result, 1 to 64.

    Returns:
        An integer in [0, 2**bits).

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
        seed: integer in [0, 2⁶⁴).
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: integer in [0, 2²⁴), or below `purpose.steps` where the stream has fewer.
        row: integer in [0, 2⁶³).

    Returns:
        A `torch.Generator`.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
        seed: integer in [0, 2⁶⁴).
        purpose: a `Stream` or its name in lower case; "caller" is for your own draws.
        step: integer in [0, 2²⁴), or below `purpose.steps` where the stream has fewer.
        row: integer in [0, 2⁶³).

    Returns:
        A context manager.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

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
    return (validate.seed(seed=seed), stream_word(purpose, step), validate.integer(0, 2**63 - 1, row=row))
