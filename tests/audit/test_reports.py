"""The reports of a folder on one page: each with its own numbers, newest first; what cannot be read is named."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from leakcore import audit, mechanisms
from leakcore.cli import main
from tests.audit import samples as reports
from tests.audit.samples import orthogonal, simulated


@functools.cache
def _trace() -> audit.AuditReport:
    return audit.from_trace(orthogonal(20), coins=True)


@functools.cache
def _canaries() -> audit.AuditReport:
    return audit.from_canaries(simulated(mechanisms.Poisson(2.0, 1.0, 1), 20), claimed_epsilon=0.01)


FORMS = {"trace": _trace, "scores": reports.scores, "canaries": _canaries}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A report of each form that is quickly made, an hour apart; one with its page, one in a folder below."""
    places = {"trace": "trace", "scores": "below/scores & co", "canaries": "<b>$canaries_1$"}
    for hour, (name, make) in enumerate(FORMS.items()):
        path = tmp_path / "runs" / places[name] / "report.json"
        path.parent.mkdir(parents=True)
        make().to_json(path)
        os.utime(path, (1.8e9 + 3600 * hour,) * 2)
    (tmp_path / "runs" / "trace" / "report.html").write_text("<!doctype html>")
    (tmp_path / "runs" / "below" / "scores & co" / "report.html").write_text("<!doctype html>")
    return tmp_path / "runs"


def test_every_report_has_its_own_numbers_newest_first(folder: Path) -> None:
    listed = audit.list_reports(folder)
    assert [r.name for r in listed.reports] == ["<b>$canaries_1$", "below/scores & co", "trace"]
    assert [r.date for r in listed.reports] == sorted((r.date for r in listed.reports), reverse=True)
    assert listed.reports[2].date == "2027-01-15T08:00:00+00:00"
    for entry, name in zip(listed.reports, ("canaries", "scores", "trace"), strict=True):
        report = FORMS[name]()
        cards = report.cards()
        assert (entry.title, entry.headline, entry.tone) == (report.title, report.headline, report.tone)
        assert entry.proved is not None
        assert (entry.proved.text, entry.proved.kind) == (cards[2].value, "lower")
        assert entry.proved.guarantee == f"lower, {cards[2].guarantee}"
        assert entry.proved.adjacency == cards[2].adjacency
        assert (entry.accountant is None) == (name == "scores")
        if entry.accountant is not None:
            assert (entry.accountant.text, entry.accountant.kind) == (cards[3].value, "upper")
        assert (entry.claimed.value if entry.claimed else None) == (None if name == "trace" else 0.01)
        assert entry.page == ("" if name == "canaries" else f"{entry.name}/report.html")
    assert listed.reports[0].link == ""
    assert listed.reports[1].link == "below/scores%20%26%20co/report.html"
    assert (listed.headline, listed.tone, listed.problems) == ("2 of 3 audits fail.", "bad", ())
    assert listed.sentences()[0].startswith("<b>$canaries_1$: The recorded schedule gives ε = ")
    assert audit.ReportList.from_dict(json.loads(listed.to_json())) == listed


def test_a_list_without_a_failure_says_so(folder: Path) -> None:
    listed = audit.list_reports(folder / "trace")
    assert (listed.headline, listed.tone) == ("No audit fails. 0 of 1 tested a claim that held.", "neutral")
    assert [r.name for r in listed.reports] == ["."]
    assert "proved ε ≥" in listed.to_text()


def test_the_page_escapes_links_and_carries_the_picture(folder: Path) -> None:
    page = audit.list_reports(folder).to_html()
    assert page.count("<svg") == 1
    assert re.findall(r'<a href="([^"]+)"', page) == ["below/scores%20%26%20co/report.html", "trace/report.html"]
    assert "<b>" not in page
    assert "&lt;b&gt;$canaries_1$" in page
    assert page.index('class="verdict bad"') < page.index("<svg") < page.index("<tbody>")
    assert re.search(r"<(script|link|img)\b|@import|url\(http", page) is None
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_what_cannot_be_read_is_named_and_hides_nothing(folder: Path) -> None:
    texts = {
        "cut": reports.scores().to_json()[:500], "other": '{"schema": "leakcore.experiment/1"}', "list": "[]",
        "empty": json.dumps({**reports.scores().to_dict(), "report": {}}),
        "\x1b[31mred": "{",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).mkdir()
        (folder / name / "report.json").write_text(text)
    (folder / "a folder" / "report.json").mkdir(parents=True)
    listed = audit.list_reports(folder)
    assert len(listed.reports) == 3
    problems = dict(listed.problems)
    assert len(problems) == len(texts)
    assert "is not JSON" in problems["cut/report.json"]
    assert problems["other/report.json"] == "is not a report of an audit, its schema is leakcore.experiment/1"
    assert problems["list/report.json"] == "is not a report of an audit"
    assert problems["empty/report.json"]
    assert "5 files could not be read." in listed.sentences()
    for text in (listed.to_text(), listed.to_html()):
        assert "\x1b" not in text
        assert all(why.split(" (")[0] in text for why in problems.values() if "'" not in why)


def test_bad_folders_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="`folder` must be a folder that exists, got"):
        audit.list_reports(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"`folder` must hold a report\.json, itself or below, got"):
        audit.list_reports(tmp_path)
    with pytest.raises(TypeError, match="`folder` must be"):
        audit.list_reports(3)  # type: ignore[arg-type]
    from leakcore.audit import reports as module

    monkeypatch.setattr(module, "_MOST", 0)
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="`folder` must hold at most 0 reports, got 1"):
        audit.list_reports(tmp_path)


def test_numbers_of_another_adjacency_do_not_stand_on_a_line() -> None:
    from leakcore.audit import reports

    def number(kind: str, adjacency: str) -> audit.ListedNumber:
        return audit.ListedNumber(value=2.0, text="ε = 2", kind=kind, guarantee="", adjacency=adjacency)

    entry = audit.ListedReport(
        name="a", date="", audit="", title="", headline="", tone="good", verdict="", version="", page="",
        claimed=number("parameter", "replacement adjacency"), proved=number("lower", "add/remove adjacency"),
        accountant=number("upper", "add/remove adjacency"),
    )  # fmt: skip
    assert reports._on_the_line(entry, "claimed") is None
    assert reports._on_the_line(entry, "accountant") is entry.accountant


def test_the_command_writes_the_page_and_replaces_its_own_only(folder: Path) -> None:
    def run(*words: object) -> tuple[int, str, str]:
        done = CliRunner().invoke(main, ["reports", *map(str, words)])
        return done.exit_code, done.stdout, done.stderr

    for _ in range(2):
        code, out, _ = run(folder)
        assert code == 0
        assert out.startswith("2 of 3 audits fail.")
        assert out.splitlines()[-1] == str(folder / "index.html")
        assert "</html>" in (folder / "index.html").read_text(encoding="utf-8")
    assert (
        json.loads(run(folder, "--json", "--html", folder.parent / "page.html")[1])["schema"]
        == "leakcore.report-list/1"
    )
    assert (folder.parent / "page.html").exists()
    (folder / "index.html").write_text("<p>mine</p>")
    code, _, err = run(folder)
    assert (code, (folder / "index.html").read_text()) == (2, "<p>mine</p>")
    assert "`--html` must be a new file or a page of leakcore's" in err
    (folder.parent / "none").mkdir()
    code, _, err = run(folder.parent / "none")
    assert code == 2
    assert "`FOLDER` must hold a report.json" in err


def test_reports_are_read_where_torch_is_not_installed(tmp_path: Path) -> None:
    audit.from_scores([5.0] * 40, [0.0] * 40, coins=True).to_json(tmp_path / "report.json")
    code = "import sys; sys.modules['torch'] = None; from leakcore import audit; print(audit.list_reports(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "membership scores" in done.stdout, done.stderr
