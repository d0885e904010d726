"""Long commands in their run folders: a full disk, damage and strangers are refused, and what follows is the same."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from leakcore import audit, dpsgd, experiments
from leakcore._base import run_folder, version
from leakcore._base.writing import CannotWrite
from leakcore.audit.hyperparameters import reconstruction
from leakcore.cli import main

SMALL = {
    "epsilon": 10.0, "sweep": (4.0,), "steps": 6, "num_rows": 60, "runs": 96, "label_steps": 4, "label_trials": 4,
}  # fmt: skip
CLAIM: dict[str, Any] = {
    "data": {"name": "breast-cancer", "num_rows": 40},
    "model": {"hidden": []},
    "mechanism": {"steps": 4, "noise_multiplier": 1.0},
    "claim": {"epsilon": 50.0},
    "audit": {"attack": "clipbkd", "trials": 40, "k": [1, 2]},
}
PRIOR = (
    "attack", "prior-aware", "--runs", "600", "--steps", "4", "--num-rows", "40", "--quiet", "--json",
)  # fmt: skip
LEAKAGE = (
    "leakage", "leakcore.models:digits_mlp", "--data", "digits", "--num-rows", "40", "--permutations", "2", "--samples",
    "2", "--no-inversion", "--quiet", "--json",
)  # fmt: skip


def _audit(out: Path | None, **how: Any) -> dict[str, Any]:
    result = audit.run(audit.AuditConfig(**SMALL), folder=out, **how).to_dict()
    del result["seconds"]
    return result


def _claim(out: Path | None, **how: Any) -> dict[str, Any]:
    return audit.claim(CLAIM, folder=out, num_threads=1, **how).to_dict()


def _figure(out: Path | None, **how: Any) -> dict[str, Any]:
    return experiments.run("lecture-laplace", scale="tiny", out=out, **how).to_dict()


def _command(words: tuple[str, ...], out: Path | None) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*words, *(() if out is None else ("--out", str(out)))])
    if result.exit_code == 2:
        raise ValueError(result.stderr)
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def _prior(out: Path | None) -> dict[str, Any]:
    return _command(PRIOR, out)


def _leakage(out: Path | None) -> dict[str, Any]:
    return _command(LEAKAGE, out)


COMMANDS = {"audit": _audit, "claim": _claim, "figure": _figure, "prior-aware": _prior, "leakage": _leakage}
Run = Callable[[Path | None], dict[str, Any]]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "_PIECE", 32)


SLOW = {"audit": [pytest.mark.slow]}
"""Its accountants and figure take ten seconds each time."""


@pytest.fixture(scope="module", params=[pytest.param(name, marks=SLOW.get(name, [])) for name in COMMANDS])
def command(request: pytest.FixtureRequest) -> tuple[Run, dict[str, Any]]:
    run: Run = COMMANDS[request.param]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reconstruction, "_PIECE", 32)
        whole = run(None)
    return run, whole


@pytest.mark.full
def test_full_disk(command: tuple[Run, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any write may be the one that fails: each time an error that says so; the last run's report is the same."""
    run, whole = command
    rng = random.Random(7)
    synced = os.fsync
    full = [0]

    def fsync(handle: int) -> None:
        if rng.random() < 0.4 and full[0] < 12:
            full[0] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(20):
        try:
            result = run(tmp_path)
            break
        except (CannotWrite, ValueError) as error:
            assert "No space left on device" in str(error)  # noqa: PT017 - which one is random
            assert "cannot be written" in str(error) or "must be writable" in str(error)  # noqa: PT017
            for path in tmp_path.rglob("*.json"):
                json.loads(path.read_text(encoding="utf-8"))
            assert not list(tmp_path.rglob(".*")), "something half-written was left"
    else:
        pytest.fail("20 runs were not enough for 12 failures")
    assert full[0] > 0
    assert result == whole
    assert not (tmp_path / "partial").exists()


def _pieces(out: Path) -> list[Path]:
    return sorted(p for p in (out / "partial").rglob("*") if p.is_file() and p.name not in ("run.json", "lock"))


@pytest.fixture
def cut(command: tuple[Run, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose run ended at its second write of a piece."""
    run, _ = command
    out, written = tmp_path / "out", [0]
    write = run_folder.write_atomically

    def stop(path: Path, text: str | bytes, **options: bool) -> None:
        written[0] += path.name != "run.json"
        if written[0] == 2:
            raise CannotWrite(path, OSError(errno.ENOSPC, "No space left on device"))
        write(path, text, **options)

    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "write_atomically", stop)
        with pytest.raises((CannotWrite, ValueError), match="cannot be written"):
            run(out)
    assert len(_pieces(out)) == 1
    return out


def _content(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


@pytest.mark.full(keep=1)
def test_damage(command: tuple[Run, dict[str, Any]], cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, whole = command
    (piece,) = _pieces(cut)
    good = piece.read_bytes()
    with monkeypatch.context() as patched:

        def worked(*_: object, **__: object) -> None:
            raise AssertionError("work was done")

        patched.setattr(dpsgd.Ensemble, "run", worked)
        for bad in (good[:-30], b"", b"\x00" * len(good), good[: len(good) // 2] + b"!" + good[len(good) // 2 + 1 :]):
            piece.write_bytes(bad)
            before = _content(cut)
            with pytest.raises(ValueError, match=rf"{piece.name}: is damaged .*remove (it|this file)"):
                run(cut)
            assert _content(cut) == before
        piece.write_bytes(good)
        (piece.parent / "thesis.txt").write_text("mine")
        before = _content(cut)
        with pytest.raises(ValueError, match=r"thesis\.txt: is not a file of leakcore's"):
            run(cut)
        assert _content(cut) == before
    (piece.parent / "thesis.txt").unlink()
    piece.unlink()
    assert run(cut) == whole


@pytest.mark.full(keep=1)
def test_resuming(command: tuple[Run, dict[str, Any]], cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, whole = command
    (piece,) = _pieces(cut)
    modified = piece.stat().st_mtime_ns
    written: list[Path] = []
    write = run_folder.write_atomically

    def note(path: Path, text: str | bytes, **options: bool) -> None:
        written.append(path)
        assert piece.stat().st_mtime_ns == modified
        write(path, text, **options)

    monkeypatch.setattr(run_folder, "write_atomically", note)
    assert run(cut) == whole
    assert piece not in written
    assert not (cut / "partial").exists()


@pytest.mark.slow
def test_another_seed_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    def stop(task: str, done: int, total: int) -> None:
        if task.startswith("attack 2"):
            raise Stop

    with pytest.raises(Stop):
        audit.run(audit.AuditConfig(**SMALL), folder=tmp_path, progress=stop)
    before = _content(tmp_path)
    with pytest.raises(ValueError, match=r"config\.seed is 0 there, 1 here"):
        audit.run(audit.AuditConfig(**SMALL, seed=1), folder=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(version, "__version__", "99.0")
        patched.setattr(version, "identity_text", version.identity_text.__wrapped__)
        with pytest.raises(ValueError, match=r'versions\.leakcore is .* there, "99\.0" here'):
            audit.run(audit.AuditConfig(**SMALL), folder=tmp_path)
    assert _content(tmp_path) == before


@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_users_report(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("my own")
    for run in (_audit, _claim):
        with pytest.raises(ValueError, match=r"not (leakcore's|a (report|page) of leakcore's)"):
            run(tmp_path)
    assert _content(tmp_path) == {name: b"my own"}


def _limited(words: tuple[str, ...], limit: int, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "leakcore.cli", *words, "--out", str(out)], capture_output=True, text=True, check=False,
        preexec_fn=None if limit < 0 else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "limit", "report"),
    [
        (PRIOR, 3000, "prior-aware.json"),
        (
            ("audit", "run", "--sweep", "", "--runs", "64", "--steps", "4", "--num-rows", "40", "--quiet"), 60_000,
            "report.json",
        ),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_file_size_limit(words: tuple[str, ...], limit: int, report: str, tmp_path: Path) -> None:
    """The limit is the system's own: the report does not fit, the pieces do."""
    out = tmp_path / "out"
    cramped = _limited(words, limit, out)
    assert cramped.returncode == 2, cramped.stderr
    assert f"{report}: cannot be written (File too large)" in cramped.stderr
    assert "Traceback" not in cramped.stderr
    before = _content(out)
    assert any("game-" in name for name in before)
    assert report not in before
    assert _limited(words, -1, out).returncode == 0
    assert _limited(words, -1, tmp_path / "whole").returncode == 0
    one, two = (json.loads((tmp_path / d / report).read_text()) for d in ("out", "whole"))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}


def test_damaged_checkpoint(tmp_path: Path) -> None:
    ensemble = dpsgd.Ensemble((4, 3), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=3, seed=0)
    rows = np.random.default_rng(0).random((9, 4)), np.arange(9) % 3
    ensemble.run(*rows, runs=40, execution=dpsgd.Execution(checkpoint=tmp_path))
    path = sorted(tmp_path.rglob("runs-*.npz"))[0]
    good = path.read_bytes()
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{name: a[:-1] if a.ndim else a for name, a in arrays.items()})
    short = path.read_bytes()
    for bad in (good[:-30], b"", b"garbage", good[:300] + b"??" + good[302:], short):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=rf"{path.name}: is damaged .*; remove"):
            ensemble.run(*rows, runs=40, execution=dpsgd.Execution(checkpoint=tmp_path))
    path.unlink()
    again = ensemble.run(*rows, runs=40, execution=dpsgd.Execution(checkpoint=tmp_path))
    assert (again.parameters == ensemble.run(*rows, runs=40).parameters).all()
