"""Which version of a package is installed, without importing it."""

from __future__ import annotations

import importlib.metadata


def version_of(name: str) -> str | None:
    """The version of a distribution, by its name on the package index; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
