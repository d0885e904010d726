"""The built site: links, search, and what a phone shows, in headless Chromium where there is one."""

from __future__ import annotations

import functools
import html
import http.server
import json
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.project.browser import chromium
from tests.project.script import ROOT
from tests.tolerances import HANG

PHONE = 375


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="pip install '.[docs]' builds the site")
    pytest.importorskip("mkdocstrings", reason="pip install '.[docs]' builds the site")
    pytest.importorskip("nbconvert", reason="pip install '.[docs]' builds the site")
    out = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return out


class Page(HTMLParser):
    """What a page refers to, and what in it can be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.ids.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


def test_links(site: Path) -> None:
    """Pages, pictures, style sheets, and the places inside pages that links name."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 30
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            if not target.exists() or (place and target in pages and place not in pages[target].ids):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken, "\n".join(broken)


def test_search_index(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    indexed = {entry["location"].split("#")[0] for entry in index["docs"]}
    pages = {path.parent.relative_to(site).as_posix() + "/" for path in site.rglob("index.html")}
    assert {"" if page == "./" else page for page in pages} <= indexed
    assert any("epsilon_lower_bound" in entry["title"] for entry in index["docs"])


class Handler(http.server.SimpleHTTPRequestHandler):
    """The site's files. `/wait` is answered after `/done`: until then the browser takes the page for unfinished."""

    done: threading.Event

    def do_GET(self) -> None:
        if self.path == "/done":
            self.done.set()
        if self.path == "/wait":
            self.done.wait(HANG)
        if self.path in ("/done", "/wait"):
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's output is its own."""


def answer(site: Path, script: str, folder: Path) -> Any:
    """What `script` hands to `answer(value)`, in a page next to the site's."""
    page = site / "asked.html"
    send = "document.getElementById('answer').textContent = JSON.stringify(value); fetch('/done');"
    page.write_text(
        f'<!doctype html><body><pre id="answer"></pre><img src="/wait">'
        f"<script>function answer(value) {{ {send} }}\n{script}</script>",
        encoding="utf-8",
    )
    handler = type("OneHandler", (Handler,), {"done": threading.Event()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/asked.html"
            dom = chromium(folder, "--window-size=1280,1000", "--hide-scrollbars", "--dump-dom", url)
        finally:
            server.shutdown()
            thread.join()
            page.unlink()
    match = re.search(r'<pre id="answer">(.+?)</pre>', dom, re.DOTALL)
    assert match is not None, dom[:500]
    return json.loads(html.unescape(match[1]))


def test_page_width(site: Path, tmp_path: Path) -> None:
    """Each page in a frame of a phone's width: a window has a least width, a frame has none."""
    pages = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    script = """
      const widths = {};
      const next = (pages) => {
        if (!pages.length) { answer(widths); return; }
        const frame = document.createElement('iframe');
        frame.width = PHONE; frame.height = 800; frame.style.border = 0;
        frame.onload = () => {
          const page = frame.contentDocument;
          widths[pages[0]] = [page.documentElement.clientWidth, page.documentElement.scrollWidth, page.title];
          frame.remove();
          next(pages.slice(1));
        };
        frame.src = '/' + pages[0] + '/';
        document.body.appendChild(frame);
      };
      next(PAGES);
    """.replace("PHONE", str(PHONE)).replace("PAGES", json.dumps(pages))
    widths = answer(site, script, tmp_path)
    assert set(widths) == set(pages)
    assert all(title.endswith("leakcore") for _, _, title in widths.values())
    assert {page: w for page, (visible, w, _) in widths.items() if visible != PHONE or w > PHONE} == {}
