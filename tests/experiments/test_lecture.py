"""The lecture's curve at its smallest scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leakcore import experiments


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
