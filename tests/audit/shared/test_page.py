"""Numbers in words, the page and the terminal's text of every report."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from leakcore import audit, bounds
from leakcore.audit.shared.elements import QUESTIONS
from leakcore.audit.shared.format import above, ends, fixed, interval, number, percent
from tests.audit import samples as reports


def test_bounds_are_rounded_to_the_side_on_which_they_hold() -> None:
    rng = np.random.default_rng(0)
    for value in [*10 ** rng.uniform(-9, 9, 500), *rng.random(500), 0.1, 4.0, 0.70382, 60.0, 123456.0]:
        for digits in (2, 3, 4, 6):
            low, high = (float(number(value, digits, kind)) for kind in ("lower", "upper"))
            assert low <= value <= high
            assert high - low <= 1.1 * 10 ** (1 - digits) * value
    for p in [*rng.random(500), *10 ** rng.uniform(-7, 0, 300), *(1 - 10 ** rng.uniform(-7, 0, 300))]:
        low, high = (percent(p, kind) for kind in ("lower", "upper"))
        assert float(low.strip("> %")) <= 100 * p + 1e-12
        assert float(high.strip("%")) >= 100 * p - 1e-12


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [(0.70382, "lower", "0.703"), (0.70382, "upper", "0.704"), (0.1, "upper", "0.1"), (4.0, "lower", "4"),
     (np.inf, "upper", "∞")],
)  # fmt: skip
def test_short_decimals_stay_what_they_are(value: float, kind: str, text: str) -> None:
    assert number(value, 3, kind) == text


def test_results_go_by_their_kind() -> None:
    bound = bounds.reconstruction(7.0, 1.0, 100, kappa=0.1)
    assert bound.kind == "upper"
    assert float(percent(bound).strip("%")) >= 100 * float(bound.value)
    proved = bounds.epsilon_lower_bound(700, 300, 1000, confidence=0.95, adjacency="replace")
    assert proved.kind == "lower"
    assert float(number(proved)) <= float(proved.value) < float(number(proved)) + 1e-3
    low, high = (float(side.strip("%")) for side in interval(_with(bound, (0.12345, 0.67891))).split("–"))
    assert (low, high) == (12.3, 67.9)


def test_the_ends_of_an_interval_are_rounded_outwards() -> None:
    bound = bounds.reconstruction(7.0, 1.0, 100, kappa=0.1)
    assert ends(_with(bound, (0.45999, 0.67811)), 3) == "0.459–0.679"
    assert ends(_with(bound, (0.0, 1.0)), 2) == "0.00–1.00"
    assert (fixed(0.1234, 3, "lower"), fixed(0.1234, 3, "upper"), fixed(0.1234, 3)) == ("0.123", "0.124", "0.123")


def _with(result: bounds.ReconstructionBound, ends: tuple[float, float]) -> bounds.ReconstructionBound:
    import dataclasses

    return dataclasses.replace(result, interval=ends)


def test_what_is_above_is_seen_to_be() -> None:
    assert above(4.0003, 4.0) == ("4.0003", "4")
    assert above(5.12345, 4.0) == ("5.123", "4")
    assert above(2.00000001, 2.0, "upper")[0] > "2"
    assert above(np.inf, 4.0, "upper") == ("∞", "4")
    assert above(0.0, 0.0) == ("0", "0")


VOID = {"meta", "br", "link", "img", "hr", "input"}


@pytest.fixture(
    scope="module",
    params=[reports.trace, reports.scores, reports.claim, pytest.param(reports.run, marks=pytest.mark.slow)],
    ids=["trace", "scores", "claim", "run"],
)
def report(request: pytest.FixtureRequest) -> audit.AuditReport:
    whole: audit.AuditReport = request.param()
    return whole


@pytest.fixture(scope="module")
def html(report: audit.AuditReport) -> str:
    return report.to_html()


class Page(HTMLParser):
    """Elements in order with their attributes, the text in each, and unclosed tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.inside: list[list[str]] = []
        self.open: list[str] = []
        self.open_at: list[int] = []
        self.text: dict[int, str] = {}
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        self.inside.append(list(self.open))
        if tag not in VOID:
            self.open.append(tag)
            self.open_at.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        self.inside.append(list(self.open))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.open_at.pop()

    def handle_data(self, data: str) -> None:
        for at in self.open_at:
            self.text[at] = self.text.get(at, "") + data

    def all(self, *tags: str) -> list[tuple[int, str, dict[str, str]]]:
        return [(i, t, a) for i, (t, a) in enumerate(self.elements) if t in tags]


@pytest.mark.full(keep=1)
def test_language_title_viewport_one_main_and_headings_in_order(html: str) -> None:
    page = Page(html)
    assert page.all("html")[0][2]["lang"] == "en"
    assert page.text[page.all("title")[0][0]].strip()
    (viewport,) = [a["content"] for _, _, a in page.all("meta") if a.get("name") == "viewport"]
    assert "width=device-width" in viewport
    assert "user-scalable=no" not in viewport
    assert "maximum-scale" not in viewport
    assert len(page.all("main")) == 1
    headings = page.all("h1", "h2", "h3", "h4", "h5", "h6")
    levels = [int(t[1]) for _, t, _ in headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert all(page.text.get(i, "").strip() for i, _, _ in headings)


def test_ids_are_unique_references_resolve_and_nothing_is_loaded(html: str) -> None:
    page = Page(html)
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, a in page.elements:
        for name in ("href", "xlink:href"):
            if name in a:
                assert a[name].startswith("#"), a
                assert a[name][1:] in ids
    for target in re.findall(r"url\(([^)]*)\)", html):
        assert target.strip("\"'").startswith("#")
        assert target.strip("\"'")[1:] in ids
    assert not page.all("script", "link", "img", "iframe", "object", "embed", "base", "form")
    assert "@import" not in html
    assert not [k for _, a in page.elements for k in a if k.startswith("on")]


def test_figures_have_alternatives_and_captions_and_tables_captions_and_scopes(html: str) -> None:
    page = Page(html)
    drawn = page.all("svg")
    assert drawn
    assert len(page.all("figure")) == len(page.all("figcaption")) == len(drawn)
    alternatives = [a["aria-label"] for _, _, a in page.all("div") if a.get("role") == "img"]
    assert len(alternatives) == len(drawn)
    assert all(alternatives)
    for i, _, _ in page.all("figcaption"):
        assert len(page.text[i].strip()) > 4
    tables = page.all("table")
    assert tables
    captions = page.all("caption")
    assert len(captions) == len(tables)
    assert all(page.text[i].strip() for i, _, _ in captions)
    assert all(a.get("scope") in ("col", "row") for _, _, a in page.all("th"))
    rows = [i for i, _, _ in page.all("tr") if "tbody" in page.inside[i]]
    for row in rows:
        assert page.elements[row + 1][0] == "th"
    # What scrolls can be reached and named without a mouse.
    for _, _, a in page.all("div"):
        if a.get("class") == "scroll":
            assert a["tabindex"] == "0"
            assert a["role"] == "region"
            assert a["aria-label"]


def test_the_verdict_comes_first_then_four_numbers_then_the_picture_and_tables_are_folded(html: str) -> None:
    page = Page(html)
    order = [
        page.all("h1")[0][0],
        next(i for i, _, a in page.all("li") if a.get("class", "").startswith("card")),
        page.all("svg")[0][0],
        next(i for i, _, a in page.all("ol") if a.get("class") == "findings"),
        page.all("table")[0][0],
        page.all("pre")[0][0],
    ]
    assert order == sorted(order)
    assert len([1 for _, _, a in page.all("li") if a.get("class", "").startswith("card")]) == 4
    for i, _, _ in page.all("table", "pre", "dl"):
        assert "details" in page.inside[i]
    assert len(page.all("summary")) == len(page.all("details"))
    assert not [1 for _, _, a in page.all("details") if "open" in a]


def test_every_number_says_its_kind_and_guarantee_and_a_missing_one_says_why(report: audit.AuditReport) -> None:
    cards = report.cards()
    assert tuple(card.question for card in cards) == QUESTIONS
    for card in cards:
        assert card.detail.endswith(".")
        if card.value:
            assert card.kind in ("upper", "lower", "estimate", "parameter")
            assert "adjacency" in card.guarantee
            assert "confidence" in card.guarantee or card.confidence in ("deterministic", "claimed", "no guarantee")
        else:
            assert card.absent
            assert card.guarantee == ""


def test_the_terminal_has_the_order_of_the_page(report: audit.AuditReport) -> None:
    text = report.to_text(90)
    first_table = next(iter(report.tables().values())).title
    marks = [report.headline, *(f"\n{question}: " for question in QUESTIONS), "\n 1. ", f"\n{first_table}\n---"]
    assert [text.index(mark) for mark in marks] == sorted(text.index(mark) for mark in marks)
    assert text.index(report.headline) == 0
    above_tables = text[: text.index(f"\n{first_table}\n---")]
    assert max(map(len, above_tables.splitlines())) <= 90
    if any(row.highlight for table in report.tables().values() for row in table.rows):
        assert "> marks " in text


def test_every_finding_says_what_it_is_about_and_users_words_are_escaped(html: str) -> None:
    page = Page(html)
    count = html.count("<li><h3>")
    assert count >= 3
    assert len([1 for _, _, a in page.all("p") if a.get("class") == "so"]) >= count // 2
    assert "<script" not in html


@pytest.mark.full
def test_a_page_in_a_file_names_its_run_and_its_date(report, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(1_764_201_600))
    page = report.to_html(tmp_path / "monday <b>" / "report.html").read_text(encoding="utf-8")
    assert "<strong>Run:</strong> monday &lt;b&gt;, 2025-11-27 00:00 UTC." in page
    assert "on 2025-11-27 00:00 UTC" in report.to_html()
    assert "<strong>Run:</strong>" not in report.to_html()
    assert "2025-11-27" not in report.to_json()
