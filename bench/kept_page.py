"""A measurement that is kept as JSON, and what a page of the docs says of it between two marks."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def between(page: str, marks: tuple[str, str], text: str) -> str:
    """The page with this text between its marks."""
    first, last = marks
    return re.sub(f"{first}.*?{last}", lambda _: f"{first}\n{text}\n{last}", page, flags=re.DOTALL)


def main(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], Result],
    text: Callable[[Result], str],
    marks: tuple[str, str],
) -> None:
    """Measure, or read what was measured; print what it says, and write it where it is asked for."""
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print what this result says, run nothing")
    parser.add_argument("--page", type=Path, help="write it between the marks of this page")
    options = parser.parse_args()
    result = json.loads(options.show.read_text(encoding="utf-8")) if options.show else run(options)
    print(text(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(between(page, marks, text(result)), encoding="utf-8")
