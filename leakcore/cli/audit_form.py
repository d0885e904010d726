"""What the forms of an audit share: options go before the keys of a file, the audit runs, its report is written."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from leakcore._base.reading import called as config_called
from leakcore._base.version import PAGE, absent, sentence
from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import REAL, remember_keys
from leakcore.cli.options import QUIET, Option
from leakcore.cli.output import bars, finish, require_place

if TYPE_CHECKING:
    from leakcore import audit as audits
    from leakcore._base.progress import Progress

Make = Callable[[Any, str, "Path | None", "Progress | None"], "audits.AuditReport"]
"""(settings, what the user calls the file that is read, folder of the report, progress bars) to the report."""
_CLAIM = 10.0
"""What is claimed where neither file nor options say: the default of [run] epsilon."""


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of audit, on the command line.

    Attributes:
        name: its section in a configuration: "run", "claim", "trace" or "scores".
        keys: the key for which each option or argument of the command stands, by the parameter's name.
        make: runs the audit.
        file: key of the file that it reads; None if it reads none.
        subject: parameter that must be given unless a configuration describes the audit.
        arguments: keys by the library's names for them, where these differ.
        pieces: name of the folder of finished pieces; None for an audit that is over in seconds.
    """

    name: str
    keys: Mapping[str, str]
    make: Make
    file: str | None = None
    subject: str | None = None
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pieces: str | None = None

    def read_files(self, settings: Any) -> tuple[str, ...]:
        """The files that the audit reads, next to its configuration."""
        return () if self.file is None else tuple(settings.files)


@dataclasses.dataclass(frozen=True)
class Described:
    """What a configuration file says. form: name of the audit's form; None without a file, or with [report] alone."""

    path: Path | None
    form: str | None
    sections: Mapping[str, Mapping[str, Any]]


class FormCommand(click.Command):
    """A form's command, which says where an option of another form belongs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            above = None if ctx.parent is None else ctx.parent.command
            others = above.commands.items() if isinstance(above, click.Group) else ()
            takers = [name for name, other in others for p in other.params if error.option_name in p.opts]
            if not takers:
                raise
            allowed = " or ".join(f"`leakcore audit {name}`" for name in takers)
            raise click.UsageError(f"`{error.option_name}` is allowed only with {allowed}", ctx) from None


def keys_of(section: str, names: str) -> dict[str, str]:
    """Keys by option, where option and key have one name."""
    return {name: f"{section}.{name}" for name in names.split()}


def read_description(path: Path | None) -> Described:
    """The configuration file, its sections checked and its keys not yet."""
    from leakcore.audit import read_config

    return Described(None, None, {}) if path is None else Described(path, *checked(lambda: read_config(path)))


def typed_options(params: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the user typed."""
    return {name: value for name, value in params.items() if value is not None and value is not False}


def run_form(form: Form, params: Mapping[str, Any]) -> NoReturn:
    """The whole of a subcommand: it takes a file that describes its own form, or none."""
    options = typed_options(params)
    file = read_description(options.pop("config_path", None))
    if file.form not in (None, form.name):
        raise click.UsageError(
            f"`--config` must describe an audit that `{click.get_current_context().command_path}` runs, got {file.path}"
            f": run `leakcore audit {file.form} --config {file.path}`"
        )
    if form.subject is not None and form.subject not in options and file.form is None:
        raise click.UsageError(f"{_typed_names()[form.subject]} must be given, or a --config that describes the audit")
    perform(form, options, file)


def perform(form: Form, options: Mapping[str, Any], file: Described) -> NoReturn:
    """Options before keys, then the audit, then its report; leaves with the gate's exit code."""
    keys = {name: key for name, key in {**form.keys, **REPORT_KEYS}.items() if name in options}
    try:
        _perform(form, options, file, keys)
    except click.ClickException as error:
        if file.path is not None and _names_a_key(error.message, but=set(keys.values())):
            vars(error)["message"] = f"{config_called(file.path)}: {error.message}"
        raise


def _names_a_key(message: str, *, but: set[str]) -> bool:
    """Whether a message names a key of a configuration, other than the keys `but`, for which options were typed."""
    from leakcore.audit import config_schema

    sections = config_schema()["properties"].items()
    keys = (f"{section}.{key}" for section, schema in sections for key in schema["properties"])
    return any(re.search(rf"(?<![\w./-]){re.escape(key)}(?![\w/-]|\.\w)", message) for key in keys if key not in but)


def _perform(form: Form, options: Mapping[str, Any], file: Described, keys: Mapping[str, str]) -> NoReturn:
    from leakcore.audit import read_settings, with_options

    names = _as_written(form, set(keys.values()), of_file=file.path is not None)
    typed = _by_section(form, {key: options[name] for name, key in keys.items()}, claimed=file.form is not None)
    remember_keys(file.sections, but=set(keys.values()))
    settings, report = checked(lambda: read_settings(form.name, with_options(file.sections, typed)), names=names)
    folder, places = places_of(report, names, optional=form.pieces is None)
    read = {} if form.file is None else _by_name(form.read_files(settings), names.get(form.file, f"[{form.name}] file"))
    require_distinct(places, folder, {"config": file.path, **read}, names)
    show = bars()
    pieces = None if folder is None or form.pieces is None else folder / "partial" / form.pieces
    called = "" if form.file is None else names.get(form.file, form.file)
    result = checked(lambda: form.make(settings, called, folder, show), pieces=pieces, names=names)
    exit_with(result, folder, report, places, written=form.pieces is not None)


def require_files(files: tuple[str, ...], called: str) -> None:
    """Fail before any other work. called: what the user calls the file."""
    for file in files:
        if not Path(file).is_file():
            raise click.UsageError(f"`{called}` must be a file that exists, got {file!r}")


def require_folder(folder: Path | None) -> None:
    """Fail before the work if the report cannot be written."""
    from leakcore.audit import require_report_folder

    if folder is not None:
        require_report_folder(folder)


def _by_name(files: tuple[str, ...], called: str) -> dict[str, str]:
    return {called if i == 1 else f"{called} ({i})": path for i, path in enumerate(files, 1)}


def _by_section(form: Form, keys: dict[str, Any], *, claimed: bool) -> dict[str, dict[str, Any]]:
    """The values of options by section and key. claimed: a file says what is claimed."""
    typed: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        typed.setdefault(section, {})[name] = _plain(value)
    if form.name == "claim" and not claimed and "mechanism.noise_multiplier" not in keys:
        typed.setdefault("claim", {}).setdefault("epsilon", _CLAIM)
    return typed


def _plain(value: Any) -> Any:
    """Paths as text, which is what a file has; one path of several as such."""
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def _as_written(form: Form, typed: set[str], *, of_file: bool) -> dict[str, str]:
    """What the user wrote, or would write, by the library's name for the same value: an option or section.key.

    typed: keys for which options were typed. of_file: whether a configuration file has the other keys or could have
    them.
    """
    from leakcore.audit import config_schema

    flags = _typed_names()
    options = {key: flags[name] for name, key in {**form.keys, **REPORT_KEYS}.items()}
    out = {key: option for key, option in options.items() if key in typed or not (of_file or key.startswith("report."))}
    folder = {"folder": out.get("report.out", "report.out" if of_file else "--out")}
    if form.name == "claim":  # whose library names sections and keys itself
        return {**folder, **out}
    names = {name: f"{form.name}.{name}" for name in config_schema()["properties"][form.name]["properties"]}
    bare = {name: out.get(key, key) for name, key in names.items()}
    if form.name == "run":
        bare["expected_batch_size"] = f"{bare['sample_rate']} × {bare['num_rows']}"
    return {**folder, **bare, **{name: bare[key] for name, key in form.arguments.items()}, **out}


def _typed_names() -> dict[str, str]:
    """Options and arguments of the command as a user types them, by their parameter's name."""
    parameters = click.get_current_context().command.params
    return {str(p.name): p.opts[0] if isinstance(p, click.Option) else str(p.metavar).strip("[].") for p in parameters}


FILE = click.Path(dir_okay=False, path_type=Path)
ADJACENCIES = click.Choice(["add-remove", "replace"])
DELTA: Option = click.option("--delta", type=REAL, metavar="δ", help="δ of every ε.  [default: 1e-5]")
SEED: Option = click.option("--seed", type=int, metavar="N", help="[default: 0]")


def confidence(default: str, text: str = "Confidence of every interval and proof.") -> Option:
    """--confidence; `default` is the form's."""
    return click.option("--confidence", type=REAL, metavar="P", help=f"{text}  [default: {default}]")


def claimed(gate: str) -> Option:
    """--epsilon, a claim about what a file holds; `gate` says when it fails."""
    return click.option("--epsilon", type=REAL, metavar="ε", help=f"Claim. {gate}  [default: none]")


def about_the_report(*, folder: str, fail_above: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--config, and the options that end every form of audit: where its report goes, and what fails it."""
    options = (
        click.option("--config", "config_path", type=FILE, help="TOML file for the audit; options replace its keys."),
        click.option("--fail-above", type=REAL, metavar="ε", help=f"Exit with code 1 if {fail_above} is above this."),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            help=f"Folder for report.html and report.json.  [default: leakcore-report{folder}]",
        ),
        click.option(
            "--json",
            "json_path",
            is_flag=False,
            flag_value="-",
            metavar="[PATH]",
            help="Write the report as JSON to PATH; without PATH, print it instead of tables.",
        ),
        click.option(
            "--html", "html_path", type=FILE, metavar="PATH", help="Write the report as one HTML page to PATH."
        ),
        QUIET,
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


PIECES = "; an interrupted audit goes on there"
NONE_IF_NAMED = "; none where --json PATH or --html says where"


REPORT_KEYS = {
    "out": "report.out",
    "json_path": "report.json",
    "html_path": "report.html",
    "fail_above": "report.fail_above",
}
"""Options of the report, and the keys for which they stand."""
_OUT = Path("leakcore-report")


def places_of(report: Any, names: Mapping[str, str], *, optional: bool) -> tuple[Path | None, dict[str, Path]]:
    """(folder, further files by format) of the report, all of which can be written. names: options by the keys for
    which they were typed. optional: whether there is no folder where --json PATH or --html says where the report
    goes."""
    named = report.json not in (None, "-") or report.html is not None
    folder = None if optional and named and report.out is None else Path(report.out or _OUT)
    places = {
        name: Path(path) for name, path in (("json", report.json), ("html", report.html)) if path not in (None, "-")
    }
    for name, path in places.items():
        require_place(names.get(f"report.{name}", f"report.{name}"), path)
    return folder, places


def require_distinct(
    places: Mapping[str, Path], folder: Path | None, read: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """UsageError where a file of the report would replace what the audit reads, or another file of the report."""
    from leakcore._base.writing import is_stream

    taken = {os.path.realpath(path): name for name, path in read.items() if path is not None}
    if folder is not None:
        taken |= {
            os.path.realpath(folder / f"report.{kind}"): f"report.{kind} in {folder}" for kind in ("html", "json")
        }
    for name, path in places.items():
        called = names.get(f"report.{name}", f"report.{name}")
        if is_stream(path):
            continue
        place = os.path.realpath(path)
        if place in taken and taken[place] != f"report.{name} in {folder}":
            raise click.UsageError(f"`{called}` must be a file of its own, got {path}, which is also {taken[place]}")
        taken[place] = called


def exit_with(
    result: audits.AuditReport, folder: Path | None, report: Any, own: Mapping[str, Path], *, written: bool
) -> NoReturn:
    """Write the report into the folder and the `own` files by their format, print it, and leave with the gate's exit
    code. written: whether the audit itself wrote the report into the folder, without a limit."""
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
    checked(lambda: _write(result, places, folder))
    files = [path for _, path in dict.fromkeys([*done, *places])]
    finish(result, report.json == "-", lambda: result.to_text(width=width()), files)
    if result.passed is None and result.gated:
        click.echo(f"GATE NOT DECIDED: {result.undecided}.", err=True)
        sys.exit(2)
    if result.passed is False:
        click.echo("GATE FAILED: " + " ".join([*result.all_contradictions, *result.exceeded]), err=True)
    sys.exit(1 if result.passed is False else 0)


def width() -> int:
    """Columns of a report in this terminal."""
    return min(110, max(72, shutil.get_terminal_size((110, 24)).columns))


def _write(result: audits.AuditReport, places: list[tuple[str, Path]], folder: Path | None) -> None:
    from leakcore._base.writing import place_in

    for kind, named in sorted(places, key=lambda place: place[0] != "json"):  # the larger page may not find room
        path = named if folder is None or named.parent != folder else place_in(folder, named.name)
        if kind == "html":
            result.to_html(path)
        else:
            result.to_json(path, indent=2)
