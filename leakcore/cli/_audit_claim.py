"""`leakcore audit --attack …`: try to disprove a claimed ε."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from leakcore.cli._checked import checked

_SHARED = {"attack", "config_path", "out", "as_json", "quiet", "seed"}


def run(attack: str | None, config_path: Path | None, out: Path, as_json: bool, quiet: bool) -> None:
    """Read the file, audit, print, and leave with the gate's exit code."""
    from leakcore import audit as audits

    context = click.get_current_context()
    if config_path is None:
        raise click.UsageError("--attack needs --config FILE, a TOML file with at least claim.epsilon")
    for name in context.params:
        if name not in _SHARED - {"seed"} and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.replace('_', '-')} does not go with --attack and --config: put it in the file"
            )
    show = None if quiet else audits.progress_bars()
    try:
        report = checked(
            lambda: audits.claim(
                audits.ClaimConfig.from_toml(config_path, attack=attack), folder=out, progress=show
            )
        )  # fmt: skip
    except KeyboardInterrupt:
        click.echo("Interrupted: finished models are kept; the same command goes on from here.", err=True)
        sys.exit(130)
    click.echo(report.to_json(indent=2) if as_json else report.to_text())
    if not as_json:
        click.echo(f"\n{out / 'report.html'}\n{out / 'report.json'}")
    if not report.passed:
        click.echo("GATE FAILED: " + " ".join(report.contradictions), err=True)
    sys.exit(0 if report.passed else 1)
