"""Find a data set's file in a local folder, the user's cache or the network, and check its SHA-256."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from leakcore._base.files.limits import open_regular
from leakcore._base.files.writing import replacing

_log = logging.getLogger(__name__)
_TIMEOUT = 30.0
"""Seconds without an answer before a mirror counts as dead."""


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A canonical file: its folder, its name, its SHA-256, and where to download it (nowhere if `urls` is empty)."""

    folder: str
    name: str
    sha256: str
    urls: tuple[str, ...] = ()


def find(file: RemoteFile, path: str | os.PathLike[str] | None, download: bool) -> Path:
    """The path of the file, whose SHA-256 is checked.

    `path` is a folder that holds the file directly or in its own subfolder. Without `path`, LEAKCORE_DATA is searched
    if it is set, then the cache (LEAKCORE_CACHE, or leakcore under XDG_CACHE_HOME or ~/.cache), then the mirrors, from
    which the file is downloaded into the cache.
    FileNotFoundError says where it was looked for and how to get it; ValueError where the bytes are not the canonical
    ones.
    """
    searched = list(_folders(file, path))
    for folder in searched:
        candidate = folder / file.name
        if candidate.is_file():
            return _checked(candidate, file)
    tried = "".join(f"\n  {folder / file.name}" for folder in searched)
    if path is None and download and file.urls:
        return _download(file, tried)
    how = f"download {file.urls[0]}" if file.urls else "it has no public address"
    raise FileNotFoundError(
        f"{file.name} of {file.folder} was not found; looked for{tried}\nSet LEAKCORE_DATA to a folder that holds "
        f"{file.folder}/{file.name}, or pass path= (on the command line --data; {how}; SHA-256 {file.sha256})"
    )


def _folders(file: RemoteFile, path: str | os.PathLike[str] | None) -> Iterator[Path]:
    roots = [Path(path)] if path is not None else []
    if path is None:
        if folder := os.environ.get("LEAKCORE_DATA", ""):
            roots.append(Path(folder))
        roots.append(_cache())
    for root in roots:
        yield root / file.folder
        if path is not None:
            yield root


def _cache() -> Path:
    if folder := os.environ.get("LEAKCORE_CACHE", ""):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # A relative one is to be ignored, says the specification of these folders.
        return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "leakcore"
    except RuntimeError:  # no HOME, and a user without an entry
        raise ValueError("no home folder for data sets: set LEAKCORE_DATA, LEAKCORE_CACHE or HOME") from None


def _checked(path: Path, file: RemoteFile) -> Path:
    with open_regular(path) as stream:
        _require(_digest(stream), path, file)
    return path


def _require(digest: str, where: object, file: RemoteFile) -> None:
    if digest != file.sha256:
        raise ValueError(
            f"{where}: its SHA-256 is {digest}, the canonical file's is {file.sha256}: remove or replace it"
        )


def _digest(stream: BinaryIO, copy: BinaryIO | None = None) -> str:
    """SHA-256 of a stream, which is copied while it is read."""
    total = hashlib.sha256()
    while block := stream.read(2**20):
        total.update(block)
        if copy is not None:
            copy.write(block)
    return total.hexdigest()


def _download(file: RemoteFile, tried: str) -> Path:
    target = _cache() / file.folder / file.name
    failures = []
    for url in file.urls:
        _log.info("downloading %s", url)
        try:
            with replacing(target) as out, urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
                _require(_digest(response, copy=out), url, file)
            return target
        except (OSError, ValueError) as why:
            failures.append(f"\n  {url}: {why}")
    raise FileNotFoundError(
        f"{file.name} of {file.folder} was not found; looked for{tried}\nand no mirror sent it:{''.join(failures)}\n"
        f"Without a network, put the file into {target.parent} or set LEAKCORE_DATA to a folder that holds "
        f"{file.folder}/{file.name} (SHA-256 {file.sha256})"
    )
