"""What a run is bound to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakcore._base.workers import versions


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
        "versions": versions(),
        "arithmetic": dict(arithmetic),
    }
