"""The library's complaints as exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

T = TypeVar("T")


class Failure(click.ClickException):
    """Input that is bad, or beyond what can be computed reliably, as the library words it."""

    exit_code = 2


def checked(call: Callable[[], T]) -> T:
    """Run `call`; the library's own complaints become exit code 2 with its message.

    ArithmeticError: a number that would not be reliable (AccuracyError), training that overflowed (FloatingPointError).
    OSError: a data set that is not there, a disk that is full.
    """
    try:
        return call()
    except (ValueError, TypeError, ImportError, ArithmeticError, OSError) as error:
        raise Failure(str(error)) from error


class Commands(click.Group):
    """Ctrl-C is exit code 130 in every command: click's own is 1, which here says that a gate failed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted: nothing half-written.", err=True)
            ctx.exit(130)
