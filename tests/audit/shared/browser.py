"""Headless Chromium by its own command line: what a page is like once a browser has laid it out."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.tolerances import HANG

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
DARK = "--blink-settings=preferredColorScheme=0"


def chromium(folder: Path, *options: str) -> str:
    """Standard output of one call; skips the test where there is no browser, or none that runs."""
    browser = next((name for name in _NAMES if shutil.which(name)), None)
    if browser is None:
        pytest.skip("no headless Chromium on PATH: the page was not laid out")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    if done.returncode:
        pytest.skip(f"{browser} does not run here: {done.stderr[-200:]}")
    return done.stdout


def measured(pages: list[tuple[str, int]], script: str, folder: Path, *options: str) -> list[Any]:
    """What `script`, a JavaScript function body, returns in each page, in a frame as wide as asked.

    A window has a least width, a frame has none. The page's own policy, which forbids scripts, is left out: what is
    measured is the layout.
    """
    policy = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
    frames = []
    for i, (page, width) in enumerate(pages):
        probe = f"<script>window.onload = () => parent.answer({i}, (() => {{ {script} }})());</script></body>"
        framed = html.escape(policy.sub("", page).replace("</body>", probe))
        frames.append(f'<iframe width="{width}" height="900" style="border:0" srcdoc="{framed}"></iframe>')
    collect = (
        "<script>const answers = {}; function answer(i, value) { answers[i] = value; "
        "document.getElementById('answers').textContent = JSON.stringify(answers); }</script>"
    )
    outer = f'<!doctype html><meta charset="utf-8"><pre id="answers"></pre>{collect}{"".join(frames)}'
    (folder / "framed.html").write_text(outer, encoding="utf-8")
    dom = chromium(
        folder, *options, "--virtual-time-budget=5000", "--window-size=1400,1000", "--dump-dom",
        f"file://{folder / 'framed.html'}",
    )  # fmt: skip
    match = re.search(r'<pre id="answers">(.*?)</pre>', dom, re.DOTALL)
    assert match is not None, dom[:500]
    answers = json.loads(html.unescape(match[1]))
    assert len(answers) == len(pages)
    return [answers[str(i)] for i in range(len(pages))]


def printed(page: str, folder: Path) -> str:
    """The text of the page's PDF."""
    pypdf = pytest.importorskip("pypdf", reason="reads the printed page")
    (folder / "page.html").write_text(page, encoding="utf-8")
    chromium(
        folder, f"--print-to-pdf={folder / 'page.pdf'}", "--no-pdf-header-footer", f"file://{folder / 'page.html'}"
    )
    return " ".join(sheet.extract_text() for sheet in pypdf.PdfReader(folder / "page.pdf").pages)
