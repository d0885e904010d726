"""Run folders: the finished pieces of a long command, so that whatever ends it loses nothing that was finished.

A folder belongs to one run: `run.json` says which (command, configuration, seed, versions, arithmetic), every piece is
a file of its own next to it, written atomically, with a checksum, never changed. A file that is not as it was left is
refused before any work and is not touched: it may be somebody's only copy of something.

One run at a time: another thread or process is refused, under any name of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.codec import from_plain, pack, to_plain, unpack
from leakcore._base.digest import digest
from leakcore._base.reading import read_json
from leakcore._base.text import name_of, printable, repr_of
from leakcore._base.version import difference, process_identity
from leakcore._base.workers import answers
from leakcore._base.writing import TEMPORARY, CannotWrite, make_folder, place_in, sync_folder, write_atomically

if TYPE_CHECKING:
    from filelock import FileLock


def identity(command: str, config: Any, seed: int | None) -> dict[str, Any]:
    """What a run is bound to: pieces of another configuration, seed, version, source or arithmetic would give another
    report. Pieces of a folder are held to what is asked of a worker. `config` is JSON-ready and defines all but the
    seed."""
    return {"command": command, "config": config, "seed": seed, **process_identity()}


LOCK = "lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""What a file system without locks answers."""


_guard = threading.RLock()  # one thread may come back: the collector runs finalizers at any moment
_here: dict[tuple[int, int], FileLock] = {}
"""What this process has locked, by (device, inode)."""


class FolderBusy(ValueError):
    """Another run is at work in the folder. elsewhere: in another process; else in this one."""

    def __init__(self, folder: Path, *, elsewhere: bool) -> None:
        who = "another process is" if elsewhere else "another thread or an earlier call of this process is still"
        super().__init__(f"{folder}: {who} at work in it; wait for it, or choose another output folder")
        self.elsewhere = elsewhere


class FolderLock:
    """An exclusive lock of a folder that is there, until `release`, or the end of this object or of the process.

    `filelock` locks a file in the folder by `flock`, which the kernel lifts when the process ends in whatever way; a
    forked child closes its copy.

    Raises `FolderBusy`; ValueError where the file system offers no locks, `CannotWrite` where it takes no file;
    FileNotFoundError where the folder is gone.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._key, self._lock = _acquired(folder)
        self.release = weakref.finalize(self, _unlock, self._key, self._lock)

    def holds(self) -> bool:
        """Whether the folder of that name is still locked by this object: not released, not removed or replaced, and
        not a copy in a child of the process that locked it."""
        return _here.get(self._key) is self._lock and _key(self._path) == self._key


def _acquired(folder: Path) -> tuple[tuple[int, int], FileLock]:
    from filelock import FileLock, Timeout  # ensembles and kernels work without it

    path = folder / LOCK
    while True:
        opened: list[os.stat_result] = []
        lock = FileLock(
            path,
            timeout=0,
            thread_local=False,
            fallback_to_soft=False,
            preserve_lock_file=True,
            on_acquired=functools.partial(_note, opened),
        )
        with _guard:
            try:
                lock.acquire()
            except Timeout:
                raise FolderBusy(folder, elsewhere=_key(path) not in _here) from None
            except FileNotFoundError:
                raise
            except OSError as why:
                if why.errno not in _NO_LOCKS:
                    raise CannotWrite(folder, why) from why
                raise ValueError(
                    f"{folder}: cannot be locked ({why.strerror}), so that another run could work in it unnoticed; "
                    "choose an output folder on a file system with locks"
                ) from why
            key = opened[0].st_dev, opened[0].st_ino
            # The run that held it may have removed the folder between opening and locking.
            if _key(path) == key:
                _here[key] = lock
                return key, lock
            lock.release()


def _note(opened: list[os.stat_result], descriptor: int) -> None:
    opened.append(os.fstat(descriptor))


def _key(path: Path) -> tuple[int, int] | None:
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _unlock(key: tuple[int, int], lock: FileLock) -> None:
    with _guard:
        if _here.get(key) is lock:  # else this is a child, which closed its copy
            del _here[key]
            lock.release()


def _forget_all() -> None:
    global _guard
    _here.clear()
    _guard = threading.RLock()


os.register_at_fork(after_in_child=_forget_all)


SCHEMA = "leakcore.run/3"
MANIFEST = "run.json"


def seal(folder: Path, name: str, value: Any, kind: Any = None) -> Path:
    """Write the value to NAME.json, or to NAME.npz where it holds arrays; the path. `CannotWrite` where the system
    refuses, TypeError for what `to_plain` does not take."""
    arrays: dict[str, np.ndarray] = {}
    # As it will be read, so that the checksum is the reader's.
    plain = json.loads(json.dumps(to_plain(value, kind, arrays=arrays)))
    facts = {"schema": SCHEMA, "sha256": digest(name, plain, arrays), "piece": plain}
    path = place_in(folder, f"{name}.{'npz' if arrays else 'json'}")
    write_atomically(path, pack(facts, arrays) if arrays else json.dumps(facts), private=True)
    return path


def unseal(path: Path, kind: Any = Any) -> Any:
    """The value, which must be of type `kind`; ValueError where the file is not as it was written, with what to do."""
    try:
        plain, arrays = _unsealed(path)
        return from_plain(plain, kind, arrays=arrays)
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise ValueError(_damaged(path, why)) from why


def check_seal(path: Path) -> None:
    """ValueError, as `unseal`, where the file is not as it was written."""
    try:
        _unsealed(path)
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise ValueError(_damaged(path, why)) from why


def _unsealed(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    facts, arrays = unpack(path) if path.suffix == ".npz" else (read_json(path), {})
    if facts["schema"] != SCHEMA:
        raise ValueError(f"schema {repr_of(facts['schema'])}, not {SCHEMA!r}")
    if facts["sha256"] != digest(path.stem, facts["piece"], arrays):
        raise ValueError("its checksum is another's")
    return facts["piece"], arrays


def _damaged(path: Path, why: Exception) -> str:
    how = f"remove {printable(path.parent)}, which cannot be told to be this run's"
    if path.name != MANIFEST:
        how = "remove this file, and it is computed again"
    reason = str(why).removeprefix(f"{path}: ")
    return f"{printable(path)}: is damaged ({type(why).__name__}: {printable(reason, 200)}); {how}"


class PartialResults:
    """Pieces of one run by name, in out/partial/RUN; `out=None` keeps nothing.

    `bound_to` is what the run depends on, JSON-ready (`identity` makes it). Opening a folder checks everything in it. A
    ValueError says what is wrong and what to do if the folder is damaged, belongs to another run, holds a file that is
    not ours, or is in use by another process. Work in it begins with the first missing piece. From then on, until
    `close`, `remove` or the end of this object, the folder is locked: another run that begins, in any thread or
    process, is refused by `FolderBusy`, a ValueError, before it computes anything. As a context manager it closes
    itself, so that an exception's traceback does not keep the lock alive.
    `checkpoints`: it also holds the folders of `dpsgd.Execution(checkpoint=…)`, which are checked as well.
    """

    def __init__(self, out: Path | None, run: str, bound_to: Any = None, *, checkpoints: bool = False) -> None:
        self._folder = None if out is None else out / "partial" / run
        # As JSON will give it back: keys are text, tuples are lists.
        self._bound_to, self._checkpoints = json.loads(json.dumps(bound_to)), checkpoints
        self._lock: FolderLock | None = None
        self._beginning = threading.Lock()
        self._names: set[str] = set()
        if out is not None and self._folder is not None:
            _check_inside(out, self._folder)
            _check_parent(self._folder)
            if self._folder.exists():
                self._open(self._folder)

    def __enter__(self) -> PartialResults:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def folder(self) -> Path | None:
        """Where the pieces lie."""
        return self._folder

    def get_or_run(self, name: str, run: Callable[[], Any], kind: Any = Any) -> Any:
        """The stored piece, or `run()` stored under `name`: a value that the codec takes, such as a dict or a result.
        kind: its type, as `from_plain` takes it; Any: plain values and arrays."""
        if self._folder is None:
            return run()
        if name not in self._names or self._file(name) is None:
            self._names.discard(name)
            self._begin(self._folder)
            if name not in self._names:  # another run may have stored it before this one began
                with self._left_clean():
                    piece = run()
                self._begin(self._folder)  # where the folder was removed meanwhile, in a new one
                seal(self._folder, name, piece, kind)
                self._names.add(name)
                return piece
        path = self._file(name)
        assert path is not None
        return unseal(path, kind)

    def each(
        self, jobs: Mapping[str, Callable[[], Any]], executor: Executor | None = None, kind: Any = Any
    ) -> Iterator[tuple[str, Any]]:
        """(name, piece) of all: the stored ones first, the others as they finish, each stored at once. Without an
        executor they are done in order; with one by its workers (`futures.answers`). kind: of each piece."""
        if any(not self.has(name) for name in jobs):
            self.begin()
        missing = [(name, job) for name, job in jobs.items() if not self.has(name)]
        for name in [name for name in jobs if self.has(name)]:
            yield name, self.get_or_run(name, jobs[name], kind)
        with self._left_clean(), contextlib.closing(answers(missing, executor)) as finished:
            for name, piece in finished:
                yield name, self.get_or_run(name, functools.partial(_same, piece), kind)

    def begin(self) -> None:
        """Make the folder ours now: for a caller who puts arrays into it."""
        if self._folder is not None:
            self._begin(self._folder)

    def has(self, name: str) -> bool:
        """Whether the piece is already there."""
        return name in self._names

    def close(self) -> None:
        """Let others work in the folder. The pieces stay; this object may go on, which locks it again."""
        with self._beginning:
            if self._lock is not None:
                self._lock.release()
            self._lock = None

    def remove(self) -> None:
        """Forget the pieces (the report that they were for exists now)."""
        self._names = set()
        with self._beginning:
            folder, lock = self._folder, self._lock
            self._lock = None
            if folder is None or lock is None:
                return
            if not lock.holds():  # somebody removed the folder; what is there now is another's
                lock.release()
                return
            # Under another name first, for good: killed in the middle, it must not look like a damaged run.
            done = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.finished")
            os.replace(folder, done)
            with contextlib.suppress(OSError):
                sync_folder(folder.parent)
            shutil.rmtree(done, ignore_errors=True)
            lock.release()
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # unless another run has a folder there

    def _file(self, name: str) -> Path | None:
        """Where the piece lies, None where it does not."""
        assert self._folder is not None
        paths = (self._folder / f"{name}.{ending}" for ending in ("json", "npz"))
        return next((path for path in paths if path.exists()), None)

    def _open(self, folder: Path) -> None:
        """Read what is there; with pieces the folder is locked from here on, unless this process is at work in it."""
        if not (folder / LOCK).exists() and not self._check(folder):
            return
        try:
            lock = FolderLock(folder)
        except FileNotFoundError:  # finished and removed in this moment
            return
        except FolderBusy as busy:
            if busy.elsewhere:
                raise
            # Reading is allowed. To begin is refused, if it still has to be, before anything is computed.
            try:
                self._check(folder)
            except (FileNotFoundError, ValueError):
                if folder.exists():
                    raise
            return
        try:
            self._names = set()
            there = self._check(folder)
        except BaseException:
            lock.release()
            raise
        if there:
            _clear_leftovers(folder)
            self._lock = lock
        else:
            lock.release()

    def _begin(self, folder: Path) -> None:
        """Lock the folder, which is made where it is not there, and take stock of it."""
        with self._beginning:
            if self._lock is not None and self._lock.holds():
                return
            if self._lock is not None:
                self._lock.release()
            self._lock = None
            lock = _locked(folder)
            try:
                self._names = set()
                if not self._check(folder):
                    seal(folder, Path(MANIFEST).stem, self._bound_to)
            except BaseException:
                lock.release()
                raise
            _clear_leftovers(folder)
            self._lock = lock

    @contextlib.contextmanager
    def _left_clean(self) -> Iterator[None]:
        """Where the block raises and nothing was stored, the folder goes: it holds nothing that anybody could want."""
        try:
            yield
        except BaseException:
            if self._folder is not None and not self._names:
                with contextlib.suppress(OSError):
                    if {path.name for path in self._folder.iterdir()} <= {MANIFEST, LOCK}:
                        self.remove()
            raise

    def _check(self, folder: Path) -> bool:
        """Read and check everything; whether there are pieces, all of this very run. Nothing is written."""
        if not folder.is_dir():
            raise ValueError(f"{printable(folder)}: is not a folder; remove it, or choose another output folder")
        there = sorted(p for p in folder.iterdir() if p.name != LOCK and not _is_leftover(p))
        if not there:
            return False
        manifest = folder / MANIFEST
        if manifest not in there:
            raise ValueError(
                f"{printable(folder)}: holds {name_of(there[0].name)} but no {MANIFEST}: is not an unfinished run of "
                "this version of leakcore; remove the folder if nobody needs it, or choose another output folder"
            )
        there_bound_to = unseal(manifest)
        pieces = [p for p in there if p != manifest]
        if pieces and (apart := difference(there_bound_to, self._bound_to)):
            raise ValueError(
                f"{printable(folder)}: holds an unfinished run of another kind ({apart}); finish that one by its own "
                "command, remove the folder, or choose another output folder"
            )
        for path in pieces:
            if path.suffix in (".json", ".npz") and path.is_file() and not path.name.startswith("."):
                check_seal(path)
                self._names.add(path.stem)
            elif self._checkpoints and path.is_dir():
                _check_checkpoint(path)
            else:
                raise ValueError(
                    f"{printable(path)}: is not a file of leakcore's; move it elsewhere: {folder} is removed when its "
                    "run ends"
                )
        return bool(pieces)


def _same(piece: Any) -> Any:
    return piece


def _locked(folder: Path) -> FolderLock:
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError):  # removed by another run, which has finished, in this moment
            try:
                make_folder(folder)
            except FileNotFoundError:
                raise
            except OSError as why:
                raise CannotWrite(folder, why) from why
            return FolderLock(folder)
    raise ValueError(f"{printable(folder)}: is removed again and again by another run; choose another output folder")


def _is_leftover(path: Path) -> bool:
    """Whether a kill may have left the file half-written."""
    return TEMPORARY.fullmatch(path.name) is not None and (path.is_symlink() or not path.is_dir())


def _clear_leftovers(folder: Path) -> None:
    """What kills have left: files half-written, and folders of runs that are finished."""
    for leftover in folder.iterdir():
        if _is_leftover(leftover):
            leftover.unlink(missing_ok=True)
    finished = re.compile(rf"\.{re.escape(folder.name)}(\.[0-9a-f]{{8}})?\.finished")
    for path in folder.parent.iterdir():
        if finished.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _check_inside(out: Path, folder: Path) -> None:
    """What is written and removed in a run's folder must be in the folder that the user named: no link leads out."""
    for link in (folder.parent, folder):
        if link.is_symlink() and not Path(os.path.realpath(link)).is_relative_to(os.path.realpath(out)):
            raise ValueError(f"{link}: is a link that leads out of {out}; remove it, or choose another output folder")


def _check_parent(folder: Path) -> None:
    """The folder around a run's folder may hold folders of other runs only."""
    parent = folder.parent
    try:
        there = sorted(parent.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ValueError(f"{printable(parent)}: is not a folder; move it, or choose another output folder") from None
    except OSError as why:
        raise ValueError(f"{printable(parent)}: cannot be read ({why.strerror}); choose another output folder") from why
    for path in there:
        another = path == folder or path.name.startswith(".") or path.is_dir()
        if not another and os.path.lexists(path):  # a run that has just finished is no longer there
            raise ValueError(
                f"{printable(path)}: is not a file of leakcore's; move it elsewhere: {parent} is for unfinished "
                "runs, or choose another output folder"
            )


def _check_checkpoint(folder: Path) -> None:
    """Every file of `dpsgd.Execution(checkpoint=…)` as it was written."""
    for path in sorted(p for p in folder.iterdir() if not _is_leftover(p)):
        if path.suffix != ".npz":
            raise ValueError(
                f"{printable(path)}: is not a file of leakcore's; move it elsewhere: the folder is removed when "
                "finished"
            )
        check_seal(path)
