"""Named validators in one line: `sigma = validate.non_negative(noise_multiplier=noise_multiplier)`.

Each takes exactly one keyword and returns the value as a plain Python number (or a float64 array for the `*_array`
forms). The error names the keyword, what is allowed and the value: "`steps` must be at least 1, got 0".
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

import numpy as np

from leakcore._base import array_memory
from leakcore._base.text import HOW_TO_CHOOSE

_T = TypeVar("_T")


def _one(kwargs: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = kwargs.items()
    return name, value


def real(**kwargs: Any) -> float:
    """A real number, not NaN (infinity allowed)."""
    name, value = _one(kwargs)
    if type(value) is float and value == value:
        return value  # the usual case, in calls that may be short
    value = _item(name, value)
    if isinstance(value, (bool, np.bool_, str, bytes, np.complexfloating)):
        raise TypeError(f"`{name}` must be a real number, got {value!r}")
    try:
        out = float(value)
    except OverflowError:
        raise ValueError(f"`{name}` must be within float64, got a larger integer") from None
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a real number, got {value!r}") from None
    if math.isnan(out):
        raise ValueError(f"`{name}` must be a number, got nan")
    return out


def _item(name: str, value: Any) -> Any:
    """The number that an array of one holds; anything else as it is."""
    if not isinstance(value, np.ndarray) and not array_memory.is_torch(value):
        return value
    array = array_memory.array(name, value)
    return array.reshape(())[()] if array.size == 1 else array


def _check(allowed: str, ok: Callable[[float], bool], kwargs: dict[str, Any]) -> float:
    name, value = _one(kwargs)
    out = real(**kwargs)
    if not ok(out):
        raise ValueError(f"`{name}` must be {allowed}, got {value!r}")
    return out


def _check_finite(allowed: str, ok: Callable[[float], bool], kwargs: dict[str, Any]) -> float:
    return _check("finite" if math.isinf(real(**kwargs)) else allowed, lambda v: ok(v) and v != math.inf, kwargs)


def positive(**kwargs: Any) -> float:
    """A real number in (0, ∞)."""
    return _check_finite("above 0", lambda v: v > 0, kwargs)


def non_negative(**kwargs: Any) -> float:
    """A real number in [0, ∞)."""
    return _check_finite("at least 0", lambda v: v >= 0, kwargs)


def probability(**kwargs: Any) -> float:
    """A real number in [0, 1]."""
    return _check("in [0, 1]", lambda v: 0 <= v <= 1, kwargs)


def open_probability(**kwargs: Any) -> float:
    """A real number in (0, 1)."""
    return _check("in (0, 1)", lambda v: 0 < v < 1, kwargs)


def confidence(**kwargs: Any) -> float:
    """A confidence level: so near to 1 that its complement cannot be divided among several limits is refused."""
    return _check("in (0, 1 - 1e-12]", lambda v: 0 < v <= 1 - 1e-12, kwargs)


def below_one(**kwargs: Any) -> float:
    """A real number in [0, 1), such as a δ."""
    return _check("in [0, 1)", lambda v: 0 <= v < 1, kwargs)


def integer(low: int | None = None, high: int | None = None, **kwargs: Any) -> int:
    """An integer in [low, high] (either end may be absent)."""
    name, value = kwargs.popitem()
    if type(value) is int and (low is None or low <= value) and (high is None or value <= high):
        return value  # the usual case, in calls that may be short
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be an integer, got {value!r}")
    value = _item(name, value)
    try:
        out = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, got {value!r}") from None
    if (low is not None and out < low) or (high is not None and out > high):
        raise ValueError(f"`{name}` must be {_range(low, high)}, got {out}")
    return out


def _range(low: int | None, high: int | None) -> str:
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"in [{low}, {high}]"


def either(words: Iterable[object]) -> str:
    """Words as an error lists them: 'a', 'b' or 'c'."""
    *most, last = map(str, words)
    return f"{', '.join(most)} or {last}" if most else last


def seed(**kwargs: Any) -> int:
    """A 64-bit unsigned seed."""
    for value in kwargs.values():
        if type(value) is int and 0 <= value < 2**64:
            return value  # the usual case, in calls that may be short
    return integer(0, 2**64 - 1, **kwargs)


def boolean(**kwargs: Any) -> bool:
    """True or False, and nothing that only counts as one of them."""
    ((name, value),) = kwargs.items()
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {value!r}")
    return bool(value)


def optional_boolean(**kwargs: Any) -> bool | None:
    """True, False or None, which leaves the choice to the function."""
    ((name, value),) = kwargs.items()
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True, False or None, got {value!r}")
    return None if value is None else bool(value)


def one_of(*allowed: str, **kwargs: Any) -> str:
    """One of the named strings."""
    name, value = kwargs.popitem()
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"`{name}` must be {either(map(repr, allowed))}, got {value!r}")
    return str(value)


def instance(*kinds: type, **kwargs: Any) -> None:
    """TypeError where the value is of none of the classes."""
    name, value = _one(kwargs)
    if not isinstance(value, kinds):
        raise TypeError(f"`{name}` must be of type {either(k.__name__ for k in kinds)}, got {type(value).__name__}")


def settings(kind: type[_T], **kwargs: Any) -> _T:
    """The value, an object of this class, or where it is None one with the defaults."""
    _, value = _one(kwargs)
    if value is not None:
        instance(kind, **kwargs)
    out: _T = kind() if value is None else value
    return out


def executor(**kwargs: Any) -> Executor | None:
    """The value; TypeError where it is neither None nor a `concurrent.futures.Executor`."""
    name, value = _one(kwargs)
    if value is not None and not isinstance(value, Executor):
        raise TypeError(f"`{name}` must be a concurrent.futures.Executor or None, got {value!r}")
    return value


def callback(**kwargs: Any) -> None:
    """TypeError where the value is neither None nor callable."""
    name, value = _one(kwargs)
    if value is not None and not callable(value):
        raise TypeError(f"`{name}` must be callable or None, got {value!r}")


def sizes(low: int = 1, **kwargs: Any) -> tuple[int, ...]:
    """A sequence of integers of at least `low`, such as an array's shape."""
    name, value = _one(kwargs)
    if isinstance(value, np.ndarray) or array_memory.is_torch(value):
        array = even_array(**kwargs)
        value = array.tolist() if array.ndim == 1 else None
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"`{name}` must be a sequence of integers, got {value!r}")
    return tuple(integer(low, None, **{f"{name}[{i}]": size}) for i, size in enumerate(value))


def even_array(**kwargs: Any) -> np.ndarray:
    """What NumPy makes of the value; TypeError for nested sequences of unequal lengths."""
    name, value = _one(kwargs)
    return array_memory.array(name, value)


def plain_array(**kwargs: Any) -> np.ndarray:
    """`even_array`, and TypeError for anything but numbers."""
    name, _ = _one(kwargs)
    out = even_array(**kwargs)
    if out.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` must be an array of real numbers, got {out.dtype}")
    return out


def floating(name: str, value: Any) -> Any:
    """An array of NumPy's or a tensor on any device, of a floating element type, that may be computed with where it
    lies; a tensor comes back as torch's own class. TypeError or ValueError names `name`."""
    if array_memory.is_torch(value):
        array_memory.refuse_gradients(name, value)
        value = array_memory.plain_tensor(name, value)
    elif isinstance(value, np.ndarray):
        value = array_memory.of_numpy(name, value)
    else:
        raise TypeError(f"`{name}` must be a NumPy array or a torch tensor, got {type(value).__name__}")
    kind = str(value.dtype).rpartition(".")[2]
    if kind not in FLOATING:
        raise TypeError(f"`{name}` must be of type {either(FLOATING)}, got {kind}")
    return value


def real_array(allowed: str, ok: Callable[[np.ndarray], np.ndarray], **kwargs: Any) -> np.ndarray:
    """A float64 array (any shape) whose entries all satisfy `ok`; the error shows the first that does not."""
    name, value = _one(kwargs)
    out = _doubles(name, value, "a real number or an array of them")
    if out.ndim == 0 and ok(out[()]):  # what an array of no dimensions costs several microseconds to find out
        return out
    bad = ~ok(out)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        at = "" if out.ndim == 0 else "[" + ", ".join(map(str, where)) + "]"
        raise ValueError(f"`{name}{at}` must be {allowed}, got {float(out[where])!r}")
    return out


def _doubles(name: str, value: Any, allowed: str) -> np.ndarray:
    """A float64 array; TypeError for text, dates, complex numbers, None and truth values, which NumPy would turn into
    floats."""
    if type(value) is float or type(value) is int:
        array = np.asarray(value)
    elif isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be {allowed}, got {value!r}")
    else:
        array = array_memory.array(name, value)
    kind = array.dtype.kind
    if kind == "O":
        numbers = all(
            (hasattr(type(x), "__float__") or hasattr(type(x), "__index__")) and not array_memory.is_torch(x)
            for x in array.flat
        )
    else:
        numbers = kind in "biuf"
    if not numbers:
        raise TypeError(f"`{name}` must be {allowed}, got {_short(value)}")
    try:
        out = np.asarray(array, dtype=np.float64)
        return out if out.flags.aligned else out.copy()  # which the kernels cannot read
    except OverflowError:
        raise ValueError(f"`{name}` must be within float64, got a larger integer") from None
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be {allowed}, got {_short(value)}") from None


def _short(value: Any) -> str:
    """What was given, unless it is an array: an array's text is long, and a tensor's may need values it lacks."""
    return (
        f"{value!r:.100}" if isinstance(value, (str, bytes, int, float, complex, type(None))) else type(value).__name__
    )


LARGE = 1e150
"""Beyond it squares overflow."""


def squarable(allowed: str = "below 1e150 in size", **kwargs: Any) -> np.ndarray:
    """A finite float64 array whose entries may be squared and summed."""
    return real_array(f"finite and {allowed}", lambda v: np.abs(v) < LARGE, **kwargs)


FLOATING = ("float16", "bfloat16", "float32", "float64")
"""The floating element types, by name, that NumPy or torch compute with and the kernels take, in the order of their
numbers in C++."""

_TORCH_ROUNDOFF = {
    "torch.float64": 2.0**-53,
    "torch.float32": 2.0**-24,
    "torch.float16": 2.0**-11,
    "torch.bfloat16": 2.0**-8,
}


def host_array(*, finite: bool = True, **kwargs: Any) -> tuple[np.ndarray, float]:
    """A finite float64 array on the host, and the unit roundoff of the precision it came in (2⁻⁵³ for integers). Takes
    NumPy arrays, nested sequences and torch tensors (recognised without importing torch) that live on the CPU and do
    not require grad. finite=False leaves the check of the entries to a caller who reads them all anyway."""
    name, value = _one(kwargs)
    out = _doubles(name, value, "an array of real numbers")
    if finite and not np.isfinite(out).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(out))[0])
        raise ValueError(f"`{name}[{', '.join(map(str, where))}]` must be finite, got {float(out[where])!r}")
    return out, max(roundoff(value), 2.0**-53)


def roundoff(value: Any) -> float:
    """The unit roundoff of an array's precision, of the coarsest in a sequence of them; 0 for integers."""
    if isinstance(value, (list, tuple)):
        return max(map(roundoff, value), default=0.0)
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        return float(np.finfo(dtype).eps) / 2 if dtype.kind == "f" else 0.0
    return _TORCH_ROUNDOFF.get(str(dtype), 0.0)


_P = ParamSpec("_P")
_R = TypeVar("_R")


def asks_adjacency(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function without an `adjacency` say how to choose one, instead of Python's bare "missing argument"."""

    @functools.wraps(function)
    def asking(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if "adjacency" not in kwargs:
            raise TypeError(f"`adjacency` must be given to {function.__name__}: {HOW_TO_CHOOSE}")
        return function(*args, **kwargs)

    return asking
