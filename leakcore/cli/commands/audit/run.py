"""`leakcore audit run`: a configuration of DP-SGD, trained and attacked on digits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakcore.cli.commands.audit.form import Form, FormCommand, audited, keys_of
from leakcore.cli.commands.audit.options import DELTA, PIECES, SEED, about_the_report, confidence
from leakcore.cli.numbers import MOST_RUNS, REAL, count, overflowed
from leakcore.cli.training import audited_training_options

if TYPE_CHECKING:
    from leakcore import audit as audits
    from leakcore._base.progress import Progress


def _make(settings: Any, called: str, folder: Path | None, show: Progress | None) -> audits.AuditReport:
    from leakcore import audit as audits

    try:
        return audits.run(settings, folder=folder, progress=show)
    except FloatingPointError as error:
        advice = "take a larger --num-rows, or a smaller learning_rate in [run] of a --config file"
        raise overflowed(error, advice) from error


FORM = Form(
    "run",
    keys_of(
        "run",
        "epsilon noise_multiplier sweep delta sampling sample_rate steps batch_size dataset_size batches epochs "
        "max_grad_norm num_candidates num_rows defense runs confidence seed",
    ),
    _make,
    pieces="audit",
)


def _levels(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError:
        raise click.UsageError(f"`--sweep` must be numbers separated by commas, got {value!r}") from None


@click.command(cls=FormCommand)
@click.option("--epsilon", type=REAL, metavar="ε", help="Claim, under the adjacency of --sampling.  [default: 10]")
@click.option(
    "--noise-multiplier", type=REAL, metavar="σ", help="Noise multiplier, instead of computing it from --epsilon."
)
@click.option(
    "--sweep", metavar="ε,ε,…", callback=_levels, help="Further ε to audit as well, '' for none.  [default: 1,4,10,40]"
)
@DELTA
@audited_training_options
@click.option("--max-grad-norm", type=REAL, metavar="C", help="Clipping norm.  [default: 0.1]")
@click.option("--num-candidates", type=int, metavar="N", help="Number of equally likely candidates.  [default: 10]")
@click.option("--num-rows", type=int, metavar="N", help="Training rows, the target included.  [default: 1000]")
@click.option(
    "--defense",
    metavar="NAME:NUMBERS",
    help="A defence, such as prune:0.1 or local-steps:4: play the game with it as well.",
)
@click.option(
    "--runs", type=count(1, MOST_RUNS), metavar="N", help="Runs (one training each) per noise level.  [default: 1000]"
)
@confidence("0.95", "Confidence of every interval. A claim fails at 0.999 (gate_confidence in a file).")
@SEED
@about_the_report(folder=PIECES, fail_above="the accountant's ε or the proved one")
def run(**params: Any) -> None:
    """Train a DP-SGD configuration, attack it, compare with its bounds.

    It trains on the data set digits.

    \b
    leakcore audit run
    leakcore audit run --sampling shuffled --batches 10 --epochs 5
    leakcore audit run --config audit.toml                         (with a section [run])
    """
    audited(FORM, params)
