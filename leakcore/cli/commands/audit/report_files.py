"""Where the report of an audit goes, and the exit code with which the command ends."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from leakcore._base.version import PAGE, absent, sentence
from leakcore.cli.exit_codes import checked
from leakcore.cli.output import finish, require_place

if TYPE_CHECKING:
    from leakcore import audit as audits

REPORT_KEYS = {
    "out": "report.out",
    "json_path": "report.json",
    "html_path": "report.html",
    "fail_above": "report.fail_above",
}
"""Options of the report, and the keys for which they stand."""
_OUT = Path("leakcore-report")


def places_of(report: Any, names: Mapping[str, str], *, optional: bool) -> tuple[Path | None, dict[str, Path]]:
    """(folder, further files by format) of the report, which can be written.

    names: options by the keys for which they were typed. optional: no folder unless it is asked for, where another file
    is.
    """
    named = report.json not in (None, "-") or report.html is not None
    folder = None if optional and named and report.out is None else Path(report.out or _OUT)
    places = {
        name: Path(path) for name, path in (("json", report.json), ("html", report.html)) if path not in (None, "-")
    }
    for name, path in places.items():
        require_place(names.get(f"report.{name}", f"report.{name}"), path)
    return folder, places


def require_apart(
    places: Mapping[str, Path], folder: Path | None, read: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """A report must not replace what the audit reads, nor one of its own. names: as `places_of` takes them."""
    from leakcore._base.writing import is_stream

    taken = {os.path.realpath(path): name for name, path in read.items() if path is not None}
    if folder is not None:
        taken |= {
            os.path.realpath(folder / f"report.{kind}"): f"report.{kind} in {folder}" for kind in ("html", "json")
        }
    for name, path in places.items():
        called = names.get(f"report.{name}", f"report.{name}")
        if is_stream(path):
            continue
        place = os.path.realpath(path)
        if place in taken and taken[place] != f"report.{name} in {folder}":
            raise click.UsageError(f"`{called}` must be a file of its own, got {path}, which is also {taken[place]}")
        taken[place] = called


def leave_with(
    result: audits.AuditReport, folder: Path | None, report: Any, own: Mapping[str, Path], *, written: bool
) -> NoReturn:
    """Write, print, and leave with the gate's exit code.

    own: further files of the report, by their format. written: the folder has the report, if without a limit.
    """
    limit = report.fail_above
    if limit is not None:
        result = checked(lambda: result.with_limit(limit))
    places: list[tuple[str, Path]] = []
    if folder is not None:
        places += [("html", folder / "report.html"), ("json", folder / "report.json")]
        if lacking := absent(*PAGE):
            places.pop(0)
            click.echo(sentence(lacking, "report.html is not written"), err=True)
    if written and limit is None:
        done, places = places, []
    else:
        done = list(places)
    places += sorted(own.items())
    checked(lambda: _write(result, places, folder))
    files = [path for _, path in dict.fromkeys([*done, *places])]
    finish(result, report.json == "-", lambda: result.to_text(width=width()), files)
    if result.passed is None and result.gated:
        click.echo(f"GATE NOT DECIDED: {result.undecided}.", err=True)
        sys.exit(2)
    if result.passed is False:
        click.echo("GATE FAILED: " + " ".join([*result.all_contradictions, *result.exceeded]), err=True)
    sys.exit(1 if result.passed is False else 0)


def width() -> int:
    """Columns of a report in this terminal."""
    return min(110, max(72, shutil.get_terminal_size((110, 24)).columns))


def _write(result: audits.AuditReport, places: list[tuple[str, Path]], folder: Path | None) -> None:
    from leakcore._base.writing import place_in

    for kind, named in sorted(places, key=lambda place: place[0] != "json"):  # the larger page may not find room
        path = named if folder is None or named.parent != folder else place_in(folder, named.name)
        if kind == "html":
            result.to_html(path)
        else:
            result.to_json(path, indent=2)
