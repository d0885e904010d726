"""`leakcore audit --plan`: what audits of a claim could prove, before anything is trained."""

from __future__ import annotations

import shutil
from typing import Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.output import finish

_TAKES = {"epsilon": "epsilon", "delta": "delta", "confidence": "confidence"}
_CLAIM = 10.0


def planned(options: dict[str, Any]) -> None:
    """Print the plan. Every other option belongs to an audit that runs."""
    from leakcore import audit

    to_json = options.pop("json_path", None)
    if to_json not in (None, "-"):
        raise click.UsageError(f"`--json` must be given without a path with --plan, got {to_json}")
    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    for name in options:
        if name not in _TAKES and name != "quiet":
            raise click.UsageError(f"`{flags[name]}` is not allowed with --plan, which takes --epsilon, --delta and "
                                   "--confidence")  # fmt: skip
    asked = {key: options[name] for name, key in _TAKES.items() if name in options}
    result = checked(
        lambda: audit.plan(asked.pop("epsilon", _CLAIM), **asked),
        names={key: flags[name] for name, key in _TAKES.items()},
    )
    width = min(110, max(72, shutil.get_terminal_size((110, 24)).columns))
    finish(result, to_json == "-", lambda: result.to_text(width=width), [])
