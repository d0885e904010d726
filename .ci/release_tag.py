"""Refuses a release whose tag is not the version of the package: python3 .ci/release_tag.py v0.1.0"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def versions(root: Path = ROOT) -> dict[str, str]:
    """The version, wherever it is written."""
    places = {
        "pyproject.toml": r'^version = "(.+)"',
        "leakcore/_base/version.py": r'^__version__ = "(.+)"',
        "CITATION.cff": r"^version: (\S+)",
    }
    out = {}
    for name, pattern in places.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        out[name] = match[1].strip("\"'") if match else "no version"
    return out


def main() -> None:
    tag = sys.argv[1] if len(sys.argv) == 2 else ""
    wrong = [f"{name} says {version}" for name, version in versions().items() if f"v{version}" != tag]
    if wrong:
        sys.exit(f"the tag is {tag!r}, but {', '.join(wrong)}")


if __name__ == "__main__":
    main()
