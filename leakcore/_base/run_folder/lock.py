"""One run at a time in a folder: another thread or process is refused, under any name of the folder.

`flock` of a file in the folder. It belongs to the open file, not to the process as POSIX locks do: two threads exclude
each other, and closing another handle of the file does not lift it. The kernel lifts it when the process ends, in
whatever way. Only a forked child would keep it alive; so every child closes its copy at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import threading
import weakref
from pathlib import Path

from leakcore._base.files.writing import CannotWrite

FILE = "lock"


@dataclasses.dataclass(eq=False)
class _Held:
    """A lock file that is open and locked."""

    key: tuple[int, int]
    descriptor: int


_guard = threading.RLock()  # one thread may come back: the collector runs finalizers at any moment
_here: dict[tuple[int, int], _Held] = {}
"""What this process has locked, by (device, inode)."""


class FolderBusy(ValueError):
    """Another run is at work in the folder. elsewhere: in another process; else in this one."""

    def __init__(self, folder: Path, *, elsewhere: bool) -> None:
        who = "another process is" if elsewhere else "another thread or an earlier call of this process is still"
        super().__init__(f"{folder}: {who} at work in it; wait for it, or choose another output folder")
        self.elsewhere = elsewhere


class FolderLock:
    """An exclusive lock of a folder that is there, until `release`, or the end of this object or of the process.

    Raises `FolderBusy`; ValueError where the file system offers no locks, `CannotWrite` where it takes no file;
    FileNotFoundError where the folder is gone.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._held = _locked(folder)
        self.release = weakref.finalize(self, _unlock, self._held)

    def holds(self) -> bool:
        """Whether the folder of that name is still locked by this object: not released, not removed or replaced, and
        not a copy in a child of the process that locked it."""
        key = self._held.key
        return _here.get(key) is self._held and _key(self._path) == key


def _locked(folder: Path) -> _Held:
    path = folder / FILE
    while True:
        with _guard:
            if _key(path) in _here:
                raise FolderBusy(folder, elsewhere=False)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            except FileNotFoundError:
                raise
            except OSError as why:
                raise CannotWrite(folder, why) from why
            try:
                _flock(folder, descriptor)
                opened = os.fstat(descriptor)
                key = opened.st_dev, opened.st_ino
                # The run that held it may have removed the folder between opening and locking.
                if _key(path) == key:
                    return _here.setdefault(key, _Held(key, descriptor))
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _flock(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderBusy(folder, elsewhere=True) from None
    except OSError as why:
        raise ValueError(
            f"{folder}: cannot be locked ({why.strerror}), so that another run could work in it unnoticed; choose an "
            "output folder on a file system with locks"
        ) from why


def _key(path: Path) -> tuple[int, int] | None:
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _unlock(lock: _Held) -> None:
    with _guard:
        if _here.get(lock.key) is lock:  # else this is a child, which closed its copy
            del _here[lock.key]
            os.close(lock.descriptor)


def _close_copies() -> None:
    global _guard
    for lock in _here.values():
        with contextlib.suppress(OSError):
            os.close(lock.descriptor)
    _here.clear()
    _guard = threading.RLock()


os.register_at_fork(
    before=lambda: _guard.acquire(), after_in_parent=lambda: _guard.release(), after_in_child=_close_copies
)
