"""The one writer of files: a reader sees the old content or the new one, and what is written outlasts a power cut.

The content goes into a new file next to the target, is synced, takes the target's name, and the folder is synced: in
this order no moment is left at which a crash could leave half a file, or a name without its content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = re.compile(r"\..+\.(json|npz)\.[a-z0-9_]{8}")
"""What `write_atomically` leaves behind in a run's folder where it is killed."""
_ACL = "system.posix_acl_access"
_LONGEST = 200
"""Bytes of the target's name in the temporary file's: a file system allows 255 in all."""
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EPERM}
"""What a file system says that does not sync folders, or a folder that may be written but not read."""


class CannotWrite(OSError):
    """A result could not be written (disk full, no permission, a quota): nothing is half-written."""

    def __init__(self, path: Path, why: OSError) -> None:
        super().__init__(why.errno, why.strerror or str(why), str(path))

    def __str__(self) -> str:
        return (
            f"{self.filename}: cannot be written ({self.strerror}); nothing is half-written, and finished pieces in a "
            "run's folder are kept: make room, or choose another place, and run the same again"
        )


def write_atomically(path: Path, text: str | bytes, *, private: bool = False) -> None:
    """Write `text` (as UTF-8; bytes as they are) to `path`: a reader (or Ctrl-C) sees the old file or the new one.

    A new file has the mode of any new file of the user's. A file that is there keeps its mode and, where the
    system permits, its owner and group, not an access list; nobody may read more than before. A link
    stays one: what it points at is replaced. Other names of the same file (hard links) keep the old content. A file
    that the user may not write is refused, a device or a pipe takes the bytes as they come. private: who was trained
    on, or what was recovered of rows, is nobody else's to read: a new file, and one that was empty, gets mode 0600.

    Raises `CannotWrite`, an OSError, where the system refuses; the old file is then as it was. Only a kill leaves the
    temporary file, .NAME.XXXXXXXX, which nothing takes for the target.
    """
    content = text.encode() if isinstance(text, str) else text
    try:
        if is_stream(path):
            with path.open("ab") as stream:
                stream.write(content)
            return
        with replacing(path, private=private) as file:
            file.write(content)
    except OSError as why:
        raise CannotWrite(path, why) from why


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A file whose content replaces `path` at the end of the block; where the block raises, nothing is changed. As
    `write_atomically`, for content that arrives in parts. OSError where the system refuses."""
    target = Path(os.path.realpath(path, strict=False))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    make_folder(target.parent)
    old = _replaceable(target)
    # No wider than the target will be: what is private must not be readable while it is written.
    fresh = old is None or (private and old.st_size == 0)
    mode = (0o600 if private else 0o666) if old is None or fresh else old.st_mode & 0o600
    handle, temporary = _new_file(target.parent, target.name, mode)
    try:
        try:
            file = os.fdopen(handle, "wb")
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(handle)
            raise
        with file:
            yield file
            file.flush()
            if old is not None and not fresh:
                _keep_access(handle, target, old)
            os.fsync(handle)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def place_in(folder: Path, name: str) -> Path:
    """Where `name`, which is ours and not the user's, is written in a folder: `CannotWrite` where that is elsewhere. A
    folder that came from elsewhere may hold a link under that name, and what it points at is not ours to write; nor
    does anybody read what is written to a pipe there. A link to a place in the folder is followed."""
    path = folder / name
    target, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not target.is_relative_to(root) or target.is_symlink():
        raise CannotWrite(path, OSError(errno.ELOOP, f"it is a link that leads out of {folder}"))
    if target.exists() and not target.is_file() and not target.is_dir():
        raise CannotWrite(path, OSError(errno.EINVAL, "it is a pipe, a socket or a device"))
    return target if path.is_symlink() else path


def make_folder(folder: Path) -> None:
    """The folder, with those above it; each new one is there after a power cut, too. OSError where it cannot be."""
    if folder.is_dir():
        return
    for _ in range(100):  # another run may remove a folder above, which it has left empty, at any moment
        with contextlib.suppress(FileNotFoundError):
            _make_folders(folder)
            return
    _make_folders(folder)


def _make_folders(folder: Path) -> None:
    if not folder.parent.is_dir():
        _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries outlast a power cut, where the file system can. OSError where the disk fails."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as why:
        if why.errno in _NO_SYNC:
            return
        raise
    try:
        os.fsync(handle)
    except OSError as why:
        if why.errno not in _NO_SYNC:
            raise
    finally:
        os.close(handle)


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


def try_writing(path: Path) -> None:
    """OSError where a file of that name could not be written: its folder takes no files, or it may not be replaced."""
    target = Path(os.path.realpath(path, strict=False))
    try_folder(target.parent)
    _replaceable(target)


def try_folder(folder: Path) -> None:
    """OSError where the folder does not take files. It is made where it is not there."""
    make_folder(folder)
    handle, probe = _new_file(folder, "writable", 0o600)
    os.close(handle)
    probe.unlink(missing_ok=True)


def _replaceable(target: Path) -> os.stat_result | None:
    """What the system says of the file that will be replaced, None where there is none. OSError where it must stay."""
    try:
        old = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(target, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, "it is read-only")
    return old


def _new_file(folder: Path, name: str, mode: int) -> tuple[int, Path]:
    """A file that nobody else has, open for writing. The system applies the process's mask to `mode`."""
    short = os.fsdecode(os.fsencode(name)[:_LONGEST])
    while True:
        path = folder / f".{short}.{secrets.token_hex(4)}"
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), path


def _keep_access(handle: int, target: Path, old: os.stat_result) -> None:
    """Give the open file owner, group and mode of the one it will replace; what cannot be kept is narrowed."""
    mode = stat.S_IMODE(old.st_mode) & 0o777
    with contextlib.suppress(OSError):
        os.chown(handle, old.st_uid, -1)
    try:
        os.chown(handle, -1, old.st_gid)
    except OSError:
        # The group is another one now: what only one of the old group and all others could do, neither may.
        both = mode & 0o7 & mode >> 3
        mode = mode & 0o700 | both << 3 | both
    # An access list is not copied. One that the folder handed down goes, and the bits of the group are a list's mask.
    with contextlib.suppress(OSError):
        os.removexattr(handle, _ACL)
    with contextlib.suppress(OSError):
        mode = mode & 0o700 if _ACL in os.listxattr(target) else mode
    os.chmod(handle, mode)
