"""What a run is bound to."""

from __future__ import annotations

from typing import Any

from leakcore._base import workers


def identity(command: str, config: Any, seed: int | None) -> dict[str, Any]:
    """What a run is bound to: pieces of another configuration, seed, version, source or arithmetic would give another
    report. Pieces of a folder are held to what is asked of a worker.

    Args:
        command: what was asked for.
        config: everything that defines it, JSON-ready.
        seed: of its randomness.
    """
    return {"command": command, "config": config, "seed": seed, **workers.identity()}
