"""A hook of mkdocs: the build fails where a reference page lists a name that it does not show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_LISTED = re.compile(r"^::: (\S+)\n    options:\n      members:\n((?:        - \w+\n)+)", re.MULTILINE)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    file = Path(config.docs_dir, page.file.src_uri)
    if page.file.src_uri.startswith("reference/") and file.exists():  # reference/names.md is made by names.py
        source = file.read_text(encoding="utf-8")
        listed = [
            f"{package}.{name}" for package, names in _LISTED.findall(source) for name in re.findall(r"\w+", names)
        ]
        on_page = set(re.findall(r'id="(leakcore[\w.]*)"', output))
        if missing := [name for name in listed if name not in on_page]:
            raise PluginError(f"{page.file.src_uri} lists names that the page does not show: {', '.join(missing)}")
    return output
