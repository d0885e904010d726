"""A disk that loses power: what a program did to its files, and every state in which a crash could have left them.

`Recorder` notes the calls of the operating system that change files below a folder. `states` replays every beginning of
them on a model of a disk, in which the content of a file is safe once it was synced, and a folder's entry (made,
renamed or removed) once the folder was. Of all else a crash keeps whatever part it likes: nothing, everything, half of
a file, any single entry, all but one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Operation = tuple[Any, ...]
State = dict[str, bytes | None]
"""Content by path, None for a folder."""


class Recorder:
    """operations: what was done below `root`, in order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self._known: dict[str, bytes] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Note what this process does."""
        with pytest.MonkeyPatch.context() as patched:
            for name in ("mkdir", "rmdir", "unlink", "remove"):
                patched.setattr(os, name, self._plain(name, getattr(os, name)))
            for name in ("rename", "replace"):
                patched.setattr(os, name, self._renaming(getattr(os, name)))
            patched.setattr(os, "open", self._opening(os.open))
            patched.setattr(os, "fsync", self._syncing(os.fsync))
            yield

    def _path(self, path: Any, dir_fd: int | None) -> str | None:
        folder = Path("" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}"))
        whole = Path(os.path.abspath(folder / os.fsdecode(path)))
        return str(whole.relative_to(self.root)) if whole.is_relative_to(self.root) else None

    def _plain(self, name: str, real: Any) -> Any:
        def call(path: Any, *more: Any, dir_fd: int | None = None, **how: Any) -> Any:
            answer = real(path, *more, **how, **({} if dir_fd is None else {"dir_fd": dir_fd}))
            if (where := self._path(path, dir_fd)) is not None:
                self.operations.append(("make" if name == "mkdir" else "drop", where))
            return answer

        return call

    def _renaming(self, real: Any) -> Any:
        def call(source: Any, target: Any, **how: Any) -> Any:
            a, b = self._path(source, None), self._path(target, None)
            if a is not None and os.path.isfile(source):
                self._written(a)
            real(source, target, **how)
            if a is not None:
                self.operations.append(("move", a, b))

        return call

    def _opening(self, real: Any) -> Any:
        def call(path: Any, flags: int, *more: Any, dir_fd: int | None = None, **how: Any) -> int:
            where = None if isinstance(path, int) else self._path(path, dir_fd)
            new = where is not None and bool(flags & os.O_CREAT) and not os.path.lexists(path)
            handle: int = real(path, flags, *more, **how, **({} if dir_fd is None else {"dir_fd": dir_fd}))
            if new:
                self.operations.append(("create", where))
            return handle

        return call

    def _syncing(self, real: Any) -> Any:
        def call(handle: int) -> None:
            where = self._path(os.readlink(f"/proc/self/fd/{handle}"), None)
            if where is not None and stat.S_ISREG(os.fstat(handle).st_mode):
                self._written(where)
            real(handle)
            if where is not None:
                self.operations.append(("sync", where))

        return call

    def _written(self, where: str) -> None:
        content = (self.root / where).read_bytes()
        if self._known.get(where) != content:
            self._known[where] = content
            self.operations.append(("write", where, content))


@dataclasses.dataclass(eq=False)
class _Node:
    """A file or folder: what programs see, and what a crash leaves. pending: a folder's entries changed in between."""

    now: Any
    safe: Any
    pending: list[tuple[str | None, str | None, _Node | None]] = dataclasses.field(default_factory=list)


class _Disk:
    def __init__(self, there: State) -> None:
        self.root = _Node({}, {})
        for path, content in sorted(there.items()):
            folder, name = self._parent(path)
            node = _Node({}, {}) if content is None else _Node(content, content)
            folder.now[name] = folder.safe[name] = node

    def _node(self, path: str) -> _Node:
        node = self.root
        for part in Path(path).parts:
            node = node.now[part]
        return node

    def _parent(self, path: str) -> tuple[_Node, str]:
        return self._node(str(Path(path).parent)), Path(path).name

    def do(self, operation: Operation) -> None:
        what, path, *more = operation
        if what == "write":
            self._node(path).now = more[0]
        elif what == "sync":
            node = self._node(path)
            node.safe = dict(node.now) if isinstance(node.now, dict) else node.now
            node.pending = []
        else:
            folder, name = self._parent(path)
            if what == "move":
                target, new = self._parent(more[0])
                assert target is folder, "a move between folders is not modelled"
                change = (name, new, folder.now[name])
            elif what == "drop":
                change = (name, None, None)
            else:
                change = (None, name, _Node({}, {}) if what == "make" else _Node(b"", b""))
            _apply(folder.now, change)
            folder.pending.append(change)

    def crashed(self) -> Iterator[State]:
        """Every state that this moment may leave."""
        pending = [(id(node), i) for node in self._all(self.root) for i in range(len(node.pending))]
        yield self._left(set(), "lost")
        for how in ("lost", "half", "whole"):
            yield self._left(set(pending), how)
        for one in pending:
            yield self._left({one}, "half")
            yield self._left(set(pending) - {one}, "half")

    def _all(self, node: _Node) -> Iterator[_Node]:
        yield node
        if isinstance(node.now, dict):
            inside = {id(n): n for n in [*node.now.values(), *node.safe.values()]}
            for child in inside.values():
                yield from self._all(child)

    def _left(self, survivors: set[tuple[int, int]], how: str) -> State:
        out: State = {}

        def walk(node: _Node, path: str) -> None:
            if not isinstance(node.now, dict):
                unsafe = {"lost": node.safe, "half": node.now[: len(node.now) // 2], "whole": node.now}[how]
                out[path] = node.safe if node.safe == node.now else unsafe
                return
            if path:
                out[path] = None
            entries = dict(node.safe)
            for i, change in enumerate(node.pending):
                if (id(node), i) in survivors:
                    _apply(entries, change)
            for name, child in entries.items():
                walk(child, f"{path}/{name}" if path else name)

        walk(self.root, "")
        return out


def _apply(entries: dict[str, _Node], change: tuple[str | None, str | None, _Node | None]) -> None:
    old, new, node = change
    if old is not None:
        entries.pop(old, None)
    if new is not None and node is not None:
        entries[new] = node


def content(root: Path) -> State:
    """What lies below a folder."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def states(there: State, operations: list[Operation]) -> Iterator[tuple[int, State]]:
    """(number of operations done, what a crash then leaves), each different one once for every number."""
    disk = _Disk(there)
    for done in range(len(operations) + 1):
        if done:
            disk.do(operations[done - 1])
        visited: list[State] = []
        for state in disk.crashed():
            if state not in visited:
                visited.append(state)
                yield done, state


def restore(state: State, root: Path) -> None:
    """Put a state into an empty folder."""
    for path, data in sorted(state.items()):
        if data is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
