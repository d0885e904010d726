"""What the commands print: bounds rounded to the side on which they hold, bars for terminals only, errors that help."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from leakcore import attacks, bounds
from leakcore.cli import main
from leakcore.cli.output import bars, set_verbosity

DATA = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
GAME = ("attack", "prior-aware", "--runs", "16", "--num-rows", "20", "--steps", "2")


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_rounding_of_attack(tmp_path: Path) -> None:
    for epsilon in ("1", "2", "3", "4", "5"):
        out = tmp_path / epsilon
        text = printed(*GAME, "--epsilon", epsilon, "--out", str(out), "--quiet")
        true = json.loads((out / "prior-aware.json").read_text())
        match = re.search(r"^bound +([\d.]+) ", text, re.MULTILINE)
        ends = re.search(r"^attack .*\[([\d.]+), ([\d.]+)\]", text, re.MULTILINE)
        sigma = re.search(r"^noise +σ = ([\d.]+):", text, re.MULTILINE)
        assert match
        assert ends
        assert sigma
        assert 0 <= float(match[1]) - true["bound"]["value"] < 1.0001e-4
        assert float(ends[1]) <= true["attack"]["interval"][0]
        assert float(ends[2]) >= true["attack"]["interval"][1]
        assert float(sigma[1]) >= true["attack"]["settings"]["noise_multiplier"]


@pytest.mark.full
@pytest.mark.parametrize("target", [0.28691013, 0.2869104, 0.5])
def test_rounding_of_calibrate(target: float) -> None:
    how = {"sample_rate": 0.5, "steps": 3}
    text = printed(
        "calibrate", "--target-success", repr(target), "--num-candidates", "10", "--sample-rate", "0.5", "--steps", "3"
    )
    bound = bounds.calibrate_noise(target, kappa=0.1, **how)
    limit, success, epsilon = (
        re.search(pattern, text)
        for pattern in (r"more than ([\d.]+) ", r"success bound +([\d.]+) ", r"of ε = ([\d.]+) ")
    )
    assert limit
    assert success
    assert epsilon
    assert float(limit[1]) >= target
    assert float(success[1]) >= bound.success
    assert float(epsilon[1]) <= bound.epsilon


def test_rounding_of_bound() -> None:
    at = ("bound", "--noise-multiplier", "2", "--sample-rate", "0.3", "--steps", "5")
    text = printed(*at, "--num-candidates", "10", "--method", "certified", "--num-samples", "4000")
    true = bounds.reconstruction(2.0, 0.3, 5, kappa=0.1, method="certified", num_samples=4000)
    ends = re.search(r"interval +(\S+) to (\S+)", text)
    assert ends
    assert true.interval is not None
    assert float(ends[1]) <= true.interval[0]
    assert float(ends[2]) >= true.interval[1]
    for log_kappa in (-800.0, -900.0, -1000.0):
        text = printed(
            "bound", "--noise-multiplier", "2", "--sample-rate", "1", "--steps", "1", "--log-kappa", str(log_kappa)
        )
        match = re.search(r"exp\((\S+)\)", text)
        assert match
        assert float(match[1]) >= bounds.reconstruction(2.0, 1.0, 1, log_kappa=log_kappa).log_value


@pytest.mark.skipif(not (DATA / "cervical").is_dir(), reason="no folder of data sets")
def test_label_bounds() -> None:
    text = printed("attack", "labels", "--dataset", "cancer", "--batches", "2", "--data", str(DATA))
    assert "label-ε ≥   ∞  (largest of 2 batches; mean ∞; test paper, δ = 1e-5; lower, deterministic, repl" in text
    assert "label-ε ≤   ∞  (one step, δ = 1e-5; upper, deterministic, replacement adjacency)" in text


@pytest.mark.parametrize("form", ["scores", "trace"])
def test_bad_path(form: str, tmp_path: Path) -> None:
    for value in ("3", '"a\\u0000b"'):
        (tmp_path / "audit.toml").write_text(f"[{form}]\nfile = {value}\n")
        result = CliRunner().invoke(main, ["audit", form, "--config", str(tmp_path / "audit.toml")])
        assert result.exit_code == 2, result.output
        assert f"`{form}.file` must be a path or a name" in result.output


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("audit", "run", "--num-rows", "5", "--runs", "20", "--sweep", ""), ("--num-rows", "[run] of a --config")),
        (("attack", "prior-aware", "--num-rows", "5", "--runs", "20"), ("--num-rows", "--learning-rate")),
    ],
)
def test_overflow(
    arguments: tuple[str, ...], options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflowing(*_: Any, **__: Any) -> None:
        raise FloatingPointError(
            "run 7: a gradient overflowed: take a smaller learning_rate, or nearest_cosines=False if it stayed finite"
        )

    monkeypatch.setattr("leakcore.audit.hyperparameters.reconstruction.study", overflowing)
    monkeypatch.setattr(attacks, "reconstruction_game", overflowing)
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: run 7: a gradient overflowed; take a ")
    assert "nearest_cosines" not in result.stderr
    for option in options:
        assert option in result.stderr


@pytest.mark.full
def test_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, drawn in ((Terminal(), True), (io.StringIO(), False), (None, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert (bars() is not None) == drawn
        with click.Context(main) as context:
            set_verbosity(context, quiet=True)
            assert bars() is None
    done = subprocess.run([sys.executable, "-m", "leakcore.cli", *GAME], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    np.savez(tmp_path / "scores.npz", members=np.arange(9.0), non_members=np.arange(9.0))
    for path in ("afile/x.html", "afile/deeper/x.html"):
        scores = ("scores", str(tmp_path / "scores.npz"), "--adjacency", "replace")
        wrong = ("audit", *scores, "--html", str(tmp_path / path))
        result = CliRunner().invoke(main, wrong)
        assert result.exit_code == 2
        assert f"{tmp_path / 'afile'} is a file, not a folder" in result.output


@pytest.mark.full
def test_reproduce_file_list(tmp_path: Path) -> None:
    text = printed("reproduce", "reconstruction-table2", "--out", str(tmp_path), "--quiet")
    listed = text[text.index(str(tmp_path)) :].split()
    assert sorted(listed) == sorted(str(p) for p in tmp_path.iterdir())
    assert len(listed) == 3
