"""A hook of mkdocs: inside tables, long names in code may break after a dot, an underscore or a bracket, and before a
capital letter; options of a command may not.

Only a phone needs the breaks: the style sheet switches them off on wider screens.
"""

from __future__ import annotations

import re
from typing import Any

_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_CODE = re.compile(r"(<code[^>]*>)([^<]*)(</code>)")


def on_page_content(html: str, **_: Any) -> str:
    return _CELL.sub(lambda cell: _CODE.sub(_broken, cell[0]), html)


def _broken(code: re.Match[str]) -> str:
    text = re.sub(r"([._(/=])(?=\w)|(?<=[a-z])(?=[A-Z])", r"\1<wbr>", code[2])
    return code[1] + re.sub(r"--[a-z-]+", r'<span class="option">\g<0></span>', text) + code[3]
