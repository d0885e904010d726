"""One state of an array: how a call is made with it, and the plain array whose answer it must equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


def direct(call: Callable[[Any], Any], value: Any) -> Any:
    return call(value)


def require_axes(value: Any, least: int, most: int) -> None:
    """ValueError for an array that has no such state for its number of axes."""
    if not least <= value.ndim <= most:
        raise ValueError(f"`value` must have {least} to {most} axes in this state, got {value.ndim}")


@dataclasses.dataclass(frozen=True)
class State:
    """make: the array in this state, from a plain one; it may raise where the library cannot have it so (skipped).
    plain: the contiguous array that holds what the state stands for; None where only a refusal is right.
    under: makes the call, for states that last as long as one of torch's transforms."""

    name: str
    make: Callable[[Any], Any]
    plain: Callable[[Any], Any] | None = None
    under: Callable[[Callable[[Any], Any], Any], Any] = direct
