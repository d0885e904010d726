"""Arguments in an error's message, called as its reader wrote them: an option, or a key of a configuration."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping


def renamed(message: str, names: Mapping[str, str]) -> str:
    """The message with other names for the arguments that it names, such as `mechanism.steps` for `steps`.

    An argument stands between backticks, or before "=", "[", " ×" or ": ". What follows a full stop or a slash is
    another name: `steps` in `trace.steps` stays.
    """
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
