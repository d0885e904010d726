"""The lecture's curve, table and matrix: single cells, and each at its smallest scale."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from leakcore import defenses, experiments
from leakcore.experiments.driver import draw
from leakcore.experiments.lecture.cells import ATTACKS, Sizes, Strength, TableCell, gained, least_error, rate


@pytest.mark.full
def test_the_laplace_curve_keeps_its_order_and_writes_its_files(tmp_path: Path) -> None:
    result = experiments.run("lecture-laplace", scale="tiny", out=tmp_path)
    assert (tmp_path / "lecture-laplace.png").read_bytes().startswith(b"\x89PNG")
    assert result.verdict == "direction only"
    for panel in result.panels:
        series = {s.name: s.y for s in panel.series}
        if panel.y_label == "Δ₁":
            assert (series["measured, worst of candidates"] <= series["derived bound"]).all()
        else:
            assert (series["batch, derived noise"] <= series["ceiling for any data, derived noise"]).all()
            assert (series["batch, derived noise"] <= series["batch, noise of the measured Δ₁"]).all()
            assert (np.diff(series["batch, derived noise"]) < 0).all()
    fails = next(s for s in result.stated if "(4.8)" in s.what)
    assert fails.ours == 4.0


@pytest.mark.parametrize(
    ("setting", "factor"),
    [
        (TableCell(batch=3, inputs=20, neurons=2000), 0.3),
        (TableCell("local", 2.0, 3, 20, 2000), 0.6),
        (TableCell("noise", 4.0, 3, 20, 2000), 0.7),
        (TableCell("clip", 9.0, 3, 20, 2000), 0.3),
        (TableCell("dp-sgd", 0.5, 3, 20, 2000), 0.4),
        (TableCell("dp-sgd", 5.0, 3, 20, 2000), 0.8),
        (TableCell("dropout", 0.25, 3, 20, 2000), 0.6),
        (TableCell("prune", 0.1, 3, 20, 2000), math.nan),
    ],
)
def test_the_printed_bounds(setting: TableCell, factor: float) -> None:
    assert setting.factor == pytest.approx(factor, nan_ok=True)


@pytest.mark.slow
def test_the_table_measures_every_defence_and_prints_its_bound(tmp_path: Path) -> None:
    result = experiments.run("lecture-table1", scale="tiny", out=tmp_path)
    assert (tmp_path / "lecture-table1.png").read_bytes().startswith(b"\x89PNG")
    panels = {p.title.split(":")[0]: {s.name.split(" ")[0]: s.y for s in p.series} for p in result.panels}
    for name in ("k-local aggregation", "ℓ2-gradient noise", "DP-SGD of the table"):
        assert panels[name]["tensor"][-1] > panels[name]["tensor"][0]
        assert panels[name]["bound"][-1] > panels[name]["bound"][0]
    assert panels["dropout"]["tensor"][0] > panels["dropout"]["tensor"][-1]
    np.testing.assert_allclose(panels["gradient clipping"]["tensor"], panels["gradient clipping"]["tensor"][0])
    assert "bound" not in panels["pruning"]
    for title in ("no defence",):
        assert (panels[title]["tensor"] <= panels[title]["bound"] * (1 + 1e-9)).all()


SMALL = Sizes(neurons=20_000, small=60, rows=8, effort=(1, 20), steps=5)


def test_attacks_get_all_without_a_defence_and_less_under_strong_noise() -> None:
    noise = Strength("gradient noise", 40.0)
    for attack in ("tensor method", "label attack", "imprint"):
        assert gained(attack, Strength(), SMALL, 1)[0] >= 0.75
        assert gained(attack, noise, SMALL, 1)[0] <= 0.5


def test_strengths_are_relative_to_the_release() -> None:
    import torch

    g, rows = torch.full((4,), 3.0), torch.tensor([1.0, 2.0, 9.0])
    assert Strength("gradient noise", 0.5).defense(g, rows) == defenses.GaussianNoise(1.5)
    assert Strength("clipping", 3.0).defense(g, rows) == defenses.Clip(2.0)
    # Its noise on the mean of the rows is as long as half the gradient: σC/3 = 1.5.
    assert Strength("DP-SGD", 0.5).defense(g, rows) == defenses.DPSGD(2.0, 2.25)
    assert Strength().defense(g, rows) is None
    assert (Strength("local aggregation", 4.0).batches, Strength("dropout", 0.5).batches) == (4, 1)


def test_exponents_have_intervals_over_networks() -> None:
    x = np.array([1.0, 2.0, 4.0])
    errors = np.stack([0.1 * x, 0.3 * x**1.2, 0.2 * x**1.1], axis=1)
    steep = rate("σ", 1.0, x, errors)
    assert steep.measured == pytest.approx(1.1)
    assert steep.interval[0] < 1.0 < steep.measured < steep.interval[1]
    assert steep.holds
    assert not rate("σ", 0.5, x, errors).holds
    assert rate("σ", 0.5, x, errors[:, :1]).holds  # one network refutes nothing


def test_the_least_error_of_one_row_is_the_delta_method() -> None:
    """One input, known to be on the circle: the angle's variance is std²/Σ (r σ′ w·t)², after projecting σ(u) out."""
    rng = np.random.default_rng(0)
    w, x, r = rng.standard_normal((5000, 2)), np.array([[0.6, 0.8]]), np.array([-1.5])
    u = w @ x[0]
    value, slope = np.where(u > 0, u, np.expm1(np.minimum(u, 0))), np.where(u > 0, 1.0, np.exp(np.minimum(u, 0)))
    along = r[0] * slope * (w @ np.array([-0.8, 0.6]))
    along = along - value * (value @ along) / (value @ value)
    assert least_error(x, r, w, 0.3) == pytest.approx(0.3 / np.linalg.norm(along), rel=1e-9)


@pytest.mark.slow
def test_the_matrix_has_every_defence_and_attack(tmp_path: Path) -> None:
    result = experiments.run("lecture-defenses", scale="tiny", out=tmp_path)
    assert draw.clashes(result) == []
    (table,) = result.tables
    assert table.head == ("defence", *ATTACKS, "accuracy")
    assert len(table.rows) == len({row[0].split(",")[0] for row in table.rows}) == 7
    assert len(result.panels) == 6
    assert [c.cases for c in result.checks] == [1, 4]
