"""Whichever allocation of the native core fails, the call is a MemoryError and the next one is right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tolerances import HANG

HERE = Path(__file__).resolve().parent


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
def test_failing_allocations(tmp_path: Path) -> None:
    """As SQLite tests itself: the first allocation fails, then the second, … until the call succeeds; and once more
    with all that follow failing too. Nothing is lost, nothing crashes, and the call after it gives the same bits."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path / "failing_new.so"
    subprocess.run(
        [*compiler.split(), "-std=c++17", "-O1", "-shared", "-fPIC", str(HERE / "failing_new.cpp"), "-o", str(library)],
        check=True, timeout=HANG,
    )  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.build.out_of_memory"], cwd=HERE.parents[2], text=True, capture_output=True,
        timeout=HANG, env={**os.environ, "LD_PRELOAD": str(library)}, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rows) == 16 * 4
    lost = [row for row in rows if row[4] > 0]
    assert not lost, f"blocks that no call gives back: {lost}"
    assert sum(row[3] for row in rows) > 100, "too few failures were met for this to be a test"
