"""Which packages are installed, without importing them, and which extra brings those that leakcore can do without."""

from __future__ import annotations

import importlib.util

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
    """Refuse to go on without these modules, before any work.

    Raises:
        ModuleNotFoundError: names the extras that bring what is missing.
    """
    if lacking := absent(*modules):
        raise ModuleNotFoundError(sentence(lacking), name=lacking[0])
