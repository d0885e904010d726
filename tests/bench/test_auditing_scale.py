"""What the page says that the auditing paper's scale takes is computed from the measured trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import kept_page
from bench.clusters import auditing_scale

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "bench" / "results" / "auditing-scale.json").read_text(encoding="utf-8"))


def test_the_page_shows_what_was_measured() -> None:
    page = (ROOT / "docs" / "papers" / "auditing.md").read_text(encoding="utf-8")
    assert auditing_scale.MARKS[0] in page
    again = kept_page.between(page, auditing_scale.MARKS, auditing_scale.text(KEPT))
    assert again == page, "run python -m bench.clusters.auditing_scale --show JSON --page PAGE"


def test_a_grid_has_a_training_for_each_data_set_attack_threshold_and_count() -> None:
    # 6 ε_th, 2 starts, 2 attacks, clean and four k, 500 for the threshold and 500 counted.
    assert auditing_scale.trainings("FMNIST") == 6 * 2 * 2 * 5 * 1000
    assert auditing_scale.trainings("Purchase-100") == 6 * 2 * 5 * 1000
    row = {"trainings": 600, "noisy": 3.0, "quiet": 2.0}
    assert auditing_scale.core_seconds(row) == pytest.approx(500 * 3.0 + 100 * 2.0)


def test_slower_trainings_and_wasted_time_make_the_sums_larger() -> None:
    slower = {**KEPT, "rows": [{**row, "noisy": 2 * row["noisy"]} for row in KEPT["rows"]]}
    assert auditing_scale.text(slower) != auditing_scale.text(KEPT)
    workers, share = auditing_scale.efficiency()
    assert workers >= 2
    assert 0 < share <= 1
