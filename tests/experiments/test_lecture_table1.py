"""The lecture's table at its smallest scale."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from leakcore import experiments
from leakcore.experiments.lecture.table1 import TableCell


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
