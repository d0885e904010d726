"""`leakcore audit --trace FILE`: the report on a training run that `leakcore.record` watched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from leakcore.cli._checked import checked

_OF_A_CONFIGURATION = ("noise_multiplier", "sweep", "steps", "max_grad_norm", "num_rows", "runs", "seed")


def report_on(
    trace: Path,
    *,
    delta: float,
    sample_rate: float,
    prior_size: int,
    claimed_epsilon: float | None,
    coins: bool,
    out: Path,
    as_json: bool,
    **_ignored: Any,
) -> NoReturn:
    """Write OUT/report.html and OUT/report.json, print the report, exit with 1 where a claim is contradicted."""
    from leakcore import audit

    context = click.get_current_context()

    def given(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    for name in _OF_A_CONFIGURATION:
        if given(name):
            raise click.UsageError(f"--{name.replace('_', '-')}: not with --trace, the recorded run says it")
    if not trace.is_file():
        raise click.UsageError(f"--trace {trace}: no such file")
    report = checked(
        lambda: audit.from_trace(
            trace,
            delta=delta,
            sample_rate=sample_rate if given("sample_rate") else None,
            prior_size=prior_size,
            claimed_epsilon=claimed_epsilon,
            coins=coins,
        )
    )
    out.mkdir(parents=True, exist_ok=True)
    report.to_html(out / "report.html")
    report.to_json(out / "report.json", indent=2)
    click.echo(report.to_json(indent=2) if as_json else report.to_text())
    if not as_json:
        click.echo(f"\n{out / 'report.html'}\n{out / 'report.json'}")
    sys.exit(0 if report.passed else 1)
