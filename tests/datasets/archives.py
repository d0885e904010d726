"""Archives of the form of CIFAR's, made here, and put in the place of the canonical ones."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from leakcore.datasets import cifar, dataset


def archive(members: Mapping[str, bytes]) -> bytes:
    """A gzipped tar of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"cifar/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def put(monkeypatch: pytest.MonkeyPatch, folder: Path, key: tuple[str, str], content: bytes) -> None:
    """Write an archive, and take it for the canonical one."""
    old = cifar._CIFAR[key]
    folder.mkdir(exist_ok=True)
    (folder / old.name).write_bytes(content)
    changed = dataset.RemoteFile(old.folder, old.name, hashlib.sha256(content).hexdigest(), old.urls)
    monkeypatch.setitem(cifar._CIFAR, key, changed)
