"""Exit codes without an answer: a reader that went away, no place to write, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from leakcore import attacks, bounds, leakage
from leakcore._base.run_folder import PartialResults
from leakcore.audit.hyperparameters import reconstruction
from leakcore.cli import main
from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import with_option_names

BOUND = ("bound", "--noise-multiplier", "1", "--sample-rate", "1", "--steps", "1", "--num-candidates", "10")


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


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("arguments", [BOUND, ("--help",), ("audit", "--help"), ("--version",), ("reproduce", "list")])
def test_closed_pipe(arguments: tuple[str, ...]) -> None:
    assert _to_a_closed_pipe(*arguments) == (141, b"")


@pytest.mark.full
def test_closed_pipe_of_an_audit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = tmp_path / "scores.npz"
    np.savez(scores, members=rng.normal(1, 1, 50), non_members=rng.normal(0, 1, 50))
    audit = ("audit", "scores", str(scores), "--adjacency", "replace", "--quiet", "--out", str(tmp_path / "out"))
    assert _to_a_closed_pipe(*audit) == (141, b"")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.html", "report.json"]


@pytest.mark.full
def test_closed_pipe_of_progress() -> None:
    attack = ("attack", "prior-aware", "--runs", "8", "--num-rows", "20", "--steps", "2")
    assert _to_a_closed_pipe(*attack, also_errors=True)[0] == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "leakcore.cli", *BOUND], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.strip() == "Error: [Errno 28] No space left on device"


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


SAYS = "Interrupted: nothing half-written; the same command goes on from here."


@pytest.mark.parametrize(
    ("arguments", "where", "name"),
    [
        (("attack", "prior-aware", "--runs", "8", "--num-rows", "20", "--steps", "2"), attacks, "reconstruction_game"),
        (("leakage", "leakcore.models:digits_mlp", "--data", "digits"), leakage, "measure_layers"),
        (("reproduce", "reconstruction-fig11"), bounds, "fano_advantage"),
        (("audit", "run", "--runs", "8"), reconstruction, "study"),
    ],
)
def test_interrupted_command(
    arguments: tuple[str, ...], where: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, _interrupt)
    opened: list[PartialResults] = []
    begun = PartialResults.__init__

    def watched(self: PartialResults, *args: Any, **how: Any) -> None:
        begun(self, *args, **how)
        opened.append(self)

    monkeypatch.setattr(PartialResults, "__init__", watched)
    done = CliRunner().invoke(main, [*arguments, "--quiet", "--out", str(tmp_path)])
    assert done.exit_code == 130, done.output
    assert done.stderr.strip() == "Interrupted: nothing half-written."

    def after_a_piece(*_: Any, **__: Any) -> None:
        opened[-1].get_or_run("a-piece", dict)
        raise KeyboardInterrupt

    monkeypatch.setattr(where, name, after_a_piece)
    done = CliRunner().invoke(main, [*arguments, "--quiet", "--out", str(tmp_path)])
    assert done.exit_code == 130, done.output
    assert done.stderr.strip() == SAYS


@pytest.mark.full
@pytest.mark.parametrize("name", ["reconstruction-fig11", "reconstruction-table2"])
def test_interrupted_fano_figure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, asked = bounds.fano_advantage, []

    def third_fails(noise: float, **how: Any) -> Any:
        if isinstance(how["information"], bounds.SampledInformation):
            asked.append((how["num_candidates"], noise))
            if len(asked) == 3:
                raise KeyboardInterrupt
        return whole(noise, **how)

    monkeypatch.setattr(bounds, "fano_advantage", third_fails)
    command = ["reproduce", name, "--quiet", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, done.stderr.strip()) == (130, SAYS)
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert len(set(asked)) == len(asked) - 1


def _scores(folder: Path) -> tuple[str, ...]:
    rng = np.random.default_rng(0)
    np.savez(folder / "scores.npz", members=rng.normal(1, 1, 50), non_members=rng.normal(0, 1, 50))
    options = (str(folder / "scores.npz"), "--adjacency", "replace")
    return "audit", "scores", *options, "--quiet", "--out", str(folder / "out")


@pytest.mark.full
def test_narrow_encoding(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leakcore.cli", *_scores(tmp_path)], capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert rb"\u03b5" in done.stdout


def _claim(folder: Path) -> tuple[str, ...]:
    (folder / "claim.toml").write_text(
        "[data]\nnum_rows = 40\n[mechanism]\nnoise_multiplier = 2\nsteps = 2\n[audit]\nattack = 'clipbkd'\ntrials = 4\n"
    )
    return "audit", "claim", "--config", str(folder / "claim.toml"), "--out", str(folder / "out")


@pytest.mark.full
def test_no_standard_error(tmp_path: Path) -> None:
    command = " ".join([sys.executable, "-m", "leakcore.cli", *_claim(tmp_path)])
    done = subprocess.run(["sh", "-c", f"{command} 2>&-"], capture_output=True, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out" / "report.json").exists()


@pytest.mark.full
def test_closed_bars(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "leakcore.cli", *_claim(tmp_path)], stdout=subprocess.PIPE, stderr=writer, check=False
    )
    os.close(writer)
    assert done.returncode in (0, 141)
    assert (tmp_path / "out" / "report.json").exists()


def test_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("leakcore.bounds.reconstruction", failing)
    result = CliRunner().invoke(main, BOUND)
    assert result.exit_code == 70
    assert "a defect" in result.output


@pytest.mark.parametrize("command", ["bound", "calibrate"])
def test_prior_beyond_a_float(command: str) -> None:
    how = {"bound": ("--noise-multiplier", "1"), "calibrate": ("--target-success", "0.5")}[command]
    options = ("--sample-rate", "1", "--steps", "1", "--num-candidates", "1" + "0" * 400)
    result = CliRunner().invoke(main, (command, *how, *options))
    assert result.exit_code == 0, result.output


def test_clashing_reports(tmp_path: Path) -> None:
    audit = _scores(tmp_path)
    scores = str(tmp_path / "scores.npz")
    before = Path(scores).read_bytes()
    result = CliRunner().invoke(main, (*audit, "--json", scores))
    assert (result.exit_code, Path(scores).read_bytes()) == (2, before)
    assert "is also FILE" in result.output
    (tmp_path / "audit.toml").write_text(f"[scores]\nfile = '{scores}'\n")
    of_file = ("audit", "scores", "--config", str(tmp_path / "audit.toml"), "--quiet", "--out", str(tmp_path / "out"))
    one = str(tmp_path / "one")
    for wrong in (
        (*of_file, "--json", scores),
        (*of_file, "--json", str(tmp_path / "audit.toml")),
        (*audit, "--json", one, "--html", one),
        (*audit, "--json", str(tmp_path / "out" / "report.html")),
        (*audit, "--html", str(tmp_path / "out" / "report.json")),
    ):
        result = CliRunner().invoke(main, wrong)
        assert (result.exit_code, Path(scores).read_bytes()) == (2, before), result.output
        assert "is also" in result.output
    assert CliRunner().invoke(main, (*audit, "--json", str(tmp_path / "out" / "report.json"))).exit_code == 0


@pytest.mark.full
def test_reports_to_a_descriptor(tmp_path: Path) -> None:
    audit = [sys.executable, "-m", "leakcore.cli", *_scores(tmp_path), "--json", "/dev/stdout", "--html", "/dev/stdout"]
    done = subprocess.run(audit, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b'"schema": "leakcore.' in done.stdout
    output = tmp_path / "all.txt"
    output.write_text("precious\n")
    with output.open("a") as out:
        assert subprocess.run(audit, stdout=out, check=False).returncode == 0
    assert output.read_text().startswith("precious\n")
    assert "</html>" in output.read_text()


@pytest.mark.parametrize(
    "command",
    [
        ("attack", "prior-aware", "--runs", "2000000"),
        ("attack", "inversion", "--dataset", "digits", "--iterations", "100000000"),
        ("leakage", "leakcore.models:digits_mlp", "--data", "digits"),
    ],
)
def test_folder_that_takes_no_files(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, (*command, "--out", str(tmp_path / "file" / "out")))
    assert result.exit_code == 2
    assert "`--out` must be writable, got" in result.output


def _from_cause() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as stopped:
        raise ImportError("initialization failed") from stopped  # what pybind11's modules raise


def _in_context() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise ValueError("while it was handled")  # noqa: B904


def _hidden_context() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise RuntimeError("said otherwise") from None


def _twice_removed() -> None:
    try:
        _from_cause()
    except ImportError as error:
        raise TypeError("a factory's own words") from error


def _in_a_worker() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_from_cause).result()


def _in_a_group() -> None:
    error = ValueError("some of several failed")
    error.exceptions = (OSError("one"), KeyboardInterrupt())  # type: ignore[attr-defined]
    raise error


INTERRUPTED = [_interrupt, _from_cause, _in_context, _hidden_context, _twice_removed, _in_a_worker, _in_a_group]


@pytest.mark.parametrize("raising", INTERRUPTED)
def test_reworded_interruption(raising: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakcore.bounds.reconstruction", lambda *_, **__: raising())
    done = CliRunner().invoke(main, BOUND)
    assert (done.exit_code, done.stderr) == (130, "Interrupted: nothing half-written.\n")
    with pytest.raises(KeyboardInterrupt):
        checked(raising)


@pytest.mark.parametrize("raising", INTERRUPTED)
def test_interruption_while_reading(raising: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, word in (
        ("leakcore.cli.numbers._Real.convert", ("bound", "--noise-multiplier", "1")),
        ("click.types.IntParamType.convert", ("bound", "--seed", "1")),
        ("leakcore.cli.exit_codes.Commands.resolve_command", ("bound",)),
        ("leakcore.cli.exit_codes.Commands.parse_args", ("bound",)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(kind, lambda *_, **__: raising())
            done = CliRunner().invoke(main, word)
        assert (done.exit_code, done.stderr) == (130, "Interrupted: nothing half-written.\n"), kind


def test_interruption_in_a_users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(
        (
            "raise KeyboardInterrupt",
            "def build():\n raise KeyboardInterrupt",
            "try:\n raise KeyboardInterrupt\nexcept KeyboardInterrupt as k:\n raise ImportError('failed') from k",
        )
    ):
        (tmp_path / f"stopped{number}.py").write_text(text)
        done = CliRunner().invoke(main, ["leakage", f"stopped{number}:build", "--data", "digits"])
        assert done.exit_code == 130, done.output


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_signals(name: str, code: int) -> None:
    program = (
        "import os, signal, time\nfrom leakcore import bounds\nfrom leakcore.cli import main\n"
        f"def work(*_, **__):\n os.kill(os.getpid(), signal.{name}); time.sleep(60)\n"
        f"bounds.reconstruction = work\nmain({list(BOUND)!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "Interrupted: nothing half-written.\n")


def test_handled_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert CliRunner().invoke(main, BOUND).exit_code == 0
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_missing_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes")):

        def failing(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("leakcore.bounds.reconstruction", failing)
        done = CliRunner().invoke(main, [*BOUND[:-2], "--num-candidates", "1000000"])
        assert done.exit_code == 2
        assert "cannot be computed with --num-candidates=1000000 (not enough memory" in done.stderr


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("`steps` must be at least 1, got 0", "`--steps` must be at least 1, got 0"),
        ("`steps[2]` must be at least 1, got 0", "`--steps[2]` must be at least 1, got 0"),
        ("`seed` must be None with steps=2", "`seed` must be None with --steps=2"),
        ("`local_steps` must be at least 1", "`local_steps` must be at least 1"),
    ],
)
def test_errors_name_options(message: str, printed: str) -> None:
    @click.command()
    @click.option("--steps", type=int)
    def command(steps: int) -> None:
        click.echo(with_option_names(ValueError(message), {}))

    assert CliRunner().invoke(command, ["--steps", "0"]).output == f"{printed}\n"
