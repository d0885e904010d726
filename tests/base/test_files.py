"""Files of strangers: safetensors, TOML, csv, gzip, tar, zip and JSON that trick a reader are refused."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import audit, datasets, models
from leakcore._base import reading
from leakcore._base.archives import read_gzip
from leakcore._base.reading import parse_json, read_json
from leakcore._base.run_folder import seal, unseal
from leakcore.datasets import images, tabular
from tests.base.tricks import FREE, TRICKS, npy, twice, written

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
        (_tensors({"w": _W, "__metadata__": {"a": 1}}, bytes(8)), "`__metadata__` must be texts by name"),
        (_tensors(None, raw=b"[" * 100_000), "nested too deeply"),
        (_tensors(None, raw=b'{"w":NaN}'), "NaN"),
        (struct.pack("<Q", 2**24 + 1) + bytes(2**24 + 1), "may have|at most 16777216"),
        (_tensors({"w": {**_W, "shape": [9**99]}}, bytes(8)), "do not hold"),
        (_tensors({"w\x1b]0;x\x07": {}}), r"w\\u001b\]0;x\\u0007: entry"),
    ],
)
def test_tricks_with_safetensors(content: bytes, message: str, tmp_path: Path) -> None:
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
        (
            "[run]\n" + "".join(f"k{i} = {i}\n" for i in range(15_000)),
            "(?s)`run.k0 = 0`: no such key.*\n`run.k1 = 1`: no such key\n.*\nand more$",
        ),
        ("[run]\n" + "#" * (2**18), "is larger than 262,144 bytes"),
        ("['\u202e\u001b]']\n", r"is not TOML|\\u202e"),
    ],
)
def test_tricks_with_toml(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text, encoding="utf-8")
    from leakcore.audit.config_file import read_config, read_settings

    with pytest.raises((ValueError, TypeError), match=message) as refused:
        read_settings("run", read_config(path)[1])
    assert str(refused.value).replace("\n", "").isprintable()
    assert len(str(refused.value)) < 2000


def test_long_configurations(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbf[run]\r\nsweep = [" + b"1.5, " * 5000 + b"2.0]\r\n")
    assert len(reading.read_toml(path)["run"]["sweep"]) == 5001
    path.write_bytes(b"[run]\na = '\xff'")
    with pytest.raises(ValueError, match="cannot be read"):
        reading.read_toml(path)


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
        (b"score,member\n1,\x1b[2J\n", r"`member` must be 0 or 1 .*, got '\\x1b\[2J'"),
        (b"\x1b]0;x\x07,b\n1,1\n", r"its names are \\u001b\]0;x\\u0007, b"),
    ],
)
def test_tricks_with_csv(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        audit.read_scores(tmp_path / "s.csv")
    assert str(refused.value).isprintable()


# gzip, tar, zip of data sets, JSON


@pytest.mark.usefixtures("_a_megabyte")
def test_gzip(tmp_path: Path) -> None:
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
def test_tar(tmp_path: Path) -> None:
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
def test_zip(tmp_path: Path) -> None:
    path = tmp_path / "d.zip"
    path.write_bytes(written({"d/t.csv": b"abc", "__MACOSX/._t.csv": b"x"}))
    assert tabular._zipped(path, "t.csv") == b"abc"
    for content, message in (
        (written({"a/t.csv": b"1", "b/t.csv": b"2"}), "holds 2 files named t.csv"),
        (written({"t.csv": bytes(FREE + 1)}, compression=zipfile.ZIP_DEFLATED), "may expand to"),
        (twice({"t.csv": b"1"}), "two entries named"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            tabular._zipped(path, "t.csv")


def test_duplicate_json_keys(tmp_path: Path) -> None:
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
def test_sealed_arrays(tmp_path: Path) -> None:
    path = seal(tmp_path, "network", {"weight": np.ones((2, 2))})
    np.testing.assert_array_equal(unseal(path)["weight"], np.ones((2, 2)))
    for trick in ("two of one name", "objects", "bomb"):
        path.write_bytes(TRICKS[trick][0]({"weight.npy": npy(np.ones((2, 2)))}))
        with pytest.raises(ValueError, match=r"network.npz: is damaged") as refused:
            unseal(path)
        assert re.search(TRICKS[trick][1], str(refused.value.__cause__))


def test_one_reader() -> None:
    """No other file of the package opens an archive or parses a format by itself."""
    package = Path(reading.__file__).parents[1]
    readers = {
        r"np\.load\(": set(), r"ZipFile\(": {"archives.py"}, r"gzip\.open\(|GzipFile\(": {"archives.py"},
        r"tarfile\.open\(": {"archives.py"}, r"csv\.(reader|DictReader)\(": {"reading.py"},
        r"tomllib\.loads?\(|tomli\.": {"reading.py"}, r"pickle\.loads?\(|torch\.load\(": set(),
    }  # fmt: skip
    for pattern, allowed in readers.items():
        users = {p.name for p in package.rglob("*.py") if re.search(pattern, p.read_text(encoding="utf-8"))}
        assert users <= allowed, (pattern, users - allowed)
