"""`leakcore audit`: run, claim, trace, scores and plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakcore._base.text import HOW_TO_CHOOSE
from leakcore.cli.audit_form import (
    ADJACENCIES,
    DELTA,
    FILE,
    NONE_IF_NAMED,
    PIECES,
    SEED,
    Form,
    FormCommand,
    about_the_report,
    claimed,
    confidence,
    keys_of,
    require_files,
    require_folder,
    run_form,
    width,
)
from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import MOST_RUNS, MOST_STEPS, REAL, count, overflowed
from leakcore.cli.options import QUIET, as_json
from leakcore.cli.output import finish
from leakcore.cli.scheme_options import audited_training_options

if TYPE_CHECKING:
    from leakcore import audit as audits
    from leakcore._base.progress import Progress


def _run(settings: Any, called: str, folder: Path | None, show: Progress | None) -> audits.AuditReport:
    from leakcore import audit as audits

    try:
        return audits.run(settings, folder=folder, progress=show)
    except FloatingPointError as error:
        advice = "take a larger --num-rows, or a smaller learning_rate in [run] of a --config file"
        raise overflowed(error, advice) from error


RUN = Form(
    "run",
    keys_of(
        "run",
        "epsilon noise_multiplier sweep delta sampling sample_rate steps batch_size dataset_size batches epochs "
        "max_grad_norm num_candidates num_rows defense runs confidence seed",
    ),
    _run,
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
    run_form(RUN, params)


ATTACKS = click.Choice(["clipbkd", "backdoor", "membership", "zero-input", "crafted-gradient", "one-run"])


def _claim(settings: Any, called: str, folder: Path | None, show: Progress | None) -> audits.AuditReport:
    from leakcore import audit as audits

    return audits.claim(settings, folder=folder, progress=show)


CLAIM = Form(
    "claim",
    {
        **keys_of("claim", "epsilon delta"),
        **keys_of("data", "num_rows"),
        **keys_of("mechanism", "noise_multiplier steps sample_rate max_grad_norm"),
        **keys_of("audit", "trials confidence adjacency seed attack"),
    },
    _claim,
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
    run_form(CLAIM, params)


def _trace(settings: Any, called: str, folder: Path | None, show: Progress | None) -> audits.AuditReport:
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


TRACE = Form(
    "trace",
    {
        "trace": "trace.file",
        "epsilon": "trace.claimed_epsilon",
        **keys_of("trace", "delta sample_rate steps num_candidates coins confidence divisor"),
    },
    _trace,
    file="trace.file",
    subject="trace",
    arguments={"trace": "file", "mechanism": "sample_rate"},
)


def _files(context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]) -> Any:
    """One file as such, parts of a run as a list; None where there are none."""
    return value[0] if len(value) == 1 else list(value) or None


@click.command(cls=FormCommand)
@click.argument("trace", type=FILE, nargs=-1, callback=_files, metavar="[FILE]...")
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
    run_form(TRACE, params)


def _scores(settings: Any, called: str, folder: Path | None, show: Progress | None) -> audits.AuditReport:
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


SCORES = Form(
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
    _scores,
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
    run_form(SCORES, params)


_CLAIM = 10.0


@click.command(cls=FormCommand)
@click.option("--epsilon", type=REAL, metavar="ε", help="Claim.  [default: 10]")
@DELTA
@confidence("0.99", "Confidence of the proofs.")
@as_json("the plan")
@QUIET
def plan(as_json: bool, **asked: float | None) -> None:
    """Say what audits of a claim could prove; nothing is trained.

    The table lists how many trainings each of them takes.

    \b
    leakcore audit plan --epsilon 4
    """
    from leakcore import audit as audits

    how = {name: value for name, value in asked.items() if value is not None}
    result = checked(lambda: audits.plan(how.pop("epsilon", _CLAIM), **how))
    finish(result, as_json, lambda: result.to_text(width=width()))


class _Audit(click.Group):
    """Subcommands in the order of their help; an option without one is answered with their names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"`{error.option_name}` must stand behind a subcommand, one of {', '.join(self.commands)}", ctx
            ) from None


@click.group(cls=_Audit)
def audit() -> None:
    """Audit a DP-SGD run: bounds, attacks and what they prove, in one report.

    Each of run, claim, trace and scores takes --config, a TOML file whose keys its options replace, and --fail-above, a
    limit on ε. Interrupted, the same command goes on where it stopped.

    \b
    Exit codes:
      0    nothing contradicts the claim, and no ε is above --fail-above
      1    an attack proves more than is claimed, or an ε is above the limit
      2    bad input, a gate that a part of a run cannot decide, or no place to write
      70   an error of leakcore's own
      130  interrupted (143: by SIGTERM)
      141  the reader of the output closed it (`| head`), whatever the answer; the report's files are written by then
    """


for _command in (run, claim, trace, scores, plan):
    audit.add_command(_command)
