from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from leakcore import experiments
from leakcore.cli import main
from tests.tolerances import HANG


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leakcore", "bound", "--kappa", "2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: leakcore bound ")


BOUND = ("bound", "--noise-multiplier", "1", "--sample-rate", "1", "--steps", "1")


def test_bound() -> None:
    code, out, _ = run(*BOUND, "--num-candidates", "10")
    assert code == 0
    assert "0.3891" in out
    assert "upper, deterministic, add/remove adjacency" in out


def test_imports_of_bound() -> None:
    code = (
        "import sys; from leakcore.cli import main\n"
        f"try: main({[*BOUND, '--num-candidates', '10']!r})\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "slow = [m for m in ('torch', 'scipy.stats', 'sklearn', 'matplotlib', 'dp_accounting') if m in sys.modules]\n"
        "assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_bound_as_json() -> None:
    code, out, _ = run(*BOUND, "--kappa", "0.1", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["kind"] == "upper"
    assert data["value"] == pytest.approx(0.389143691645361, abs=1e-12)


def test_bound_of_a_tiny_prior() -> None:
    code, out, _ = run(*BOUND, "--log-kappa", "-1086.8547791179942")
    assert code == 0
    assert "exp(-10" in out


def test_estimates() -> None:
    code, out, _ = run(*BOUND, "--kappa", "0.1", "--method", "monte-carlo", "--num-samples", "10000")
    assert code == 0
    assert "estimate, no guarantee, add/remove adjacency" in out
    assert "std. error" in out
    assert "WARNING" not in out
    code, out, _ = run(*BOUND, "--kappa", "1e-9", "--method", "monte-carlo", "--num-samples", "100")
    assert code == 0
    assert "WARNING" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*BOUND,), "give exactly one of --num-candidates, --kappa, --log-kappa (given: none)"),
        ((*BOUND, "--num-candidates", "10", "--kappa", "0.1"), "given: --num-candidates, --kappa"),
        ((*BOUND, "--kappa", "1.5"), "`--kappa` must be in (0, 1], got 1.5"),
        ((*BOUND, "--kappa", "0.1", "--method", "guess"), "`--method` must be 'auto', 'closed-form', "),
        ((*BOUND[:3], *"--sample-rate 0.001 --steps 100 --log-kappa -1086 --method exact".split()), "pld"),
        (
            ("audit", "run", "--epsilon", "1", "--noise-multiplier", "1"),
            "`--noise-multiplier` must be given, exactly one",
        ),
        (("audit", "run", "--num-rows", "1797", "--quiet"), "digits has 1797 rows"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    extra = ("--out", str(tmp_path)) if arguments[0] == "audit" else ()
    code, _, err = run(*arguments, *extra)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


SMALL = ["--runs", "32", "--sweep", "", "--num-rows", "200", "--steps", "10", "--quiet"]


def test_audit_reports(tmp_path: Path) -> None:
    code, out, err = run("audit", "run", *SMALL, "--out", str(tmp_path))
    assert code == 0, err
    assert "Consistent with its claim." in out
    assert json.loads((tmp_path / "report.json").read_text())["passed"] is True
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.full
def test_ctrl_c(tmp_path: Path) -> None:
    # A shell starts what it puts in the background with SIGINT ignored, and children inherit that: here it is a user's.
    heard = (
        "import faulthandler, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "faulthandler.register(signal.SIGUSR1); from leakcore.cli import main; main()"
    )
    command = [sys.executable, "-c", heard, "audit", "run", "--sweep", "", "--runs", "4000", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ.copy())
    deadline = time.monotonic() + HANG
    while not list(tmp_path.glob("partial/*/game-*.json")):
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)  # where all threads are
        time.sleep(5)
        process.kill()
        _, err = process.communicate()
    assert process.returncode == 130, err.decode()
    assert b"goes on from here" in err
    assert [p.name for p in tmp_path.iterdir()] == ["partial"]


def test_calibrate() -> None:
    arguments = "calibrate --target-success 0.5 --num-candidates 10 --sample-rate 1 --steps 100".split()
    code, out, _ = run(*arguments)
    assert code == 0
    assert "less noise by" in out
    code, out, _ = run(*arguments, "--json")
    content = json.loads(out)
    assert code == 0
    assert content["value"] < content["epsilon_noise_multiplier"]
    assert content["success"] <= 0.5


@pytest.mark.parametrize(
    ("arguments", "by_epsilon", "less"),
    [
        (
            ("0.5", "1", "100"),
            "24.2363  the noise of ε = 1.609 at δ = 1e-5, which implies the same limit",
            "3.11 times",
        ),
        (("1", "1", "100"), "0  any ε implies that limit", "nothing: neither way needs any"),
        (("0.5", "0", "100"), "0  the noise of ε = 1.609", "nothing: neither way needs any"),
        (("0.5", "0.01", "1"), "0.598842  the noise of ε = 1.609", "all of it: none is needed"),
        (("0.100005", "1", "1"), "∞  no ε at δ = 1e-5 implies that limit", "no number: by ε no noise is enough"),
    ],
)
def test_calibrate_guarantees(arguments: tuple[str, str, str], by_epsilon: str, less: str) -> None:
    goal, rate, steps = arguments
    code, out, _ = run(
        "calibrate", "--target-success", goal, "--num-candidates", "10", "--sample-rate", rate, "--steps", steps
    )  # fmt: skip
    assert code == 0
    sure = "(upper, deterministic, add/remove adjacency)"
    lines = out.splitlines()
    assert lines[0].startswith("noise multiplier")
    assert lines[0].endswith(sure)
    assert lines[1].endswith(sure)
    assert f"by ε instead      {by_epsilon}" in lines[2]
    assert (sure in lines[2]) == ("the noise of" in by_epsilon)
    assert lines[3] == f"less noise by     {less}"
    assert "nan" not in out.split("attacker")[0]


def test_calibrate_refusals() -> None:
    code, _, err = run(*"calibrate --target-success 0.05 --num-candidates 10 --sample-rate 1 --steps 100".split())
    assert code == 2
    assert "blind guess" in err


def test_attack() -> None:
    code, out, _ = run(*"attack prior-aware --epsilon 10 --num-rows 50 --steps 10 --runs 32 --quiet --json".split())
    content = json.loads(out)
    assert code == 0
    low, high = content["attack"]["interval"]
    assert low <= content["attack"]["value"] <= high
    assert low <= content["bound"]["value"]
    assert content["attack"]["trials"] == 32


def test_attack_numbers() -> None:
    code, out, _ = run("attack", "prior-aware", "--num-rows", "50", "--steps", "10", "--runs", "16", "--quiet")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert lines["attack"].endswith("of 16 runs (estimate, 95% confidence, add/remove adjacency)")
    assert lines["bound"].endswith("(upper, deterministic, add/remove adjacency)")
    assert lines["orthogonal"].endswith("(estimate, no guarantee, add/remove adjacency)")
    assert lines["noise"].endswith(": ε = 10 at δ = 1e-5 (upper, deterministic, add/remove adjacency)")


def test_attack_noise_beyond_exact() -> None:
    mechanism = ("--noise-multiplier", "0.05", "--sample-rate", "0.1", "--steps", "20")
    code, out, _ = run("attack", "prior-aware", "--num-rows", "20", "--runs", "4", *mechanism, "--quiet")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("noise")]
    assert ": ε = " in line
    assert line.endswith("at δ = 1e-5 (upper, deterministic, add/remove adjacency)")


def test_reproduce_names() -> None:
    code, out, _ = run("reproduce", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == experiments.names()
    assert "(about " in next(line for line in out.splitlines() if line.startswith("reconstruction-table2"))


def test_reproduce_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run("reproduce", "fig99", "--out", str(tmp_path), "--quiet")
    assert code == 2
    assert "`name` must be an experiment's, one of " in err
    assert "got 'fig99'" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, err = run("reproduce", "reconstruction-fig7", "--data", str(empty), "--out", str(tmp_path), "--quiet")
    assert code == 2
    assert "mnist" in err
    assert "LEAKCORE_DATA" in err


@pytest.mark.full
def test_reproduce_numbers(tmp_path: Path) -> None:
    code, out, _ = run("reproduce", "reconstruction-fig11", "--out", str(tmp_path), "--quiet")
    assert code == 0
    assert "stated" in out
    assert "conclusion" in out
    assert (tmp_path / "reconstruction-fig11.png").exists()
