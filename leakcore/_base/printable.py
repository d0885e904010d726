"""Text of strangers (names in files, values, messages of other code) made fit to be shown.

A terminal obeys control characters: they set its title, move its cursor, write to the clipboard. Bidirectional
overrides show a line in another order than its characters have. Both are spelt out as JSON spells them (`\\u001b`), so
that JSON that holds them stays JSON.
"""

from __future__ import annotations

import json
import unicodedata

_SPELT_OUT = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that are obeyed, not shown: controls, formats (bidirectional ones among them),
surrogates, separators of lines and paragraphs."""
LONGEST_NAME = 100
LONGEST_MESSAGE = 4000
"""Characters that are shown of a name and of a message; what is longer is cut."""


def printable(text: object, longest: int = LONGEST_MESSAGE) -> str:
    """The text on one line, control characters spelt out, cut to `longest` characters with a note of how many more."""
    return _spelt_out(_cut(str(text), longest), "")


def name_of(text: object) -> str:
    """`printable`, as long as a name may be."""
    return printable(text, LONGEST_NAME)


def names_of(names: object, most: int = 20) -> str:
    """Names between commas, at most `most` of them; "none" if there are none."""
    listed = [name_of(name) for name in names]  # type: ignore[attr-defined]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return (", ".join(listed[:most]) or "none") + more


def visible(text: str) -> str:
    """Lines of text with control characters spelt out; line feeds and tabs stay."""
    return _spelt_out(text, "\n\t")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest:,} more characters)"


def _spelt_out(text: str, but: str) -> str:
    if text.isprintable():
        return text
    return "".join(json.dumps(c)[1:-1] if unicodedata.category(c) in _SPELT_OUT and c not in but else c for c in text)
