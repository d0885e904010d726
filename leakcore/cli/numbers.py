"""Numbers as options take them, and the library's complaints about them in the options' own names."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Any

import click

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


def as_typed(error: BaseException, names: Mapping[str, str]) -> str:
    """The message with options in place of the arguments that it names, such as `--steps` for `steps`.

    An argument stands between backticks, or before "=", "[" or ": ".

    names: further names of the library's, and the options that stand for them. Where a computation failed and the
    message names none of the options, those that were given numbers far out are added.
    """
    message = str(error) or type(error).__name__
    context = click.get_current_context(silent=True)
    if context is None:
        return message
    named = {str(p.name): p.opts[0] for p in _options(context)}
    for name, option in {**named, **names}.items():
        message = re.sub(rf"(?<![\w.\[-]){re.escape(name)}(?=[=\[`]|: )", option, message)
    failed = isinstance(error, (ArithmeticError, MemoryError))
    if failed and not any(option in message for option in named.values()) and (far := far_out()):
        message = f"cannot be computed with {far} ({message})"
    return message


def far_out() -> str:
    """The options that were given numbers far from 1, with them; empty where there is none."""
    context = click.get_current_context(silent=True)
    if context is None:
        return ""
    typed = click.core.ParameterSource.COMMANDLINE
    options = [p for p in _options(context) if context.get_parameter_source(str(p.name)) == typed]
    return ", ".join(f"{p.opts[0]}={context.params[str(p.name)]}" for p in options if _is_far(context, p))


def _options(context: click.Context) -> list[click.Option]:
    return [
        p for p in context.command.params if isinstance(p, click.Option) and context.params.get(str(p.name)) is not None
    ]


def _is_far(context: click.Context, option: click.Option) -> bool:
    value = context.params[str(option.name)]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return not (value == 0 or 1e-4 <= abs(value) <= 1e4) or math.isnan(value)


def overflowed(error: FloatingPointError, advice: str) -> ValueError:
    """What overflowed, with advice in options of the command: the library's names keywords that it may not have."""
    far = far_out()
    return ValueError(f"{str(error).partition(': take a')[0]}; {advice}" + (f"; given were {far}" if far else ""))
