"""Run folders: the finished pieces of a long command, so that whatever ends it loses nothing that was finished.

A folder belongs to one run: `run.json` says which (command, configuration, seed, versions), every piece is a file of
its own beside it, written atomically, with a checksum, never changed. Whatever is not as it was left is refused before
any work and is not touched: a folder may hold somebody's only copy of something.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from leakcore import __version__
from leakcore._futures import answers

_MANIFEST = "run.json"
_LOCK = "lock"
_SCHEMA = "leakcore.run/2"
_TEMPORARY = re.compile(r"\..+\.(json|npz)\.[a-z0-9_]{8}")
"""What `write_atomically` leaves behind where it is killed."""


class CannotWrite(OSError):
    """A result could not be written (disk full, no permission, a quota): nothing is half-written."""

    def __init__(self, path: Path, why: OSError) -> None:
        super().__init__(why.errno, why.strerror or str(why), str(path))

    def __str__(self) -> str:
        return (
            f"{self.filename}: cannot be written ({self.strerror}); nothing is half-written, and finished pieces in a "
            "run's folder are kept: make room, or choose another place, and run the same again"
        )


def write_atomically(path: Path, text: str | bytes) -> None:
    """Write `text` (as UTF-8; bytes as they are) to `path`: a reader (or Ctrl-C) sees the old file or the new one.

    A link stays one: what it points at is written. A device or a pipe takes the bytes as they come. Raises
    `CannotWrite`, an OSError, where the system refuses.
    """
    content = text.encode() if isinstance(text, str) else text
    try:
        if is_stream(path):
            with path.open("ab") as stream:
                stream.write(content)
            return
        target = Path(os.path.realpath(path, strict=False))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes private files; a report is meant to be read as any new file of the user's.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as why:
        raise CannotWrite(path, why) from why


def is_stream(path: Path) -> bool:
    """Whether what is written there is taken as it comes: a device, a pipe, or a descriptor that is open already."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return True
    link = path
    for _ in range(40):  # as many links as Linux follows
        if re.fullmatch(r"/dev/fd/\d+|/proc/(self|\d+)/fd/\d+", str(link)):
            return True
        if not link.is_symlink():
            return False
        link = Path(os.path.normpath(link.parent / os.readlink(link)))
    return False


def identity(command: str, config: Any, seed: int | None = None) -> dict[str, Any]:
    """What a run is bound to: pieces of another configuration, seed or version would give another report."""
    return {
        "command": command,
        "config": config,
        "seed": seed,
        "versions": {"leakcore": __version__, **{name: _version(name) for name in ("numpy", "torch")}},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


class PartialResults:
    """Pieces of one run by name, in out/partial/RUN; `out=None` keeps nothing.

    `bound_to` is what the run depends on, JSON-ready (`identity` makes it). Opening a folder checks all that is in it:
    ValueError says what is wrong and what to do where it is damaged, another run's, or holds what is not ours.
    `arrays`: it also holds folders of npz files (`dpsgd.Ensemble.run(checkpoint=…)`), which are checked as well.
    """

    def __init__(self, out: Path | None, run: str, bound_to: Any = None, *, arrays: bool = False) -> None:
        self._folder = None if out is None else out / "partial" / run
        self._bound_to, self._arrays = json.loads(json.dumps(bound_to)), arrays
        self._lock: weakref.finalize[Any, Any] | None = None
        self._names: set[str] = set()
        if self._folder is not None:
            _check_beside(self._folder)
            if self._folder.exists() and self._open(self._folder):
                self._begin(self._folder)

    @property
    def folder(self) -> Path | None:
        """Where the pieces lie."""
        return self._folder

    def get_or_run(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The stored piece, or `run()` stored under `name`. A piece is a JSON-ready dict."""
        if self._folder is None:
            return run()
        path = self._folder / f"{name}.json"
        if name not in self._names:
            piece = run()
            self._begin(self._folder)
            write_atomically(path, _sealed("piece", piece, name=name))
            self._names.add(name)
            return piece
        stored: dict[str, Any] = _unsealed(path, "piece", name=name)
        return stored

    def each(
        self, jobs: Mapping[str, Callable[[], dict[str, Any]]], executor: Executor | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, piece) of all: the stored ones first, the others as they finish, each stored at once.

        Without an executor they are done in order; with one by its workers (`_futures.answers`).
        """
        missing = [(name, job) for name, job in jobs.items() if not self.has(name)]
        for name in [name for name in jobs if self.has(name)]:
            yield name, self.get_or_run(name, jobs[name])
        with contextlib.closing(answers(missing, executor)) as finished:
            for name, piece in finished:
                yield name, self.get_or_run(name, functools.partial(dict, piece))

    def begin(self) -> None:
        """Make the folder ours now: for a caller who puts arrays into it."""
        if self._folder is not None:
            self._begin(self._folder)

    def has(self, name: str) -> bool:
        """Whether the piece is already there."""
        return name in self._names

    def remove(self) -> None:
        """Forget the pieces (the report that they were for exists now)."""
        self._names = set()
        folder, lock = self._folder, self._lock
        if folder is None or lock is None or not folder.exists():
            return
        # Under another name first: killed in the middle, it must not look like a damaged run.
        done = folder.with_name(f".{folder.name}.finished")
        shutil.rmtree(done, ignore_errors=True)
        os.replace(folder, done)
        shutil.rmtree(done, ignore_errors=True)
        lock()
        self._lock = None
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # unless another run lies beside it

    def _open(self, folder: Path) -> bool:
        """Read and check everything; whether it is this very run's. Nothing is written."""
        if not folder.is_dir():
            raise ValueError(f"{folder}: is no folder; remove it, or choose another output folder")
        there = sorted(p for p in folder.iterdir() if p.name != _LOCK and not _TEMPORARY.fullmatch(p.name))
        if not there:
            return False
        manifest = folder / _MANIFEST
        if manifest not in there:
            raise ValueError(
                f"{folder}: holds {there[0].name} but no {_MANIFEST}: is no unfinished run of this version of "
                "leakcore; remove the folder if nobody needs it, or choose another output folder"
            )
        found = _unsealed(manifest, "run", _SCHEMA)
        pieces = [p for p in there if p != manifest]
        if pieces and (difference := _difference(found, self._bound_to)):
            raise ValueError(
                f"{folder}: holds an unfinished run of another kind ({difference}); finish that one by its own "
                "command, remove the folder, or choose another output folder"
            )
        for path in pieces:
            if path.suffix == ".json" and path.is_file():
                _unsealed(path, "piece", name=path.stem)
                self._names.add(path.stem)
            elif self._arrays and path.is_dir():
                _check_arrays(path)
            else:
                raise ValueError(
                    f"{path}: is no file of leakcore's; move it elsewhere: {folder} is removed when its run is finished"
                )
        return bool(pieces)

    def _begin(self, folder: Path) -> None:
        if self._lock is not None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as why:
            raise CannotWrite(folder, why) from why
        try:
            # Of this process: unlike flock's, not kept alive by workers that outlive it. A kill releases it.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ValueError(
                f"{folder}: another process is at work in it; wait for it, or choose another output folder"
            ) from None
        self._lock = weakref.finalize(self, os.close, lock)
        for leftover in folder.iterdir():
            if _TEMPORARY.fullmatch(leftover.name):
                leftover.unlink(missing_ok=True)
        if not self._names:
            write_atomically(folder / _MANIFEST, _sealed("run", self._bound_to, _SCHEMA))


def try_writing(folder: Path) -> None:
    """OSError where the folder does not take files."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".{os.getpid()}.writable"
    probe.touch()
    probe.unlink(missing_ok=True)


def require_writable(folder: Path, *, name: str = "folder") -> None:
    """Fail before the work, not after it: ValueError where the folder does not take files."""
    try:
        try_writing(folder)
    except OSError as error:
        raise ValueError(f"{name}={str(folder)!r}: cannot be written ({error.strerror})") from error


def require_ours(folder: Path, report: str, schema: str = "leakcore.") -> None:
    """ValueError where a report of that name is there which leakcore did not write: it would be overwritten."""
    path = folder / report
    if not path.exists():
        return
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and str(found.get("schema", "")).startswith(schema):
            return
    raise ValueError(f"{path}: is no report of leakcore's and would be overwritten; move it, or choose another folder")


def _check_beside(folder: Path) -> None:
    """What lies beside a run's folder must be other runs' folders."""
    parent = folder.parent
    if not parent.exists():
        return
    if not parent.is_dir():
        raise ValueError(f"{parent}: is no folder; move it, or choose another output folder")
    for path in sorted(parent.iterdir()):
        if path != folder and not path.name.startswith(".") and not path.is_dir():
            raise ValueError(
                f"{path}: is no file of leakcore's; move it elsewhere: {parent} is for unfinished runs, or choose "
                "another output folder"
            )


def _sealed(what: str, value: Any, schema: str = _SCHEMA, *, name: str = "") -> str:
    """JSON text with a checksum of the value and of the name it is kept under: a copy is no other piece."""
    value = json.loads(json.dumps(value))  # as it will be read: keys are text, tuples are lists
    return json.dumps({"schema": schema, "sha256": _digest([name, value]), what: value})


def _unsealed(path: Path, what: str, schema: str = _SCHEMA, *, name: str = "") -> Any:
    try:
        found = json.loads(path.read_bytes())
        if found["schema"] != schema:
            raise ValueError(f"schema {found['schema']!r}, not {schema!r}")
        if found["sha256"] != _digest([name, found[what]]):
            raise ValueError("its checksum is another's")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as why:
        raise ValueError(_damaged(path, why)) from why
    return found[what]


def _damaged(path: Path, why: Exception) -> str:
    how = f"remove {path.parent}, which cannot be told to be this run's"
    if path.name != _MANIFEST:
        how = "remove this file, and it is computed anew"
    return f"{path}: is damaged ({type(why).__name__}: {str(why)[:120]}); {how}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _difference(there: Any, here: Any, where: str = "") -> str:
    """The first thing in which the two differ, in words; empty where they are equal."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in dict.fromkeys([*here, *there]):
            inner = f"{where}.{key}" if where else str(key)
            if found := _difference(there.get(key), here.get(key), inner):
                return found
        return ""
    # JSON text, so that NaN equals NaN.
    one, two = json.dumps(there), json.dumps(here)
    return "" if one == two else f"{where or 'it'} is {one[:80]} there, {two[:80]} here"


def _check_arrays(folder: Path) -> None:
    """Every npz in it whole: zip files carry a checksum per array."""
    for path in _files(folder):
        if path.suffix != ".npz":
            raise ValueError(
                f"{path}: is no file of leakcore's; move it elsewhere: the folder is removed when finished"
            )
        check_npz(path)


def _files(folder: Path) -> Iterable[Path]:
    return sorted(p for p in folder.iterdir() if not _TEMPORARY.fullmatch(p.name))


def check_npz(path: Path) -> None:
    """ValueError where the file is truncated or its bytes are not those that were written."""
    try:
        with zipfile.ZipFile(path) as file:
            if bad := file.testzip():
                raise ValueError(f"the checksum of {bad} is another's")
    except Exception as why:  # zipfile raises BadZipFile, zlib.error, NotImplementedError, EOFError, struct.error …
        raise ValueError(_damaged(path, why)) from why
