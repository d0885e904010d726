"""Mutations that get past checksums: archives are unpacked, changed inside, and packed again.

Pure functions of (data, random generator), so that a find is told by its seed.
"""

from __future__ import annotations

import gzip
import io
import random
import struct
import tarfile
import warnings
import zipfile
import zlib

WORDS = (
    b"\x00", b"\xff", b"\n", b"\x80", b"{", b"[", b"(", b"'", b'"', b"-1", b"1e400", b"9" * 30, b"nan", b"inf",
    b"999999999999", b"|O", b"<f8", b">U9", b"|S1", b"<M8[s]", b"(1099511627776,)", b"(-1, -1)", b"(0, 0)", b"True",
    b"null", b"[" * 3000, b"data_offsets", b"shape", b"F64", b",", b"=", b"[audit]\n", b"trials = 1\n", b"\xef\xbb\xbf",
    struct.pack("<Q", 2**63 - 1), struct.pack("<I", 2**32 - 1), b"facts", b"scores", b"members", b"memberships",
)  # fmt: skip


def mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """A few changes, now and then inside the archive that the data are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name are meant
        return _mutated(data, others, rng)


def _mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    if rng.random() < 0.6:
        for unpack in (_zip, _tar, _gzip):
            try:
                candidate = unpack(data, others, rng)
            except (OSError, EOFError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error, RuntimeError,
                    NotImplementedError, struct.error, UnicodeError):  # fmt: skip
                continue
            if candidate is not None:
                return candidate
    return _flat(data, others, rng)


def _flat(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and out:
            out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[min(at, len(out) - 1)] = rng.randrange(256)
        elif kind == 2:
            out[at:at] = rng.choice(WORDS)
        elif kind == 3:
            word = rng.choice(WORDS)
            out[at : at + len(word)] = word
        elif kind == 4:
            del out[at : at + rng.choice((1, 2, 8, 64))]
        elif kind == 5:
            size = rng.choice((1, 8, 64))
            out[at:at] = out[at : at + size] * rng.choice((1, 2, 16))
        elif others:
            other = rng.choice(others)
            cut = rng.randrange(len(other) + 1)
            out[at:] = other[cut : cut + 4096]
    return bytes(out)


def _zip(data: bytes, others: list[bytes], rng: random.Random) -> bytes | None:
    if not data.startswith(b"PK"):
        return None
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        parts = [(i.filename, file.read(i)[:100_000]) for i in file.infolist() if i.file_size < 2**20]
    if not parts:
        return None
    k = rng.randrange(len(parts))
    kind = rng.randrange(5)
    if kind == 0:
        del parts[k]
    elif kind == 1:
        parts.append(parts[k])
    elif kind == 2:
        parts[k] = (parts[rng.randrange(len(parts))][0], parts[k][1])
    else:
        parts[k] = (parts[k][0], _flat(parts[k][1], [], rng))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for name, content in parts:
            info = zipfile.ZipInfo(name)
            info.compress_type = file.compression
            with file.open(info, "w") as stream:
                stream.write(content)
    return out.getvalue()


def _gzip(data: bytes, others: list[bytes], rng: random.Random) -> bytes | None:
    if not data.startswith(b"\x1f\x8b"):
        return None
    with gzip.open(io.BytesIO(data)) as stream:
        inner = stream.read(2**20)
    return gzip.compress(_flat(inner, [], rng), 1, mtime=0)


def _tar(data: bytes, others: list[bytes], rng: random.Random) -> bytes | None:
    if not data.startswith(b"\x1f\x8b"):
        return None
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        parts = [(m.name, archive.extractfile(m).read(2**20)) for m in archive if m.isfile()]  # type: ignore[union-attr]
    if not parts:
        return None
    k = rng.randrange(len(parts))
    parts[k] = (parts[k][0], _flat(parts[k][1], [], rng))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, content in parts * rng.choice((1, 1, 1, 2)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()
