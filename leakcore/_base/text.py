"""Text from elsewhere (names in files, values, other code's messages) made fit to be shown; arguments renamed.

A terminal obeys control characters: they set its title, move its cursor, write to the clipboard. Bidirectional
overrides show a line in another order than its characters have. Both are spelt out as JSON spells them (`\\u001b`), so
that JSON that holds them stays JSON.
"""

from __future__ import annotations

import contextlib
import json
import re
import reprlib
import unicodedata
from collections.abc import Iterator, Mapping

_SPELT_OUT = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that are obeyed, not shown: controls, formats (bidirectional ones among them),
surrogates, separators of lines and paragraphs."""
_ORDERS = ("::", "##[")
"""How a line begins that a build server takes for an order of the program whose output it reads."""
_LINKED = re.compile(r"\b(www\.|gh-\d)", re.IGNORECASE)
_PLAIN = re.compile(r"—|(?!\d+[.)](?!\d))[^\W_](?:[^\W_]|[ ,;%=+≥≤≈→±∞—–−…\[]|\](?![(\[:])|[.()/-](?![.()/-]))*")
"""What Markdown shows as it is: no address, mention, number of an issue, mark of a table, or markup."""
LONGEST_NAME = 100
LONGEST_MESSAGE = 4000
"""Characters that are shown of a name and of a message; what is longer is cut."""
HOW_TO_CHOOSE = "was a row left out ('add-remove'), or replaced by another one ('replace')?"
"""How an audit's adjacency is chosen."""


def printable(text: object, longest: int = LONGEST_MESSAGE) -> str:
    """The text on one line, control characters spelt out, cut to `longest` characters with a note of how many more."""
    return _spelt_out(_cut(str(text), longest), "")


def repr_of(value: object, longest: int = 60) -> str:
    """A value of a file as Python writes it, cut to so many characters; of a large one only the beginning is made."""
    short = reprlib.Repr()
    short.maxdict = short.maxlist = short.maxtuple = 8
    short.maxstring = short.maxother = short.maxlong = 2 * longest
    try:
        return printable(short.repr(value), longest)
    except ValueError:  # a whole number of more digits than Python writes
        return f"a {type(value).__name__} too long to write"


def line_of(text: object, longest: int = LONGEST_MESSAGE) -> str:
    """`printable` as a line of its own, which no build server takes for an order."""
    out = printable(text, longest)
    return f"\\{out}" if out.lstrip().startswith(_ORDERS) else out


def markdown(text: object, longest: int = LONGEST_MESSAGE, *, cell: bool = False) -> str:
    """The text inside a line of Markdown, where nothing of it is obeyed, neither as Markdown nor as HTML. Plain words
    stay as they are, all else stands in a code span. A backslash would not do: a mention or an address is recognised
    after backslashes are gone. cell: of a table, which ends at a pipe, in a code span as well."""
    line = printable(text, longest)
    if not line or (_PLAIN.fullmatch(line) and not _LINKED.search(line)):
        return line
    if cell:  # after a backslash, programs differ in what they take "\\|" for
        line = line.replace("\\|", "\\\\u007c").replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if "`" in line or not line.strip() else f"{fence}{line}{fence}"


def name_of(text: object) -> str:
    """`printable`, as long as a name may be."""
    return printable(text, LONGEST_NAME)


def names_of(names: object, most: int = 20) -> str:
    """Names between commas, at most `most` of them; "none" if there are none."""
    listed = [name_of(name) for name in names]  # type: ignore[attr-defined]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return (", ".join(listed[:most]) or "none") + more


def escape_controls(text: str) -> str:
    """Lines of text with control characters spelt out; line feeds and tabs stay."""
    return _spelt_out(text, "\n\t")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest:,} more characters)"


def _spelt_out(text: str, but: str) -> str:
    if text.isprintable():
        return text
    return "".join(json.dumps(c)[1:-1] if unicodedata.category(c) in _SPELT_OUT and c not in but else c for c in text)


def renamed(message: str, names: Mapping[str, str]) -> str:
    """The message with other names for the arguments that it names, such as `mechanism.steps` for `steps`. An argument
    stands between backticks, or before "=", "[", " ×" or ": ". What follows a full stop or a slash is another name:
    `steps` in `trace.steps` stays."""
    if not names:
        return message
    longest = sorted(map(re.escape, names), key=len, reverse=True)
    pattern = rf"(?<![\w./\[-])({'|'.join(longest)})(?=[=\[`]|: | ×)"
    return re.sub(pattern, lambda match: names[match[1]], message)


@contextlib.contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of the block name arguments by these names."""
    try:
        yield
    except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (renamed(error.args[0], names),)
        raise
