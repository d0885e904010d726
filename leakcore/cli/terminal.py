"""What reaches the terminal: text, never a command to it, even where a name holds one."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import IO, Any

from leakcore._base.text import printable, visible


@contextlib.contextmanager
def spelt_out_streams() -> Iterator[None]:
    """While it lasts, standard output and error spell control characters out; line feeds and tabs stay.

    It is done where text leaves the program: results, errors, remarks of other libraries and tracebacks all pass here.
    """
    changed = [s for s in (sys.stdout, sys.stderr) if s is not None and "write" not in getattr(s, "__dict__", {})]
    with contextlib.ExitStack() as restored:
        for stream in changed:
            with contextlib.suppress(AttributeError):  # a stream that is put in place of Python's may take no attribute
                stream.write = functools.partial(_write, stream.write)  # type: ignore[method-assign]
                restored.callback(vars(stream).pop, "write", None)
        yield


def _write(write: Any, text: str) -> int:
    write(visible(text))
    return len(text)


class Drawing:
    """A stream whose control characters are its own: a progress bar moves the cursor."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream writes it, control characters included."""
        return type(self._stream).write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def in_lines(message: str) -> str:
    """An error as it is shown: cut where it is endless, later lines indented, so that none looks like one of ours."""
    first, *rest = str(message).split("\n")
    lines = [printable(line) for line in (first, *rest[:40])]
    return "\n  ".join(line.removeprefix("  ") for line in lines)
