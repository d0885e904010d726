"""Headless Chromium by its own command line: what a page is like once a browser has laid it out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tolerances import HANG

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


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
