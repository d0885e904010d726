"""The examples run as a newcomer runs them, and their report says what the README shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from leakcore.cli import main
from leakcore.dpsgd import Trace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
def test_opacus_example(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    script = EXAMPLES / "opacus_digits.py"
    code = [line for line in script.read_text(encoding="utf-8").splitlines() if "leakcore" in line]
    assert sum("import leakcore" in line or "leakcore.record(" in line for line in code) == 2
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "accuracy" in ran.stdout
    assert "leakcore audit trace trace.npz --coins" in ran.stdout
    trace = Trace.load(tmp_path / "trace.npz")
    assert trace.candidates == 500
    assert 100 <= trace.steps <= 120
    out = tmp_path / "report"
    result = CliRunner().invoke(main, ["audit", "trace", str(tmp_path / "trace.npz"), "--coins", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "What is proved: ε ≥" in result.stdout
    assert (out / "report.html").stat().st_size > 10_000
    below = CliRunner().invoke(
        main, ["audit", "trace", str(tmp_path / "trace.npz"), "--epsilon", "2", "--out", str(out)]
    )
    assert below.exit_code == 1
    assert "above the claimed 2" in below.stdout.replace("\n", " ").replace("  ", " ")
