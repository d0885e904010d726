"""The picture on the architecture page is of today's imports, and every arrow of it points down."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.project.script import load

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def rooms() -> ModuleType:
    return load("docs/hooks/rooms.py")


def test_picture(rooms: ModuleType) -> None:
    """By what it shows, not by its bytes: matplotlib's versions write other ones."""
    assert rooms.shown(DOCS / "img" / "rooms.svg") == rooms.facts(), "run docs/hooks/rooms.py"


def test_arrows(rooms: ModuleType) -> None:
    pairs = set(rooms.arrows())
    heights = rooms.rows(pairs)
    assert all(heights[a] > heights[b] for a, b in pairs)
    assert heights["cli"] == max(heights.values())


def test_necessary_arrows(rooms: ModuleType) -> None:
    assert rooms.needed({("a", "b"), ("b", "c"), ("a", "c")}) == {("a", "b"), ("b", "c")}
