"""`leakcore audit trace`: a training run of the user's that leakcore.record watched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakcore.cli.commands.audit.form import Form, FormCommand, audited, keys_of, require_files, require_folder
from leakcore.cli.commands.audit.options import DELTA, FILE, NONE_IF_NAMED, about_the_report, claimed, confidence
from leakcore.cli.numbers import MOST_STEPS, REAL, count

if TYPE_CHECKING:
    from leakcore import audit as audits
    from leakcore._base.progress import Progress


def _make(settings: Any, called: str, folder: Path | None, show: Progress | None) -> audits.AuditReport:
    from leakcore import audit as audits

    require_files(settings.files, called)
    require_folder(folder)
    file, *parts = settings.files
    how = {name: value for name, value in vars(settings).items() if name not in ("file", "sample_rate")}
    others = parts or settings.coins or settings.steps is not None or settings.sample_rate is not None
    if others and audits.holds_canaries(file):
        raise click.UsageError(
            f"{called} {file} holds canaries: it stands alone, without --coins, --steps and --sample-rate"
        )
    return audits.from_trace(audits.join(settings.files) if parts else file, mechanism=settings.sample_rate, **how)


FORM = Form(
    "trace",
    {
        "trace": "trace.file",
        "epsilon": "trace.claimed_epsilon",
        **keys_of("trace", "delta sample_rate steps num_candidates coins confidence divisor"),
    },
    _make,
    file="trace.file",
    subject="trace",
    arguments={"trace": "file", "mechanism": "sample_rate"},
)


def parts(context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]) -> Any:
    """One file as such, parts of a run as a list; None where there are none."""
    return value[0] if len(value) == 1 else list(value) or None


@click.command(cls=FormCommand)
@click.argument("trace", type=FILE, nargs=-1, callback=parts, metavar="[FILE]...")
@click.option("--coins", is_flag=True, help="A fair coin decided for each candidate whether it was trained on.")
@claimed("The gate fails (exit code 1) if the schedule has more, or if coins prove more at 99.9% confidence.")
@DELTA
@click.option("--sample-rate", type=REAL, metavar="q", help="Poisson rate, if the file does not say how it sampled.")
@click.option(
    "--steps", type=count(1, MOST_STEPS), metavar="T", help="Steps of the whole run, if the file does not say."
)
@click.option(
    "--divisor",
    type=click.Choice(["rows", "constant"]),
    help="What divisor, q and steps depend on: the number of rows, or nothing.  [default: as the file says]",
)
@click.option("--num-candidates", type=int, metavar="N", help="Number of equally likely candidates.  [default: 10]")
@confidence("0.95")
@about_the_report(folder=NONE_IF_NAMED, fail_above="the schedule's ε or the proved one")
def trace(**params: Any) -> None:
    """Report on a training run of yours that leakcore.record watched.

    FILE is what it wrote; several are the parts of one run, in order.

    \b
    leakcore audit trace trace.npz --coins
    leakcore audit trace part-1.npz part-2.npz --epsilon 4
    leakcore audit trace --config audit.toml           (with a section [trace])
    """
    audited(FORM, params)
