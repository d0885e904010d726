"""`leakcore schema`: what a file must hold, as a JSON Schema."""

from __future__ import annotations

import click

from leakcore.cli.output import as_json_text


@click.command()
@click.argument("what", type=click.Choice(["config", "report"]))
def schema(what: str) -> None:
    """Print the JSON Schema of an audit's configuration, or of report.json.

    Editors complete and check a TOML file by the first; programs check what they read by the second.

    \b
    leakcore schema config > leakcore.schema.json
    then, in the first line of audit.toml (Taplo, Even Better TOML):  #:schema ./leakcore.schema.json
    leakcore schema report > report.schema.json
    then, with any validator of draft 2020-12:  check-jsonschema --schemafile report.schema.json report.json
    """
    from leakcore import audit

    click.echo(as_json_text(audit.config_schema() if what == "config" else audit.report_schema()))
