"""How results are written: levels with intervals, bounds rounded to their side, counts plain, notes that apply."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from leakcore import experiments
from leakcore._base.run_folder.partial_results import PartialResults
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage.notes import images
from leakcore.experiments.lecture.table1 import TableCell, _judged
from leakcore.experiments.reconstruction.setting import data, games
from leakcore.experiments.reconstruction.setting import notes as _notes
from leakcore.experiments.result import ExperimentResult, Stated, ours
from leakcore.experiments.text import number, shown
from leakcore.experiments.verdict import Check, verdict

COLLECT = Path(__file__).resolve().parents[2] / "docs" / "papers" / "collect.py"


def _result(*stated: Stated) -> ExperimentResult:
    return ExperimentResult(
        name="reconstruction-fig7", title="t", statement="s", scale="tiny", seed=0, conclusion="c", stated=stated
    )


def test_an_interval_has_its_level_in_text_and_in_json() -> None:
    rate = Stated(what="R", paper="0.7", ours=0.69285, interval=(0.30021, 0.88469), kind="estimate", confidence=0.95)
    result = _result(rate, Stated(what="bound", paper="–", ours=2.34567, kind="lower", confidence=0.99))
    assert "[0.3002, 0.8847] 95%" in result.to_text()
    assert "2.3456 (lower, 99%)" in result.to_text()
    first, second = result.to_dict()["stated"]
    assert (first["kind"], first["confidence"]) == ("estimate", 0.95)
    assert (second["kind"], second["confidence"]) == ("lower", 0.99)
    assert result.to_dict()["schema"] == "leakcore.experiment/1"
    with pytest.raises(ValueError, match="`kind` must be '', 'upper', 'lower' or 'estimate', got 'above'"):
        Stated(what="", paper="", kind="above")


def test_a_success_rate_brings_its_kind_and_level() -> None:
    context = Context(scale="tiny", seed=0, data=None, pieces=PartialResults(None, ""), progress=lambda *_: None)
    rows, labels = np.linspace(0.0, 1.0, 240, dtype=np.float32).reshape(40, 6), np.arange(40) % 2
    split = data.Split(rows[:10], labels[:10], rows[10:], labels[10:], 2, "made up", rows[10:], (2, 3))
    setting = games.GameSetting(epsilon=10.0, hidden=(), steps=2)
    game = games.play(context, split, setting, num_candidates=2, runs=8, task="")["sum"]
    row = games.gap(context, setting, game, "drawn")
    assert (row.kind, row.confidence, row.interval) == ("estimate", 0.95, games.interval(game))
    assert ours(game)["ours"] == game.value


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3, "", "3"), (0, "", "0"), (3.0, "", "3.0000"), (0.28691013, "upper", "0.2870"),
        (0.28691013, "lower", "0.2869"), (0.28691013, "estimate", "0.2869"), (1.23401e-7, "upper", "1.235e-07"),
        (123.4599, "lower", "123.4"), (-0.31234, "lower", "-0.3124"), (float("inf"), "upper", "∞"),
        (float("nan"), "lower", "undefined"),
    ],
)  # fmt: skip
def test_numbers_hold_on_their_side_and_counts_are_plain(value: float, kind: str, text: str) -> None:
    assert number(value, kind) == text


def test_one_image_is_not_one_images() -> None:
    assert (images(1), images(4)) == ("1 image", "4 images")


@pytest.mark.parametrize("attacked", [False, True])
def test_success_and_its_intervals_are_noted_where_there_are_any(attacked: bool) -> None:
    context = Context(scale="tiny", seed=0, data=None, pieces=PartialResults(None, ""), progress=lambda *_: None)

    class Game:
        hits, trials = 5, 10

    settings: dict[str, Any] = {
        "splits": [], "setting": games.GameSetting(epsilon=1.0), "runs": 1,
        "attacked": [(Game, 0.9)] if attacked else (),
    }  # fmt: skip
    findings = Findings(conclusion="", stated=[])
    notes = " ".join(_notes.report(experiments.find("reconstruction-fig6"), context, findings, **settings).notes)
    assert ("Clopper–Pearson" in notes) == attacked
    assert ("success is averaged" in notes) == attacked
    assert "learning rate × C is fixed" in notes


def test_the_table_counts_no_setting_that_cannot_be_above_its_fitted_bound() -> None:
    base = TableCell()
    answer = np.array([0.04, 0.05])
    errors = {
        base: answer,
        TableCell(neurons=80_000): answer / 2,
        TableCell("noise", 0.0): answer,
        TableCell("clip", 16.0): answer * (1 + 1e-7),
        TableCell("noise", 4.0): answer * 9,
        TableCell("prune", 0.1): answer * 3,
    }
    assert _judged(errors, base) == ([TableCell("noise", 4.0)], 2)


@pytest.fixture
def collect() -> ModuleType:
    spec = importlib.util.spec_from_file_location("collect", COLLECT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_take_results_of_older_and_of_this_version(collect: ModuleType, tmp_path: Path) -> None:
    rate = Stated(what="a", paper="b", ours=0.5, interval=(0.4, 0.6), kind="estimate", confidence=0.95)
    endless = Stated(what="c", paper="d", ours=float("inf"), kind="upper")
    path = tmp_path / "reconstruction-fig7.json"
    path.write_text(_result(rate, endless, Stated(what="e", paper="f", ours=3), Stated(what="g", paper="h")).to_json())
    rows = collect.collect(tmp_path)["reconstruction-fig7"]["stated"]
    assert [row[2] for row in rows] == ["0.5000 [0.4000, 0.6000] 95%", "∞ (upper)", "3"]
    older = json.loads(path.read_text())
    for row in older["stated"]:
        del row["kind"], row["confidence"]
    path.write_text(json.dumps(older))
    rows = collect.collect(tmp_path)["reconstruction-fig7"]["stated"]
    assert [row[2] for row in rows] == ["0.5000 [0.4000, 0.6000]", "∞", "3"]
    assert shown(0.5, (0.4, 0.6)) == "0.5000 [0.4000, 0.6000]"


def test_a_repetition_at_another_seed_is_counted_next_to_the_result_that_is_shown(collect: ModuleType) -> None:
    def at(seed: int, holds: int, says: str = "a is above b", cases: int = 4) -> dict[str, Any]:
        checks = [Check(says=says, holds=holds, cases=cases, chance=0.5)]
        rows = [one.to_dict() for one in checks]
        return {"scale": "quick", "seed": str(seed), "conclusion": "c", "verdict": verdict(checks), "checks": rows}

    shown_one = collect.joined(None, at(0, 4))
    assert collect.over_seeds(shown_one) == []
    both = collect.joined(collect.joined(shown_one, at(2, 1)), at(1, 4))
    assert (both["seed"], list(both["seeds"])) == ("0", ["1", "2"])
    page = "\n".join(collect.over_seeds(both))
    assert "3 not reproduced; all cases together: **not reproduced**" in page, "9 of 12 is what chance may do"
    assert "| a is above b | 4 of 4 | 4 of 4 | 1 of 4 | 9 of 12 (chance: 6) |" in page
    assert collect.survives(both) == "not reproduced; the same at each of 3 seeds"
    apart = collect.joined(at(0, 8, cases=8), at(1, 6, cases=8))
    assert collect.survives(apart) == "direction only over 2 seeds; alone: 1 reproduced, 1 not reproduced"
    assert [str(check) for check in collect.joint(apart)[1]] == ["a is above b: 14 of 16 (chance: 8)"]
    assert collect.survives(shown_one) == "not reproduced; one seed"
    assert "seeds" not in collect.joined(both, at(0, 3)), "repetitions of another version would be mixed with it"
    with pytest.raises(SystemExit, match="seed 3 counts other statements than the kept run of seed 0"):
        collect.joined(both, at(3, 3, says="a is below b"))
