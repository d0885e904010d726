"""The registry, files, resuming, drawing, departures, workers, and each figure at its smallest scale."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from leakcore import experiments, models
from leakcore.experiments.driver.context import in_words
from leakcore.experiments.driver.draw import _panel, clashes, draw
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.reconstruction import data, games
from tests.experiments.contexts import context

BOUNDS_ONLY = ("reconstruction-table2", "reconstruction-fig11", "reconstruction-fig15", "reconstruction-spread")
WITHOUT_DATA = (
    *BOUNDS_ONLY,
    "lecture-laplace",
    "lecture-table1",
    "lecture-defenses",
    "mechanisms-trainings",
    "mechanisms-shuffling",
)
DATA = Path(os.environ.get("LEAKCORE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="no MNIST folder in LEAKCORE_DATA")


def test_the_registry_names_every_figure_and_each_can_be_loaded() -> None:
    short = [*(f"fig{i}" for i in range(1, 7)), "table2", *(f"fig{i}" for i in range(7, 16)), "gap", "sweep", "spread"]
    labels = [f"labels-fig{i}" for i in range(1, 6)]
    lecture = ["lecture-laplace", "lecture-table1", "lecture-defenses"]
    leakage = [f"leakage-fig{i}" for i in range(3, 12)]
    auditing = ["auditing-fig2", "auditing-table2"]
    schemes = ["mechanisms-trainings", "mechanisms-shuffling"]
    expected = [*(f"reconstruction-{s}" for s in short), *labels, *leakage, *auditing, *lecture, *schemes]
    assert experiments.names() == expected, "name a new figure here and, if it reads no data, in WITHOUT_DATA"
    for name in experiments.names():
        experiment = experiments.find(name)
        assert experiment.title
        assert experiment.statement
        assert callable(experiment.load())
        assert bool(experiment.needs) == (name not in WITHOUT_DATA)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "fig1"}, r"`name` must be an experiment's, one of reconstruction-fig1,.*, got 'fig1'"),
        ({"name": "reconstruction-fig11", "scale": "huge"}, "`scale` must be 'tiny', 'quick' or 'paper', got 'huge'"),
        ({"name": "reconstruction-fig11", "seed": -1}, r"`seed` must be in \[0, 18446744073709551615\], got -1"),
        (
            {"name": "reconstruction-fig11", "data": "/no/such/folder"},
            r"`data` must be a folder that.*, got '/no/such/folder'",
        ),
    ],
)
def test_bad_input_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experiments.run(**arguments)  # type: ignore[arg-type]


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="mnist"):
        experiments.run("reconstruction-fig7", scale="tiny", data=tmp_path)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("name", [*BOUNDS_ONLY[:-1], pytest.param(BOUNDS_ONLY[-1], marks=pytest.mark.slow)])
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


def _split(shift: float = 0.0) -> data.Split:
    rows = np.linspace(0.0, 1.0, 40 * 6, dtype=np.float32).reshape(40, 6) + np.float32(shift)
    labels = np.arange(40) % 2
    return data.Split(rows[:10], labels[:10], rows[10:], labels[10:], 2, "made up", rows[10:], (2, 3))


def test_a_kept_piece_serves_the_data_it_was_made_from_and_no_other(tmp_path: Path) -> None:
    def play(split: data.Split) -> int:
        setting = games.GameSetting(epsilon=10.0, hidden=(), steps=2)
        games.play(context(folder=tmp_path), split, setting, num_candidates=2, runs=4, task="the same")
        return len(list(tmp_path.rglob("game-*.json")))

    assert [play(_split()), play(_split()), play(_split(0.25)), play(_split())] == [1, 1, 2, 2]
    assert _split().content == _split().content != _split(0.25).content
    assert _split().cut(5).content != _split().content


def test_a_kept_network_has_its_buffers() -> None:
    def network(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten())

    images = torch.linspace(0.0, 3.0, 4 * 25).reshape(4, 1, 5, 5)
    with torch.random.fork_rng(devices=[]):
        trained, fresh = network(1), network(2)
    trained(images)
    assert not torch.equal(trained.state_dict()["1.running_mean"], torch.zeros(2))
    models.load_state_arrays(fresh, models.state_arrays(trained))
    for name, value in trained.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]), name
    assert torch.equal(trained.eval()(images), fresh.eval()(images))


def _result(**more: Any) -> ExperimentResult:
    return ExperimentResult(
        name="reconstruction-fig0",
        title="t",
        statement="s",
        scale="tiny",
        seed=0,
        conclusion="So it is.",
        stated=(),
        **more,
    )


def test_the_verdict_leads_the_caption_and_is_one_of_four() -> None:
    assert _result().caption == "Nothing here can be compared with the paper's finding. So it is."
    whole = _result(checks=(Check(says="a is above b", holds=6, cases=6, chance=0.5),))
    assert whole.caption == "The paper's finding is reproduced. A is above b: 6 of 6 (chance: 3). So it is."
    missed = _result(checks=(Check(says="a is above b", holds=1, cases=2),))
    assert "not reproduced. A is above b: 1 of 2. So it is." in " ".join(missed.to_text().split())
    assert json.loads(missed.to_json())["verdict"] == missed.verdict == "not reproduced"
    assert ExperimentResult.from_dict(json.loads(missed.to_json())).verdict == "not reproduced"


def test_an_attack_that_beats_its_bound_is_called_an_error() -> None:
    game = games.play(
        context(), _split(), games.GameSetting(epsilon=1000.0, hidden=(), steps=5), num_candidates=2, runs=64, task=""
    )["sum"]
    assert game.hits > 40
    settings: dict[str, Any] = {"splits": [_split()], "setting": games.GameSetting(epsilon=1000.0), "runs": 64}
    fine = context().result(conclusion="Fine.", checks=[Check(says="a", holds=1, cases=1)], stated=[])
    assert games.report(fine, attacked=[(game, 1.0)], **settings).verdict == "reproduced"
    wrong = games.report(fine, attacked=[(game, 1.0), (game, 0.3)], **settings)
    assert wrong.verdict == "not reproduced"
    assert "beats its bound" in wrong.caption


@pytest.mark.full
def test_the_svg_has_a_name_a_description_and_the_values_of_its_points() -> None:
    x = np.array([1.0, 10.0])
    points = Series(name="a < b", role="attack", x=x, y=x / 20, low=x / 20 - 0.04, high=x / 20 + 0.3)
    line = Series(name="bound", role="bound", x=x, y=np.array([0.5, 7.0]))
    panel = Panel(title="p", x_label="ε", y_label="rate", series=(points, line), log_x=True)
    _, svg = draw(_result(panels=(panel,), checks=(Check(says="it is", holds=1, cases=1),)))
    drawing = ElementTree.fromstring(svg[svg.index("<svg") :])
    titles = [str(title.text) for title in drawing.iter("{http://www.w3.org/2000/svg}title")]
    values = ["a < b: ε 1, rate 0.05 [0.01, 0.35]", "a < b: ε 10, rate 0.5 [0.46, 0.8]", "bound: ε 1, rate 0.5"]
    assert titles == ["reconstruction-fig0: t", *values], "a point outside the axes has none"
    (description,) = drawing.iter("{http://www.w3.org/2000/svg}desc")
    assert description.text == "The paper's finding is reproduced. It is: 1 of 1. So it is."
    assert drawing.attrib["role"] == "img"
    assert drawing.attrib["aria-labelledby"] == "figure-title figure-description"


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("count", range(1, 10))
def test_every_panel_is_drawn(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four have two columns, all others three at most: the third of four once fell out."""
    drawn = []
    monkeypatch.setattr("leakcore.experiments.driver.draw._panel", lambda figure, ax, panel: drawn.append(panel.title))
    line = Series(name="a", role="attack", x=np.array([1.0, 2.0]), y=np.array([0.5, 0.5]))
    titles = [f"P{i}" for i in range(count)]
    panels = tuple(Panel(title=t, x_label="x", y_label="y", series=(line,)) for t in titles)
    draw(
        ExperimentResult(
            name="n", title="t", statement="s", scale="tiny", seed=0, conclusion="c", stated=(), panels=panels
        )
    )
    assert drawn == titles


def test_intervals_are_inside_the_axes_and_points_have_no_line() -> None:
    from matplotlib.figure import Figure

    x = np.array([1.0, 10.0])
    points = Series(name="a", role="attack", x=x, y=x / 20, low=x / 20 - 0.04, high=x / 20 + 0.3)
    other = Series(name="b", role="attack-2", x=x, y=x / 30, low=x / 30 - 0.01, high=x / 30 + 0.1)
    figure = Figure()
    axes = figure.subplots()
    _panel(figure, axes, Panel(title="", x_label="", y_label="", series=(points, other), log_x=True, y_range=None))
    low, high = axes.get_ylim()
    assert low < 0.01
    assert high > 0.8
    assert all(line.get_linestyle() in ("None", "") or line.get_linewidth() == 0 for line in axes.lines)


@pytest.mark.parametrize(
    "name", [n for n in experiments.names() if n.startswith(("reconstruction-fig", "reconstruction-table"))]
)
def test_every_figure_says_how_long_it_takes(name: str) -> None:
    assert experiments.find(name).quick.startswith("about ")


@pytest.mark.slow
@needs_data
def test_an_interrupted_run_goes_on_and_gives_the_same_json(tmp_path: Path) -> None:
    name = "reconstruction-fig7"
    experiments.run(name, scale="tiny", data=DATA, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    played = []

    def stop(task: str, done: int, total: int) -> None:
        if task.startswith("hidden layer of 20"):
            raise Stop

    with pytest.raises(Stop):
        experiments.run(name, scale="tiny", data=DATA, out=tmp_path / "cut", progress=stop)
    assert not (tmp_path / "cut" / f"{name}.json").exists()
    pieces = list((tmp_path / "cut" / "partial").rglob("game-*.json"))
    assert pieces
    before = {p: p.stat().st_mtime_ns for p in pieces}

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
    assert clashes(result) == [], "one colour has one meaning in a figure"
    assert result.data or name in WITHOUT_DATA
    assert result.stated
    for stated in result.stated:
        if stated.interval is not None:
            assert stated.ours is not None
            assert stated.interval[0] <= stated.ours <= stated.interval[1]
            assert stated.confidence is not None or "range" in stated.what
        if name.startswith("leakage-") and "layer" in stated.what and "÷" not in stated.what:
            assert isinstance(stated.ours, int)


def test_what_is_picked_otherwise_than_the_paper_is_a_departure() -> None:
    quick, paper = context("quick"), context("paper")
    for each in (quick, paper):
        each.pick("runs", tiny=1, quick=512, paper=10_000)
        each.pick("steps", quick=100, paper=100)
        each.pick(quick=3, paper=30)  # no departure: how finely a curve is drawn
        each.departs("classes", "10", "2")
    assert [(d.what, d.paper, d.here) for d in quick.departures.values()] == [
        ("runs", "10,000", "512"),
        ("classes", "10", "2"),
    ]
    assert list(paper.departures) == ["classes: 10: 2"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (10_000, "10,000"),
        (np.int64(3), "3"),
        (0.05, "0.05"),
        (math.inf, "∞"),
        ((), "none"),
        ((1.0, 40.0), "1, 40"),
        ({10: 256, 100: 48}, "10: 256; 100: 48"),
        (np.arange(50), "50 values from 0 to 49"),
        ({"LR": (), "FNN": (32,)}, "LR: none; FNN: 32"),
        ("none", "none"),
    ],
)
def test_in_words(value: Any, words: str) -> None:
    assert in_words(value) == words


def test_a_result_shows_its_departures() -> None:
    result = experiments.run("reconstruction-table2", scale="tiny")
    assert ("Monte-Carlo samples", "1,000,000", "2,000") in [(d.what, d.paper, d.here) for d in result.departures]
    assert "What differs from the paper" in result.to_text()
    assert experiments.ExperimentResult.from_dict(result.to_dict()).departures == result.departures


DATA = Path(os.environ.get("LEAKCORE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
BRIEF = ("reconstruction-table2",)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.full
@pytest.mark.parametrize("name", BRIEF)
def test_a_brief_figure(name: str, pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    reports: dict[str, list[int]] = {}
    by_two = experiments.run(
        name,
        scale="tiny",
        executor=pool,
        out=tmp_path,
        progress=lambda task, done, total: reports.setdefault(task, []).append(done),
    )
    assert by_two.to_json() == experiments.run(name, scale="tiny").to_json()
    assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")) == by_two.to_dict()
    assert all(done == sorted(done) for done in reports.values())


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="no MNIST folder in LEAKCORE_DATA")
@pytest.mark.parametrize("name", [n for n in experiments.names() if n not in BRIEF])
def test_every_other_figure(name: str, pool: ProcessPoolExecutor) -> None:
    by_two = experiments.run(name, scale="tiny", data=DATA, executor=pool)
    assert by_two.to_json() == experiments.run(name, scale="tiny", data=DATA).to_json()
