"""Exit codes that are no answer: a reader that went away, no place to write, Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from leakcore import attacks
from leakcore.cli import main
from leakcore.leakage import _by_layer

BOUND = ("bound", "--noise-multiplier", "1", "--sample-rate", "1", "--steps", "1", "--prior", "10")


def _to_a_closed_pipe(*arguments: str, also_errors: bool = False) -> tuple[int, bytes]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "leakcore.cli", *arguments], stdout=writer, check=False,
            stderr=subprocess.STDOUT if also_errors else subprocess.PIPE,
        )  # fmt: skip
    finally:
        os.close(writer)
    return done.returncode, done.stderr or b""


@pytest.mark.parametrize("arguments", [BOUND, ("--help",), ("audit", "--help"), ("--version",), ("reproduce", "list")])
def test_a_reader_that_went_away_is_141_not_a_failed_gate(arguments: tuple[str, ...]) -> None:
    assert _to_a_closed_pipe(*arguments) == (141, b"")


def test_an_audit_is_141_with_its_reports_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = tmp_path / "scores.npz"
    np.savez(scores, members=rng.normal(1, 1, 50), non_members=rng.normal(0, 1, 50))
    audit = ("audit", "--scores", str(scores), "--quiet", "--out", str(tmp_path / "out"))
    assert _to_a_closed_pipe(*audit) == (141, b"")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.html", "report.json"]


def test_progress_that_nobody_reads_is_141() -> None:
    attack = ("attack", "prior-aware", "--runs", "8", "--num-rows", "20", "--steps", "2")
    assert _to_a_closed_pipe(*attack, also_errors=True)[0] == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_the_output_is_2() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "leakcore.cli", *BOUND], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.strip() == "Error: [Errno 28] No space left on device"


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "where", "name"),
    [
        (("attack", "prior-aware", "--runs", "8", "--num-rows", "20", "--steps", "2"), attacks, "reconstruction_game"),
        (("leakage", "leakcore.models:digits_mlp", "--data", "digits"), _by_layer, "measured"),
    ],
)
def test_an_interrupted_command_with_a_folder_says_that_it_goes_on(
    arguments: tuple[str, ...], where: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, _interrupt)
    done = CliRunner().invoke(main, [*arguments, "--quiet", "--out", str(tmp_path)])
    assert done.exit_code == 130, done.output
    assert done.stderr.strip() == "Interrupted: nothing half-written; the same command goes on from here."
    done = CliRunner().invoke(main, [*arguments, "--quiet"])
    assert done.exit_code == 130, done.output
    assert done.stderr.strip() == "Interrupted: nothing half-written."
