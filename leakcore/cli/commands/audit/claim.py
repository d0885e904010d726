"""`leakcore audit claim`: a claimed ε, against an attack on thousands of trained models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakcore.cli.commands.audit.form import Form, FormCommand, audited, keys_of
from leakcore.cli.commands.audit.options import ADJACENCIES, DELTA, PIECES, SEED, about_the_report, confidence
from leakcore.cli.numbers import MOST_RUNS, MOST_STEPS, REAL, count

if TYPE_CHECKING:
    from leakcore import audit as audits
    from leakcore._base.progress import Progress

ATTACKS = click.Choice(["clipbkd", "backdoor", "membership", "zero-input", "crafted-gradient", "one-run"])


def _make(settings: Any, called: str, folder: Path | None, show: Progress | None) -> audits.AuditReport:
    from leakcore import audit as audits

    return audits.claim(settings, folder=folder, progress=show)


FORM = Form(
    "claim",
    {
        **keys_of("claim", "epsilon delta"),
        **keys_of("data", "num_rows"),
        **keys_of("mechanism", "noise_multiplier steps sample_rate max_grad_norm"),
        **keys_of("audit", "trials confidence adjacency seed attack"),
    },
    _make,
    subject="attack",
    pieces="audit-attack",
)


@click.command(cls=FormCommand)
@click.argument("attack", type=ATTACKS, required=False, metavar="[ATTACK]")
@click.option(
    "--epsilon", type=REAL, metavar="ε", help="Claim.  [default: 10, or the accountant's of --noise-multiplier]"
)
@DELTA
@click.option("--noise-multiplier", type=REAL, metavar="σ", help="Noise multiplier.  [default: what the claim takes]")
@click.option("--sample-rate", type=REAL, metavar="q", help="Poisson rate.  [default: 1, full batches]")
@click.option("--steps", type=count(1, MOST_STEPS), metavar="T", help="DP-SGD steps.  [default: 24]")
@click.option("--max-grad-norm", type=REAL, metavar="C", help="Clipping norm.  [default: 1]")
@click.option("--num-rows", type=int, metavar="N", help="Training rows.  [default: all]")
@click.option(
    "--trials", type=count(1, MOST_RUNS), metavar="N", help="Models to train on each data set.  [default: 1000]"
)
@click.option("--adjacency", type=ADJACENCIES, help="What takes the place of a row: nothing, or another row.")
@confidence("0.99", "Confidence of all proofs together, at which the gate fails.")
@SEED
@about_the_report(folder=PIECES, fail_above="the proved ε")
def claim(**params: Any) -> None:
    """Try to disprove a claimed ε by an attack on many trained models.

    ATTACK is clipbkd, backdoor, membership, zero-input or crafted-gradient, on thousands of models; or one-run, on one.
    A correct program fails the gate (exit code 1) with probability at most 1 − confidence.

    \b
    leakcore audit claim clipbkd --epsilon 4
    leakcore audit claim --config audit.toml           (with [data], [model], [mechanism], [claim] or [audit])
    """
    audited(FORM, params)
