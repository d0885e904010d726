"""What several attacks read: a box, a gradient in any form of release, the precision in which it was stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import array_memory, validate

if TYPE_CHECKING:
    import torch

    from leakcore.dpsgd import Execution


def read_box(box: Any) -> tuple[float, float]:
    """(low, high) of a pair or an array, low below high, either may be infinite; errors name `box`."""
    pair = box
    if isinstance(box, np.ndarray) or array_memory.is_torch(box):
        array = validate.plain_array(box=box)
        pair = array.tolist() if array.ndim == 1 else None
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        # The text of an array may need memory that it lacks.
        plain = isinstance(box, str | bytes | int | float | type(None))
        text = repr(box) if plain else f"a {type(box).__name__}"
        raise ValueError(f"`box` must be a pair, (low, high), got {text}")
    low, high = validate.real(box=pair[0]), validate.real(box=pair[1])
    if high <= low:
        raise ValueError(f"`box` must have low below high, got ({low}, {high})")
    return low, high


def read_finite_box(box: Any) -> tuple[float, float]:
    """As `read_box`, for numbers whose squares fit float32 with room to spare."""
    low, high = read_box(box)
    if not (abs(low) < 1e30 and abs(high) < 1e30):
        raise ValueError(f"`box` must hold numbers below 1e30 in magnitude, got ({low}, {high})")
    return low, high


_LONGEST = 11
"""Bits of a float16's significand; bfloat16 has 8, and both types of 8 bits fewer."""
_SHORTEST, _ROUND = 3, 4
"""Bits of the coarsest type; and up to how many of them a few round numbers need by themselves."""
_FEW = 16
"""Different magnitudes that may lie on one grid by chance."""
_LEAST_FLOAT16 = -24
"""float16's smallest number is 2 to this power, and every float16 is a whole multiple of it."""
_CHUNK = 1 << 12


def stored_roundoff(values: Any, roundoff: float) -> float:
    """The coarser of `roundoff` and the unit roundoff 2⁻ᵗ, where every number has at most t ≤ 11 significant bits.
    Numbers that also lie on one grid of t bits, as counts do, are taken to be exact, unless they are so few that this
    may be chance, or the grid is float16's last one."""
    flat = np.abs(np.asarray(values, dtype=np.float64).ravel())
    if roundoff >= 2.0**-_LONGEST:
        return roundoff
    bits, last, first = 0, 2000, -2000
    magnitudes: set[float] = set()
    for start in range(0, len(flat), _CHUNK):
        some = flat[start : start + _CHUNK]
        some = some[(some > 0) & np.isfinite(some)]
        if not len(some):
            continue
        fraction, exponent = np.frexp(some)
        whole = (fraction * 2.0**53).astype(np.int64)
        zeros = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
        bits = max(bits, 53 - int(zeros.min()))
        if bits > _LONGEST:
            return roundoff
        last, first = min(last, int((exponent - 53 + zeros).min())), max(first, int(exponent.max()))
        if len(magnitudes) < _FEW:
            magnitudes.update(some.tolist())
    many_scales = bits >= _SHORTEST and first - last > bits
    by_chance = bits > _ROUND and len(magnitudes) < _FEW
    if len(magnitudes) > 1 and (many_scales or by_chance or (bits and last == _LEAST_FLOAT16)):
        return max(roundoff, 2.0**-bits)
    return roundoff


def coarsest_roundoff(parts: Sequence[Any], roundoff: float) -> float:
    """The coarsest of `roundoff` and of the parts of a gradient, which mixed precision rounds differently. A part that
    is 2⁻¹¹ of the largest one or less is left out: what would be 0 without rounding, as the bias of attention's keys,
    needs few bits in any type."""
    sizes = [float(np.abs(part).max(initial=0.0)) for part in parts]
    least = max(sizes, default=0.0) * 2.0**-_LONGEST
    return max([roundoff, *(stored_roundoff(p, roundoff) for p, n in zip(parts, sizes, strict=True) if n > least)])


def lost_below(roundoff: float) -> float:
    """How far a number may move that a type of this unit roundoff cannot hold: half its smallest one."""
    return 2.0 ** (_LEAST_FLOAT16 - 1) if roundoff >= 2.0**-_LONGEST else 0.0


def counting_on(execution: Execution, before: int, total: int) -> Execution:
    """The same execution for one part of some work: its progress counts on from `before` and says `total`."""
    progress = execution.progress
    if progress is None:
        return execution
    return dataclasses.replace(execution, progress=lambda done, _: progress(before + done, total))


def read_gradient(gradient: Any) -> Any:
    """One tensor, a tuple of them, or a dictionary of them; ValueError or TypeError that names `gradient`."""
    import torch

    from leakcore.gradients import tensor

    gradient = getattr(gradient, "gradient", gradient)  # of `defenses.release`
    if isinstance(gradient, Mapping):
        return {str(name): tensor(part, f"gradient[{name!r}]") for name, part in gradient.items()}
    if not isinstance(gradient, list | tuple) or all(isinstance(part, float | int | np.number) for part in gradient):
        return tensor(gradient, "gradient")
    parts = tuple(tensor(part, f"gradient[{i}]") for i, part in enumerate(gradient))
    return torch.stack(parts) if all(part.ndim == 0 for part in parts) else parts


def gradient_by_name(model: Any, gradient: Any, noise_std: float) -> tuple[dict[str, torch.Tensor], float]:
    """{parameter: float64 gradient}, and the unit roundoff of the coarsest of gradient, its numbers and the model.

    gradient: in any form of `read_gradient`; a dictionary may hold some of the parameters only. noise_std: as the
    attack was told; where it is not 0 it stands for rounding as well, as of a change of weights, whose numbers show few
    bits.
    """
    from leakcore.gradients import FlatModule

    flat = FlatModule(model)
    gradient = read_gradient(gradient)
    shapes = dict(zip(flat.names, flat.shapes, strict=True))
    if isinstance(gradient, Mapping):
        parts = gradient
        unknown = [name for name in parts if name not in shapes]
        if unknown or not parts:
            raise ValueError(f"`gradient` must hold parameters of the model that require grad, got {unknown[:3]}")
    elif isinstance(gradient, tuple):
        if len(gradient) != len(shapes):
            raise ValueError(f"`gradient` must hold {len(shapes)} tensors, one per parameter, got {len(gradient)}")
        parts = dict(zip(flat.names, gradient, strict=True))
    else:
        if tuple(gradient.shape) != (len(flat),):
            raise ValueError(
                f"`gradient` must have shape ({len(flat)},), one number for each of the model's parameters, got "
                f"{tuple(gradient.shape)}"
            )
        parts = flat.split(gradient)
    for name, part in parts.items():
        if tuple(part.shape) != shapes[name]:
            raise ValueError(
                f"`gradient[{name!r}]` must have the parameter's shape, {shapes[name]}, got {tuple(part.shape)}"
            )
        if not part.is_floating_point() or not bool(part.isfinite().all()):
            raise ValueError(f"`gradient[{name!r}]` must hold finite floating numbers")
    unit = max(validate.roundoff(flat.theta), *(validate.roundoff(part) for part in parts.values()))
    doubles = {name: part.double() for name, part in parts.items()}
    if noise_std > 0:
        return doubles, unit
    return doubles, coarsest_roundoff([part.cpu().numpy() for part in doubles.values()], unit)
