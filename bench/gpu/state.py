"""What a stage has done so far, so that a call that is stopped goes on where it was: one JSON file per state of the
sources and card, and a clock that says when to stop.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("setup.py", "csrc", "leakcore", "bench/gpu", "bench/cases", "tests/kernels", "tests/conformance")


def digest(card: str) -> str:
    """Of the sources that a stage's result depends on, and the card."""
    out = hashlib.sha256(card.encode())
    for top in SOURCES:
        path = ROOT / top
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.is_file() and file.suffix not in (".so", ".pyc"):
                out.update(f"\0{file.relative_to(ROOT).as_posix()}\0".encode())
                out.update(file.read_bytes())
    return out.hexdigest()[:16]


class Done:
    """The finished pieces of a stage, by name."""

    def __init__(self, folder: Path, stage: str, key: str) -> None:
        self.path = folder / f"{stage}-{key}.json"
        self.pieces: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def keep(self, piece: str, result: Any) -> None:
        """Written before the next piece begins, and whole or not at all."""
        self.pieces[piece] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(self.pieces, indent=1, ensure_ascii=False) + "\n")
        fresh.replace(self.path)


@dataclasses.dataclass
class Clock:
    """How many seconds this call may still take, and how many pieces."""

    budget: float
    most: int | None = None
    start: float = dataclasses.field(default_factory=time.monotonic)
    pieces: int = 0

    @property
    def left(self) -> float:
        return self.budget - (time.monotonic() - self.start)

    def over(self, least: float) -> bool:
        """Whether no further piece may begin. The first one always may: a call does something."""
        return self.pieces > 0 and (self.left < least or self.pieces == self.most)
