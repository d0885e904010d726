"""What the page says that a recorded step costs is computed from what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from bench import kept_page, recorded_step

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "bench" / "results" / "recorded-step.json").read_text(encoding="utf-8"))


def test_the_page_shows_what_was_measured() -> None:
    page = (ROOT / "docs" / "explanation" / "recording.md").read_text(encoding="utf-8")
    again = kept_page.between(page, recorded_step.MARKS, recorded_step.text(KEPT))
    assert again == page, "run python -m bench.recorded_step --show JSON --page PAGE"


def test_the_aim_is_said_to_be_missed_where_it_is() -> None:
    step, passed = KEPT["step"], KEPT["pass"]
    ways = {**KEPT["ways"], "layers": {"often": step + 1.3 * passed, "due": step}}
    assert "1.30 is above it" in recorded_step.text({**KEPT, "ways": ways})
    ways["layers"]["often"] = step + 1.1 * passed
    assert "1.10 is within it" in recorded_step.text({**KEPT, "ways": ways})
