"""`leakcore schema`: what a file must hold, as a JSON Schema."""

from __future__ import annotations

import click

from leakcore.cli.output import as_json_text


@click.command()
@click.argument("what", type=click.Choice(["config"]))
def schema(what: str) -> None:
    """Print the JSON Schema of an audit's configuration, by which editors complete and check the TOML file.

    \b
    leakcore schema config > leakcore.schema.json
    then, in the first line of audit.toml (Taplo, Even Better TOML):  #:schema ./leakcore.schema.json
    """
    from leakcore.audit import config_schema

    click.echo(as_json_text(config_schema()))
