"""Run folders: pieces found again, and whatever is not as it was left refused before any work, untouched."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakcore._base.output_folder import require_ours
from leakcore._base.run_folder import PartialResults, identity, seal
from leakcore._base.writing import CannotWrite, write_atomically
from leakcore.audit.hyperparameters.request import AuditConfig
from tests.tolerances import HANG

ME = identity("audit", AuditConfig(seed=0).to_dict(), 0)
OTHER = identity("audit", AuditConfig(seed=1).to_dict(), 1)


def folder(out: Path, bound_to: Any = ME, **how: bool) -> PartialResults:
    return PartialResults(out, "audit", bound_to, **how)


def snapshot(out: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(out)): p.read_bytes() if p.is_file() else None for p in sorted(out.rglob("*"))}


def test_a_piece_is_computed_once_and_found_again(tmp_path: Path) -> None:
    calls = []

    def run() -> dict[str, Any]:
        calls.append(1)
        return {"hits": 7, "scores": [0.1, float("inf")], "by": {"10": 1, "9": 2}}

    for _ in range(2):
        pieces = folder(tmp_path)
        assert pieces.get_or_run("piece", run) == {"hits": 7, "scores": [0.1, float("inf")], "by": {"10": 1, "9": 2}}
        assert pieces.has("piece")
    assert len(calls) == 1


def test_without_a_folder_nothing_is_kept() -> None:
    pieces = PartialResults(None, "audit")
    assert pieces.get_or_run("piece", lambda: {"hits": 7}) == {"hits": 7}
    assert not pieces.has("piece")
    pieces.begin()
    pieces.remove()


def test_the_folder_says_whose_it_is(tmp_path: Path) -> None:
    folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    content = json.loads((tmp_path / "partial" / "audit" / "run.json").read_text())["piece"]
    assert content["config"]["runs"] == 1000
    assert content["seed"] == 0
    assert set(content["versions"]) == {"leakcore", "numpy", "torch"}
    assert all(content["versions"].values())


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (OTHER, r"config\.seed is 0 there, 1 here"),
        (identity("audit", AuditConfig(runs=7).to_dict(), 0), r"config\.runs is 1000 there, 7 here"),
        ({**ME, "versions": {**ME["versions"], "numpy": "1.0"}}, r"versions\.numpy is .* there, \"1\.0\" here"),
        ({**ME, "command": "audit --attack"}, "command is"),
    ],
)
def test_another_run_is_refused_by_what_differs(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=f"unfinished run of another kind.*{named}.*remove the folder"):
        folder(tmp_path, other)
    assert snapshot(tmp_path) == before


def test_a_folder_without_pieces_holds_nobody_up(tmp_path: Path) -> None:
    folder(tmp_path).begin()
    folder(tmp_path, OTHER).get_or_run("piece", lambda: {"hits": 8})
    assert folder(tmp_path, OTHER).has("piece")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def _nested(path: Path) -> None:
    path.write_text("[" * 100_000)


def _other_value(path: Path) -> None:
    content = json.loads(path.read_text())
    content["piece"] = {**content["piece"], "hits": 700}
    path.write_text(json.dumps(content))


def _a_list(path: Path) -> None:
    path.write_text("[1, 2]")


@pytest.mark.parametrize("name", ["piece.json", "run.json"])
@pytest.mark.parametrize("damage", [_truncate, _empty, _garbage, _nested, _other_value, _a_list])
def test_damage_is_refused_and_not_touched(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    damage(tmp_path / "partial" / "audit" / name)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=rf"{name}: is damaged .*; remove"):
        folder(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_damaged_piece_removed_is_computed_again(tmp_path: Path) -> None:
    folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    (tmp_path / "partial" / "audit" / "piece.json").unlink()
    assert folder(tmp_path).get_or_run("piece", lambda: {"hits": 7}) == {"hits": 7}


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("partial/audit/thesis.txt", "is not a file of leakcore"),
        ("partial/audit/photos/cat.npz", "is not a file of leakcore"),
        ("partial/thesis.txt", "is not a file of leakcore"),
        ("partial/audit/.hidden", "is not a file of leakcore"),
    ],
)
def test_a_users_files_are_refused_and_not_touched(tmp_path: Path, where: str, named: str) -> None:
    folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=named):
        folder(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_folder_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "partial" / "audit").mkdir(parents=True)
    (tmp_path / "partial" / "audit" / "holiday.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds holiday\.json but no run\.json"):
        folder(tmp_path)
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "partial").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        folder(tmp_path / "file")


@pytest.mark.parametrize("damage", [_truncate, _garbage, _empty])
def test_damaged_arrays_are_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    import numpy as np

    pieces = folder(tmp_path, checkpoints=True)
    pieces.begin()
    checkpoint = tmp_path / "partial" / "audit" / "0123"
    checkpoint.mkdir()
    path = seal(checkpoint, "runs-0-9", {"parameters": np.arange(900.0)})
    folder(tmp_path, checkpoints=True)
    content = path.read_bytes()
    path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    with pytest.raises(ValueError, match=r"runs-0-9\.npz: is damaged .*CRC.*; remove this file"):
        folder(tmp_path, checkpoints=True)
    damage(path)
    with pytest.raises(ValueError, match=r"runs-0-9\.npz: is damaged .*; remove this file"):
        folder(tmp_path, checkpoints=True)


def test_what_a_kill_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    left = tmp_path / "partial" / "audit" / ".next.json.a1b2c3d4"
    left.write_text("{")
    assert folder(tmp_path).has("piece")
    assert not left.exists()


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    pieces = folder(tmp_path)
    pieces.get_or_run("piece", lambda: {"hits": 7})
    code = (
        "import sys; from pathlib import Path; from leakcore._base.run_folder import PartialResults\n"
        f"PartialResults(Path(sys.argv[1]), 'audit', {ME!r})"
    )
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "another process is at work in it" in other.stderr
    pieces.remove()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_piece_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> dict[str, int]:
        raise KeyboardInterrupt

    pieces = folder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        pieces.get_or_run("piece", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_remove_leaves_other_runs_alone(tmp_path: Path) -> None:
    one, two = PartialResults(tmp_path, "one", ME), PartialResults(tmp_path, "two", OTHER)
    for pieces in (one, two):
        pieces.get_or_run("piece", lambda: {"hits": 7})
    one.remove()
    assert [p.name for p in (tmp_path / "partial").iterdir()] == ["two"]
    two.remove()
    assert list(tmp_path.iterdir()) == []


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.json"
    write_atomically(target, json.dumps({"old": True}))

    def fails(source: object, destination: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, json.dumps({"new": True}))
    assert json.loads(target.read_text()) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("place", ["fsync", "replace", "chmod", "fdopen"])
def test_a_full_disk_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, place, full)
        with pytest.raises(
            CannotWrite, match=r"report\.json: cannot be written \(No space left.*run the same again"
        ) as e:
            write_atomically(target, "new")
    assert e.value.errno == errno.ENOSPC
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("report.json", "old")]


def test_a_report_that_is_not_ours_is_not_overwritten(tmp_path: Path) -> None:
    require_ours(tmp_path, "report.json")
    (tmp_path / "report.json").write_text('{"schema": "leakcore.audit/1"}')
    require_ours(tmp_path, "report.json")
    for content in ("{}", "mine", "[1]", "[" * 100_000, '{"schema": "other/1"}'):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(ValueError, match="would be overwritten; move it"):
            require_ours(tmp_path, "report.json")


def test_a_copy_under_another_name_is_not_another_piece(tmp_path: Path) -> None:
    pieces = PartialResults(tmp_path, "audit", {"a": 1})
    pieces.get_or_run("one", lambda: {"value": 1})
    pieces.get_or_run("two", lambda: {"value": 2})
    folder = tmp_path / "partial" / "audit"
    (folder / "two.json").write_bytes((folder / "one.json").read_bytes())
    with pytest.raises(ValueError, match=r"two.json: is damaged .*checksum is another's.*remove this file"):
        PartialResults(tmp_path, "audit", {"a": 1})


def test_a_link_stays_one_and_a_pipe_takes_the_bytes(tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    write_atomically(pipe, "through")
    assert reader.communicate(timeout=HANG)[0] == b"through"
    assert pipe.is_fifo()
    write_atomically(Path(os.devnull), "nowhere")
    assert Path(os.devnull).is_char_device()
