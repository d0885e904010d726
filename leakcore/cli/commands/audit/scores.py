"""`leakcore audit scores`: membership scores of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakcore._base.validate import HOW_TO_CHOOSE
from leakcore.cli.commands.audit.form import Form, FormCommand, audited, keys_of, require_files, require_folder
from leakcore.cli.commands.audit.options import (
    ADJACENCIES,
    DELTA,
    FILE,
    NONE_IF_NAMED,
    SEED,
    about_the_report,
    claimed,
    confidence,
)

if TYPE_CHECKING:
    from leakcore import audit as audits
    from leakcore._base.progress import Progress


def _make(settings: Any, called: str, folder: Path | None, show: Progress | None) -> audits.AuditReport:
    from leakcore import audit as audits

    require_files(settings.files, called)
    design = audits.Retrained(k=settings.k, seed=settings.seed, select=settings.select)
    if design != audits.Retrained() and not settings.retrained:
        name = "k" if design.k > 1 else "seed" if design.seed else "select"
        raise ValueError(
            f"`scores.{name}` must be left out without retrained = true (--retrained), got {getattr(design, name)}"
        )
    require_folder(folder)
    names = {name: getattr(settings, name) for name in ("members", "non_members", "values", "labels", "higher")}
    scores = audits.read_scores(settings.file, **names)
    if settings.adjacency is None and not settings.coins:
        raise ValueError(f"`adjacency` must be given unless `coins` is: {HOW_TO_CHOOSE}")
    passed = ("coins", "delta", "claimed_epsilon", "claimed_adjacency", "adjacency", "confidence", "family")
    how = {name: getattr(settings, name) for name in passed}
    return audits.from_scores(scores, retrained=design if settings.retrained else False, **how)


FORM = Form(
    "scores",
    {
        "scores": "scores.file",
        "epsilon": "scores.claimed_epsilon",
        **keys_of(
            "scores",
            "members non_members values labels higher coins retrained k delta claimed_adjacency adjacency confidence "
            "family seed select",
        ),
    },
    _make,
    file="scores.file",
    subject="scores",
    arguments={"scores": "file", "path": "file"},
)


@click.command(cls=FormCommand)
@click.argument("scores", type=FILE, required=False, metavar="[FILE]")
@click.option("--coins", is_flag=True, help="One training; a fair coin decided for each score whether it was in.")
@click.option("--retrained", is_flag=True, help="Every score is from a model that was trained on its own.")
@click.option("--k", type=int, metavar="K", help="With --retrained: rows that were left out together.  [default: 1]")
@click.option(
    "--select",
    type=click.Choice(["simultaneous", "split"]),
    help="With --retrained: who chooses the threshold, all scores or one half.  [default: simultaneous]",
)
@click.option(
    "--adjacency", type=ADJACENCIES, help="Without --coins: what took the place of a row, nothing or another row."
)
@click.option(
    "--family",
    type=click.Choice(["dp", "gdp"]),
    help="What is refuted, (ε, δ)-privacy or μ-GDP of Gaussian mechanisms.  [default: dp]",
)
@claimed(
    "With --coins or --retrained the gate fails (exit code 1) if the scores prove more at 99.9% confidence, whatever "
    "--confidence says."
)
@click.option(
    "--claimed-adjacency",
    type=click.Choice(["add-remove", "replace", "zero-out"]),
    help="With --epsilon: the relation under which that ε is claimed.",
)
@DELTA
@click.option("--members", metavar="NAME", help="Array or column with the scores of members.")
@click.option("--non-members", metavar="NAME", help="Array or column with the scores of non-members.")
@click.option("--values", metavar="NAME", help="Array or column with all scores; needs --labels.")
@click.option("--labels", metavar="NAME", help="Array or column with 1 for members, 0 for others.")
@click.option(
    "--higher", type=click.Choice(["members", "non-members"]), help="Who scores higher (losses: non-members)."
)
@confidence("0.95", "Confidence of the printed intervals and proofs, and of --fail-above.")
@SEED
@about_the_report(folder=NONE_IF_NAMED, fail_above="the proved ε")
def scores(**params: Any) -> None:
    """Say what membership scores of another tool prove.

    FILE is npz or csv.

    \b
    leakcore audit scores scores.npz --coins --epsilon 8 --claimed-adjacency add-remove
    leakcore audit scores scores.csv --retrained --adjacency replace
    leakcore audit scores --config audit.toml          (with a section [scores])
    """
    audited(FORM, params)
