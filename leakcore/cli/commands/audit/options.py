"""Options that several forms of audit share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from leakcore.cli.numbers import REAL
from leakcore.cli.options import QUIET, Option

FILE = click.Path(dir_okay=False, path_type=Path)
ADJACENCIES = click.Choice(["add-remove", "replace"])
DELTA: Option = click.option("--delta", type=REAL, metavar="δ", help="Of every ε.  [default: 1e-5]")
SEED: Option = click.option("--seed", type=int, metavar="N", help="[default: 0]")


def confidence(default: str, text: str = "Confidence of every interval and proof.") -> Option:
    """--confidence, whose default the form has."""
    return click.option("--confidence", type=REAL, metavar="P", help=f"{text}  [default: {default}]")


def claimed(gate: str) -> Option:
    """--epsilon, a claim about what a file holds. gate: what fails it."""
    return click.option("--epsilon", type=REAL, metavar="ε", help=f"Claim. {gate}  [default: none]")


def about_the_report(*, folder: str, fail_above: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--config, and the options that end every form of audit: where its report goes, and what fails it."""
    options = (
        click.option("--config", "config_path", type=FILE, help="TOML file for the audit; options replace its keys."),
        click.option("--fail-above", type=REAL, metavar="ε", help=f"Exit with code 1 if {fail_above} is above this."),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            help=f"Folder for report.html and report.json.  [default: leakcore-report{folder}]",
        ),
        click.option(
            "--json",
            "json_path",
            is_flag=False,
            flag_value="-",
            metavar="[PATH]",
            help="Write the report as JSON to PATH; without PATH, print it instead of tables.",
        ),
        click.option(
            "--html", "html_path", type=FILE, metavar="PATH", help="Write the report as one HTML page to PATH."
        ),
        QUIET,
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


PIECES = "; an interrupted audit goes on there"
NONE_IF_NAMED = "; none where --json PATH or --html says where"
