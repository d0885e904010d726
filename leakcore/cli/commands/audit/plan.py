"""`leakcore audit plan`: what audits of a claim could prove, before anything is trained."""

from __future__ import annotations

from typing import Any

import click

from leakcore.cli.commands.audit.form import FormCommand
from leakcore.cli.commands.audit.options import DELTA, confidence
from leakcore.cli.commands.audit.report_files import width
from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import REAL
from leakcore.cli.options import QUIET, as_json
from leakcore.cli.output import finish

_TAKES = ("epsilon", "delta", "confidence")
_CLAIM = 10.0


@click.command(cls=FormCommand)
@click.option("--epsilon", type=REAL, metavar="ε", help="Claim.  [default: 10]")
@DELTA
@confidence("0.99", "Confidence of the proofs.")
@as_json("the plan")
@QUIET
def plan(as_json: bool, **asked: float | None) -> None:
    """Say what audits of a claim could prove; nothing is trained.

    The table lists how many trainings each of them takes.

    \b
    leakcore audit plan --epsilon 4
    """
    _show(asked, as_json)


def planned(options: dict[str, Any]) -> None:
    """`leakcore audit --plan`. Every other option belongs to an audit that runs."""
    to_json = options.pop("json_path", None)
    if to_json not in (None, "-"):
        raise click.UsageError(f"`--json` must be given without a path with --plan, got {to_json}")
    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    for name in options:
        if name not in _TAKES:
            raise click.UsageError(
                f"`{flags[name]}` is not allowed with --plan, which takes --epsilon, --delta and --confidence"
            )
    _show(options, to_json == "-")


def _show(asked: dict[str, Any], as_json: bool) -> None:
    from leakcore import audit

    how = {name: value for name, value in asked.items() if value is not None}
    result = checked(lambda: audit.plan(how.pop("epsilon", _CLAIM), **how))
    finish(result, as_json, lambda: result.to_text(width=width()))
