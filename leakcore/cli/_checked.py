"""What goes wrong as exit codes: complaints of the library 2, the unexpected 70, Ctrl-C 130, a closed pipe 141."""

from __future__ import annotations

import atexit
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from leakcore._store import is_stream

T = TypeVar("T")

_INTERRUPTED = 130
_UNEXPECTED = 70
_PIPE = 141
"""128 + SIGPIPE: what a shell says of a Unix program whose reader went away."""


class Failure(click.ClickException):
    """Input that is bad, or beyond what can be computed reliably, as the library words it."""

    exit_code = 2


def checked(call: Callable[[], T], *, goes_on: bool = False) -> T:
    """Run `call`; the library's own complaints become exit code 2 with its message.

    goes_on: finished pieces are kept, and Ctrl-C says so.
    ArithmeticError: a number that would not be reliable (AccuracyError), training that overflowed (FloatingPointError).
    OSError: a data set that is not there, a disk that is full. A closed pipe is none of them: see `Commands`.
    """
    try:
        return call()
    except KeyboardInterrupt:
        if not goes_on:
            raise
        click.echo("Interrupted: nothing half-written; the same command goes on from here.", err=True)
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise Failure(str(error)) from error
        raise Failure("this command needs torch, which is not installed: pip install torch") from error
    except (ValueError, TypeError, ImportError, ArithmeticError, OSError) as error:
        raise Failure(str(error)) from error


def require_place(name: str, path: Path) -> None:
    """Fail before the work, not after it: a file that can be written, a device or a pipe."""
    try:
        if path.is_dir():
            raise OSError(None, "is a folder")
        if is_stream(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.parent / f".{path.name}.writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise click.UsageError(f"--{name} {path}: cannot be written ({error.strerror})") from None


class Commands(click.Group):
    """Exit codes of every command where click's own is 1, which here says that a gate failed.

    Ctrl-C is 130. What cannot be printed is 141 where the reader closed the pipe (`leakcore … | head -1`), whatever
    the answer was, and 2 where there is no place to write. An exception that nobody expected is 70 (EX_SOFTWARE), with
    its traceback.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        # A terminal without a sign that a report uses shows it as \\u…; a finished audit must not end in a traceback.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        # A remark of some library to standard error that nobody reads would make Python's own exit code 120.
        atexit.register(_discard)
        return _printed(lambda: super(Commands, self).make_context(info_name, args, parent, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return _printed(lambda: super(Commands, self).invoke(ctx))
        except KeyboardInterrupt:
            click.echo("Interrupted: nothing half-written.", err=True)
            ctx.exit(_INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:
            traceback.print_exc()
            ctx.exit(_UNEXPECTED)


def _printed(call: Callable[[], T]) -> T:
    try:
        return call()
    except OSError as error:
        _discard()
        if error.errno == errno.EPIPE:
            raise click.exceptions.Exit(_PIPE) from None
        raise Failure(str(error)) from error


def _discard() -> None:
    """Send what is still buffered nowhere: Python would try once more on its way out, and fail with another code."""
    for stream in (s for s in (sys.stdout, sys.stderr) if s is not None):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except ValueError:  # closed already
            pass
