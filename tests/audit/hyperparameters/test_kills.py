"""kill -9 at random moments: the report that is finally written is the one that an undisturbed run writes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

KILLS = 50
COMMAND = (
    "audit", "run", "--sweep", "4", "--runs", "600", "--steps", "20", "--num-rows", "200", "--quiet", "--json",
)  # fmt: skip


def _start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "leakcore.cli", *COMMAND, "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _finish(folder: Path) -> dict[str, Any]:
    process = _start(folder)
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors.decode()
    return _content(folder)


def _content(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    del report["seconds"]
    return report


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fifty_kills_lose_nothing(tmp_path: Path) -> None:
    began = time.monotonic()
    expected = _finish(tmp_path / "undisturbed")
    whole = time.monotonic() - began
    rng = random.Random(5)
    kills, finished, resumed, folder = 0, 0, 0, tmp_path / "run-0"
    while kills < KILLS:
        resumed += any((folder / "partial").rglob("game-*.json"))
        process = _start(folder)
        try:
            process.communicate(timeout=rng.uniform(0.1, 0.9) * whole)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0
        assert _content(folder) == expected
        finished += 1
        folder = tmp_path / f"run-{finished}"
    assert _finish(folder) == expected
    assert resumed > 0, "no start found a piece: nothing was resumed"
