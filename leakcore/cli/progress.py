"""How much a command says while it works: progress bars where a person watches, and leakcore's log."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

import click

from leakcore._base.text import printable
from leakcore.cli.terminal import Drawing

if TYPE_CHECKING:
    from leakcore._base.progress import Progress

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


def set_loudness(context: click.Context, *, quiet: bool = False, verbose: bool = False) -> None:
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
    from leakcore._base.progress import progress_bars

    return progress_bars(Drawing(sys.stderr))


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
