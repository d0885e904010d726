"""What goes wrong as exit codes: complaints of the library 2, the unexpected 70, Ctrl-C 130, SIGTERM 143, a closed pipe
141."""

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
from leakcore.cli.numbers import as_typed
from leakcore.cli.terminal import in_lines, spelt_out_streams

T = TypeVar("T")

_INTERRUPTED = 130
_TERMINATED = 143
"""128 + SIGTERM."""
_UNEXPECTED = 70
_PIPE = 141
"""128 + SIGPIPE: what a shell says of a Unix program whose reader went away."""


class Failure(click.ClickException):
    """Input that is bad, or beyond what can be computed reliably, as the library words it."""

    exit_code = 2


def checked(call: Callable[[], T], *, pieces: Path | None = None, names: Mapping[str, str] | None = None) -> T:
    """Run `call`; the library's own complaints become exit code 2 with its message, arguments named as options.

    pieces: where it keeps what is finished; Ctrl-C says so where there is anything by then. names: options by what the
    library calls them, where that is not the name of the command's parameter.
    ArithmeticError: a number that would not be reliable (AccuracyError), training that overflowed (FloatingPointError).
    OSError: a data set that is not there, a disk that is full. A closed pipe is none of them: see `Commands`.
    MemoryError: sizes beyond the machine. An interruption that other code made an error of its own is still one.
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
            raise Failure(as_typed(error, names or {})) from error
        if isinstance(error, MemoryError) or "not enough memory" in str(error):  # the second is torch's RuntimeError
            raise Failure(as_typed(MemoryError("not enough memory for that"), {})) from error
        raise


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: whatever tidies up after the one does after the other."""


def interruption(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl-C (or SIGTERM) that an error is, or was made of: a module that is interrupted while it is imported says
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
    """Exit codes of every command where click's own is 1, which here says that a gate failed.

    Ctrl-C is 130, SIGTERM 143, at whatever moment. What cannot be printed is 141 where the reader closed the pipe
    (`leakcore … | head -1`), whatever the answer was, and 2 where there is no place to write. An exception that nobody
    expected is 70 (EX_SOFTWARE), with its traceback.
    """

    def main(self, *words: Any, **how: Any) -> Any:
        """Run the command line: control characters are spelt out from the first word to the last error."""
        with spelt_out_streams(), _terminated_as_interrupted():
            return super().main(*words, **how)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if parent is None:
            _make_streams_forgiving()
        return _ended(lambda: super(Commands, self).make_context(info_name, args, parent, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        return _ended(lambda: super(Commands, self).invoke(ctx))


def _ended(call: Callable[[], T]) -> T:
    """Run `call`; whatever ends it becomes click's own way to leave, with the exit codes of `Commands`."""
    try:
        return _printed(call)
    except (click.exceptions.Exit, SystemExit):
        raise
    except click.ClickException as error:
        if stopped := interruption(error):
            raise _left(stopped) from None
        vars(error)["message"] = in_lines(error.message)
        raise
    except BaseException as error:
        if stopped := interruption(error):
            raise _left(stopped) from None
        if isinstance(error, click.Abort):  # a question that was left with Ctrl-D
            raise click.exceptions.Exit(_INTERRUPTED) from None
        if not isinstance(error, Exception):
            raise
        traceback.print_exc()
        raise click.exceptions.Exit(_UNEXPECTED) from None


def _left(stopped: KeyboardInterrupt) -> click.exceptions.Exit:
    click.echo("Interrupted: nothing half-written.", err=True)
    return click.exceptions.Exit(_code(stopped))


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
