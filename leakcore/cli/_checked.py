"""The library's complaints as exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

T = TypeVar("T")


class Failure(click.ClickException):
    """Input that is bad, or beyond what can be computed reliably, as the library words it."""

    exit_code = 2


def checked(call: Callable[[], T]) -> T:
    """Run `call`; the library's own complaints become exit code 2 with its message.

    ArithmeticError: a number that would not be reliable (AccuracyError), training that overflowed (FloatingPointError).
    FileNotFoundError: a data set that is not there.
    """
    try:
        return call()
    except (ValueError, TypeError, ImportError, ArithmeticError, FileNotFoundError) as error:
        raise Failure(str(error)) from error
