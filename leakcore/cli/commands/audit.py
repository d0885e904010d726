"""`leakcore audit`: four forms of audit, one config file, one report."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from leakcore._base.adjacency import HOW_TO_CHOOSE
from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import MOST_RUNS, MOST_STEPS, REAL, count, overflowed
from leakcore.cli.options import QUIET
from leakcore.cli.output import finish, require_place
from leakcore.cli.progress import bars

if TYPE_CHECKING:
    from leakcore import audit as audits

_OUT = Path("leakcore-report")
_OF_REPORT = {"out": "out", "json_path": "json", "html_path": "html", "fail_above": "fail_above"}
_KEYS = {
    "trace": {
        "trace": "file", "epsilon": "claimed_epsilon", "delta": "delta", "sample_rate": "sample_rate", "steps": "steps",
        "num_candidates": "num_candidates", "coins": "coins", "confidence": "confidence",
    },
    "scores": {
        "scores": "file", "members": "members", "non_members": "non_members", "values": "values", "labels": "labels",
        "higher": "higher", "coins": "coins", "retrained": "retrained", "k": "k", "epsilon": "claimed_epsilon",
        "delta": "delta", "adjacency": "adjacency", "confidence": "confidence", "seed": "seed",
    },
}  # fmt: skip
"""Options that stand for keys of the section of the same name."""
_CLAIM_KEYS = {
    "epsilon": ("claim", "epsilon"),
    "delta": ("claim", "delta"),
    "noise_multiplier": ("mechanism", "noise_multiplier"),
    "steps": ("mechanism", "steps"),
    "sample_rate": ("mechanism", "sample_rate"),
    "max_grad_norm": ("mechanism", "max_grad_norm"),
    "num_rows": ("data", "num_rows"),
    "trials": ("audit", "trials"),
    "confidence": ("audit", "confidence"),
    "adjacency": ("audit", "adjacency"),
    "seed": ("audit", "seed"),
    "attack": ("audit", "attack"),
}
_NOT_OF_A_RUN = {"trace", "scores", "attack", "trials", "coins", "retrained", "k", "adjacency", "members",
                 "non_members", "values", "labels", "higher"}  # fmt: skip
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
    """One file as such, parts of a run as a list; None where the option is not given."""
    return value[0] if len(value) == 1 else list(value) or None


_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--config", "config_path", type=_file, help="TOML file that describes the audit; options take precedence."
)
@click.option(
    "--trace",
    type=_file,
    metavar="FILE",
    multiple=True,
    callback=_parts,
    help="Report on your own training run: the file of leakcore.record, or its parts in order, one option each.",
)
@click.option("--scores", type=_file, metavar="FILE", help="Report on membership scores of another tool, npz or csv.")
@click.option(
    "--attack", type=click.Choice(["clipbkd", "backdoor", "membership", "zero-input", "one-run"]),
    help="Try to disprove a claimed ε by this attack, on thousands of trained models (one-run: on one).",
)  # fmt: skip
@click.option("--epsilon", type=REAL, help="Claimed ε (add/remove adjacency).  [default: 10; a file has its own]")
@click.option("--noise-multiplier", type=REAL, help="Noise multiplier σ, instead of computing it from --epsilon.")
@click.option("--sweep", callback=_levels, help="Further ε to audit as well, '' for none.  [default: 1,4,10,40]")
@click.option("--delta", type=REAL, help="[default: 1e-5]")
@click.option(
    "--steps",
    type=count(1, MOST_STEPS),
    help="Steps. With --trace: steps of the whole run, if the file does not say.  [default: 100; with --attack 24]",
)
@click.option("--sample-rate", type=REAL, help="Poisson rate q. With --trace: if the file does not say.  [default: 1]")
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
    "--trials",
    type=count(1, MOST_RUNS),
    help="Trials of --attack that are counted; as many others choose its threshold.  [default: 500]",
)
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
    leakcore audit --trace trace.npz --coins           a training run of yours that leakcore.record watched
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
    from leakcore.audit import read_config, read_report

    options = {name: value for name, value in params.items() if value is not None and value is not False}
    where = {key: options.pop(name) for name, key in _OF_REPORT.items() if name in options}
    form, sections = (None, {}) if config_path is None else checked(lambda: read_config(config_path))
    report = {**checked(lambda: read_report(sections.get("report", {}))), **where}
    form = _form(form, options, config_path)
    short = form in ("trace", "scores")
    named = report["json"] not in (None, "-") or report["html"] is not None
    folder = None if short and named and report["out"] is None else Path(report["out"] or _OUT)
    places = {name: Path(report[name]) for name in ("json", "html") if report[name] not in (None, "-")}
    for name, path in places.items():
        require_place(name, path)
    _require_apart(places, folder, {"config": config_path, **_read_files(sections, options)})
    limit = report["fail_above"]
    if limit is not None:
        checked(lambda: _require_limit(limit))
    show = bars()
    make = {"trace": _trace, "scores": _scores, "claim": _claim, "run": _run}[form]
    pieces = None if folder is None or form not in _RUNS else folder / "partial" / _RUNS[form]
    result = checked(lambda: make(sections, options, folder, show), pieces=pieces, names=_as_options(form, options))
    _finish(result, folder, report, written=not short)


def _form(of_file: str | None, options: dict[str, Any], config_path: Path | None) -> str:
    """The form that file and options ask for. Every option must belong to it."""
    asked = [(form, option) for form, option in (("trace", "trace"), ("scores", "scores"), ("claim", "attack"))
             if option in options]  # fmt: skip
    if len(asked) > 1:
        raise click.UsageError(f"give `--{asked[0][1]}` or `--{asked[1][1]}`, not both: they are different audits")
    if config_path is not None and of_file is None and not asked:
        from leakcore.audit import LACKING

        raise click.UsageError(f"`--config` {config_path} {LACKING}")
    form = asked[0][0] if asked else of_file or "run"
    if of_file is not None and form != of_file:
        other = "of a claimed ε" if of_file == "claim" else f"[{of_file}]"
        raise click.UsageError(
            f"`--{asked[0][1]}` is not allowed with --config {config_path}, which describes another audit, {other}"
        )
    parameters = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    for name in options:
        known = (
            name not in _NOT_OF_A_RUN if form == "run" else name in (_CLAIM_KEYS if form == "claim" else _KEYS[form])
        )
        if not known:
            raise click.UsageError(f"`{parameters[name]}`{_WITH[form] if form in _WITH else _only_with(name)}")
    return form


def _as_options(form: str, options: dict[str, Any]) -> dict[str, str]:
    """The options on the command line, by the library's name for the same value."""
    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    if form == "claim":
        return {".".join(_CLAIM_KEYS[name]): flags[name] for name in options}
    keys = {_KEYS[form][name]: flags[name] for name in options} if form in _KEYS else {}
    return {**keys, **{f"{form}.{key}": option for key, option in keys.items()}}


def _only_with(name: str) -> str:
    own: dict[str, Collection[str]] = {"--trace": _KEYS["trace"], "--scores": _KEYS["scores"], "--attack": _CLAIM_KEYS}
    return " is allowed only with " + " or ".join(option for option, keys in own.items() if name in keys)


def _read_files(sections: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The files that the audit reads, by what names them."""
    named = {f"[{form}] file": sections.get(form, {}).get("file") for form in ("trace", "scores")}
    files = {**named, **{f"--{option}": options.get(option) for option in ("trace", "scores")}}
    parts = {name: file if isinstance(file, list) else [file] for name, file in files.items()}
    return {
        name if i == 1 else f"{name} ({i})": path for name, paths in parts.items() for i, path in enumerate(paths, 1)
    }


def _require_apart(places: dict[str, Path], folder: Path | None, read: dict[str, Any]) -> None:
    """A report must not replace what the audit reads, nor one of its own."""
    from leakcore._base.files.writing import is_stream

    # What is not a path is refused later, where it is read.
    paths = {name: path for name, path in read.items() if isinstance(path, str | Path) and "\0" not in str(path)}
    taken = {Path(path).resolve(): name for name, path in paths.items()}
    if folder is not None:
        taken |= {(folder / f"report.{kind}").resolve(): f"report.{kind} in {folder}" for kind in ("html", "json")}
    for name, path in places.items():
        if is_stream(path):
            continue
        place = path.resolve()
        if place in taken and taken[place] != f"report.{name} in {folder}":
            raise click.UsageError(f"`--{name}` must be a file of its own, got {path}, which is also {taken[place]}")
        taken[place] = f"--{name}"


def _require_limit(limit: Any) -> None:
    from leakcore._base import validate as check

    check.non_negative(**{"--fail-above": limit})


def _section(form: str, sections: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """[trace] or [scores], checked, with options before the file's keys."""
    from leakcore.audit import read_form

    keys = read_form(form, {**sections.get(form, {}), **{_KEYS[form][name]: value for name, value in options.items()}})
    for file in keys["file"] if isinstance(keys["file"], tuple) else (keys["file"],):
        if not Path(file).is_file():
            asked = f"`--{form}`" if options.get(form) is not None else f"`{form}.file`"
            raise click.UsageError(f"{asked} must be a file that exists, got {file!r}")
    return keys


def _trace(sections: Any, options: dict[str, Any], folder: Path | None, show: Any) -> audits.AuditReport:
    from leakcore import audit as audits

    keys = _section("trace", sections, options)
    _require_folder(folder)
    file = keys.pop("file")
    return audits.from_trace(audits.join(file) if isinstance(file, tuple) else file, **keys)


def _scores(sections: Any, options: dict[str, Any], folder: Path | None, show: Any) -> audits.AuditReport:
    from leakcore import audit as audits

    keys = _section("scores", sections, options)
    names = {name: keys.pop(name) for name in ("members", "non_members", "values", "labels", "higher")}
    design = audits.Retrained(k=keys.pop("k"), seed=keys.pop("seed"))
    retrained = keys.pop("retrained")
    if design != audits.Retrained() and not retrained:
        name = "k" if design.k > 1 else "seed"
        raise ValueError(f"`scores.{name}={getattr(design, name)}` is allowed only with retrained = true (--retrained)")
    _require_folder(folder)
    scores = audits.read_scores(keys.pop("file"), **names)
    if keys["adjacency"] is None and not keys["coins"]:
        raise click.UsageError(f"--adjacency must be given with --scores, unless --coins is: {HOW_TO_CHOOSE}")
    return audits.from_scores(scores, retrained=design if retrained else False, **keys)


def _claim(sections: Any, options: dict[str, Any], folder: Path | None, show: Any) -> audits.AuditReport:
    from leakcore import audit as audits

    merged = {name: dict(keys) for name, keys in sections.items() if name != "report"}
    for name, value in options.items():
        section, key = _CLAIM_KEYS[name]
        merged.setdefault(section, {})[key] = value
    if not sections and "noise_multiplier" not in options:
        merged.setdefault("claim", {}).setdefault("epsilon", _CLAIM)
    return audits.claim(audits.ClaimConfig.from_dict(merged), folder=folder, progress=show)


def _run(sections: Any, options: dict[str, Any], folder: Path | None, show: Any) -> audits.AuditReport:
    from leakcore import audit as audits
    from leakcore.audit import run_config

    try:
        return audits.run(run_config(sections.get("run", {}), options), folder=folder, progress=show)
    except FloatingPointError as error:
        advice = "take a larger --num-rows, or a smaller learning_rate in [run] of a --config file"
        raise overflowed(error, advice) from error


def _require_folder(folder: Path | None) -> None:
    from leakcore.audit import require_report_folder

    if folder is not None:
        require_report_folder(folder)


def _finish(result: audits.AuditReport, folder: Path | None, report: dict[str, Any], *, written: bool) -> NoReturn:
    """Write, print, and leave with the gate's exit code. written: the folder has the report, if without a limit."""
    import shutil

    limit = report["fail_above"]
    if limit is not None:
        result = checked(lambda: result.with_limit(limit))
    places: list[tuple[str, Path]] = []
    if folder is not None:
        places += [("html", folder / "report.html"), ("json", folder / "report.json")]
    if written and limit is None:
        done, places = places, []
    else:
        done = list(places)
    places += [(kind, Path(report[kind])) for kind in ("html", "json") if report[kind] not in (None, "-")]
    checked(lambda: _write(result, places))
    width = min(110, max(72, shutil.get_terminal_size((110, 24)).columns))
    files = [path for _, path in dict.fromkeys([*done, *places])]
    finish(result, report["json"] == "-", lambda: result.to_text(width=width), files)
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
