"""`leakcore compare`: what changed from one report to another."""

from __future__ import annotations

from pathlib import Path

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.options import as_json
from leakcore.cli.output import finish

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
