"""Every report's page in headless Chromium: folded and unfolded, at a phone's width, in the dark, and printed."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from leakcore import audit
from tests.audit import samples as reports
from tests.audit.shared import browser

FORMS = {"trace": reports.trace, "scores": reports.scores, "claim": reports.claim}
WIDTHS = (375, 1280)
PROBE = """
const root = document.documentElement;
const folded = root.scrollWidth;
const hidden = [...document.querySelectorAll('table')].filter(t => t.checkVisibility()).length;
document.querySelectorAll('summary').forEach(s => s.click());
const shown = [...document.querySelectorAll('table')].filter(t => t.checkVisibility()).length;
const titles = [...document.querySelectorAll('svg title')];
const tried = titles.filter((_, i) => i % Math.ceil(titles.length / 10) === 0);
const under = tried.filter(title => {
  const owner = title.parentNode;
  owner.scrollIntoView({block: 'center'});
  const box = owner.getBoundingClientRect();
  const at = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return at && at.querySelector(':scope > title');
}).length;
const parsed = colour => colour.match(/[0-9.]+/g).map(Number);
const light = c => { const l = c.slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2]; };
const ground = e => { for (; e; e = e.parentElement) { const c = parsed(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
let least = 21;
for (const e of document.querySelectorAll('main *, footer *')) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.closest('svg')) continue;
  const [a, b] = [light(parsed(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => x - y);
  least = Math.min(least, (b + 0.05) / (a + 0.05));
}
return {folded, unfolded: root.scrollWidth, width: root.clientWidth, hidden, shown, under,
  titles: titles.length, tried: tried.length, least, paper: light(ground(document.body)),
  requests: performance.getEntriesByType('resource').map(r => r.name)};
"""


@pytest.fixture(scope="module")
def by_form() -> dict[str, audit.AuditReport]:
    return {form: report() for form, report in FORMS.items()}


@pytest.fixture(scope="module", params=["light", "dark"])
def answers(
    request: pytest.FixtureRequest, by_form: dict[str, audit.AuditReport], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[tuple[str, int], Any]]:
    """What the probe says of every page at every width, in one scheme."""
    asked = [(form, width) for form in by_form for width in WIDTHS]
    pages = {form: report.to_html() for form, report in by_form.items()}
    options = [browser.DARK] if request.param == "dark" else []
    said = browser.measured([(pages[f], w) for f, w in asked], PROBE, tmp_path_factory.mktemp("browser"), *options)
    return request.param, dict(zip(asked, said, strict=True))


def test_pages_in_a_browser(answers: tuple[str, dict[tuple[str, int], Any]]) -> None:
    """No overflow, folded or unfolded; tables unfold; values are under the pointer; contrast; nothing is requested."""
    scheme, pages = answers
    for place, page in pages.items():
        assert page["folded"] <= page["width"] == place[1], place
        assert page["unfolded"] <= page["width"], place
        assert (page["hidden"], page["shown"] > 0) == (0, True), place
        assert page["titles"] >= 20, place
        # Neighbouring points may hide one another, never most of them.
        assert page["under"] > 0.8 * page["tried"] > 0, place
        assert page["least"] >= 4.5, place
        assert (page["paper"] < 0.05) == (scheme == "dark"), place
        assert page["requests"] == [], place


@pytest.mark.parametrize("form", FORMS)
def test_print_unfolds_the_tables(form: str, by_form: dict[str, audit.AuditReport], tmp_path: Path) -> None:
    """Every cell of the folded tables, the assumptions and the configuration are in the PDF."""

    def letters(text: str) -> str:
        return "".join(unicodedata.normalize("NFKC", text).split())  # a PDF has ligatures

    report = by_form[form]
    text = letters(browser.printed(report.to_html(), tmp_path))
    assert letters("What we found") in text
    for table in report.tables().values():
        assert letters(table.caption) in text
        for row in table.rows:
            for cell in row.cells:
                assert letters(cell.text) in text
                assert letters(cell.note) in text
    assert letters(report.assumptions()[-1]) in text
    assert letters(f'"{next(iter(report.settings()))}":') in text
