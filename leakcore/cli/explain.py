"""`leakcore explain`, `schema` and `completion`: the glossary, what a file may hold, what a shell completes."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

from leakcore.cli.output import as_json_text

_SECTION = re.compile(r"^## (.+)$")
_WORD = re.compile(r"^\*\*(.+)\*\*$")
_NAME = re.compile(r"`(?:\[\w+\] )?(?:--)?([^`]+)`")


class GlossaryEntry(NamedTuple):
    """One word: its section, what it means, and the names that it has where it is typed (empty where it is not)."""

    section: str
    word: str
    meaning: str
    names: str

    @property
    def spellings(self) -> set[str]:
        """What a person may type for the word: itself, and each of its names."""
        typed = {name.rpartition(".")[2] for name in _NAME.findall(self.names)}
        return {plain(spelling) for spelling in (self.word, *typed)}


def plain(word: str) -> str:
    """The word without case; hyphens and underscores are spaces."""
    return " ".join(word.strip().lower().lstrip("-").replace("-", " ").replace("_", " ").split())


def entries() -> list[GlossaryEntry]:
    """Every entry, in the page's order."""
    text = resources.files("leakcore.cli").joinpath("glossary.md").read_text(encoding="utf-8")
    out: list[GlossaryEntry] = []
    section = word = ""
    lines: list[str] = []
    for line in [*text.splitlines(), "## end"]:
        if line.startswith(": "):
            lines.append(line[2:])
            continue
        if word and lines:
            out.append(GlossaryEntry(section, word, lines[0], " ".join(lines[1:])))
            word, lines = "", []
        if heading := _SECTION.match(line):
            section = heading[1]
        elif bold := _WORD.match(line):
            word = bold[1]
    return out


def _completed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(e.word) for e in entries() if plain(e.word).startswith(plain(incomplete))]


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...", shell_complete=_completed)
def explain(words: tuple[str, ...]) -> None:
    """Say what a word means and how it is spelled; without a word, list them all.

    \b
    leakcore explain ε
    leakcore explain noise-multiplier
    """
    if not words:
        click.echo("\n".join(_list()))
        return
    asked = plain(" ".join(words))
    known = {spelling: entry for entry in reversed(entries()) for spelling in entry.spellings}
    known |= {plain(entry.word): entry for entry in entries()}
    if asked not in known:
        near = difflib.get_close_matches(asked, known, n=1, cutoff=0.6)
        hint = f" (did you mean {known[near[0]].word}?)" if near else ""
        raise click.UsageError(f"{' '.join(words)}: not in the glossary; `leakcore explain` lists its words{hint}")
    click.echo("\n".join(_lines(known[asked])))


def _list() -> Iterator[str]:
    for number, (section, group) in enumerate(itertools.groupby(entries(), key=lambda entry: entry.section)):
        yield f"{'' if number == 0 else chr(10)}{section}"
        yield f"  {', '.join(entry.word for entry in group)}"


def _lines(entry: GlossaryEntry) -> Iterator[str]:
    yield f"{entry.word}  ({entry.section})"
    yield entry.meaning
    if entry.names:
        yield entry.names.replace("`", "")


@click.command()
@click.argument("what", type=click.Choice(["config", "report"]))
def schema(what: str) -> None:
    """Print the JSON Schema of an audit's configuration, or of report.json.

    Editors complete and check a TOML file by the first; programs check what they read by the second.

    \b
    leakcore schema config > leakcore.schema.json
    then, in the first line of audit.toml (Taplo, Even Better TOML):  #:schema ./leakcore.schema.json
    leakcore schema report > report.schema.json
    then, with any validator of draft 2020-12:  check-jsonschema --schemafile report.schema.json report.json
    """
    from leakcore import audit

    click.echo(as_json_text(audit.config_schema() if what == "config" else audit.report_schema()))


SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes leakcore's commands and options in SHELL.

    \b
    bash:  leakcore completion bash > ~/.local/share/bash-completion/completions/leakcore
    zsh:   leakcore completion zsh > ~/.zfunc/_leakcore      (a folder of $fpath)
    fish:  leakcore completion fish > ~/.config/fish/completions/leakcore.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has these three"
    script = kind(context.find_root().command, {}, "leakcore", "_LEAKCORE_COMPLETE")
    click.echo(script.source_template % script.source_vars())
