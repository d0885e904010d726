"""Every figure by two workers is the figure without: the same numbers to the last bit."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from leakcore import experiments

DATA = Path(os.environ.get("LEAKCORE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
BRIEF = ("reconstruction-table2",)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize("name", BRIEF)
def test_a_brief_figure(name: str, pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    reports: dict[str, list[int]] = {}
    by_two = experiments.run(
        name, scale="tiny", executor=pool, out=tmp_path,
        progress=lambda task, done, total: reports.setdefault(task, []).append(done),
    )  # fmt: skip
    assert by_two.to_json() == experiments.run(name, scale="tiny").to_json()
    assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")) == by_two.to_dict()
    assert all(done == sorted(done) for done in reports.values())


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="no MNIST folder in LEAKCORE_DATA")
@pytest.mark.parametrize("name", [n for n in experiments.names() if n not in BRIEF])
def test_every_other_figure(name: str, pool: ProcessPoolExecutor) -> None:
    by_two = experiments.run(name, scale="tiny", data=DATA, executor=pool)
    assert by_two.to_json() == experiments.run(name, scale="tiny", data=DATA).to_json()
