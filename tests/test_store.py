from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakcore._store import PartialResults, write_atomically
from leakcore.audit._config import AuditConfig


def test_a_piece_is_computed_once_and_found_again(tmp_path: Path) -> None:
    calls = []

    def run() -> dict[str, int]:
        calls.append(1)
        return {"hits": 7}

    assert PartialResults(tmp_path, "a" * 64).get_or_run("piece", run) == {"hits": 7}
    assert PartialResults(tmp_path, "a" * 64).get_or_run("piece", run) == {"hits": 7}
    assert len(calls) == 1


def test_pieces_of_another_configuration_are_not_used(tmp_path: Path) -> None:
    one, other = AuditConfig(seed=0).digest(), AuditConfig(seed=1).digest()
    assert one != other
    PartialResults(tmp_path, one).get_or_run("piece", lambda: {"hits": 7})
    assert not PartialResults(tmp_path, other).has("piece")
    assert PartialResults(tmp_path, other).get_or_run("piece", lambda: {"hits": 8}) == {"hits": 8}


def test_an_interrupted_piece_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> dict[str, int]:
        raise KeyboardInterrupt

    pieces = PartialResults(tmp_path, "a" * 64)
    with pytest.raises(KeyboardInterrupt):
        pieces.get_or_run("piece", interrupted)
    assert not pieces.has("piece")


def test_remove_takes_the_folder_away(tmp_path: Path) -> None:
    pieces = PartialResults(tmp_path / "partial", "a" * 64)
    pieces.get_or_run("piece", lambda: {"hits": 7})
    pieces.remove()
    assert list(tmp_path.iterdir()) == []


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.json"
    write_atomically(target, json.dumps({"old": True}))

    def fails(source: object, destination: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, json.dumps({"new": True}))
    assert json.loads(target.read_text()) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
