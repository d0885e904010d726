"""Archives of strangers: one set of rules at every door, and memory that they are worth."""

from __future__ import annotations

import gzip
import io
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leakcore import audit, models
from leakcore._base.archives import read_npz
from leakcore._base.run_folder import seal
from leakcore.cli.options import read_arrays
from leakcore.datasets import images
from leakcore.dpsgd import Trace
from leakcore.dpsgd.ensemble.block import BlockOutput
from leakcore.dpsgd.ensemble.checkpoint import _read as _read_checkpoint
from tests.base.tricks import TRICKS, npy, written

TRACE = Path(__file__).parents[1] / "fuzz" / "corpus" / "trace" / "good.npz"


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
    return {f"{name}.npy": npy(rng.normal(size=20)) for name in names}


DOORS: dict[str, Callable[[Path], object]] = {
    "scores": audit.read_scores,
    "trace": Trace.load,
    "arrays": read_arrays,
    "checkpoint": lambda path: _read_checkpoint(path, (0, 2), 0, 2),
}


@pytest.mark.usefixtures("_a_megabyte")
@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("door", DOORS)
def test_tricks_with_archives(door: str, trick: str, tmp_path: Path) -> None:
    make, message = TRICKS[trick]
    path = tmp_path / "f.npz"
    path.write_bytes(written(_entries(door)))
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
def test_honest_archives(door: str, tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    for how in ({}, {"compression": zipfile.ZIP_DEFLATED}, {"allowZip64": True}):
        path.write_bytes(written(_entries(door), **how))
        DOORS[door](path)
    stream = io.BytesIO()
    stream.seekable = lambda: False  # type: ignore[method-assign]
    with zipfile.ZipFile(stream, "w") as file:  # sizes follow the data
        for name, content in _entries(door).items():
            with file.open(name, "w", force_zip64=True) as entry:
                entry.write(content)
    path.write_bytes(stream.getvalue())
    DOORS[door](path)


def test_ambiguous_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", members=np.arange(9.0), Members=np.arange(9.0), non_members=np.arange(9.0))
    with pytest.raises(ValueError, match="has 2 arrays or columns named"):
        audit.read_scores(tmp_path / "s.npz")
    assert len(audit.read_scores(tmp_path / "s.npz", members="Members", non_members="non_members").members) == 9
    (tmp_path / "s.csv").write_text("members,Members,non_members\n1,2,3\n4,5,6\n")
    with pytest.raises(ValueError, match="has 2 arrays or columns named"):
        audit.read_scores(tmp_path / "s.csv")


def test_growing_scores(tmp_path: Path) -> None:
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


@pytest.mark.full
def test_memory_of_reading(tmp_path: Path) -> None:
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
def test_compressed_trace(tmp_path: Path) -> None:
    short = Trace.load(TRACE)
    steps = 60_000
    fields = {**vars(short)}
    for name in ("noise_multiplier", "max_grad_norm", "batch_rows"):
        fields[name] = np.full(steps, getattr(short, name)[0])
    Trace(**fields).save(tmp_path / "t.npz")
    assert Trace.load(tmp_path / "t.npz").steps == steps
