"""Numbers as options take them, and the library's complaints about them in the options' own names."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from typing import Any

import click

from leakcore._base.text import renamed

LARGE = 1e150
"""Beyond it squares overflow."""
MOST_STEPS = 2**24 - 1
MOST_RUNS = 10**7
MOST_HIDDEN = 2**16
"""Limits of sizes: what is more would take days, or memory that no machine has."""


class _Real(click.types.FloatParamType):
    """A finite float64 whose square is one, too."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not abs(number) <= LARGE or 0 < abs(number) < sys.float_info.min:
            self.fail(
                f"it must be a finite number, below {LARGE:g} in size and no smaller than floats are, got {value}",
                param,
                ctx,
            )
        return number


REAL = _Real()


def count(low: int, high: int) -> click.IntRange:
    """An integer from `low` to `high`."""
    return click.IntRange(low, high)


def with_option_names(error: BaseException, names: Mapping[str, str]) -> str:
    """The message with options in place of the arguments that it names, such as `--steps` for `steps`.

    names: further names of the library's, and the options or keys that stand for them. Where a computation failed and
    the message names none that was given a number far out, those that were are added.
    """
    message = str(error) or type(error).__name__
    context = click.get_current_context(silent=True)
    if context is None:
        return message
    named = {str(p.name): p.opts[0] for p in _options(context)}
    message = renamed(message, {**named, **names})
    far = extreme_values()
    if isinstance(error, (ArithmeticError, MemoryError)) and far and not any(name in message for name in far):
        message = f"cannot be computed with {_listed(far)} ({message})"
    return message


def remember_keys(sections: Mapping[str, Mapping[str, Any]], *, but: Collection[str]) -> None:
    """What a configuration file says by section and key, except the keys that options replaced: its numbers may be far
    out as an option's may."""
    keys = {f"{section}.{key}": value for section, part in sections.items() for key, value in part.items()}
    click.get_current_context().meta[_KEYS] = {key: value for key, value in keys.items() if key not in but}


_KEYS = "leakcore.keys"


def extreme_values() -> dict[str, Any]:
    """The options and keys of a file that were given numbers far from 1, with them."""
    context = click.get_current_context(silent=True)
    if context is None:
        return {}
    typed = click.core.ParameterSource.COMMANDLINE
    values = {
        p.opts[0]: context.params[str(p.name)]
        for p in _options(context)
        if context.get_parameter_source(str(p.name)) == typed
    } | context.meta.get(_KEYS, {})
    return {name: value for name, value in values.items() if _is_extreme(value)}


def _listed(far: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in far.items())


def _options(context: click.Context) -> list[click.Option]:
    return [
        p for p in context.command.params if isinstance(p, click.Option) and context.params.get(str(p.name)) is not None
    ]


def _is_extreme(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_extreme, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return not (value == 0 or 1e-4 <= abs(value) <= 1e4) or math.isnan(value)


def overflowed(error: FloatingPointError, advice: str) -> ValueError:
    """What overflowed, with advice in options of the command: the library's names keywords that it may not have."""
    far = extreme_values()
    beyond = f"; given were {_listed(far)}" if far else ""
    return ValueError(f"{str(error).partition(': take a')[0]}; {advice}{beyond}")
