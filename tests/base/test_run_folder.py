"""Run folders: their pieces, and the lock that lets one run work at a time."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakcore._base.output_folder import require_ours
from leakcore._base.run_folder import FolderBusy, FolderLock, PartialResults, identity, seal
from leakcore._base.writing import CannotWrite, write_atomically
from leakcore.audit.hyperparameters.config import AuditConfig
from tests.tolerances import HANG

ME = {"command": "mine", "seed": 0}
OTHER = {"command": "mine", "seed": 1}


def folder(out: Path, bound_to: Any = ME, name: str = "run") -> PartialResults:
    return PartialResults(out, name, bound_to)


def never() -> dict[str, Any]:
    raise AssertionError("it was computed")


def test_second_run_in_a_process(tmp_path: Path) -> None:
    one, two = folder(tmp_path), folder(tmp_path)
    one.get_or_run("a", lambda: {"v": 1})
    for late in (two, folder(tmp_path)):  # opened before anything was there, and after
        with pytest.raises(
            FolderBusy, match="another thread or an earlier call of this process is still at work in it"
        ):
            late.get_or_run("b", never)
        with pytest.raises(FolderBusy):
            late.begin()
        with pytest.raises(FolderBusy):
            list(late.each({"b": never}))
    assert folder(tmp_path).get_or_run("a", never) == {"v": 1}  # reading is allowed
    one.get_or_run("b", lambda: {"v": 2})
    one.remove()
    assert two.get_or_run("b", lambda: {"v": 3}) == {"v": 3}
    two.remove()
    assert list(tmp_path.iterdir()) == []


def test_many_threads(tmp_path: Path) -> None:
    """The winner stores all of its pieces; nobody else computes any."""
    opened, done = threading.Barrier(8), []
    refused: list[FolderBusy] = []

    def work(number: int) -> None:
        with folder(tmp_path) as pieces:
            opened.wait()  # a finished folder may be read by anyone who opens it
            try:
                for name in "abc":
                    pieces.get_or_run(name, lambda: {"by": number})
                done.append(number)
                stay.wait()
            except FolderBusy as busy:
                refused.append(busy)
                if len(refused) == 7:
                    stay.set()

    stay = threading.Event()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert (len(done), len(refused)) == (1, 7)
    with folder(tmp_path) as pieces:
        assert {pieces.get_or_run(name, never)["by"] for name in "abc"} == set(done)


def test_threads_on_one_object(tmp_path: Path) -> None:
    pieces, start = folder(tmp_path), threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        pieces.get_or_run(f"piece-{number}", lambda: {"by": number})

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    pieces.close()
    assert all(folder(tmp_path).get_or_run(f"piece-{i}", never) == {"by": i} for i in range(8))


def test_runs_of_other_names(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for turn in range(25):
                with folder(tmp_path, name=name) as pieces:
                    assert pieces.get_or_run("a", lambda turn=turn: {"turn": turn}) == {"turn": turn}
                    pieces.remove()
        except BaseException as why:
            failed.append(why)

    threads = [threading.Thread(target=work, args=(f"run-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert failed == []
    assert list(tmp_path.iterdir()) == []


def test_folder_by_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    pieces = folder(tmp_path / "real")
    pieces.get_or_run("a", lambda: {"v": 1})
    monkeypatch.chdir(tmp_path)
    for name in (tmp_path / "link", Path("real"), Path("link/../real"), Path("./link")):
        with pytest.raises(FolderBusy):
            folder(name).get_or_run("b", never)


def _child(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False)


_WORK = """
import sys
from pathlib import Path
from leakcore._base.run_folder import PartialResults
print(PartialResults(Path(sys.argv[1]), "run", {"command": "mine", "seed": 0}).get_or_run("b", lambda: {"v": 9}))
"""


def test_another_process(tmp_path: Path) -> None:
    pieces = folder(tmp_path)
    pieces.begin()  # not a piece yet
    for path in (tmp_path / "partial" / "run").iterdir():
        path.read_bytes()  # closing a POSIX lock's file anywhere in the process would lift it
    assert "another process is at work in it" in _child(_WORK, tmp_path).stderr
    pieces.close()
    assert _child(_WORK, tmp_path).stdout.strip() == "{'v': 9}"
    assert pieces.get_or_run("b", never) == {"v": 9}  # it goes on, and takes stock first


def test_lock_after_an_exception(tmp_path: Path) -> None:
    def run() -> None:
        with folder(tmp_path) as pieces:
            pieces.get_or_run("a", lambda: {"v": 1})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        run()
    assert folder(tmp_path).get_or_run("b", lambda: {"v": 2}) == {"v": 2}
    assert raised.value is not None


@pytest.mark.full
def test_collected_object(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    pieces: PartialResults | None = folder(tmp_path)
    assert pieces is not None
    pieces.get_or_run("a", lambda: {"v": 1})
    del pieces
    gc.collect()
    again = folder(tmp_path)
    again.get_or_run("b", lambda: {"v": 2})
    again.close()
    again.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_forked_child(tmp_path: Path) -> None:
    """The parent is killed; a worker that it forked lives on, like the workers of a process pool."""
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from leakcore._base.run_folder import PartialResults\n"
        "pieces = PartialResults(Path(sys.argv[1]), 'run', {'command': 'mine', 'seed': 0})\n"
        "pieces.get_or_run('a', lambda: {'v': 1})\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        pieces.get_or_run('b', lambda: {'v': 2})\n"
        "    except ValueError as why:\n"
        "        print(os.getpid(), why, flush=True)\n"
        "    time.sleep(600)\n"
        "    os._exit(0)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    number, _, said = parent.stdout.readline().partition(" ")
    try:
        assert "another process is at work in it" in said
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        os.kill(int(number), 0)  # the child is still there
        assert folder(tmp_path).get_or_run("b", lambda: {"v": 3}) == {"v": 3}
    finally:
        os.kill(int(number), signal.SIGKILL)
        parent.stdout.close()


def _in_child(pieces: PartialResults, answer: Any) -> None:
    try:
        pieces.get_or_run("b", lambda: {"v": 2})
        answer.put("worked")
    except FolderBusy as busy:
        answer.put("elsewhere" if busy.elsewhere else "here")


def test_fork_after_opening(tmp_path: Path) -> None:
    pieces = folder(tmp_path)
    pieces.get_or_run("a", lambda: {"v": 1})
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    for expected in ("elsewhere", "worked"):
        child = context.Process(target=_in_child, args=(pieces, answer))
        child.start()
        assert answer.get(timeout=HANG) == expected
        child.join(HANG)
        if expected == "elsewhere":
            pieces.get_or_run("c", lambda: {"v": 3})  # the parent's lock outlived the child
            pieces.close()  # and what it hands on, a child may take up
    assert folder(tmp_path).get_or_run("b", never) == {"v": 2}


def test_removed_folder(tmp_path: Path) -> None:
    pieces = folder(tmp_path)
    pieces.get_or_run("a", lambda: {"v": 1})
    shutil.rmtree(tmp_path / "partial")
    assert pieces.get_or_run("b", lambda: {"v": 2}) == {"v": 2}
    assert pieces.get_or_run("a", lambda: {"v": 3}) == {"v": 3}
    pieces.close()
    assert folder(tmp_path).get_or_run("b", never) == {"v": 2}


def test_replaced_folder(tmp_path: Path) -> None:
    first = folder(tmp_path)
    first.get_or_run("a", lambda: {"v": 1})
    shutil.rmtree(tmp_path / "partial")
    second = folder(tmp_path, OTHER)
    second.get_or_run("a", lambda: {"v": 2})
    with pytest.raises(FolderBusy):
        first.get_or_run("b", never)
    first.remove()
    second.close()
    with pytest.raises(ValueError, match=r"another kind \(seed is 1 there, 0 here\)"):
        first.get_or_run("b", never)
    assert folder(tmp_path, OTHER).get_or_run("a", never) == {"v": 2}


def test_meanwhile_begun_run(tmp_path: Path) -> None:
    """Opened while nothing was there; then another run began, stored a piece and ended."""
    late = folder(tmp_path, OTHER)
    same = folder(tmp_path)
    folder(tmp_path).get_or_run("a", lambda: {"v": 1})
    with pytest.raises(ValueError, match=r"another kind \(seed is 0 there, 1 here\)"):
        late.get_or_run("b", never)
    assert same.get_or_run("a", never) == {"v": 1}


def test_remove_during_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file is opened, then its folder is removed, then it is locked: what is locked is gone."""
    pieces = folder(tmp_path)
    pieces.get_or_run("a", lambda: {"v": 1})
    path = tmp_path / "partial" / "run"
    pieces.close()
    real, calls = fcntl.flock, []

    def flock(handle: int, how: int) -> None:
        if not calls:
            calls.append(1)
            path.rename(tmp_path / "gone")
            path.mkdir()
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FolderLock(path)
    assert lock.holds()
    assert (path / "lock").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match=r"run: cannot be locked \(.*file system with locks"):
        folder(tmp_path).get_or_run("a", never)
    assert set(os.listdir("/proc/self/fd")) == before


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path).get_or_run("a", lambda: {"v": 1})
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **how: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *more, **how)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(CannotWrite, match=r"run: cannot be written \(Read-only file system\)"):
        folder(tmp_path)


def test_lock_left_by_a_kill(tmp_path: Path) -> None:
    code = _WORK + "sys.stdout.flush()\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert _child(code, tmp_path).returncode == -signal.SIGKILL
    assert (tmp_path / "partial" / "run" / "lock").exists()
    assert folder(tmp_path).get_or_run("b", never) == {"v": 9}


def test_lock_of_a_damaged_folder(tmp_path: Path) -> None:
    folder(tmp_path).get_or_run("a", lambda: {"v": 1})
    path = tmp_path / "partial" / "run" / "a.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"a\.json: is damaged") as raised:
        folder(tmp_path)
    path.unlink()
    assert folder(tmp_path).get_or_run("a", lambda: {"v": 2}) == {"v": 2}
    assert raised.value is not None


def test_leftovers_of_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = folder(tmp_path)
    pieces.get_or_run("a", lambda: {"v": 1})
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed in the middle
        pieces.remove()
    (left,) = (tmp_path / "partial").iterdir()
    assert left.name.startswith(".run.")
    with folder(tmp_path) as pieces:
        pieces.get_or_run("a", lambda: {"v": 2})
        pieces.remove()
    assert list(tmp_path.iterdir()) == []


AUDIT = identity("audit", AuditConfig(seed=0).to_dict(), 0)
OTHER_AUDIT = identity("audit", AuditConfig(seed=1).to_dict(), 1)


def audit_folder(out: Path, bound_to: Any = AUDIT, **how: bool) -> PartialResults:
    return PartialResults(out, "audit", bound_to, **how)


def snapshot(out: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(out)): p.read_bytes() if p.is_file() else None for p in sorted(out.rglob("*"))}


def test_piece(tmp_path: Path) -> None:
    calls = []

    def run() -> dict[str, Any]:
        calls.append(1)
        return {"hits": 7, "scores": [0.1, float("inf")], "by": {"10": 1, "9": 2}}

    for _ in range(2):
        pieces = audit_folder(tmp_path)
        assert pieces.get_or_run("piece", run) == {"hits": 7, "scores": [0.1, float("inf")], "by": {"10": 1, "9": 2}}
        assert pieces.has("piece")
    assert len(calls) == 1


def test_no_folder() -> None:
    pieces = PartialResults(None, "audit")
    assert pieces.get_or_run("piece", lambda: {"hits": 7}) == {"hits": 7}
    assert not pieces.has("piece")
    pieces.begin()
    pieces.remove()


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (OTHER_AUDIT, r"config\.seed is 0 there, 1 here"),
        (identity("audit", AuditConfig(runs=7).to_dict(), 0), r"config\.runs is 1000 there, 7 here"),
        ({**AUDIT, "versions": {**AUDIT["versions"], "numpy": "1.0"}}, r"versions\.numpy is .* there, \"1\.0\" here"),
        ({**AUDIT, "command": "audit --attack"}, "command is"),
    ],
)
def test_another_identity(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    audit_folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=f"unfinished run of another kind.*{named}.*remove the folder"):
        audit_folder(tmp_path, other)
    assert snapshot(tmp_path) == before


def test_folder_without_pieces(tmp_path: Path) -> None:
    audit_folder(tmp_path).begin()
    audit_folder(tmp_path, OTHER_AUDIT).get_or_run("piece", lambda: {"hits": 8})
    assert audit_folder(tmp_path, OTHER_AUDIT).has("piece")


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
def test_damage(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    audit_folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    damage(tmp_path / "partial" / "audit" / name)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=rf"{name}: is damaged .*; remove"):
        audit_folder(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "where", ["partial/audit/thesis.txt", "partial/audit/photos/cat.npz", "partial/thesis.txt", "partial/audit/.hidden"]
)
def test_user_files(tmp_path: Path, where: str) -> None:
    audit_folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="is not a file of leakcore"):
        audit_folder(tmp_path)
    assert snapshot(tmp_path) == before


def test_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "partial" / "audit").mkdir(parents=True)
    (tmp_path / "partial" / "audit" / "holiday.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds holiday\.json but no run\.json"):
        audit_folder(tmp_path)
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "partial").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        audit_folder(tmp_path / "file")


@pytest.mark.parametrize("damage", [_truncate, _garbage, _empty])
def test_damaged_arrays(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    import numpy as np

    pieces = audit_folder(tmp_path, checkpoints=True)
    pieces.begin()
    checkpoint = tmp_path / "partial" / "audit" / "0123"
    checkpoint.mkdir()
    path = seal(checkpoint, "runs-0-9", {"parameters": np.arange(900.0)})
    audit_folder(tmp_path, checkpoints=True)
    content = path.read_bytes()
    path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    with pytest.raises(ValueError, match=r"runs-0-9\.npz: is damaged .*CRC.*; remove this file"):
        audit_folder(tmp_path, checkpoints=True)
    damage(path)
    with pytest.raises(ValueError, match=r"runs-0-9\.npz: is damaged .*; remove this file"):
        audit_folder(tmp_path, checkpoints=True)


def test_half_written_files(tmp_path: Path) -> None:
    audit_folder(tmp_path).get_or_run("piece", lambda: {"hits": 7})
    left = tmp_path / "partial" / "audit" / ".next.json.a1b2c3d4"
    left.write_text("{")
    assert audit_folder(tmp_path).has("piece")
    assert not left.exists()


def test_interrupted_piece(tmp_path: Path) -> None:
    def interrupted() -> dict[str, int]:
        raise KeyboardInterrupt

    pieces = audit_folder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        pieces.get_or_run("piece", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_remove(tmp_path: Path) -> None:
    one, two = PartialResults(tmp_path, "one", AUDIT), PartialResults(tmp_path, "two", OTHER_AUDIT)
    for pieces in (one, two):
        pieces.get_or_run("piece", lambda: {"hits": 7})
    one.remove()
    assert [p.name for p in (tmp_path / "partial").iterdir()] == ["two"]
    two.remove()
    assert list(tmp_path.iterdir()) == []


def test_foreign_report(tmp_path: Path) -> None:
    require_ours(tmp_path, "report.json")
    (tmp_path / "report.json").write_text('{"schema": "leakcore.audit/1"}')
    require_ours(tmp_path, "report.json")
    for content in ("{}", "mine", "[1]", "[" * 100_000, '{"schema": "other/1"}'):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(ValueError, match="would be overwritten; move it"):
            require_ours(tmp_path, "report.json")


def test_copied_piece(tmp_path: Path) -> None:
    pieces = PartialResults(tmp_path, "audit", {"a": 1})
    pieces.get_or_run("one", lambda: {"value": 1})
    pieces.get_or_run("two", lambda: {"value": 2})
    folder = tmp_path / "partial" / "audit"
    (folder / "two.json").write_bytes((folder / "one.json").read_bytes())
    with pytest.raises(ValueError, match=r"two.json: is damaged .*checksum is another's.*remove this file"):
        PartialResults(tmp_path, "audit", {"a": 1})


def test_pipes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    write_atomically(pipe, "through")
    assert reader.communicate(timeout=HANG)[0] == b"through"
    assert pipe.is_fifo()
    write_atomically(Path(os.devnull), "nowhere")
    assert Path(os.devnull).is_char_device()
