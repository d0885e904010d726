"""`leakcore doctor`: what this installation has and lacks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from leakcore.cli.options import as_json
from leakcore.cli.output import finish


@click.command()
@as_json("the facts")
def doctor(as_json: bool) -> None:
    """Say what this installation has, what is missing, and what is wrong (exit code 2).

    Wrong are: an environment variable with a value that leakcore refuses, an installed package that cannot be imported.
    """
    from leakcore.audit import diagnose

    facts = diagnose()
    finish(facts, as_json, lambda: _lines(facts))
    sys.exit(0 if facts["wrong"] == "nothing" else 2)


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    width = max(map(len, facts))
    for name, value in facts.items():
        between = "\n" + " " * (width + 2) if name in ("missing", "wrong") else ", "
        text = between.join(map(str, value)) or "none" if isinstance(value, list) else _yes_or_no(value)
        yield f"{name.replace('_', ' '):<{width}}  {text}"


def _yes_or_no(value: Any) -> Any:
    return ("yes" if value else "no") if isinstance(value, bool) else value
