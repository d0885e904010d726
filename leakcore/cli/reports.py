"""`leakcore reports` and `compare`: the reports of a folder on one page, and what changed between two."""

from __future__ import annotations

from pathlib import Path

import click

from leakcore._base.version import PAGE, absent, sentence
from leakcore.cli.audit_form import width
from leakcore.cli.exit_codes import Failure, checked
from leakcore.cli.options import as_json
from leakcore.cli.output import finish, require_place

_report = click.Path(dir_okay=False, exists=True, path_type=Path)


@click.command()
@click.argument("before", type=_report)
@click.argument("after", type=_report)
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment on a change of your code.")
@as_json("the comparison")
def compare(before: Path, after: Path, markdown: bool, as_json: bool) -> None:
    """Say what changed from report BEFORE to report AFTER, two files report.json of one form.

    Settings that differ, numbers beyond their intervals or within them, and the gate's verdict. The exit code is 0
    whatever changed: the audit itself is the gate.

    \b
    leakcore compare main/report.json leakcore-report/report.json --markdown >> "$GITHUB_STEP_SUMMARY"
    """
    from leakcore import audit

    if markdown and as_json:
        raise click.UsageError("--markdown, --json: give one or the other")
    result = checked(lambda: audit.compare(before, after))
    finish(result, as_json, result.to_markdown if markdown else result.to_text)


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Where the page goes.  [default: FOLDER/index.html, where its links lead to the reports]",
)
@as_json("the list")
def reports(folder: Path, html_path: Path | None, as_json: bool) -> None:
    """List the reports in FOLDER and below it on one page, newest first.

    A row for each report.json: name, date, kind of audit, claimed, proved and accountant's ε, and the verdict with a
    link to its report.html. Files that cannot be read are named. The exit code is 0 whatever the verdicts are.

    \b
    leakcore reports runs
    """
    from leakcore import audit
    from leakcore._base.output_folder import is_our_page
    from leakcore._base.writing import place_in

    place = checked(lambda: place_in(folder, "index.html")) if html_path is None else html_path
    require_place("--html", place)
    if place.is_file() and not is_our_page(place):
        raise Failure(f"`--html` must be a new file or a page of leakcore's, got {place}: name another place")
    result = checked(lambda: audit.list_reports(folder), names={"folder": "FOLDER"})
    written = []
    if lacking := absent(*PAGE):
        click.echo(sentence(lacking, f"{place.name} is not written"), err=True)
    else:
        checked(lambda: result.to_html(place))
        written.append(place)
    finish(result, as_json, lambda: result.to_text(width=width()), written)
