"""What goes wrong as exit codes: complaints of the library 2, the unexpected 70, Ctrl-C 130, a closed pipe 141."""

from __future__ import annotations

import atexit
import errno
import io
import math
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from leakcore._progress import Progress

T = TypeVar("T")

_INTERRUPTED = 130
_UNEXPECTED = 70
_PIPE = 141
"""128 + SIGPIPE: what a shell says of a Unix program whose reader went away."""


class Failure(click.ClickException):
    """Input that is bad, or beyond what can be computed reliably, as the library words it."""

    exit_code = 2


def checked(call: Callable[[], T], *, pieces: Path | None = None) -> T:
    """Run `call`; the library's own complaints become exit code 2 with its message.

    pieces: where it keeps what is finished; Ctrl-C says so where there is anything by then.
    ArithmeticError: a number that would not be reliable (AccuracyError), training that overflowed (FloatingPointError).
    OSError: a data set that is not there, a disk that is full. A closed pipe is none of them: see `Commands`.
    """
    try:
        return call()
    except KeyboardInterrupt:
        if pieces is None or not _holds_any(pieces):
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


def _holds_any(pieces: Path) -> bool:
    """Whether a run's folder holds a finished piece, beside what `leakcore._store` keeps there for itself."""
    own = {"run.json", "lock"}
    return any(p.is_file() and p.name not in own and not p.name.startswith(".") for p in pieces.rglob("*"))


def bars(quiet: bool) -> Progress | None:
    """Progress bars for a terminal; in a log or a pipe they would be kilobytes of control characters."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        return None
    from leakcore._progress import progress_bars

    return progress_bars()


def overflowed(error: FloatingPointError, advice: str) -> ValueError:
    """What overflowed, with advice in options of the command: the library's names keywords that it may not have."""
    return ValueError(f"{str(error).partition(': take a')[0]}; {advice}")


def one_kappa(prior: int | None, kappa: float | None, log_kappa: float | None) -> tuple[float | None, float | None]:
    """(κ, log κ) as the bounds take them, one of them None, from the one of three options that was given."""
    options = (("--prior", prior), ("--kappa", kappa), ("--log-kappa", log_kappa))
    given = [name for name, value in options if value is not None]
    if len(given) != 1:
        raise click.UsageError(
            f"give exactly one of --prior, --kappa, --log-kappa (given: {', '.join(given) or 'none'})"
        )
    if prior is not None:
        if prior < 1:
            raise click.UsageError(f"--prior {prior}: must be an integer of at least 1")
        if prior > 1e300:  # beyond what a float holds there is the logarithm
            return None, -math.log(prior)
        kappa = 1.0 / prior
    return kappa, log_kappa


def require_place(name: str, path: Path) -> None:
    """Fail before the work, not after it: a file that can be written, a device or a pipe."""
    from leakcore._writing import is_stream, try_writing

    try:
        if path.is_dir():
            raise OSError(None, "is a folder")
        existing = next((p for p in path.parents if p.exists()), None)
        if existing is not None and not existing.is_dir():
            raise OSError(None, f"{existing} is a file, not a folder")
        if not is_stream(path):
            try_writing(path)
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
        if parent is None:
            _make_streams_forgiving()
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


def _make_streams_forgiving() -> None:
    """A sign that the terminal lacks is shown as \\u…, and a remark of some library to standard error that nobody reads
    leaves the exit code alone, which Python would make 120: neither may end a finished audit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
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
