"""The committed corpus and some seconds of mutants, under a limit on memory; bombs; and code that must not run."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import mutate  # noqa: E402
from targets import CORPUS, TARGETS, Refused, corpus  # noqa: E402

SECONDS = 0.3
MEMORY = 10**9


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE), *words], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
    )  # fmt: skip


@pytest.mark.full
def test_corpus_and_mutants_within_a_gigabyte() -> None:
    done = _run("--seconds", str(SECONDS), "--limit", str(MEMORY))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == list(TARGETS)
    assert all(int(line.split()[1]) >= len(corpus(line.split(":")[0])) for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_minutes_of_mutants() -> None:
    done = _run("--seconds", "45", "--seed", str(random.SystemRandom().randrange(2**32)), "--limit", str(MEMORY))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_every_target_has_good_files_and_bad_ones() -> None:
    assert {p.name for p in CORPUS.iterdir()} == set(TARGETS)
    for name, target in TARGETS.items():
        good = 0
        for data in corpus(name):
            try:
                target(data)
                good += 1
            except Refused:
                continue
        assert 0 < good < len(corpus(name)), name


def test_the_fuzzer_finds_what_is_there_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser with a bug behind a checksum: the mutants reach it."""

    def buggy(data: bytes) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            if not file.read("a.npy").startswith(b"\x93NUMPY\x01\x00"):
                raise KeyError("the bug")

    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3.0))
    rng = random.Random(0)
    for _ in range(3000):
        try:
            buggy(mutate.mutated(buffer.getvalue(), [], rng))
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, OSError, EOFError, RuntimeError, ValueError):
            continue
        except KeyError as error:
            if "the bug" in str(error):
                return
    pytest.fail("3,000 mutants did not reach it")


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["LEAKCORE_TEST_EVIL"],)


@pytest.mark.parametrize("name", ["trace", "scores-npz", "arrays-npz"])
def test_a_malicious_pickle_is_refused_and_does_not_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "was-run"
    monkeypatch.setenv("LEAKCORE_TEST_EVIL", str(mark))
    with np.load(CORPUS / name / "good.npz") as good:
        names = good.files
    buffer = io.BytesIO()
    np.savez(buffer, **{n: np.array([_Evil()], dtype=object) for n in names})
    with pytest.raises(Refused, match=r"never unpickled|is not an npz"):
        TARGETS[name](buffer.getvalue())
    assert not mark.exists()
    with np.load(io.BytesIO(buffer.getvalue()), allow_pickle=True) as file:
        _ = file[names[0]]
    assert mark.exists(), "the file is harmless, so the test proves nothing"


def _bomb(sizes: dict[str, int]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, size in sizes.items():
            header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}".ljust(117).encode() + b"\n"
            with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
                stream.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
                for _ in range(size >> 24):
                    stream.write(bytes(1 << 24))
    return out.getvalue()


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("arrays-npz", lambda: _bomb(dict.fromkeys("abc", 3 << 27))),
        ("trace", lambda: _bomb(dict.fromkeys(["facts", "members", "noise_multiplier"], 3 << 27))),
        ("scores-npz", lambda: _bomb({"members": (1 << 30) + (1 << 24), "non_members": 1 << 24})),
        ("idx", lambda: gzip.compress(bytes(3 << 28), 1)),
    ],
)
def test_archives_that_unfold_beyond_measure_are_refused(name: str, data: object, tmp_path: Path) -> None:
    """A few megabytes that claim more than a gigabyte: refused within half of one."""
    path = tmp_path / "bomb"
    path.write_bytes(data())  # type: ignore[operator]
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "from targets import TARGETS, Refused, corpus\n"
        "name, path = sys.argv[2:]\n"
        "for good in corpus(name)[:2]:\n"
        "    try: TARGETS[name](good)\n"
        "    except Refused: pass\n"
        "data = open(path, 'rb').read()\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + 2**29,) * 2)\n"
        "try: TARGETS[name](data)\n"
        "except Refused as why: print('refused', why)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(HERE), name, str(path)], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused"), done.stdout


def test_what_numpy_says_of_text_in_numbers_is_not_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in corpus("purchase"):
            try:
                TARGETS["purchase"](data)
            except Refused:
                continue
