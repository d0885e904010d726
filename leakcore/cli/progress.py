"""How much a command says while it works: progress bars where a person watches, and leakcore's own log."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import click

from leakcore.cli.terminal import Drawing

if TYPE_CHECKING:
    from leakcore._base.progress import Progress

_QUIET = "leakcore.quiet"
_NAME = "leakcore"


class _ToStandardError(logging.Handler):
    """Writes where standard error is when a record comes, as the command's other remarks do."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


def set_loudness(context: click.Context, *, quiet: bool = False, verbose: bool = False) -> None:
    """No bars and errors alone where quiet; what leakcore logs, debugging included, where verbose; else warnings."""
    log, root = logging.getLogger(_NAME), context.find_root()
    if quiet:
        root.meta[_QUIET] = True
    if not any(isinstance(handler, _ToStandardError) for handler in log.handlers):
        handler = _ToStandardError()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
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
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().meta.get(_QUIET))


def bars() -> Progress | None:
    """Progress bars, with the time left, for a terminal; in a log or a pipe they would be kilobytes of control
    characters.
    """
    if is_quiet() or sys.stderr is None or not sys.stderr.isatty():
        return None
    from leakcore._base.progress import progress_bars

    return progress_bars(Drawing(sys.stderr))
