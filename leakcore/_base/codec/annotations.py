"""What the annotations of a dataclass's fields say of their values."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """The annotation of each field that the constructor takes."""
    every = typing.get_type_hints(cls)
    return {f.name: every[f.name] for f in dataclasses.fields(cls) if f.init}


def says_itself(cls: type) -> bool:
    """Whether a class has a form of its own, by `to_dict` and `from_dict` that do not come from here."""
    pair = getattr(cls, "to_dict", None), getattr(cls, "from_dict", None)
    return all(pair) and not any(getattr(f, "by_codec", False) for f in pair)


def options(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def array_only(kind: Any) -> bool:
    """Whether a list under this annotation can be nothing but an array."""
    members = options(kind)
    return np.ndarray in members and all(m in (np.ndarray, float, int, bool, str, type(None)) for m in members)


def is_named_tuple(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, tuple) and hasattr(kind, "_fields")


@functools.cache
def _fields_of(kind: Any) -> tuple[Any, ...]:
    return tuple(typing.get_type_hints(kind).values())


def is_mapping(origin: Any) -> bool:
    return inspect.isclass(origin) and issubclass(origin, collections.abc.Mapping)


def arguments(kind: Any, number: int) -> tuple[Any, ...]:
    arguments = typing.get_args(kind)
    return arguments if len(arguments) == number else (Any,) * number


def elements(kind: Any, number: int) -> tuple[Any, ...] | None:
    """The annotation of each element; None where there must be another number of them."""
    arguments = _fields_of(kind) if is_named_tuple(kind) else typing.get_args(kind)
    if not arguments:
        return (Any,) * number
    if is_named_tuple(kind):
        return arguments if len(arguments) == number else None
    if (typing.get_origin(kind) or kind) is not tuple:
        return arguments[:1] * number
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[:1] * number
    return arguments if len(arguments) == number else None


def named(kind: Any) -> str:
    """A type in words."""
    words: dict[Any, str] = {
        type(None): "null",
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        np.ndarray: "an array of numbers",
    }
    out = []
    for option in options(kind):
        origin = typing.get_origin(option) or option
        if origin is Literal:
            out.append(" or ".join(map(repr, typing.get_args(option))))
        elif is_mapping(origin):
            out.append("values by name")
        elif origin in (tuple, list, collections.abc.Sequence):
            inside = typing.get_args(option)
            fixed = origin is tuple and inside and inside[-1] is not Ellipsis
            out.append(f"a list of {len(inside)} values" if fixed else "a list")
        else:
            out.append(words.get(origin) or f"a {getattr(origin, '__name__', origin)}")
    return " or ".join(out)


def by_codec(function: F) -> F:
    """Mark a `to_dict` or `from_dict` that calls this codec, which may then write and read the class by its fields."""
    function.by_codec = True  # type: ignore[attr-defined]
    return function
