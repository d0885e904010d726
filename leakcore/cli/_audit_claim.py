"""`leakcore audit --attack …`: try to disprove a claimed ε."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from leakcore.cli._checked import checked

_KEYS = {
    "epsilon": ("claim", "epsilon"),
    "delta": ("claim", "delta"),
    "noise_multiplier": ("mechanism", "noise_multiplier"),
    "steps": ("mechanism", "steps"),
    "sample_rate": ("mechanism", "sample_rate"),
    "max_grad_norm": ("mechanism", "max_grad_norm"),
    "num_rows": ("data", "rows"),
    "runs": ("audit", "trials"),
    "seed": ("audit", "seed"),
    "attack": ("audit", "attack"),
}
"""Options that go before the file's keys."""
_OTHER = {"config_path", "out", "as_json", "quiet"}
_CLAIM = 10.0
"""What is claimed where neither file nor options say: the default of --epsilon."""


def run(config_path: Path | None, out: Path, as_json: bool, quiet: bool) -> None:
    """Read file and options, audit, print, and leave with the gate's exit code."""
    from leakcore import audit as audits

    context = click.get_current_context()
    given: dict[str, dict[str, Any]] = {}
    for name, value in context.params.items():
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE or name in _OTHER:
            continue
        if name not in _KEYS:
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise click.UsageError(f"{option} does not go with --attack or --config")
        section, key = _KEYS[name]
        given.setdefault(section, {})[key] = value

    def configure() -> audits.ClaimConfig:
        if config_path is not None:
            return audits.ClaimConfig.from_toml(config_path, override=given)
        if "noise_multiplier" not in given.get("mechanism", {}):
            given.setdefault("claim", {}).setdefault("epsilon", _CLAIM)
        return audits.ClaimConfig.from_dict(given)

    show = None if quiet else audits.progress_bars()
    try:
        report = checked(lambda: audits.claim(configure(), folder=out, progress=show))
    except KeyboardInterrupt:
        click.echo("Interrupted: finished models are kept; the same command goes on from here.", err=True)
        sys.exit(130)
    click.echo(report.to_json(indent=2) if as_json else report.to_text())
    if not as_json:
        click.echo(f"\n{out / 'report.html'}\n{out / 'report.json'}")
    if not report.passed:
        click.echo("GATE FAILED: " + " ".join(report.contradictions), err=True)
    sys.exit(0 if report.passed else 1)
