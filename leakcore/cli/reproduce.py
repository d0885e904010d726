"""`leakcore reproduce`: the papers' figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from leakcore._base.version import need
from leakcore.cli.exit_codes import checked
from leakcore.cli.options import DATA_FOLDER, QUIET, SEED, as_json
from leakcore.cli.output import bars, finish, is_quiet


@click.command()
@click.argument("name")
@click.option(
    "--scale",
    type=click.Choice(["quick", "paper"]),
    default="quick",
    show_default=True,
    help="quick: minutes on two cores, `list` says how many; paper: the paper's sizes, hours to days.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("leakcore-figures"), show_default=True
)
@DATA_FOLDER
@SEED
@click.option(
    "--trainer",
    type=click.Choice(["ensemble", "opacus"]),
    default="ensemble",
    show_default=True,
    help="What trains the networks of the label figures: leakcore, or Opacus where it is installed.",
)
@as_json("the result")
@QUIET
def reproduce(name: str, scale: str, out: Path, as_json: bool, **how: Any) -> None:
    """Reproduce figure or table NAME; `list` shows the names, `all` reproduces every one.

    Writes OUT/NAME.json, .png and .svg, and with `all` OUT/index.html, which shows them with their verdicts.
    Interrupted, it goes on where it stopped when called again (a leakage figure from its trained networks).
    """
    from leakcore import experiments

    if name == "list":
        for key in experiments.names():
            experiment = experiments.find(key)
            needs = f"  [{', '.join(experiment.needs)}]" if experiment.needs else ""
            takes = f"  ({experiment.quick})" if experiment.quick else ""
            click.echo(f"{key:<24} {experiment.title}{needs}{takes}")
        return
    checked(lambda: need("torch", "sklearn", "matplotlib"))
    if name == "all":
        if how.pop("trainer") != "ensemble":
            raise click.UsageError("`--trainer` must be 'ensemble' with all: only the label figures have several")
        everything = checked(
            lambda: experiments.run_all(scale=scale, out=out, progress=bars(), **how), pieces=out / "partial"
        )
        finish(everything, as_json, everything.to_text, [out / "index.html"])
        return
    if scale == "quick" and not is_quiet() and name in experiments.names() and (takes := experiments.find(name).quick):
        click.echo(f"{name} at quick scale: {takes} on two cores", err=True)
    result = checked(
        lambda: experiments.run(name, scale=scale, out=out, progress=bars(), **how), pieces=out / "partial" / name
    )
    finish(result, as_json, result.to_text, [out / f"{name}.{kind}" for kind in ("png", "svg", "json")])
