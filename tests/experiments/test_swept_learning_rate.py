"""The learning rate that the reconstruction paper's attack chooses: by its own success, on runs that nothing counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leakcore import bounds
from leakcore._base.run_folder.partial_results import PartialResults
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import data, games, mechanism, swept


def _context(scale: str = "tiny", folder: Path | None = None) -> Context:
    return Context(
        scale=scale, seed=0, data=None, pieces=PartialResults(folder, "bound to nothing"), progress=lambda *_: None
    )


@pytest.fixture(scope="module")
def split() -> data.Split:
    rows = np.random.default_rng(0).random((120, 12), np.float32)
    labels = np.arange(120) % 2
    return data.Split(rows[:20], labels[:20], rows[20:], labels[20:], 2, "made up", rows[20:], (3, 4))


@pytest.fixture(scope="module")
def cell(split: data.Split) -> swept.Cell:
    return swept.play(
        _context(), split, games.GameSetting(epsilon=40.0, hidden=(), steps=5, max_grad_norm=1.0, step=2.0), runs=64,
        methods=("sum", "likelihood"), by="sum", sweep_runs=(32, 64), name="made up",
    )  # fmt: skip


def test_no_reported_run_chose_the_rate(cell: swept.Cell) -> None:
    for game in (*cell.before.values(), *cell.after.values()):
        assert game.run_ranges == ((0, 64),)
        assert game.run_ranges[0][1] <= swept._FIRST_RUN
    assert {t.learning_rate for t in cell.tried} == {0.1, 10.0}
    assert all(t.runs == 96 for t in cell.tried)  # both are finalists
    assert cell.rates[1] == swept.best(cell.tried).learning_rate


def test_the_games_are_played_at_the_rates_that_are_said(cell: swept.Cell, split: data.Split) -> None:
    assert cell.rates[0] == games.learning_rate(split, games.GameSetting(epsilon=1.0, max_grad_norm=1.0, step=2.0))
    assert cell.rates[0] == pytest.approx(2.0 * 21 / 1000)
    for rate, played in zip(cell.rates, (cell.before, cell.after), strict=True):
        assert played["sum"].settings["learning_rate"] == pytest.approx(rate)
    again = games.with_learning_rate(split, cell.setting, 0.7)
    assert games.learning_rate(split, again) == pytest.approx(0.7)


def test_the_gap_is_bound_minus_attack_in_two_parts(cell: swept.Cell) -> None:
    success = float(cell.after["sum"].value)
    assert sum(cell.parts("sum")) == pytest.approx(cell.bound - success)
    assert cell.ratios("sum")[1] == pytest.approx(success / cell.bound)
    table = swept.table([cell], {"sum": "plain", "likelihood": "likelihood"})
    assert [row[0] for row in table.rows] == ["made up, plain", "made up, likelihood"]
    assert f"→ {success:.3f} [" in table.rows[0][3]
    assert "made up: " in swept.sentence([cell], "sum")


def test_the_best_rate_is_the_largest_success_among_those_tried_most() -> None:
    few = swept.Tried(0.1, 10, 10)
    more = [swept.Tried(1.0, 30, 50), swept.Tried(3.0, 30, 50), swept.Tried(10.0, 20, 50), swept.Tried(30.0, -1, 50)]
    assert swept.best([few, *more]).learning_rate == 3.0


def test_a_rate_at_which_runs_overflow_is_not_chosen(split: data.Split) -> None:
    setting = games.GameSetting(epsilon=40.0, hidden=(8,), steps=5, max_grad_norm=1.0)
    played = games.try_each(
        _context(), split, [games.with_learning_rate(split, setting, rate) for rate in (0.1, 1e37)], num_candidates=10,
        runs=range(32), methods=("sum",), task="overflow",
    )  # fmt: skip
    assert played[0] is not None
    assert played[0]["sum"].trials == 32
    assert played[1] is None


def test_the_optimum_with_mini_batches_meets_that_of_full_ones_and_lies_below_the_bound() -> None:
    context = _context()
    nearly = mechanism.orthogonal(context, 5.0, 1 - 1e-9, 100, 10)
    assert nearly == pytest.approx(float(bounds.orthogonal_success(5.0, 100, 10).value), abs=0.005)
    assert mechanism.orthogonal(context, 5.0, 1.0, 100, 10) == float(bounds.orthogonal_success(5.0, 100, 10).value)
    sampled = mechanism.orthogonal(context, 0.8, 0.1, 20, 10)
    assert 0.1 < sampled < mechanism.upper(0.8, 0.1, 20, 10)
