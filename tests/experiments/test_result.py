"""How results are written and judged: levels, rounding, verdicts, and the pages that collect them."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from leakcore import bounds
from leakcore.experiments.driver.result import ExperimentResult, Stated, number, ours, shown
from leakcore.experiments.driver.verdict import APART, Check, lies_below, together, verdict
from leakcore.experiments.leakage.common import images_in_words
from leakcore.experiments.lecture.cells import TableCell
from leakcore.experiments.lecture.table1 import _judged
from leakcore.experiments.reconstruction import data, games
from tests.experiments.contexts import context

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
    here = context()
    rows, labels = np.linspace(0.0, 1.0, 240, dtype=np.float32).reshape(40, 6), np.arange(40) % 2
    split = data.Split(rows[:10], labels[:10], rows[10:], labels[10:], 2, "made up", rows[10:], (2, 3))
    setting = games.GameSetting(epsilon=10.0, hidden=(), steps=2)
    game = games.play(here, split, setting, num_candidates=2, runs=8, task="")["sum"]
    row = games.gap(here, setting, game, "drawn")
    assert (row.kind, row.confidence, row.interval) == ("estimate", 0.95, games.interval(game))
    assert ours(game)["ours"] == game.value


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3, "", "3"),
        (0, "", "0"),
        (3.0, "", "3.0000"),
        (0.28691013, "upper", "0.2870"),
        (0.28691013, "lower", "0.2869"),
        (0.28691013, "estimate", "0.2869"),
        (1.23401e-7, "upper", "1.235e-07"),
        (123.4599, "lower", "123.4"),
        (-0.31234, "lower", "-0.3124"),
        (float("inf"), "upper", "∞"),
        (float("nan"), "lower", "undefined"),
    ],
)
def test_numbers_hold_on_their_side_and_counts_are_plain(value: float, kind: str, text: str) -> None:
    assert number(value, kind) == text


def test_one_image_is_not_one_images() -> None:
    assert (images_in_words(1), images_in_words(4)) == ("1 image", "4 images")


@pytest.mark.parametrize("attacked", [False, True])
def test_success_and_its_intervals_are_noted_where_there_are_any(attacked: bool) -> None:
    class Game:
        hits, trials = 5, 10

    settings: dict[str, Any] = {
        "splits": [],
        "setting": games.GameSetting(epsilon=1.0),
        "runs": 1,
        "attacked": [(Game, 0.9)] if attacked else (),
    }
    notes = " ".join(games.report(context().result(conclusion="", stated=[]), **settings).notes)
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
    assert _judged(errors, base) == [TableCell("noise", 4.0)]


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


def test_every_case_and_beyond_chance_is_reproduced() -> None:
    assert verdict([Check(says="a", holds=3, cases=3)]) == "reproduced"
    assert verdict([Check(says="a", holds=5, cases=5, chance=0.5)]) == "reproduced"
    assert verdict([Check(says="a", holds=4, cases=4, chance=0.5)]) == "not reproduced", "1 in 16 by chance"
    assert verdict([Check(says="a", holds=1, cases=1, chance=APART)]) == "reproduced"


def test_a_direction_without_its_size_is_only_a_direction() -> None:
    direction, size = Check(says="a", holds=3, cases=3), Check(says="b", holds=0, cases=3, about="size")
    assert verdict([direction, size]) == "direction only"
    assert verdict([Check(says="a", holds=2, cases=3)]) == "direction only"
    assert verdict([size, size]) == "not reproduced"
    assert verdict([Check(says="b", holds=2, cases=3, about="size")]) == "direction only"


def test_half_of_the_cases_or_what_chance_gives_is_not_reproduced() -> None:
    assert verdict([Check(says="a", holds=1, cases=2)]) == "not reproduced"
    assert verdict([Check(says="a", holds=2, cases=8, chance=1.7 / 8)]) == "not reproduced"
    assert verdict([Check(says="a", holds=6, cases=8, chance=0.5)]) == "not reproduced"
    good = Check(says="a", holds=3, cases=3)
    assert verdict([good, Check(says="b", holds=0, cases=1)]) == "not reproduced"


def test_without_a_case_nothing_can_be_compared() -> None:
    assert verdict([]) == verdict([Check(says="a", holds=0, cases=0)]) == "not comparable"


def test_chance_is_a_binomial_tail() -> None:
    assert math.isclose(Check(says="a", holds=2, cases=3, chance=0.5).p_value, 0.5)
    assert Check(says="a", holds=0, cases=3, chance=0.5).p_value == 1.0
    assert str(Check(says="a is above b", holds=2, cases=8, chance=0.2)) == "a is above b: 2 of 8 (chance: 1.6)"


@pytest.mark.parametrize("more", [{"holds": 4}, {"holds": -1}, {"chance": 1.0}, {"about": "taste"}])
def test_counts_that_cannot_be_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"`(holds|chance|about)`"):
        Check(**{"says": "a", "holds": 1, "cases": 3, **more})


def test_intervals_that_touch_are_not_apart() -> None:
    few, many = (bounds.epsilon_lower_bound(np.int64(n), 0, 100, adjacency="replace") for n in (10, 90))
    assert lies_below(few, many)
    assert not lies_below(many, few)
    assert not lies_below(few, few)


def test_runs_at_several_seeds_are_counted_together() -> None:
    few = [Check(says="a", holds=3, cases=3, chance=0.5), Check(says="b", holds=0, cases=0, about="size")]
    more = [Check(says="a", holds=2, cases=2, chance=0.4), Check(says="b", holds=1, cases=2, about="size")]
    assert verdict(few) == verdict(more) == "not reproduced"
    whole = together([few, more])
    assert whole == (Check(says="a", holds=5, cases=5, chance=0.5), Check(says="b", holds=1, cases=2, about="size"))
    assert verdict(whole) == "direction only"
    with pytest.raises(ValueError, match="`runs` must all ask the same statements"):
        together([few, few[:1]])
