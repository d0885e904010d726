"""`leakcore audit`: four forms of audit, one config file, one report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from leakcore._base.adjacency import HOW_TO_CHOOSE
from leakcore._base.installed import PAGE, absent, sentence
from leakcore.cli.commands.audit_plan import planned
from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import MOST_RUNS, MOST_STEPS, REAL, count, overflowed, remember_keys
from leakcore.cli.options import QUIET
from leakcore.cli.output import finish, require_place
from leakcore.cli.progress import bars
from leakcore.cli.training import scheme_options

if TYPE_CHECKING:
    from leakcore import audit as audits

_OUT = Path("leakcore-report")
_OF_REPORT = {"out": "report.out", "json_path": "report.json", "html_path": "report.html",
              "fail_above": "report.fail_above"}  # fmt: skip


def _alike(section: str, names: str) -> dict[str, str]:
    return {name: f"{section}.{name}" for name in names.split()}


_KEYS = {
    "run": _alike(
        "run", "epsilon noise_multiplier sweep delta sampling sample_rate steps batch_size dataset_size batches epochs "
        "max_grad_norm num_candidates num_rows defense runs confidence seed",
    ),
    "trace": {
        "trace": "trace.file", "epsilon": "trace.claimed_epsilon",
        **_alike("trace", "delta sample_rate steps num_candidates coins confidence"),
    },
    "scores": {
        "scores": "scores.file", "epsilon": "scores.claimed_epsilon",
        **_alike(
            "scores",
            "members non_members values labels higher coins retrained k delta adjacency confidence family seed select",
        ),
    },
    "claim": {
        **_alike("claim", "epsilon delta"), **_alike("data", "num_rows"),
        **_alike("mechanism", "noise_multiplier steps sample_rate max_grad_norm"),
        **_alike("audit", "trials confidence adjacency seed attack"),
    },
}  # fmt: skip
"""Form of the audit: its options, and the keys for which they stand."""
_ARGUMENTS = {"trace": {"trace": "file", "mechanism": "sample_rate"}, "scores": {"scores": "file", "path": "file"}}
"""Form of the audit: arguments of its function that are called otherwise than their keys."""
_RUNS = {"run": "audit", "claim": "audit-attack"}
"""Form of the audit: name of the folder that keeps its finished pieces, where it takes long enough to have any."""
_CLAIM = 10.0
"""What is claimed where neither file nor options say: the default of [run] epsilon."""
_WITH = {
    "trace": " is not allowed with --trace: the recorded run says it",
    "scores": " is not allowed with --scores",
    "claim": " is not allowed with --attack, nor with a --config that describes its audit",
}


def _levels(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError:
        raise click.UsageError(f"`--sweep` must be numbers separated by commas, got {value!r}") from None


def _parts(context: click.Context, parameter: click.Parameter, value: tuple[Path, ...]) -> Any:
    """One file as such, parts of a run as a list; None where the option is not options."""
    return value[0] if len(value) == 1 else list(value) or None


_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--config", "config_path", type=_file, help="TOML file that describes the audit; options take precedence."
)
@click.option(
    "--trace", type=_file, metavar="FILE", multiple=True, callback=_parts,
    help="Report on your own training run: the file of leakcore.record, or its parts in order, one option each.",
)  # fmt: skip
@click.option("--scores", type=_file, metavar="FILE", help="Report on membership scores of another tool, npz or csv.")
@click.option(
    "--attack", type=click.Choice(["clipbkd", "backdoor", "membership", "zero-input", "crafted-gradient", "one-run"]),
    help="Try to disprove a claimed ε by this attack, on thousands of trained models (one-run: on one).",
)  # fmt: skip
@click.option(
    "--plan",
    is_flag=True,
    help="Train nothing: what audits of the claim --epsilon could prove, and how many trainings they take.",
)
@click.option(
    "--epsilon",
    type=REAL,
    help="Claimed ε, under the adjacency of --sampling.  [default: 10; a file has its own]",
)
@click.option("--noise-multiplier", type=REAL, help="Noise multiplier σ, instead of computing it from --epsilon.")
@click.option("--sweep", callback=_levels, help="Further ε to audit as well, '' for none.  [default: 1,4,10,40]")
@click.option("--delta", type=REAL, help="[default: 1e-5]")
@click.option(
    "--steps", type=count(1, MOST_STEPS),
    help="Steps. With --trace: steps of the whole run, if the file does not say.  [default: 100; with --attack 24]",
)  # fmt: skip
@click.option("--sample-rate", type=REAL, help="Poisson rate q. With --trace: if the file does not say.  [default: 1]")
@scheme_options("batch_size", "dataset_size", "batches", "epochs")
@click.option("--max-grad-norm", type=REAL, help="Clipping norm C.  [default: 0.1; with --attack 1]")
@click.option("--num-candidates", type=int, help="Number of equally likely candidates.  [default: 10]")
@click.option("--num-rows", type=int, help="Training rows, the target included.  [default: 1000; with --attack all]")
@click.option(
    "--defense",
    metavar="NAME:NUMBERS",
    help="A defence, such as prune:0.1 or local-steps:4: play the game with it as well.",
)
@click.option("--runs", type=count(1, MOST_RUNS), help="Runs (one training each) per noise level.  [default: 1000]")
@click.option(
    "--trials", type=count(1, MOST_RUNS),
    help="With --attack: models to train on each data set.  [default: 1000]",
)  # fmt: skip
@click.option(
    "--confidence", type=REAL, help="Confidence of intervals and proofs.  [default: 0.95; with --attack 0.99]"
)
@click.option(
    "--adjacency",
    type=click.Choice(["add-remove", "replace"]),
    help="What took the place of a row that is out: nothing, or another row. --scores needs it without --coins.",
)
@click.option("--coins", is_flag=True, help="A fair coin decided for each candidate (score) whether it was trained on.")
@click.option("--retrained", is_flag=True, help="Every score is from a model that was trained on its own.")
@click.option("--k", type=int, metavar="K", help="With --retrained: rows that were left out together.  [default: 1]")
@click.option(
    "--select", type=click.Choice(["simultaneous", "split"]),
    help="With --retrained: who chooses the threshold, all scores or one half.  [default: simultaneous]",
)  # fmt: skip
@click.option(
    "--family", type=click.Choice(["dp", "gdp"]),
    help="With --coins or --retrained: what is refuted, (ε, δ)-privacy or μ-GDP of Gaussian mechanisms.  [default: dp]",
)  # fmt: skip
@click.option("--members", metavar="NAME", help="Array or column of --scores: scores of members.")
@click.option("--non-members", metavar="NAME", help="Array or column of --scores: scores of non-members.")
@click.option("--values", metavar="NAME", help="Array or column of --scores: all scores, with --labels.")
@click.option("--labels", metavar="NAME", help="Array or column of --scores: 1 for members, 0 for others.")
@click.option(
    "--higher", type=click.Choice(["members", "non-members"]), help="Who scores higher (losses: non-members)."
)
@click.option("--seed", type=int, help="[default: 0]")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path),
    help="Folder for report.html and report.json.  [default: leakcore-report; none with --trace or --scores where "
    "--json PATH or --html says where]",
)  # fmt: skip
@click.option(
    "--json", "json_path", is_flag=False, flag_value="-", metavar="[PATH]",
    help="Write the report as JSON to PATH; without PATH, print it instead of tables.",
)  # fmt: skip
@click.option("--html", "html_path", type=_file, metavar="PATH", help="Write the report as one HTML page to PATH.")
@click.option(
    "--fail-above", type=REAL, metavar="ε",
    help="Exit with code 1 if the accountant's ε (add/remove) or the proved one is above this.",
)  # fmt: skip
@QUIET
def audit(config_path: Path | None, **params: Any) -> None:
    """Audit a DP-SGD run: bounds, attacks and what they prove, in one report.

    \b
    leakcore audit                                     a DP-SGD configuration, trained and attacked on real data
    leakcore audit --sampling shuffled --batches 10 --epochs 5
    leakcore audit --trace trace.npz --coins           a training run of yours that leakcore.record watched
    leakcore audit --plan --epsilon 4                  what audits of a claimed ε could prove; nothing is trained
    leakcore audit --attack clipbkd --epsilon 4        a claimed ε, against an attack on thousands of models
    leakcore audit --scores scores.npz --coins         what membership scores of another tool prove
    leakcore audit --config audit.toml                 any of them, from a file ([run], [trace], [scores]; [data],
                                                       [model], [mechanism], [claim], [audit]; and [report])

    Options go before the file's keys. Interrupted, the same command goes on where it stopped. Exit codes: 0 nothing
    contradicts the claim and --fail-above; 1 an attack proves more than is claimed, or an ε is above the limit; 2 bad
    input, a gate that a part of a run cannot decide, or no place to write; 70 an error of leakcore's own; 130
    interrupted; 141 the reader of standard output closed it (`| head`), whatever the answer: the report's files are
    written by then.
    """
    from leakcore.audit import read_config, read_settings, with_options

    options = {name: value for name, value in params.items() if value is not None and value is not False}
    if options.pop("plan", False):
        planned(options | ({} if config_path is None else {"config_path": config_path}))
        return
    where = {name: options.pop(name) for name in _OF_REPORT if name in options}
    of_file, sections = (None, {}) if config_path is None else checked(lambda: read_config(config_path))
    form = _form(of_file, options, config_path)
    keys = {name: key for name, key in {**_KEYS[form], **_OF_REPORT}.items() if name in options or name in where}
    names = _as_written(form, set(keys.values()), of_file=config_path is not None)
    typed = _by_section(form, {key: params[name] for name, key in keys.items()}, claimed=of_file is not None)
    remember_keys(sections, but=set(keys.values()))
    settings, report = checked(lambda: read_settings(form, with_options(sections, typed)), names=names)
    short = form in ("trace", "scores")
    named = report.json not in (None, "-") or report.html is not None
    folder = None if short and named and report.out is None else Path(report.out or _OUT)
    places = {
        name: Path(path) for name, path in (("json", report.json), ("html", report.html)) if path not in (None, "-")
    }
    for name, path in places.items():
        require_place(name, path)
    _require_apart(places, folder, {"config": config_path, **_read_files(form, settings, options)})
    show = bars()
    make = {"trace": _trace, "scores": _scores, "claim": _claim, "run": _run}[form]
    pieces = None if folder is None or form not in _RUNS else folder / "partial" / _RUNS[form]
    result = checked(lambda: make(settings, options, folder, show), pieces=pieces, names=names)
    _finish(result, folder, report, places, written=not short)


def _by_section(form: str, keys: dict[str, Any], *, claimed: bool) -> dict[str, dict[str, Any]]:
    """The values of options by section and key. claimed: a file says what is claimed."""
    typed: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        typed.setdefault(section, {})[name] = _plain(value)
    if form == "claim" and not claimed and "mechanism.noise_multiplier" not in keys:
        typed.setdefault("claim", {}).setdefault("epsilon", _CLAIM)
    return typed


def _plain(value: Any) -> Any:
    """Paths as text, which is what a file has."""
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def _form(of_file: str | None, options: dict[str, Any], config_path: Path | None) -> str:
    """The form that file and options ask for. Every option must belong to it."""
    asked = [(form, option) for form, option in (("trace", "trace"), ("scores", "scores"), ("claim", "attack"))
             if option in options]  # fmt: skip
    if len(asked) > 1:
        raise click.UsageError(f"give `--{asked[0][1]}` or `--{asked[1][1]}`, not both: they are different audits")
    if config_path is not None and of_file is None and not asked:
        from leakcore.audit import LACKING

        raise click.UsageError(f"`--config` {LACKING}, got {config_path}, which has only [report]")
    form = asked[0][0] if asked else of_file or "run"
    if of_file is not None and form != of_file:
        other = "of a claimed ε" if of_file == "claim" else f"[{of_file}]"
        raise click.UsageError(
            f"`--{asked[0][1]}` is not allowed with --config {config_path}, which describes another audit, {other}"
        )
    parameters = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    for name in options:
        if name not in _KEYS[form]:
            raise click.UsageError(f"`{parameters[name]}`{_WITH[form] if form in _WITH else _only_with(name)}")
    return form


def _as_written(form: str, typed: set[str], *, of_file: bool) -> dict[str, str]:
    """What the user wrote, or would write, by the library's name for the same value: an option or section.key.

    typed: the keys that options were given for. of_file: the others are, or could be, in a configuration file.
    """
    from leakcore.audit import config_schema

    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    options = {key: flags[name] for name, key in {**_KEYS[form], **_OF_REPORT}.items()}
    out = {key: option for key, option in options.items() if key in typed or not (of_file or key.startswith("report."))}
    if form == "claim":  # whose library names sections and keys itself
        return out
    names = {name: f"{form}.{name}" for name in config_schema()["properties"][form]["properties"]}
    bare = {name: out.get(key, key) for name, key in names.items()}
    if form == "run":
        bare["expected_batch_size"] = f"{bare['sample_rate']} × {bare['num_rows']}"
    return {**bare, **{name: bare[key] for name, key in _ARGUMENTS.get(form, {}).items()}, **out}


def _only_with(name: str) -> str:
    own = {"--trace": "trace", "--scores": "scores", "--attack": "claim"}
    return " is allowed only with " + " or ".join(option for option, form in own.items() if name in _KEYS[form])


def _files(form: str, settings: Any) -> tuple[str, ...]:
    """The files that the audit reads, next to its configuration."""
    return tuple(settings.files) if form in ("trace", "scores") else ()


def _read_files(form: str, settings: Any, options: dict[str, Any]) -> dict[str, str]:
    """The same by what names them."""
    named = f"--{form}" if form in options else f"[{form}] file"
    return {named if i == 1 else f"{named} ({i})": path for i, path in enumerate(_files(form, settings), 1)}


def _require_apart(places: dict[str, Path], folder: Path | None, read: dict[str, Any]) -> None:
    """A report must not replace what the audit reads, nor one of its own."""
    from leakcore._base.files.writing import is_stream

    taken = {Path(path).resolve(): name for name, path in read.items() if path is not None}
    if folder is not None:
        taken |= {(folder / f"report.{kind}").resolve(): f"report.{kind} in {folder}" for kind in ("html", "json")}
    for name, path in places.items():
        if is_stream(path):
            continue
        place = path.resolve()
        if place in taken and taken[place] != f"report.{name} in {folder}":
            raise click.UsageError(f"`--{name}` must be a file of its own, got {path}, which is also {taken[place]}")
        taken[place] = f"--{name}"


def _require_files(form: str, settings: Any, options: dict[str, Any]) -> None:
    for file in _files(form, settings):
        if not Path(file).is_file():
            asked = f"`--{form}`" if form in options else f"`{form}.file`"
            raise click.UsageError(f"{asked} must be a file that exists, got {file!r}")


def _trace(settings: Any, options: dict[str, Any], folder: Path | None, show: Any) -> audits.AuditReport:
    from leakcore import audit as audits

    _require_files("trace", settings, options)
    _require_folder(folder)
    file, *parts = settings.files
    how = {name: value for name, value in vars(settings).items() if name not in ("file", "sample_rate")}
    others = parts or settings.coins or settings.steps is not None or settings.sample_rate is not None
    if others and audits.holds_canaries(file):
        raise click.UsageError(
            f"--trace {file} holds canaries: it stands alone, without --coins, --steps and --sample-rate"
        )
    return audits.from_trace(audits.join(settings.files) if parts else file, mechanism=settings.sample_rate, **how)


def _scores(settings: Any, options: dict[str, Any], folder: Path | None, show: Any) -> audits.AuditReport:
    from leakcore import audit as audits

    _require_files("scores", settings, options)
    design = audits.Retrained(k=settings.k, seed=settings.seed, select=settings.select)
    if design != audits.Retrained() and not settings.retrained:
        name = "k" if design.k > 1 else "seed" if design.seed else "select"
        raise ValueError(
            f"`scores.{name}` must be left out without retrained = true (--retrained), got {getattr(design, name)}"
        )
    _require_folder(folder)
    names = {name: getattr(settings, name) for name in ("members", "non_members", "values", "labels", "higher")}
    scores = audits.read_scores(settings.file, **names)
    if settings.adjacency is None and not settings.coins:
        raise ValueError(f"`adjacency` must be given unless `coins` is: {HOW_TO_CHOOSE}")
    passed = ("coins", "delta", "claimed_epsilon", "adjacency", "confidence", "family")
    how = {name: getattr(settings, name) for name in passed}
    return audits.from_scores(scores, retrained=design if settings.retrained else False, **how)


def _claim(settings: Any, options: dict[str, Any], folder: Path | None, show: Any) -> audits.AuditReport:
    from leakcore import audit as audits

    return audits.claim(settings, folder=folder, progress=show)


def _run(settings: Any, options: dict[str, Any], folder: Path | None, show: Any) -> audits.AuditReport:
    from leakcore import audit as audits

    try:
        return audits.run(settings, folder=folder, progress=show)
    except FloatingPointError as error:
        advice = "take a larger --num-rows, or a smaller learning_rate in [run] of a --config file"
        raise overflowed(error, advice) from error


def _require_folder(folder: Path | None) -> None:
    from leakcore.audit import require_report_folder

    if folder is not None:
        require_report_folder(folder)


def _finish(
    result: audits.AuditReport, folder: Path | None, report: Any, own: dict[str, Path], *, written: bool
) -> NoReturn:
    """Write, print, and leave with the gate's exit code.

    own: further files of the report, by their format. written: the folder has the report, if without a limit.
    """
    import shutil

    limit = report.fail_above
    if limit is not None:
        result = checked(lambda: result.with_limit(limit))
    places: list[tuple[str, Path]] = []
    if folder is not None:
        places += [("html", folder / "report.html"), ("json", folder / "report.json")]
        if lacking := absent(*PAGE):
            places.pop(0)
            click.echo(sentence(lacking, "report.html is not written"), err=True)
    if written and limit is None:
        done, places = places, []
    else:
        done = list(places)
    places += sorted(own.items())
    checked(lambda: _write(result, places))
    width = min(110, max(72, shutil.get_terminal_size((110, 24)).columns))
    files = [path for _, path in dict.fromkeys([*done, *places])]
    finish(result, report.json == "-", lambda: result.to_text(width=width), files)
    if result.passed is None and result.gated:
        click.echo(f"GATE NOT DECIDED: {result.undecided}.", err=True)
        sys.exit(2)
    if result.passed is False:
        click.echo("GATE FAILED: " + " ".join([*result.all_contradictions, *result.exceeded]), err=True)
    sys.exit(1 if result.passed is False else 0)


def _write(result: audits.AuditReport, places: list[tuple[str, Path]]) -> None:
    for kind, path in places:
        if kind == "html":
            result.to_html(path)
        else:
            result.to_json(path, indent=2)
