"""Values as files hold them, and back to the bit: dataclasses, arrays, numbers, and nothing else.

The annotations of a dataclass say what each field may be, so plain values stay plain: an array of float64 is a list of
numbers, a tuple is a list. Where an annotation leaves it open (`Any`, or a base class), the value says what it is:
{"array": …, "dtype": …, "shape": …}, {"tuple": …}, {"class": …}. Infinities and NaN are "inf", "-inf" and "nan", so
that strict JSON holds them. Reading makes only classes that an annotation or the caller names, and refuses what does
not fit its annotation. Nothing is pickled.

Libraries that do this (msgspec, cattrs) know no union of a number and an array, no infinities without taking every
text for a number, and no arrays of a given type and shape, which is most of what our results are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from leakcore._base.codec.annotations import by_codec as by_codec
from leakcore._base.codec.numbers import MISSING, one_value
from leakcore._base.codec.reading import Reader
from leakcore._base.codec.writing import Arrays as Arrays
from leakcore._base.codec.writing import Writer
from leakcore._base.printable import repr_of


def to_plain(value: Any, kind: Any = None, *, arrays: Arrays | None = None) -> Any:
    """What strict JSON can hold; `from_plain(…, kind)` makes an equal value of it.

    Args:
        value: made of dataclasses, tuples, lists, mappings, NumPy arrays without objects, text, numbers and None.
        kind: the type that the reader will expect; None: the value's own.
        arrays: where arrays go, by their place in the value; None: into the JSON.

    Raises:
        TypeError: for anything else.
    """
    with one_value():
        return Writer(arrays).write(value, type(value) if kind is None else kind, "")


def from_plain(
    plain: Any, kind: Any, *, classes: Iterable[type] = (), arrays: Mapping[str, np.ndarray] | None = None
) -> Any:
    """The value that `to_plain` was given.

    Args:
        plain: as JSON was read.
        kind: a dataclass, or any annotation: what the value must be.
        classes: further dataclasses that may be made where an annotation leaves it open.
        arrays: those that are stored next to the JSON.

    Raises:
        ValueError: that names the place in the value, what is there, and what must be.
    """
    with _bounded():
        return Reader(classes, arrays or {}).read(plain, kind, "")


def fields_to_plain(value: Any, kind: Any = None) -> dict[str, Any]:
    """`to_plain` of a dataclass by its fields, also where it has a form of its own (`to_dict` and `from_dict`)."""
    with one_value():
        return dict(Writer(None).dataclass(value, type(value) if kind is None else kind, by_fields=True))


def from_fields(plain: Any, kind: type) -> Any:
    """The dataclass that `fields_to_plain` was given; ValueError as `from_plain`."""
    with _bounded():
        value = Reader((), {}).dataclass(plain, kind, by_fields=True)
    if value is MISSING:
        raise ValueError(f"it must be a {kind.__name__}, got {repr_of(plain, 60)}")
    return value


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    try:
        with one_value():
            yield
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
