"""Whether the tag that is released is the version: `make check-tag`, with GITHUB_REF_NAME or TAG as "v1.2.3"."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def wrong(tag: str, root: Path = ROOT) -> str:
    """What does not fit, "" where tag, pyproject.toml and leakcore.__version__ say the same."""
    project = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    version = (root / "leakcore" / "_base" / "version.py").read_text(encoding="utf-8")
    package = re.search(r'^__version__ = "(.+)"$', version, re.MULTILINE)
    if project is None or package is None:
        return "pyproject.toml or leakcore/_base/version.py states no version"
    if project[1] != package[1]:
        return f"pyproject.toml says {project[1]}, leakcore/_base/version.py says {package[1]}"
    return "" if tag == f"v{project[1]}" else f"the tag must be v{project[1]}, got {tag!r}"


if __name__ == "__main__":
    sys.exit(wrong(os.environ.get("TAG") or os.environ.get("GITHUB_REF_NAME", "")) or 0)
