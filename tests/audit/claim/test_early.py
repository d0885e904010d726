"""An audit that stops when its claim falls, or cannot fall any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leakcore import audit
from leakcore.audit.claim.proofs import chunks
from leakcore.cli import main

BROKEN: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "num_rows": 60},
    "mechanism": {"learning_rate": 0.5, "steps": 4},
    "claim": {"epsilon": 8.0},
    "audit": {"trials": 640, "k": [1, 2], "seed": 1},
    "fault": {"noise": 0.25},
}


def test_chunks_are_whole_blocks_and_few() -> None:
    for trials in (33, 64, 640, 1000, 4001, 10**6):
        parts = chunks(trials)
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == trials
        assert all(len(part) % 32 == 0 for part in parts[:-1])
        assert 2 <= len(parts) <= 20


def test_a_broken_mechanism_is_stopped_early_and_the_report_says_what_that_saved(tmp_path: Path) -> None:
    report = audit.claim(BROKEN, stop="early", folder=tmp_path)
    assert not report.passed
    stopped = report.stopped
    assert stopped is not None
    assert (stopped.why, stopped.planned) == ("refuted", 3 * 640)
    assert stopped.trainings <= 960
    assert all(len(a) == len(b) == stopped.trainings // 3 for a, b, _ in report.scores.values())
    said = f"The audit stopped after {stopped.trainings} of 1,920 trainings: the claim has fallen."
    assert said in report.verdict()
    assert said in " ".join(report.to_text().split())
    assert said in (tmp_path / "report.html").read_text(encoding="utf-8")
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert data["stopped"] == {"trainings": stopped.trainings, "planned": 1920, "why": "refuted"}
    assert data["config"]["audit"]["stop"] == "early"
    assert audit.ClaimReport.from_dict(data).to_json() == report.to_json()
    # The file may say so, too, and the same models were trained as in the audit that does not stop.
    (tmp_path / "claim.toml").write_text(
        "[data]\nnum_rows = 60\n[mechanism]\nlearning_rate = 0.5\nsteps = 4\n[fault]\nnoise = 0.25\n"
        "[claim]\nepsilon = 8.0\n[audit]\ntrials = 640\nk = [1, 2]\nseed = 1\nstop = 'early'\n",
        encoding="utf-8",
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["audit", "--config", str(tmp_path / "claim.toml"), "--out", str(out), "--quiet"])
    assert done.exit_code == 1, done.output
    assert (out / "report.json").read_bytes() == (tmp_path / "report.json").read_bytes()
    whole = audit.claim({**BROKEN, "audit": {**BROKEN["audit"], "trials": 64}})
    assert (whole.scores["k = 2"][0] == report.scores["k = 2"][0][:64]).all()
    assert whole.stopped is None


def test_interrupted_between_looks_it_goes_on_to_the_same_json(tmp_path: Path) -> None:
    def stop(task: str, done: int, total: int) -> None:
        assert total == 1920
        if done > 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit.claim(BROKEN, stop="early", folder=tmp_path, num_threads=1, progress=stop)
    assert list(tmp_path.rglob("runs-*.npz"))
    counted: list[int] = []
    report = audit.claim(BROKEN, stop="early", folder=tmp_path, progress=lambda task, done, total: counted.append(done))
    assert report.to_json() == audit.claim(BROKEN, stop="early").to_json()
    assert counted == sorted(counted)
    assert not (tmp_path / "partial").exists()


def test_a_correct_mechanism_takes_all_trainings_or_stops_where_none_could_help() -> None:
    correct = {**BROKEN, "fault": {}, "audit": {"trials": 96, "k": [1]}}
    report = audit.claim({**correct, "claim": {"epsilon": 2.0}}, stop="early")
    assert report.passed
    assert report.stopped is not None
    assert report.stopped.why in ("planned", "hopeless")
    # 64 pairs on which to bet: not even perfect ones refute ε = 8 by (ε, δ); Poisson batches have no other family.
    weak = {**correct, "mechanism": {"learning_rate": 0.5, "steps": 4, "sample_rate": 0.5}}
    hopeless = audit.claim(weak, stop="early")
    assert hopeless.stopped is not None
    assert (hopeless.stopped.why, hopeless.stopped.trainings, hopeless.stopped.planned) == ("hopeless", 64, 192)
    assert "could not have made the claim fall" in hopeless.verdict()
    assert hopeless.headline == "Not tested: this audit could not have contradicted the claim."


@pytest.mark.parametrize(
    ("attack", "trials", "message"),
    [
        ("one-run", 1000, "`audit.stop` must be 'never' with audit.attack='one-run', got 'early': one training"),
        ("membership", 1000, "`audit.stop` must be 'never' with audit.attack='membership', got 'early': its first"),
        ("clipbkd", 32, "`audit.trials` must be above 32 with audit.stop='early', got 32"),
    ],
)
def test_where_looks_make_no_sense_they_are_refused(attack: str, trials: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit.claim({"claim": {"epsilon": 1.0}, "audit": {"attack": attack, "trials": trials}}, stop="early")
    with pytest.raises(ValueError, match="`stop` must be 'early' or 'never', got 'soon'"):
        audit.claim({"claim": {"epsilon": 1.0}}, stop="soon")  # type: ignore[arg-type]
