"""Exit codes where click's own is 1, which here says that a gate failed: 2 for bad input, 70 for an error of leakcore's
own, 130 for Ctrl-C, 143 for SIGTERM, 141 for a pipe whose reader went away."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from leakcore._base.version import missing
from leakcore.cli.numbers import with_option_names
from leakcore.cli.output import escaped_streams, indented

T = TypeVar("T")

_INTERRUPTED = 130
_TERMINATED = 143
_UNEXPECTED = 70
_PIPE = 141
"""128 + the signal, as shells count; 70 is EX_SOFTWARE."""


class Failure(click.ClickException):
    """Input that is bad, or beyond what can be computed reliably, as the library words it."""

    exit_code = 2


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: whatever tidies up after the one does after the other."""


def checked(call: Callable[[], T], *, pieces: Path | None = None, names: Mapping[str, str] | None = None) -> T:
    """Run `call`; the library's own complaints become exit code 2 with its message, arguments named as options.

    ArithmeticError is a number that would not be reliable, or a training that overflowed; OSError a data set that is
    not there, or a full disk (a closed pipe is left to `Commands`). An interruption stays one in whatever error it is
    wrapped; its message says whether the same command goes on from the finished `pieces`. `names` are options by the
    names of the library's arguments, where these are not the command's parameters.
    """
    try:
        return call()
    except BrokenPipeError:
        raise
    except BaseException as error:
        if stopped := interruption(error):
            if pieces is None or not _holds_any(pieces):
                raise stopped from None
            click.echo("Interrupted: nothing half-written; the same command goes on from here.", err=True)
            sys.exit(_code(stopped))
        if isinstance(error, ModuleNotFoundError):
            raise Failure(str(missing(error) or error)) from error
        if isinstance(error, (ValueError, TypeError, ImportError, ArithmeticError, OSError)):
            raise Failure(with_option_names(error, names or {})) from error
        if isinstance(error, MemoryError) or "not enough memory" in str(error):  # the second is torch's RuntimeError
            raise Failure(with_option_names(MemoryError("not enough memory for that"), {})) from error
        raise


def interruption(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl-C or SIGTERM that an error is or was raised from: a module that is interrupted while it is imported says
    ImportError, a callback's caller raises an error of its own."""
    rest: list[BaseException | None] = [error]
    known: set[int] = set()
    while rest:
        one = rest.pop()
        if one is None or id(one) in known:
            continue
        if isinstance(one, KeyboardInterrupt):
            return one
        known.add(id(one))
        rest += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return None


def _code(stopped: KeyboardInterrupt) -> int:
    return _TERMINATED if isinstance(stopped, Terminated) else _INTERRUPTED


def _holds_any(pieces: Path) -> bool:
    """Whether a run's folder holds a finished piece, besides what the folder holds for itself."""
    own = {"run.json", "lock"}
    return any(p.is_file() and p.name not in own and not p.name.startswith(".") for p in pieces.rglob("*"))


class Commands(click.Group):
    """A group whose commands end with the exit codes of this chapter, whatever ends them and whenever."""

    def main(self, *words: Any, **how: Any) -> Any:
        """Run the command line: control characters are spelt out from the first word to the last error."""
        with escaped_streams(), _terminated_as_interrupted():
            return super().main(*words, **how)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if parent is None:
            _make_streams_forgiving()
        with _exit_codes():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _exit_codes():
            return super().invoke(ctx)


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
    """Whatever ends the block becomes click's own way to leave."""
    try:
        yield
    except (click.exceptions.Exit, SystemExit):
        raise
    except BaseException as error:
        if stopped := interruption(error):
            click.echo("Interrupted: nothing half-written.", err=True)
            raise click.exceptions.Exit(_code(stopped)) from None
        if isinstance(error, click.Abort):  # a question that was left with Ctrl-D
            raise click.exceptions.Exit(_INTERRUPTED) from None
        if isinstance(error, OSError):
            _discard()
            if error.errno == errno.EPIPE:
                raise click.exceptions.Exit(_PIPE) from None
            error = Failure(str(error))
        if isinstance(error, click.ClickException):
            vars(error)["message"] = indented(error.message)
            raise error from error.__cause__
        if not isinstance(error, Exception):
            raise
        traceback.print_exc()
        raise click.exceptions.Exit(_UNEXPECTED) from None


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM as `Terminated`, where nobody else has said what it does."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not ours:
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _make_streams_forgiving() -> None:
    """A sign that the terminal lacks is shown as \\u…, and a remark of some library to standard error that nobody reads
    leaves the exit code alone, which Python would make 120: neither may end a finished audit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # click writes UTF-8 where Python says ASCII, past this stream; better through it.
            ascii_only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(errors="backslashreplace", encoding="utf-8" if ascii_only else None)
    atexit.unregister(_discard)
    atexit.register(_discard)


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
