"""Every report's page: self-contained, accessible by what its HTML and stylesheet say, and without overflow."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import audit
from leakcore.audit.report import page as _page
from tests.audit.trace.traces import orthogonal

VOID = {"meta", "br", "link", "img", "hr", "input"}
USER = '<script>alert("x")</script>&'


def _trace() -> audit.AuditReport:
    return audit.from_trace(orthogonal(60), coins=True).with_limit(100)


def _scores() -> audit.AuditReport:
    rng = np.random.default_rng(0)
    return audit.from_scores(
        rng.normal(1, 1, 400), rng.normal(0, 1, 400), retrained=True, claimed_epsilon=0.01, adjacency="add-remove"
    )


def _claim() -> audit.AuditReport:
    return audit.claim(
        {
            "data": {"rows": 100},
            "mechanism": {"learning_rate": 0.5, "steps": 4},
            "claim": {"epsilon": 4.0},
            "audit": {"trials": 20, "k": [1]},
        }
    )


def _run() -> audit.AuditReport:
    small: dict[str, Any] = {"runs": 16, "sweep": (4.0,), "num_rows": 60, "steps": 4, "label_draws": 2}
    report = audit.run(audit.AuditConfig(**small, label_steps=4))
    figure = _page.Figure(svg=report.sections()[0].figure.svg, alt="again", caption="again")  # type: ignore[union-attr]
    part = _page.Part(
        key="more", findings=(_page.Finding(f"More: {USER}", verdict=USER, assumes=USER),), assumptions=(USER,),
        sections=(_page.Section(USER, (), figure),),
    )  # fmt: skip
    return report.with_parts(part)


@pytest.fixture(
    scope="module",
    params=[_trace, _scores, _claim, pytest.param(_run, marks=pytest.mark.slow)],
    ids=["trace", "scores", "claim", "run"],
)
def html(request: pytest.FixtureRequest) -> str:
    return str(request.param().to_html())


class Page(HTMLParser):
    """Elements in order with their attributes, the text under each heading, caption and title, and unclosed tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.inside: list[list[str]] = []
        self.open: list[str] = []
        self.text: dict[int, str] = {}
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        self.inside.append(list(self.open))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        self.inside.append(list(self.open))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        at = len(self.elements) - 1
        self.text[at] = self.text.get(at, "") + data

    def all(self, *tags: str) -> list[tuple[int, str, dict[str, str]]]:
        return [(i, t, a) for i, (t, a) in enumerate(self.elements) if t in tags]


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


def test_every_finding_says_what_it_is_about_and_users_words_are_escaped(html: str) -> None:
    page = Page(html)
    count = html.count("<li><h3>")
    assert count >= 3
    assert len([1 for _, _, a in page.all("p") if a.get("class") == "so"]) >= count // 2
    assert "<script" not in html


def _rules(html: str) -> dict[str, dict[str, str]]:
    """Declarations by selector, media blocks left out."""
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    css = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", style[1])
    found: dict[str, dict[str, str]] = {}
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css):
        declared = {k.strip(): v.strip() for k, _, v in (d.partition(":") for d in body.split(";")) if k.strip()}
        for selector in selectors.split(","):
            found.setdefault(selector.strip(), {}).update(declared)
    return found


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, two: str) -> float:
    low, high = sorted((_luminance(one), _luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_formula() -> None:
    assert _contrast("#ffffff", "#000000") == pytest.approx(21)
    assert _contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_every_text_colour_has_contrast_on_every_ground(html: str) -> None:
    """WCAG 2.1, 1.4.3: at least 4.5:1, for every colour of text on every background that the stylesheet has."""
    rules = _rules(html)
    names = {k: v for k, v in rules[":root"].items() if k.startswith("--")}

    def value(text: str) -> str | None:
        named = re.fullmatch(r"var\((--[\w-]+)\)", text)
        out = names[named[1]] if named else text
        return out if re.fullmatch(r"#[0-9a-f]{6}", out) else None

    inks = {value(d["color"]) for d in rules.values() if "color" in d}
    grounds = {value(d["background"]) for d in rules.values() if "background" in d}
    assert {names["--ink"], names["--soft"], names["--upper"], names["--lower"], names["--estimate"]} <= inks
    assert {names["--paper"], names["--card"], names["--mark"]} <= grounds
    for ink in inks - {None}:
        for ground in grounds - {None}:
            assert _contrast(str(ink), str(ground)) >= 4.5, (ink, ground)


def test_it_is_made_for_phones_and_for_print(html: str) -> None:
    for query in ("@media (max-width: 640px)", "@media print"):
        assert query in html
    assert "overflow-x: auto" in html
    smallest = [float(v) for v in re.findall(r"font-size: ([.\d]+)rem", html)]
    assert min(smallest) * 16 >= 12


@pytest.mark.parametrize("width", [390, 1280])
def test_no_overflow_in_a_browser(html: str, width: int, tmp_path: Path) -> None:
    """In a frame of this width, asked how wide the page wants to be: a window has a least width, a frame has none."""
    browser = next((b for b in ("chromium", "chromium-browser", "google-chrome", "chrome") if shutil.which(b)), None)
    if browser is None:
        pytest.skip("no headless Chromium here: how wide the page gets was not looked at")
    report = "(d => [d.scrollWidth, d.clientWidth].join(' '))(document.documentElement)"
    probe = f"<script>window.onload = () => parent.document.title = 'width ' + {report};</script></body>"
    framed = html.replace("</body>", probe).replace("&", "&amp;").replace('"', "&quot;")
    frame = (
        f'<!doctype html><title>none</title><iframe width="{width}" height="900" style="border:0" srcdoc="{framed}">'
    )
    (tmp_path / "framed.html").write_text(frame, encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--virtual-time-budget=3000", "--window-size=1400,1000", "--dump-dom",
               f"file://{tmp_path / 'framed.html'}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r"<title>width (\d+) (\d+)</title>", done.stdout)
    if found is None:
        pytest.skip(f"{browser} does not run here: {done.stderr[-200:]}")
    wanted, there = map(int, found.groups())
    assert there <= width
    assert wanted <= there, f"{wanted} px in a frame of {there}"
