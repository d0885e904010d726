"""Options that several commands share, each spelled and explained once."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

SEED: Option = click.option("--seed", type=int, default=0, show_default=True)
QUIET: Option = click.option("--quiet", is_flag=True, help="No progress bars.")
MODEL: Option = click.option(
    "--model", metavar="MODULE:FACTORY", help="What returns the torch module when called: package.module:factory."
)
WEIGHTS: Option = click.option(
    "--weights", type=click.Path(dir_okay=False, path_type=Path), help="The model's weights, safetensors."
)
DATA_FOLDER: Option = click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of data sets; else LEAKCORE_DATA."
)


def as_json(what: str = "everything") -> Option:
    """--json, which prints `what`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def run_folder(report: str, pieces: str) -> Option:
    """--out, a folder for `report`, where finished `pieces` wait until it is whole."""
    return click.option(
        "--out", type=click.Path(file_okay=False, path_type=Path),
        help=f"Folder for {report}; finished {pieces} are kept there until then, so that the same command goes on.",
    )  # fmt: skip


def seed_json_quiet(what: str = "everything") -> Option:
    """The three that end most commands."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        return SEED(as_json(what)(QUIET(command)))

    return decorate


def one_kappa(
    num_candidates: int | None, kappa: float | None, log_kappa: float | None
) -> tuple[float | None, float | None]:
    """(κ, log κ) as the bounds take them, one of them None, from the one of three options that was given."""
    options = (("--num-candidates", num_candidates), ("--kappa", kappa), ("--log-kappa", log_kappa))
    given = [name for name, value in options if value is not None]
    if len(given) != 1:
        raise click.UsageError(
            f"give exactly one of --num-candidates, --kappa, --log-kappa (given: {', '.join(given) or 'none'})"
        )
    if num_candidates is not None:
        if num_candidates < 1:
            raise click.UsageError(f"--num-candidates {num_candidates}: must be an integer of at least 1")
        if num_candidates > 1e300:  # beyond what a float holds there is the logarithm
            return None, -math.log(num_candidates)
        kappa = 1.0 / num_candidates
    return kappa, log_kappa
