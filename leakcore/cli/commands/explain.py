"""`leakcore explain`: a word of the glossary."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

from leakcore.cli.glossary import GlossaryEntry, entries, plain


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
