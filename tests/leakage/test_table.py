"""The heat map's caption: inside the figure, of the columns that are shown."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakcore import leakage


@pytest.mark.parametrize(
    ("attributes", "original"), [({}, False), ({}, True), (None, False), (None, True), ({"has": [0, 1] * 20}, False)]
)
def test_the_caption_fits_and_names_only_what_is_there(attributes: dict[str, list[int]] | None, original: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(40, 1, 4, 4), torch.arange(40) // 2 % 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Sigmoid(), nn.Linear(4, 2))
    report = leakage.by_layer(
        model,
        x,
        y,
        measures=leakage.LayerMeasures(
            attributes=attributes, samples=2, rows=40, permutations=1, iterations=2 if original else 0
        ),
    )
    figure = report.figure()
    (caption,) = [text for text in figure.texts if "colour: " in text.get_text()]
    caption_text = caption.get_text()
    assert ("original" in caption_text) is original
    assert ("latent, subspace: above their nulls" in caption_text.replace("\n", " ")) is (attributes != {})
    assert ("*: larger than every permutation" in caption_text.replace("\n", " ")) is (attributes != {})
    assert ("larger than every permutation: p at its smallest" in report.to_text()) is (attributes != {})
    assert "at least as large" not in report.to_text()
    assert "estimates, no bounds" in caption_text
    figure.canvas.draw()
    box, whole = caption.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0
    assert box.x1 <= whole.x1
    assert whole.y0 <= box.y0
