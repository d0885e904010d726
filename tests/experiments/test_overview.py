"""All experiments in one folder: one page with every figure, and a run that goes on where it stopped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leakcore import experiments
from leakcore.cli import main
from leakcore.experiments.driver import overview

NAMES = ["reconstruction-table2", "labels-fig3", "mechanisms-shuffling"]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "names", lambda: NAMES)
    monkeypatch.delenv("LEAKCORE_DATA", raising=False)


def test_one_page_has_every_figure_and_says_what_is_missing(three: None, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    everything = experiments.run_all(scale="tiny", data=tmp_path / "nothing", out=tmp_path / "out")
    assert [r.name for r in everything.results] == [NAMES[0], NAMES[2]]
    ((missing, why),) = everything.missing
    assert missing == "labels-fig3"
    assert "not found" in why
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "labels-fig3" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for names in re.findall(r'aria-labelledby="([^"]+)"', page):
        assert set(names.split()) <= set(ids)
    for anchor in re.findall(r'href="#([^"]+)"', page):
        assert anchor in ids
    for result in everything.results:
        assert result.counts.split(":")[0].replace("'", "&#x27;") in page
    assert overview.Reproduction.from_dict(json.loads(everything.to_json())) == everything


def test_what_is_finished_is_read_and_other_settings_run_again(
    three: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "names", lambda: NAMES[:1])
    first = experiments.run_all(scale="tiny", out=tmp_path)
    ran: list[tuple[str, int]] = []
    honest = overview.run

    def counted(name: str, **how: Any) -> Any:
        ran.append((name, how["seed"]))
        return honest(name, **how)

    monkeypatch.setattr(overview, "run", counted)
    assert experiments.run_all(scale="tiny", out=tmp_path) == first
    assert ran == []
    experiments.run_all(scale="tiny", seed=1, out=tmp_path)
    assert ran == [(NAMES[0], 1)]
    content = json.loads((tmp_path / f"{NAMES[0]}.json").read_text(encoding="utf-8"))
    (tmp_path / f"{NAMES[0]}.json").write_text(json.dumps({**content, "version": "0.0.1"}), encoding="utf-8")
    experiments.run_all(scale="tiny", seed=1, out=tmp_path)
    assert ran == [(NAMES[0], 1)] * 2, "a result of another version is not taken"


def test_the_command_reproduces_all(three: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "names", lambda: NAMES[:1])
    done = CliRunner().invoke(main, ["reproduce", "all", "--out", str(tmp_path / "figures"), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "reconstruction-table2" in done.output
    assert (tmp_path / "figures" / "index.html").exists()
    assert CliRunner().invoke(main, ["reproduce", "all", "--trainer", "opacus"]).exit_code == 2
