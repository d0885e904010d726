"""The one writer of files: who may read what it writes, what becomes of the old file, and what is left behind."""

from __future__ import annotations

import ast
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from leakcore import attacks, dpsgd
from leakcore._base import writing as _writing
from leakcore._base.output_folder import require_ours, require_writable
from leakcore._base.run_folder import seal
from leakcore._base.writing import CannotWrite, make_folder, replacing, write_atomically
from leakcore.dpsgd.trace.output_file import TraceFile


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def mask() -> Iterator[Callable[[int], None]]:
    before = os.umask(0o022)
    yield lambda bits: os.umask(bits) and None
    os.umask(before)


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("bits", [0o077, 0o022, 0o027, 0o002])
def test_mode_of_a_new_file(tmp_path: Path, mask: Callable[[int], None], bits: int) -> None:
    mask(bits)
    write_atomically(tmp_path / "new" / "report.json", "x")
    (tmp_path / "plain").write_text("x")
    assert mode(tmp_path / "new" / "report.json") == mode(tmp_path / "plain") == 0o666 & ~bits


def test_process_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(bits: int) -> int:
        raise AssertionError("umask was called")

    monkeypatch.setattr(os, "umask", touched)
    write_atomically(tmp_path / "report.json", "one")
    write_atomically(tmp_path / "report.json", "two")


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o400, 0o664, 0o700, 0o444])
def test_kept_mode(tmp_path: Path, mask: Callable[[int], None], bits: int) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    path.chmod(bits)
    if not os.access(path, os.W_OK):
        pytest.skip("read-only for this user: refused, see below")
    write_atomically(path, "new")
    assert (mode(path), path.read_text()) == (bits, "new")


def test_mode_while_writing(tmp_path: Path, mask: Callable[[int], None]) -> None:
    mask(0)
    path = tmp_path / "report.json"
    path.write_text("old")
    path.chmod(0o640)
    with replacing(path) as file:
        file.write(b"new")
        (temporary,) = (p for p in tmp_path.iterdir() if p != path)
        assert mode(temporary) == 0o600
    assert mode(path) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owner_and_group(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    write_atomically(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (12345, 23456, 0o640)


@pytest.mark.parametrize(("before", "after"), [(0o640, 0o600), (0o644, 0o644), (0o660, 0o600), (0o604, 0o600)])
def test_missing_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    path.chmod(before)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chown", refused)
    write_atomically(path, "new")
    assert mode(path) == after


def _list_of(user: int, group: int, other: int, named: dict[int, int]) -> bytes:
    """A POSIX access list as the kernel keeps it: tag, permissions, id."""
    entries = [(0x01, user, 0xFFFFFFFF), *((0x02, p, who) for who, p in named.items()), (0x04, group, 0xFFFFFFFF)]
    entries += [(0x10, 7, 0xFFFFFFFF), (0x20, other, 0xFFFFFFFF)]
    parts = (t.to_bytes(2, "little") + p.to_bytes(2, "little") + i.to_bytes(4, "little") for t, p, i in entries)
    return (2).to_bytes(4, "little") + b"".join(parts)


def _access_lists(folder: Path) -> None:
    try:
        os.setxattr(folder, "user.leakcore", b"1")
        os.setxattr(folder, "system.posix_acl_default", _list_of(7, 5, 5, {12345: 7}))
    except OSError:
        pytest.skip("a file system without access lists")


def test_access_list(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    try:
        os.setxattr(path, "system.posix_acl_access", _list_of(6, 0, 0, {12345: 4}))
    except OSError:
        pytest.skip("a file system without access lists")
    write_atomically(path, "new")
    assert "system.posix_acl_access" not in os.listxattr(path)
    assert mode(path) & 0o077 == 0


def test_private_file_and_default_acl(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    path.chmod(0o660)
    _access_lists(tmp_path)
    write_atomically(path, "new")
    assert "system.posix_acl_access" not in os.listxattr(path)
    assert mode(path) == 0o660


def test_read_only_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text('{"schema": "leakcore.audit/1"}')
    path.chmod(0o444)
    # Root may write anything: what the system says to others.
    monkeypatch.setattr(os, "access", lambda file, *_, **__: Path(file) != path)
    with pytest.raises(ValueError, match=r"report\.json: is read-only and would be overwritten"):
        require_ours(tmp_path, "report.json")
    with pytest.raises(CannotWrite, match=r"report\.json: cannot be written \(it is read-only\)"):
        write_atomically(path, "new")
    assert left(tmp_path) == ["report.json"]
    assert "schema" in path.read_text()


def test_other_links(tmp_path: Path) -> None:
    path, other = tmp_path / "report.json", tmp_path / "copy.json"
    path.write_text("old")
    os.link(path, other)
    write_atomically(path, "new")
    assert (path.read_text(), other.read_text()) == ("new", "old")


def test_private_file_behind_links(tmp_path: Path) -> None:
    target = tmp_path / "safe" / "real.json"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o600)
    (tmp_path / "one").symlink_to(target)
    (tmp_path / "two").symlink_to("one")
    write_atomically(tmp_path / "two", "new")
    assert (target.read_text(), mode(target)) == ("new", 0o600)
    assert (tmp_path / "two").is_symlink()
    (tmp_path / "dangling").symlink_to("nowhere.json")
    write_atomically(tmp_path / "dangling", "made")
    assert (tmp_path / "nowhere.json").read_text() == "made"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CannotWrite, match="loop: cannot be written"):
        write_atomically(tmp_path / "loop", "x")


def test_folder_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(CannotWrite, match=r"report\.json: cannot be written \(Is a directory\)"):
        write_atomically(tmp_path / "report.json", "x")
    assert left(tmp_path) == ["report.json"]


def test_longest_name(tmp_path: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        write_atomically(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"


@pytest.mark.parametrize("what", ["open", "fdopen", "fsync", "replace", "chmod", "mkdir"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, code: int) -> None:
    folder = tmp_path / "there" if what != "mkdir" else tmp_path / "not" / "there"
    path = folder / "report.json"
    if what != "mkdir":
        folder.mkdir()
        path.write_text("old")

    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, what, fails)
        with pytest.raises(CannotWrite, match=r"report\.json: cannot be written .*run the same again") as error:
            write_atomically(path, "new")
    assert error.value.errno == code
    assert left(tmp_path) == ([] if what == "mkdir" else ["there"])
    if what != "mkdir":
        assert (left(folder), path.read_text()) == (["report.json"], "old")


@pytest.mark.parametrize("place", ["the block", "replace"])
def test_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def arriving() -> None:
        with replacing(tmp_path / "data.gz") as file:
            file.write(b"half")
            if place == "the block":
                interrupted()

    (tmp_path / "data.gz").write_text("old")
    if place != "the block":
        monkeypatch.setattr(os, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        arriving()
    assert (left(tmp_path), (tmp_path / "data.gz").read_text()) == (["data.gz"], "old")


def test_folders_without_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "a" / "b" / "report.json", "x")
    assert (tmp_path / "a" / "b" / "report.json").read_text() == "x"


def test_folder_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run that ends removes the folder above, which it left empty, just before and just after it is used."""
    wanted, real, removed = tmp_path / "partial" / "one", os.mkdir, []

    def mkdir(path: os.PathLike[str], *more: int, **how: int) -> None:
        if Path(path) == wanted and len(removed) < 5:
            removed.append(1)
            wanted.parent.rmdir()
        real(path, *more, **how)
        if Path(path) == wanted and len(removed) < 9:
            removed.append(1)
            wanted.rmdir()
            wanted.parent.rmdir()

    monkeypatch.setattr(os, "mkdir", mkdir)
    make_folder(wanted)
    assert wanted.is_dir()
    assert len(removed) == 9


def test_trial_of_a_place(tmp_path: Path) -> None:
    require_writable(tmp_path / "new")
    assert left(tmp_path / "new") == []
    (tmp_path / "new" / "report").mkdir()
    require_writable(tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"`folder` must be writable, got .*below"):
        require_writable(tmp_path / "file" / "below")
    with pytest.raises(IsADirectoryError):
        _writing.try_writing(tmp_path)


def test_full_device() -> None:
    with pytest.raises(CannotWrite, match=r"/dev/full: cannot be written \(No space left on device\)"):
        write_atomically(Path("/dev/full"), "x")


_WRITERS = {
    "os.replace": {"_base/writing.py", "_base/run_folder.py"},
    "os.rename": set(),
    "os.open": {
        "_base/reading.py",
        "_base/writing.py",
        "_base/run_folder.py",
        "cli/exit_codes.py",
        "dpsgd/trace/output_file.py",
    },
    "os.fdopen": {"_base/reading.py", "_base/writing.py"},
}
"""Where the calls of the system that make or replace a file may stand: a lock, a place held free, /dev/null."""


@pytest.mark.full
def test_one_writer() -> None:
    package = Path(_writing.__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        where = str(path.relative_to(package))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert "tempfile" not in names, where
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            assert where in _WRITERS.get(name, {where}), f"{where}: {name}"
            last = name.rpartition(".")[2]
            assert last not in ("write_text", "write_bytes", "tofile", "to_csv", "memmap"), f"{where}: {name}"
            if last == "open" and not name.startswith("os."):
                modes = [
                    str(a.value) for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)
                ]
                writing = [mode for mode in modes if set(mode) <= set("rwaxbt+") and set(mode) & set("wax+")]
                assert not writing or where == "_base/writing.py", f"{where}: {name} {writing}"


@pytest.fixture(autouse=True)
def _usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _trace() -> dpsgd.Trace:
    z, zz = np.zeros(2), np.zeros((2, 2))
    return dpsgd.Trace(
        noise_multiplier=np.ones(5), max_grad_norm=np.ones(5), batch_rows=np.full(5, 9), sample_rate=0.1,
        expected_batch_size=9.0, members=np.array([True, False]), members_given=True, times_seen=z, clipped_share=z,
        membership_sum=z, membership_likelihood=z, pair_sum=zz, pair_likelihood=zz,
    )  # fmt: skip


def _canary_trace() -> dpsgd.CanaryTrace:
    return dpsgd.CanaryTrace(
        noise_multiplier=np.ones(5), max_grad_norm=np.ones(5), sample_rate=0.1, rows=90, parameters=50,
        coins=np.arange(20) < 9, times_seen=np.zeros(20), scores=np.zeros(50), release_scores=np.zeros(50),
        noise_ratio=1.0, common_noise=0.5, repeated_noise=0.5, interference=0.2,
    )  # fmt: skip


def _reconstructor() -> attacks.Reconstructor:
    return attacks.Reconstructor(
        layers=(3, 2, 4), mean=np.zeros(3), basis=None, columns=None, units=0, scale=np.ones(3),
        weights=np.zeros(20, np.float32), low=0.0, high=1.0, losses=np.zeros(2), held_out=0.5,
    )  # fmt: skip


WRITERS: dict[str, Callable[[Path], object]] = {
    "trace": lambda path: _trace().save(path),
    "canary trace": lambda path: _canary_trace().save(path),
    "recording": lambda path: TraceFile(path).save(_trace()),
    "reconstructor": lambda path: _reconstructor().save(path),
    "piece": lambda path: seal(path.parent, path.stem, {"scores": np.zeros(3)}),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("reserved", [False, True])
def test_private_folder(name: str, reserved: bool, tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    if reserved:
        path.touch()
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    WRITERS[name](path)
    assert path.stat().st_size > 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
