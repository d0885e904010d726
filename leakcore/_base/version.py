"""leakcore's version, the libraries it finds, the extras that bring others, and what decides the bits of a result."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

__version__ = "0.1.0"

EXTRAS = {
    "torch": "torch",
    "sklearn": "torch",
    "opacus": "opacus",
    "matplotlib": "report",
    "jinja2": "report",
    "dp_accounting": "accounting",
    "distributed": "dask",
    "pandas": "pandas",
    "jax": "jax",
}
"""The extra by the module that is imported."""
_NAMES = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting"}
PAGE = ("jinja2", "matplotlib")
"""What report.html is made with."""


def version_of(name: str) -> str | None:
    """The version of a distribution, by its name on the package index; None if it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def absent(*modules: str) -> tuple[str, ...]:
    """Those of these modules that are not installed."""
    return tuple(module for module in modules if importlib.util.find_spec(module) is None)


def sentence(modules: tuple[str, ...], what: str = "") -> str:
    """What is missing and how to install it; what: the function or command that needs it."""
    names = ", ".join(_NAMES.get(module, module) for module in modules)
    extras = ",".join(dict.fromkeys(EXTRAS[module] for module in modules))
    verb = "is" if len(modules) == 1 else "are"
    return f"{what}{': ' if what else ''}{names} {verb} not installed: {install(extras)}"


def install(extras: str) -> str:
    """The command that brings these extras."""
    return f"pip install 'leakcore[{extras}]'"


def missing(error: ModuleNotFoundError, what: str = "") -> ModuleNotFoundError | None:
    """The same error with the extra that brings the module; None if it says that already, or no extra brings it."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS or "leakcore[" in str(error):
        return None
    return ModuleNotFoundError(sentence((module,), what), name=module)


def need(*modules: str) -> None:
    """Refuse to go on without these modules, before any work: ModuleNotFoundError names the extras that bring them."""
    if lacking := absent(*modules):
        raise ModuleNotFoundError(sentence(lacking), name=lacking[0])


_parts: dict[str, Callable[[], Any]] = {}
"""What other packages add to the identity; `leakcore/__init__.py` adds the arithmetic of the kernels."""


def identify_by(name: str, part: Callable[[], Any]) -> None:
    """Make `part()` a part of every identity under this name; it is called at the first use."""
    _parts[name] = part


def versions() -> dict[str, str | None]:
    """The version of leakcore and of the libraries that compute for it."""
    return {"leakcore": __version__, **{name: version_of(name) for name in ("numpy", "torch")}}


def process_identity() -> dict[str, Any]:
    """What decides the bits of a result in this process: versions, a digest of leakcore's source, and arithmetic. A
    copy of the caller's own."""
    import json

    out: dict[str, Any] = json.loads(identity_text())
    return out


@functools.cache
def identity_text() -> str:
    """As JSON. It is the same for the life of the process."""
    import json

    parts = {"versions": versions(), "source": _source(), **{name: part() for name, part in _parts.items()}}
    return json.dumps(parts)


def difference(there: Any, here: Any, where: str = "") -> str:
    """The first thing in which two identities differ, in words; empty where they are equal."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in dict.fromkeys([*here, *there]):
            inner = f"{where}.{key}" if where else str(key)
            if text := difference(there.get(key), here.get(key), inner):
                return text
        return ""
    import json

    # JSON text, so that NaN equals NaN.
    one, two = json.dumps(there), json.dumps(here)
    return "" if one == two else f"{where or 'it'} is {one[:80]} there, {two[:80]} here"


def _source() -> str:
    """A digest of the package's Python files, so that two states of one version are told apart."""
    import hashlib
    from pathlib import Path

    package = Path(__file__).resolve().parents[1]
    whole = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        whole.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return whole.hexdigest()
