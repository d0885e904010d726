"""`leakcore doctor`: what this installation has and lacks."""

from __future__ import annotations

import json
import sys

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def doctor(as_json: bool) -> None:
    """Say what this installation has, what is missing, and what is wrong (exit code 2).

    Wrong are: an environment variable with a value that leakcore refuses, an installed package that cannot be imported.
    """
    from leakcore.audit import diagnose

    facts = diagnose()
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            between = "\n" + " " * (width + 2) if name in ("missing", "wrong") else ", "
            shown = between.join(map(str, value)) or "none" if isinstance(value, list) else value
            click.echo(f"{name:<{width}}  {shown}")
    sys.exit(0 if facts["wrong"] == "nothing" else 2)
