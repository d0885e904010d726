"""Experiments: the registry, files, resuming, and each figure at its smallest scale."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from leakcore import experiments

BOUNDS_ONLY = ("reconstruction-table2", "reconstruction-fig11", "reconstruction-fig15")
DATA = Path(os.environ.get("LEAKCORE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="no MNIST folder in LEAKCORE_DATA")


def test_the_registry_names_every_figure_and_each_can_be_loaded() -> None:
    short = [*(f"fig{i}" for i in range(1, 7)), "table2", *(f"fig{i}" for i in range(7, 16))]
    assert experiments.names() == [f"reconstruction-{s}" for s in short]
    for name in experiments.names():
        found = experiments.find(name)
        assert found.title
        assert found.statement
        assert callable(found.load())
        assert bool(found.needs) == (name not in BOUNDS_ONLY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "fig1"}, "name='fig1'"),
        ({"name": "reconstruction-fig11", "scale": "huge"}, "scale='huge'"),
        ({"name": "reconstruction-fig11", "seed": -1}, "seed=-1"),
        ({"name": "reconstruction-fig11", "data": "/no/such/folder"}, "data='/no/such/folder'"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experiments.run(**arguments)  # type: ignore[arg-type]


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="mnist"):
        experiments.run("reconstruction-fig7", scale="tiny", data=tmp_path)


@pytest.mark.parametrize("name", BOUNDS_ONLY)
def test_bounds_only_figures_write_their_files_and_leave_no_pieces(name: str, tmp_path: Path) -> None:
    result = experiments.run(name, scale="tiny", out=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{name}.{e}" for e in ("json", "png", "svg")]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert written == json.loads(result.to_json())
    assert written["schema"] == "leakcore.experiment/1"
    assert "conclusion" in result.to_text()


def test_table_2_has_the_exact_values_and_names_the_printed_bound_that_is_too_low() -> None:
    result = experiments.run("reconstruction-table2", scale="tiny")
    ours = {s.what: s for s in result.stated}
    exact = {
        10: (0.7375, 0.3213, 0.1881, 0.1303, 0.0989, 0.0795),
        100: (0.3657, 0.0832, 0.0389, 0.0241, 0.0172, 0.0133),
    }
    for n, values in exact.items():
        for noise, value in zip(("0.5", "1", "1.5", "2", "2.5", "3"), values, strict=True):
            assert ours[f"n={n} σ={noise} blow-up bound, exact"].ours == pytest.approx(value, abs=5.1e-5)
    low = ours["n=100 σ=1 blow-up bound, exact"]
    assert low.paper == "0.077"
    assert "below the exact value, 0.0832" in low.comment
    for stated in result.stated:
        if "analytic" in stated.what:
            assert stated.ours == pytest.approx(float(stated.paper), abs=5.1e-4)


@needs_data
def test_an_interrupted_run_goes_on_and_gives_the_same_json(tmp_path: Path) -> None:
    name = "reconstruction-fig7"
    experiments.run(name, scale="tiny", data=DATA, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    played = []

    def stop(task: str, done: int, total: int) -> None:
        if task.startswith("width 20"):
            raise Stop

    with pytest.raises(Stop):
        experiments.run(name, scale="tiny", data=DATA, out=tmp_path / "cut", progress=stop)
    assert not (tmp_path / "cut" / f"{name}.json").exists()
    kept = list((tmp_path / "cut" / "partial").rglob("game-*.json"))
    assert kept
    before = {p: p.stat().st_mtime_ns for p in kept}

    def watch(task: str, done: int, total: int) -> None:
        played.append(task)
        assert {p: p.stat().st_mtime_ns for p in before} == before

    experiments.run(name, scale="tiny", data=DATA, out=tmp_path / "cut", progress=watch)
    assert played
    first, second = ((tmp_path / d / f"{name}.json").read_bytes() for d in ("whole", "cut"))
    assert first == second


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in experiments.names() if n not in BOUNDS_ONLY])
def test_attack_figures_run_at_their_smallest(name: str, tmp_path: Path) -> None:
    result = experiments.run(name, scale="tiny", data=DATA, out=tmp_path)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert result.data
    assert result.stated
    for stated in result.stated:
        if stated.interval is not None:
            assert stated.ours is not None
            assert stated.interval[0] <= stated.ours <= stated.interval[1]
