"""Where results and remarks go: standard output, files, and progress on a terminal."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import click

from leakcore._base.text import escape_controls, printable

if TYPE_CHECKING:
    from leakcore._base.progress import Progress


class ToJson(Protocol):
    """A result that can be JSON."""

    def to_json(self, *, indent: int | None) -> str:
        """Its JSON as text."""


def as_json_text(content: Mapping[str, Any]) -> str:
    """JSON as files and the terminal have it."""
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)


def finish(
    result: ToJson | Mapping[str, Any],
    as_json: bool,
    text: Callable[[], str | Iterable[str]],
    written: Iterable[Path] = (),
) -> None:
    """Print a result: as JSON, or its text (or lines of it) and the files that were written."""
    if as_json:
        click.echo(as_json_text(result) if isinstance(result, Mapping) else result.to_json(indent=2))
        return
    lines = text()
    click.echo(lines if isinstance(lines, str) else "\n".join(lines))
    if files := [str(path) for path in written]:
        click.echo("\n" + "\n".join(files))


def require_place(called: str, path: Path) -> None:
    """Fail before the work, not after it: a file that can be written, a device or a pipe.

    called: what the user calls the place.
    """
    from leakcore._base.writing import is_stream, try_writing

    try:
        if path.is_dir():
            raise OSError(None, "is a folder")
        existing = next((p for p in path.parents if p.exists()), None)
        if existing is not None and not existing.is_dir():
            raise OSError(None, f"{existing} is a file, not a folder")
        if not is_stream(path):
            try_writing(path)
    except OSError as error:
        raise click.UsageError(f"`{called}` must be writable, got {path} ({error.strerror})") from None


@contextlib.contextmanager
def escaped_streams() -> Iterator[None]:
    """While it lasts, standard output and error spell control characters out; line feeds and tabs stay.

    It is done where text leaves the program: results, errors, remarks of other libraries and tracebacks all pass here.
    """
    changed = [s for s in (sys.stdout, sys.stderr) if s is not None and "write" not in getattr(s, "__dict__", {})]
    with contextlib.ExitStack() as restored:
        for stream in changed:
            with contextlib.suppress(AttributeError):  # a stream that is put in place of Python's may take no attribute
                stream.write = functools.partial(_write, stream.write)  # type: ignore[method-assign]
                restored.callback(vars(stream).pop, "write", None)
        yield


def _write(write: Any, text: str) -> int:
    write(escape_controls(text))
    return len(text)


class RawStream:
    """A stream whose control characters are its own: a progress bar moves the cursor."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream writes it, control characters included."""
        return type(self._stream).write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def indented(message: str) -> str:
    """An error as it is shown: cut where it is endless, later lines indented, so that none looks like one of ours."""
    first, *rest = str(message).split("\n")
    lines = [printable(line) for line in (first, *rest[:40])]
    return "\n  ".join(line.removeprefix("  ") for line in lines)


_QUIET, _VERBOSE = "leakcore.quiet", "leakcore.verbose"
_NAME = "leakcore"
_OFTEN = 10.0
"""Seconds between two lines about one task."""


class _ToStandardError(logging.Handler):
    """Writes where standard error is when a record comes, as the command's other remarks do."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


class _Timed(logging.Formatter):
    """Begins with the seconds since the command began."""

    def __init__(self, style: str) -> None:
        super().__init__(style)
        self._began = time.time()

    def format(self, record: logging.LogRecord) -> str:
        return f"{max(0.0, record.created - self._began):8.3f} s  {super().format(record)}"


def set_verbosity(context: click.Context, *, quiet: bool = False, verbose: bool = False) -> None:
    """No bars and errors alone where quiet; where verbose no bars, and what leakcore logs, debugging included, with
    times; else bars and warnings."""
    log, root = logging.getLogger(_NAME), context.find_root()
    if quiet:
        root.meta[_QUIET] = True
    if verbose:
        root.meta[_VERBOSE] = True
    if not any(isinstance(handler, _ToStandardError) for handler in log.handlers):
        handler = _ToStandardError()
        handler.setFormatter((_Timed if verbose else logging.Formatter)("%(levelname)s %(name)s: %(message)s"))
        level, passed_on = log.level, log.propagate
        log.addHandler(handler)
        log.propagate = False

        def put_back() -> None:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = passed_on

        root.call_on_close(put_back)
    log.setLevel(logging.ERROR if is_quiet() else logging.DEBUG if verbose else logging.WARNING)


def is_quiet() -> bool:
    """Whether the command, or `leakcore` itself, was told so."""
    return _was_told(_QUIET)


def _was_told(what: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().meta.get(what))


def bars() -> Progress | None:
    """Progress bars, with the time left, for a terminal; in a log or a pipe they would be kilobytes of control
    characters. With --verbose, lines of the log instead, wherever it goes.
    """
    if is_quiet():
        return None
    if _was_told(_VERBOSE):
        return _Lines()
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from leakcore.audit import progress_bars

    return progress_bars(RawStream(sys.stderr))


class _Lines:
    """Progress as lines of the log: when a task begins, every ten seconds, and when it ends."""

    def __init__(self) -> None:
        self._log = logging.getLogger(f"{_NAME}.progress")
        self._begun: dict[str, tuple[float, int]] = {}
        self._ended: set[str] = set()
        self._last = 0.0

    def __call__(self, task: str, done: int, total: int) -> None:
        now, name = time.monotonic(), printable(task, 60)
        if task in self._ended:
            return
        if task not in self._begun:
            self._begun[task], self._last = (now, done), now
            self._log.info("%s: %d of %d", name, done, total)
            return
        began, before = self._begun[task]
        if done >= total:
            self._ended.add(task)
            self._log.info("%s: all %d, in %.3f s", name, total, now - began)
        elif now - self._last >= _OFTEN and done > before:
            self._last = now
            left = (now - began) / (done - before) * (total - done)
            self._log.info("%s: %d of %d, about %.0f s left", name, done, total, left)
