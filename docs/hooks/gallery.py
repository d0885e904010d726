"""A hook of mkdocs: the gallery's pictures, made from the very lines that the page shows."""

from __future__ import annotations

import ast
import io
import re
import warnings
from pathlib import Path
from typing import Any

PAGE = "gallery.md"
STYLE = {
    "figure.figsize": (6.8, 3.6),
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "gallery",
}
_SECTION = re.compile(
    r"^## (?P<title>.+?)\n\n(?P<says>.+?)\n\n(?P<fence>```python\n(?P<code>.*?)```)", re.DOTALL | re.MULTILINE
)
_IMPORTS = re.compile(r"^```python\n(.*?)```", re.DOTALL | re.MULTILINE)


def sections(page: str) -> dict[str, str]:
    """Title of each section: the lines that make its picture."""
    return {match["title"]: match["code"] for match in _SECTION.finditer(page)}


def draw(page: str) -> dict[str, str]:
    """Title of each section: its picture, as SVG."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {}
    imports = _IMPORTS.search(page)
    if imports is None:
        raise ValueError(f"{PAGE} has no imports")
    exec(compile(imports[1], PAGE, "exec"), names)
    pictures = {}
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for title, code in sections(page).items():
            plt.close("all")
            figure = last_value(code, names)
            figure = figure if isinstance(figure, plt.Figure) else plt.gcf()
            if not any(axes.has_data() for axes in figure.axes):
                raise ValueError(f"{PAGE}: nothing is drawn under {title!r}")
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
            pictures[title] = buffer.getvalue()
        plt.close("all")
    return pictures


def last_value(code: str, names: dict[str, Any]) -> Any:
    """What the last line of a block is worth, as in a notebook."""
    tree = ast.parse(code)
    last = tree.body.pop()
    exec(compile(tree, PAGE, "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), PAGE, "eval"), names)
    exec(compile(ast.Module([last], []), PAGE, "exec"), names)
    return None


def path(title: str) -> str:
    return f"img/gallery/{re.sub(r'[^a-z]+', '-', title.lower()).strip('-')}.svg"


def shown(page: str) -> str:
    """The page with each picture above its lines."""

    def put(match: re.Match[str]) -> str:
        says = " ".join(match["says"].split())
        return f"## {match['title']}\n\n{match['says']}\n\n![{says}]({path(match['title'])})\n\n{match['fence']}"

    return _SECTION.sub(put, page)


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File

    page = Path(config.docs_dir, PAGE).read_text(encoding="utf-8")
    for title, picture in draw(page).items():
        files.append(File.generated(config, path(title), content=picture))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return shown(markdown) if page.file.src_uri == PAGE else markdown
