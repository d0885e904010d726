"""Files of strangers: one set of rules for archives and tables, at every door, and memory that they are worth."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import tarfile
import tempfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import audit, datasets, models
from leakcore._base.files import csv_file, limits, toml_file
from leakcore._base.files.gzip_file import read_gzip
from leakcore._base.files.json_file import parse_json, read_json
from leakcore._base.files.npz_file import read_npz
from leakcore._base.run_folder.sealed_file import seal, unseal
from leakcore.cli.user_files import read_arrays
from leakcore.datasets import images, tabular
from leakcore.dpsgd import Trace
from leakcore.dpsgd.ensemble.block.block import BlockOutput
from leakcore.dpsgd.ensemble.checkpoint import _read as _read_checkpoint

FREE = 2**20


@pytest.fixture
def _a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may expand to a megabyte here, so that what is too much is quickly made."""
    monkeypatch.setattr(limits, "FREE", FREE)


TRACE = Path(__file__).parents[1] / "fuzz" / "corpus" / "trace" / "good.npz"


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def _unzipped(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def _entries(door: str) -> dict[str, bytes]:
    """What a good file of the door holds."""
    if door == "trace":
        return _unzipped(TRACE)
    rng = np.random.default_rng(0)
    if door == "checkpoint":
        with tempfile.TemporaryDirectory() as folder:
            return _unzipped(seal(Path(folder), "f", BlockOutput(parameters=rng.normal(size=(2, 3)))))
    names = {"scores": ("members", "non_members"), "arrays": ("inputs", "labels")}[door]
    return {f"{name}.npy": _npy(rng.normal(size=20)) for name in names}


DOORS: dict[str, Callable[[Path], object]] = {
    "scores": audit.read_scores,
    "trace": Trace.load,
    "arrays": read_arrays,
    "checkpoint": lambda path: _read_checkpoint(path, (0, 2), 0, 2),
}


def _written(entries: dict[str, bytes], **how: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **how) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return out.getvalue()


def _twice(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as file:
        warnings.simplefilter("ignore")
        for name, content in [*entries.items(), *entries.items()]:
            file.writestr(name, content)
    return out.getvalue()


def _twice_without_its_ending(entries: dict[str, bytes]) -> bytes:
    """numpy takes `a` and `a.npy` for one name."""
    first = next(iter(entries))
    return _written({**entries, first.removesuffix(".npy"): entries[first]})


def _changed(entries: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None]) -> bytes:
    """The directory says otherwise of the first entry than it was written."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
        change(file.filelist[0])
    return out.getvalue()


def _overlapping(entries: dict[str, bytes]) -> bytes:
    """Every entry's bytes begin where the first one's do, so that one of them unfolds as often as there are names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
        for entry in file.filelist[1:]:
            entry.header_offset = file.filelist[0].header_offset
    return out.getvalue()


def _encrypted(entry: zipfile.ZipInfo) -> None:
    entry.flag_bits |= 1


def _link(entry: zipfile.ZipInfo) -> None:
    entry.external_attr = 0o120777 << 16


def _other_checksum(entry: zipfile.ZipInfo) -> None:
    entry.CRC ^= 1


def _bomb(entries: dict[str, bytes]) -> bytes:
    """Zeros that unfold a thousand times, as the first array."""
    first = next(iter(entries))
    return _written({**entries, first: _npy(np.zeros(2 * FREE, np.uint8))}, compression=zipfile.ZIP_DEFLATED)


TRICKS: dict[str, tuple[Callable[[dict[str, bytes]], bytes], str]] = {
    "two of one name": (_twice, "two entries named|two arrays named"),
    "one name, two endings": (_twice_without_its_ending, "two arrays named"),
    "overlap": (_overlapping, "overlap"),
    "encrypted": (lambda e: _changed(e, _encrypted), "is encrypted"),
    "link": (lambda e: _changed(e, _link), "is a link"),
    "checksum": (lambda e: _changed(e, _other_checksum), "CRC"),
    "bzip2": (lambda e: _written(e, compression=zipfile.ZIP_BZIP2), "compressed by method 12"),
    "lzma": (lambda e: _written(e, compression=zipfile.ZIP_LZMA), "compressed by method 14"),
    "absolute": (lambda e: _written({f"/{n}": c for n, c in e.items()}), "leaves the archive"),
    "above": (lambda e: _written({f"../{n}": c for n, c in e.items()}), "leaves the archive"),
    "bytes before": (lambda e: b"x" * 9 + _written(e), "before its first entry"),
    "two archives": (lambda e: _written(e) + _written(e), "before its first entry"),
    "bytes after": (lambda e: _written(e) + b"x" * 9, "after its end"),
    "cut short": (lambda e: _written(e)[:-30], "not a zip file|cut short"),
    "nested": (lambda e: _written(dict.fromkeys(e, _written(e))), "magic|is not an npz"),
    "objects": (lambda e: _written(dict.fromkeys(e, _npy(np.array([{}], dtype=object)))), "never unpickled"),
    "folder": (lambda e: _written({**e, "sub/": b""}), "magic|is not an npz"),
    "bomb": (_bomb, "may expand to 1,048,576"),
}


@pytest.mark.usefixtures("_a_megabyte")
@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("door", DOORS)
def test_a_trick_with_an_archive_is_refused_at_every_door(door: str, trick: str, tmp_path: Path) -> None:
    make, message = TRICKS[trick]
    path = tmp_path / "f.npz"
    path.write_bytes(_written(_entries(door)))
    DOORS[door](path)
    path.write_bytes(make(_entries(door)))
    if trick in ("nested", "folder") and door in ("scores", "trace"):
        message += "|.*"  # what is not asked for is not read
    if trick == "folder" and door in ("scores", "trace"):
        DOORS[door](path)
        return
    with pytest.raises(ValueError, match=message) as refused:
        DOORS[door](path)
    assert "f.npz" in str(refused.value)


@pytest.mark.parametrize("door", DOORS)
def test_honest_archives_of_every_kind_are_read(door: str, tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    for how in ({}, {"compression": zipfile.ZIP_DEFLATED}, {"allowZip64": True}):
        path.write_bytes(_written(_entries(door), **how))
        DOORS[door](path)
    stream = io.BytesIO()
    stream.seekable = lambda: False  # type: ignore[method-assign]
    with zipfile.ZipFile(stream, "w") as file:  # sizes follow the data
        for name, content in _entries(door).items():
            with file.open(name, "w", force_zip64=True) as entry:
                entry.write(content)
    path.write_bytes(stream.getvalue())
    DOORS[door](path)


def test_names_that_differ_in_their_spelling_only_are_ambiguous(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", members=np.arange(9.0), Members=np.arange(9.0), non_members=np.arange(9.0))
    with pytest.raises(ValueError, match="has 2 arrays or columns named"):
        audit.read_scores(tmp_path / "s.npz")
    assert len(audit.read_scores(tmp_path / "s.npz", members="Members", non_members="non_members").members) == 9
    (tmp_path / "s.csv").write_text("members,Members,non_members\n1,2,3\n4,5,6\n")
    with pytest.raises(ValueError, match="has 2 arrays or columns named"):
        audit.read_scores(tmp_path / "s.csv")


def test_scores_that_grow_as_they_are_read_are_counted_as_they_will_be(tmp_path: Path) -> None:
    """Truth values of one byte become float64: 16 MiB of them are 128."""
    values = np.zeros(2**24, np.uint8)
    np.savez_compressed(tmp_path / "s.npz", members=values, non_members=values[:9])
    with pytest.raises(ValueError, match=r"a file of [\d,]+ bytes may expand to 67,108,864 \(64 MiB, or 100 times"):
        audit.read_scores(tmp_path / "s.npz")
    np.savez(tmp_path / "s.npz", members=values, non_members=values[:9])
    assert len(audit.read_scores(tmp_path / "s.npz").members) == len(values)


def _peak(call: Callable[[], object]) -> int:
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_reading_takes_little_more_than_what_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=2**20)
    np.savez(tmp_path / "a.npz", members=values, non_members=values)
    np.savez_compressed(tmp_path / "c.npz", members=values, non_members=values)
    import torch

    models.save_safetensors({"a": torch.from_numpy(values), "b": torch.from_numpy(values)}, tmp_path / "a.safetensors")
    pixels = rng.integers(0, 256, (2000, 28, 28), np.uint8)
    (tmp_path / "i.gz").write_bytes(gzip.compress(struct.pack(">4I", 0x803, *pixels.shape) + pixels.tobytes(), 1))
    size = 2 * values.nbytes
    assert _peak(lambda: read_npz(tmp_path / "a.npz")) < 1.1 * size + 2**22
    assert _peak(lambda: read_npz(tmp_path / "c.npz")) < 1.1 * size + 2**22
    assert _peak(lambda: audit.read_scores(tmp_path / "c.npz")) < 1.3 * size + 2**22
    assert _peak(lambda: models.read_safetensors(tmp_path / "a.safetensors")) < 1.1 * size + 2**22
    assert _peak(lambda: images._read_idx(tmp_path / "i.gz", 3)) < 1.3 * pixels.nbytes + 2**22


@pytest.mark.usefixtures("_a_megabyte")
def test_a_trace_that_compresses_beyond_the_limit_is_read_again(tmp_path: Path) -> None:
    short = Trace.load(TRACE)
    steps = 60_000
    fields = {**vars(short)}
    for name in ("noise_multiplier", "max_grad_norm", "batch_rows"):
        fields[name] = np.full(steps, getattr(short, name)[0])
    Trace(**fields).save(tmp_path / "t.npz")
    assert Trace.load(tmp_path / "t.npz").steps == steps


# safetensors


def _tensors(header: Any, data: bytes = b"", *, raw: bytes | None = None) -> bytes:
    text = json.dumps(header).encode() if raw is None else raw
    return struct.pack("<Q", len(text)) + text + data


_W = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_tensors({"w": _W}, bytes(12)), "bytes 8 to 12 belong to no tensor"),
        (_tensors({"w": {**_W, "data_offsets": [4, 12]}}, bytes(12)), "bytes 0 to 4 belong to no tensor"),
        (_tensors({"w": _W, "v": _W}, bytes(8)), "overlap"),
        (_tensors({"w": _W}, bytes(4)), r"offsets \[0, 8\] do not hold"),
        (_tensors(None, bytes(8), raw=b'{"w":%b,"w":%b}' % ((json.dumps(_W).encode(),) * 2)), "gives w twice"),
        (_tensors({"w": _W, "__metadata__": {"a": 1}}, bytes(8)), "__metadata__: must be texts by name"),
        (_tensors(None, raw=b"[" * 100_000), "nested too deeply"),
        (_tensors(None, raw=b'{"w":NaN}'), "NaN"),
        (struct.pack("<Q", 2**24 + 1) + bytes(2**24 + 1), "may have|at most 16777216"),
        (_tensors({"w": {**_W, "shape": [9**99]}}, bytes(8)), "do not hold"),
        (_tensors({"w\x1b]0;x\x07": {}}), r"w\\u001b\]0;x\\u0007: entry"),
    ],
)
def test_tricks_with_safetensors_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        models.read_safetensors(tmp_path / "w.safetensors")
    assert str(refused.value).isprintable()


# TOML


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\n" + "a." * 20_000 + "b=1", "line 2 joins more than 16 names by dots"),
        ("[run]\nsteps = 1\n[" + '"a b" . ' * 20_000 + "b]", "line 3 joins more than 16 names"),
        ("[run]\na = {" + "'x'." * 20_000 + "b=1}", "line 2 joins more than 16 names"),
        ("[run]\na = " + "[" * 5000 + "]" * 5000, "is not TOML"),
        ("[run]\na = " + "[" * 40 + "]" * 40, "nested deeper than 16"),
        ("[run]\na = " + "{b=" * 40 + "1" + "}" * 40, "nested deeper than 16"),
        ("[run]\na = " + "{b=" * 3000 + "1" + "}" * 3000, "is not TOML|nested deeper"),
        ("".join(f"[{'a.' * k}b]\n" for k in range(17)), "joins more than 16"),
        ("[run]\nsteps = " + "9" * 5000, "is not TOML|beyond 64 bits"),
        ("[run]\nsteps = 0x" + "f" * 5000, "run.steps is an integer beyond 64 bits"),
        ("[run]\nsteps = [1, 99999999999999999999]", r"run.steps\[1\] is an integer beyond 64 bits"),
        ("[run]\nactivation = '" + "x" * 5000 + "'", "run.activation is a text of 5,000 characters"),
        ("[run]\n'" + "k" * 5000 + "' = 1", "no such key"),
        ("[run]\nsteps = 1\0", "is not TOML"),
        ("[run]\nsteps = 1979-05-27T07:32:00Z", "run.steps"),
        ("[run]\nsteps = 1\nsteps = 2", "is not TOML"),
        ("[run]\n" + "".join(f"k{i} = {i}\n" for i in range(15_000)), "run.k0=0: no such key"),
        ("[run]\n" + "#" * (2**18), "is larger than 262,144 bytes"),
        ("['\u202e\u001b]']\n", r"is not TOML|\\u202e"),
    ],
)
def test_tricks_with_toml_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text, encoding="utf-8")
    from leakcore.audit.config.file import read_config, run_config

    with pytest.raises((ValueError, TypeError), match=message) as refused:
        run_config(read_config(path)[1]["run"], {})
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2000


def test_a_byte_order_mark_and_long_configurations_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbf[run]\r\nsweep = [" + b"1.5, " * 5000 + b"2.0]\r\n")
    assert len(toml_file.read_toml(path)["run"]["sweep"]) == 5001
    path.write_bytes(b"[run]\na = '\xff'")
    with pytest.raises(ValueError, match="cannot be read"):
        toml_file.read_toml(path)


# csv


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"score,member\n1," + b"1" * 2**20 + b"\n", "a row has more than 1,048,576 characters"),
        (b"score,member\n" + b'"a\nb",' * 2**18, "a row has more than 1,048,576 characters"),
        (b"a," * 2**20, "a row has more than 1,048,576 characters"),
        (b'score,member\n1,"1\n', "unexpected end|cannot be read"),
        (b"score,member\n\xff,1\n", "cannot be read as csv"),
        (b"score,member,score\n1,1,2\n2,0,2\n", "has 2 arrays or columns named score, score"),
        (b"score,member\n1,\x1b[2J\n", r"member='\\x1b\[2J': must be 0 or 1"),
        (b"\x1b]0;x\x07,b\n1,1\n", r"its names are \\u001b\]0;x\\u0007, b"),
    ],
)
def test_tricks_with_csv_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        audit.read_scores(tmp_path / "s.csv")
    assert str(refused.value).isprintable()


def test_a_device_and_a_folder_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "f.npz").mkdir()
    (tmp_path / "f.csv").symlink_to("/dev/zero")
    (tmp_path / "f.safetensors").symlink_to("/dev/zero")
    (tmp_path / "f.toml").symlink_to("/dev/zero")
    for read, name in (
        (audit.read_scores, "f.npz"), (audit.read_scores, "f.csv"), (models.read_safetensors, "f.safetensors"),
        (toml_file.read_toml, "f.toml"), (Trace.load, "f.npz"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            read(tmp_path / name)


# gzip, tar, zip of data sets, JSON


@pytest.mark.usefixtures("_a_megabyte")
def test_gzip_is_bounded_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"abc") + gzip.compress(b"def"))
    assert read_gzip(path) == b"abcdef"
    for content, message in (
        (gzip.compress(bytes(FREE + 1), 1), "may expand to 1,048,576"),
        (gzip.compress(b"abc" * 99)[:-9], "damaged"),
        (gzip.compress(b"abc") + b"junk", "damaged"),
        (gzip.compress(b"abc")[:-8] + bytes(8), "damaged"),
        (b"", "not an idx|damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            images._read_idx(path, 1)


def _tar(files: list[tuple[str, bytes]], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.usefixtures("_a_megabyte")
def test_tar_is_bounded_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.tgz"
    for files, message in (
        ([("a/t.csv", b"1"), ("b/t.csv", b"1")], "two files named t.csv"),
        ([("skipped", bytes(FREE)), ("t.csv", b"1")], "may expand to 1,048,576"),
        ([(f"f{i}", b"") for i in range(5000)], "more than 4,096 entries"),
    ):
        path.write_bytes(_tar(files))
        with pytest.raises(ValueError, match=message):
            datasets.purchase100(path)
    path.write_bytes(_tar([("t.csv", b"1")], "w:xz"))
    with pytest.raises(ValueError, match="not an archive"):
        datasets.purchase100(path)


@pytest.mark.usefixtures("_a_megabyte")
def test_zip_of_a_data_set_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "d.zip"
    path.write_bytes(_written({"d/t.csv": b"abc", "__MACOSX/._t.csv": b"x"}))
    assert tabular._zipped(path, "t.csv") == b"abc"
    for content, message in (
        (_written({"a/t.csv": b"1", "b/t.csv": b"2"}), "holds 2 files named t.csv"),
        (_written({"t.csv": bytes(FREE + 1)}, compression=zipfile.ZIP_DEFLATED), "may expand to"),
        (_twice({"t.csv": b"1"}), "two entries named"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            tabular._zipped(path, "t.csv")


def test_json_has_one_value_for_a_key(tmp_path: Path) -> None:
    assert parse_json('{"a": [NaN]}', constants=True)["a"][0] != 0
    for text, message in (
        ('{"a": 1, "a": 2}', "gives a twice"),
        ('{"a": {"\\u001b": 1, "\\u001b": 1}}', r"gives \\u001b twice"),
        ("[" * 100_000, "nested too deeply"),
        ("[NaN]", "NaN"),
        ("9" * 5000, "is not JSON"),
        ("{", "is not JSON"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_json(text)
    (tmp_path / "a.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"a\.json: is not JSON"):
        read_json(tmp_path / "a.json")


@pytest.mark.usefixtures("_a_megabyte")
def test_a_sealed_file_of_arrays_is_read_by_the_same_rules(tmp_path: Path) -> None:
    path = seal(tmp_path, "network", {"weight": np.ones((2, 2))})
    np.testing.assert_array_equal(unseal(path)["weight"], np.ones((2, 2)))
    for trick in ("two of one name", "objects", "bomb"):
        path.write_bytes(TRICKS[trick][0]({"weight.npy": _npy(np.ones((2, 2)))}))
        with pytest.raises(ValueError, match=r"network.npz: is damaged") as refused:
            unseal(path)
        assert re.search(TRICKS[trick][1], str(refused.value.__cause__))


def test_one_reader_for_every_format() -> None:
    """No other file of the package opens an archive or parses a format by itself."""
    package = Path(csv_file.__file__).parents[2]
    readers = {
        r"np\.load\(": set(), r"ZipFile\(": {"zip_file.py"}, r"gzip\.open\(|GzipFile\(": {"gzip_file.py"},
        r"tarfile\.open\(": {"tar_file.py"}, r"csv\.(reader|DictReader)\(": {"csv_file.py"},
        r"tomllib\.loads?\(|tomli\.": {"toml_file.py"}, r"pickle\.loads?\(|torch\.load\(": set(),
    }  # fmt: skip
    for pattern, allowed in readers.items():
        users = {p.name for p in package.rglob("*.py") if re.search(pattern, p.read_text(encoding="utf-8"))}
        assert users <= allowed, (pattern, users - allowed)
