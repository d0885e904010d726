"""A worker must be the same leakcore as the process that sends it work: no result depends on who computes it."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from leakcore._base.installed import version_of
from leakcore._base.version import __version__

T = TypeVar("T")

_parts: dict[str, Callable[[], Any]] = {}
"""What other packages add to the identity; `leakcore/__init__.py` adds the arithmetic of the kernels."""


def identify_by(name: str, part: Callable[[], Any]) -> None:
    """Make `part()` a part of every identity under this name; it is called at the first use."""
    _parts[name] = part


def versions() -> dict[str, str | None]:
    """The version of leakcore and of the libraries that compute for it."""
    return {"leakcore": __version__, **{name: version_of(name) for name in ("numpy", "torch")}}


@functools.cache
def identity() -> dict[str, Any]:
    """What decides the bits of a result in this process: versions, a digest of leakcore's source, and arithmetic."""
    return {"versions": versions(), "source": _source(), **{name: part() for name, part in _parts.items()}}


class Task(Generic[T]):
    """A job for a worker, and the identity of the process that sends it.

    Raises:
        RuntimeError: when it is called where the identity differs; names the machine, what differs, and both values.
    """

    def __init__(self, job: Callable[[], T]) -> None:
        self._job, self._identity = job, identity()

    def __call__(self) -> T:
        # A fork is asked, too: it may have chosen its instruction tier by a variable that was set there.
        if identity() is not self._identity and (text := difference(identity(), self._identity)):
            import socket

            raise RuntimeError(
                f"the worker on {socket.gethostname()} (process {os.getpid()}) is another leakcore: {text}. Its "
                "results could differ from the results of this process. Install the same versions on every machine, "
                "and set LEAKCORE_ISA and the variables of the libraries to the same values"
            )
        return self._job()


def difference(there: Any, here: Any, where: str = "") -> str:
    """The first thing in which two identities differ, in words; empty where they are equal."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in dict.fromkeys([*here, *there]):
            inner = f"{where}.{key}" if where else str(key)
            if text := difference(there.get(key), here.get(key), inner):
                return text
        return ""
    # JSON text, so that NaN equals NaN.
    one, two = json.dumps(there), json.dumps(here)
    return "" if one == two else f"{where or 'it'} is {one[:80]} there, {two[:80]} here"


def _source() -> str:
    """A digest of the package's Python files, so that two states of one version are told apart."""
    import hashlib

    package = Path(__file__).resolve().parents[1]
    whole = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        whole.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return whole.hexdigest()
