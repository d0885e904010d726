"""What a benchmark kept, and whether a page says just that."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any


def stored_by(bench: ModuleType) -> dict[str, Any]:
    """The kept result of a benchmark."""
    result: dict[str, Any] = json.loads(bench.KEPT.read_text(encoding="utf-8"))
    return result


def require_shown(bench: ModuleType, result: dict[str, Any], path: Path) -> None:
    """AssertionError unless the page has the benchmark's marks once each, and between them what the result says."""
    page = path.read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in bench.MARKS)
    again = f"run python -m {bench.__name__} --show JSON --page PAGE"
    assert bench.rewritten(page, result) == page, again
