"""The benchmark's own arithmetic and files. What it measures is a report, and no test of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import cases, claims, harness, report

ROOT = Path(__file__).resolve().parent.parent.parent


def _case(ours: list[float], theirs: list[float], **more: Any) -> dict[str, Any]:
    return {
        "kernel": "clip_and_noise",
        "size": "(256, 1000000) float32",
        "unit": "element",
        "limit": "",
        "extra": [],
        "contenders": {
            "leakcore": {"seconds": ours, "threads": 1, **more},
            "Opacus flat": {"seconds": theirs, "threads": 1},
            "torch, clipped copy": {"absent": "not installed: torch", "threads": 1},
        },
    }


def test_a_ratio_is_taken_within_rounds() -> None:
    # The machine slowed down fourfold in the last two rounds: medians apart would give 4.
    assert harness.ratio([2.0, 8.0, 8.0], [1.0, 4.0, 4.0]) == 2
    assert harness.ratio([2.0, 2.0, 8.0], [1.0, 1.0, 4.0]) == 2
    with pytest.raises(ValueError, match="zip"):
        harness.ratio([1.0], [1.0, 2.0])


def test_spread_is_half_the_quartile_range_over_the_median() -> None:
    times = [3.0, 1.0, 2.0, 5.0, 4.0]
    low, middle, high = np.percentile(times, [25, 50, 75])
    assert harness.spread(times) == pytest.approx((high - low) / 2 / middle)
    assert harness.spread([1.0]) == 0


def test_a_claim_is_judged_by_its_worst_size() -> None:
    claim = claims.Claim("c", 1.5, claims._faster("clip_and_noise", "", "Opacus flat", "leakcore"))
    fast, slow = _case([1.0], [2.0]), {**_case([1.0], [1.2]), "size": "small"}
    assert claim.judge([fast])["met"] is True
    verdict = claim.judge([fast, slow])
    assert verdict["met"] is False
    assert verdict["where"] == "small, 1 thread"
    assert verdict["measured"] == "1.20×"


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    for device in ("cpu", "cuda"):
        verdicts = claims.judge([], device)
        assert verdicts
        assert all(v["met"] is None and v["measured"] is None for v in verdicts)
    absent = _case([1.0], [2.0])
    assert next(v for v in claims.judge([absent], "cpu") if "clipped copy" in v["claim"])["met"] is None


def test_less_is_better_where_the_claim_says_so() -> None:
    claim = claims.Claim("c", 10, lambda _: iter([(5.0, "a"), (20.0, "b")]), more=False)
    assert claim.judge([])["where"] == "b"
    assert claim.judge([])["met"] is False


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [True, False])
def test_cases_have_distinct_names_and_compare_with_contenders_that_exist(device: str, quick: bool) -> None:
    every = cases.all_cases(device, quick)
    assert len({case.key for case in every}) == len(every)
    for case in every:
        names = [c.name for c in case.contenders]
        assert len(set(names)) == len(names), case.key
        assert case.contenders[0].ours, case.key
        for contender in case.contenders:
            assert contender.against in ("", *names), case.key
            assert 0 < contender.share <= 1 or (contender.least and contender.share > 1)
            assert not contender.tier or contender.ours, "only our code has tiers to force"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_claim_names_contenders_that_some_case_has(device: str) -> None:
    # Equal times everywhere: each claim must find something, or a renamed contender would silence it.
    row = {"seconds": [1.0], "per_unit": 1.0, "of_limit": 1.0, "peak_bytes": 1}
    measured = [
        {
            "kernel": case.kernel,
            "size": case.size,
            "extra": [["condition"], ["1", "", "", "", "", "1.0", ""]],
            "contenders": {c.name: row for c in case.contenders},
        }
        for case in cases.all_cases(device, quick=False)
    ]
    assert [v["claim"] for v in claims.judge(measured, device) if v["met"] is None] == []


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_quick_case_gives_a_table_and_json_that_can_be_read_again(tmp_path: Path) -> None:
    out = tmp_path / "one.json"
    done = _bench("--quick", "--only", "clip_scores", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "÷ ours" in done.stdout
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["schema"] == report.SCHEMA
    assert {"cpu", "caches", "versions", "commit", "load", "leakcore"} <= set(written["machine"])
    (case,) = written["cases"]
    rows = {name: row for name, row in case["contenders"].items() if "absent" not in row}
    assert {"leakcore", "NumPy, norm and product", "torch, norm and product"} <= set(rows)
    for name, row in rows.items():
        assert row["median"] == pytest.approx(float(np.median(row["seconds"])))
        assert row["median"] > 0
        once = rows["one read" + (", 2 threads" if row["threads"] == 2 else "")]["seconds"]
        floor = None if name.startswith("one read") else pytest.approx(np.median(np.divide(once, row["seconds"])))
        assert row["of_limit"] == floor
    assert rows["torch, norm and product"]["ratio"] > 0
    assert rows["leakcore"]["limit_seconds"] == pytest.approx(np.median(rows["one read"]["seconds"]))

    again = _bench("--report", str(out), str(out))
    assert again.returncode == 0, again.stderr
    assert again.stdout.split("claims")[1].strip() in done.stdout


@pytest.mark.full
def test_bad_input_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"schema": "leakcore.bench/1"}')
    done = _bench("--report", str(other))
    assert done.returncode == 2
    assert "leakcore.bench/1" in done.stderr
    assert _bench("--only", "no such case").returncode == 2


def test_cuda_says_plainly_when_there_is_no_device() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = _bench("--device", "cuda")
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
