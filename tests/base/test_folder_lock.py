"""One run at a time in a folder: threads, processes, children, other names, folders that go and come."""

from __future__ import annotations

import errno
import fcntl
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from leakcore._base.run_folder import FolderBusy, FolderLock, PartialResults
from leakcore._base.writing import CannotWrite
from tests.tolerances import HANG

ME = {"command": "mine", "seed": 0}
OTHER = {"command": "mine", "seed": 1}


def folder(out: Path, bound_to: Any = ME, name: str = "run") -> PartialResults:
    return PartialResults(out, name, bound_to)


def never() -> dict[str, Any]:
    raise AssertionError("it was computed")


def test_a_second_run_in_this_process_is_refused_before_it_computes(tmp_path: Path) -> None:
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


def test_many_threads_at_once_one_works(tmp_path: Path) -> None:
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


def test_threads_may_share_one_object(tmp_path: Path) -> None:
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


def test_runs_of_other_names_do_not_disturb_each_other(tmp_path: Path) -> None:
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


def test_another_name_of_the_folder_is_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_another_process_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    pieces = folder(tmp_path)
    pieces.begin()  # not a piece yet
    for path in (tmp_path / "partial" / "run").iterdir():
        path.read_bytes()  # closing a POSIX lock's file anywhere in the process would lift it
    assert "another process is at work in it" in _child(_WORK, tmp_path).stderr
    pieces.close()
    assert _child(_WORK, tmp_path).stdout.strip() == "{'v': 9}"
    assert pieces.get_or_run("b", never) == {"v": 9}  # it goes on, and takes stock first


def test_what_an_exception_keeps_alive_does_not_keep_the_lock(tmp_path: Path) -> None:
    def run() -> None:
        with folder(tmp_path) as pieces:
            pieces.get_or_run("a", lambda: {"v": 1})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        run()
    assert folder(tmp_path).get_or_run("b", lambda: {"v": 2}) == {"v": 2}
    assert raised.value is not None


def test_an_object_that_is_gone_holds_nothing(tmp_path: Path) -> None:
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


def test_a_child_neither_works_nor_keeps_the_lock_alive(tmp_path: Path) -> None:
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


def test_fork_after_opening_and_work_in_both(tmp_path: Path) -> None:
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


def test_a_folder_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    import shutil

    pieces = folder(tmp_path)
    pieces.get_or_run("a", lambda: {"v": 1})
    shutil.rmtree(tmp_path / "partial")
    assert pieces.get_or_run("b", lambda: {"v": 2}) == {"v": 2}
    assert pieces.get_or_run("a", lambda: {"v": 3}) == {"v": 3}
    pieces.close()
    assert folder(tmp_path).get_or_run("b", never) == {"v": 2}


def test_a_folder_replaced_by_another_runs_is_not_touched(tmp_path: Path) -> None:
    import shutil

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


def test_a_run_that_began_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """Opened while nothing was there; then another run began, stored a piece and ended."""
    late = folder(tmp_path, OTHER)
    same = folder(tmp_path)
    folder(tmp_path).get_or_run("a", lambda: {"v": 1})
    with pytest.raises(ValueError, match=r"another kind \(seed is 0 there, 1 here\)"):
        late.get_or_run("b", never)
    assert same.get_or_run("a", never) == {"v": 1}


def test_remove_in_the_middle_of_anothers_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match=r"run: cannot be locked \(.*file system with locks"):
        folder(tmp_path).get_or_run("a", never)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path).get_or_run("a", lambda: {"v": 1})
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **how: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *more, **how)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(CannotWrite, match=r"run: cannot be written \(Read-only file system\)"):
        folder(tmp_path)


def test_a_lock_that_a_kill_left_is_none(tmp_path: Path) -> None:
    code = _WORK + "sys.stdout.flush()\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert _child(code, tmp_path).returncode == -signal.SIGKILL
    assert (tmp_path / "partial" / "run" / "lock").exists()
    assert folder(tmp_path).get_or_run("b", never) == {"v": 9}


def test_a_damaged_folder_is_released_again(tmp_path: Path) -> None:
    folder(tmp_path).get_or_run("a", lambda: {"v": 1})
    path = tmp_path / "partial" / "run" / "a.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"a\.json: is damaged") as raised:
        folder(tmp_path)
    path.unlink()
    assert folder(tmp_path).get_or_run("a", lambda: {"v": 2}) == {"v": 2}
    assert raised.value is not None


def test_what_a_finished_run_left_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
