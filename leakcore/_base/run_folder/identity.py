"""What a run is bound to, and in what two runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from leakcore._base.installed import version_of
from leakcore._base.version import __version__


def identity(command: str, config: Any, seed: int | None, arithmetic: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is bound to: pieces of another configuration, seed, version or arithmetic would give another report.

    Args:
        command: what was asked for.
        config: everything that defines it, JSON-ready.
        seed: of its randomness.
        arithmetic: `kernels.arithmetic()`, what decides the last bits on this machine.
    """
    return {
        "command": command,
        "config": config,
        "seed": seed,
        "versions": {"leakcore": __version__, **{name: version_of(name) for name in ("numpy", "torch")}},
        "arithmetic": dict(arithmetic),
    }


def difference(there: Any, here: Any, where: str = "") -> str:
    """The first thing in which the two differ, in words; empty where they are equal."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in dict.fromkeys([*here, *there]):
            inner = f"{where}.{key}" if where else str(key)
            if text := difference(there.get(key), here.get(key), inner):
                return text
        return ""
    # JSON text, so that NaN equals NaN.
    one, two = json.dumps(there), json.dumps(here)
    return "" if one == two else f"{where or 'it'} is {one[:80]} there, {two[:80]} here"
