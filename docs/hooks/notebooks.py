"""A hook of mkdocs: each notebook becomes a page of the site, with the outputs that are kept in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File
    from nbconvert import MarkdownExporter

    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        page = notebook.src_uri.removesuffix(".ipynb")
        folder = f"{Path(page).name}_files"
        resources = {"output_files_dir": folder, "unique_key": "output"}
        text, exported = MarkdownExporter().from_filename(Path(config.docs_dir, notebook.src_uri), resources)
        files.append(File.generated(config, f"{page}.md", content=fenced(text)))
        for path, picture in exported["outputs"].items():
            files.append(File.generated(config, f"{Path(page).parent.as_posix()}/{path}", content=picture))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return to_pages(markdown)


def to_pages(text: str) -> str:
    """Links to notebooks, as a repository has them, lead to the pages that the site has."""
    return re.sub(r"\]\(([\w./-]+)\.ipynb\)", r"](\1.md)", text)


def fenced(text: str) -> str:
    """The page of a notebook: printed text, which nbconvert indents, stands in a fence of its own."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)  # code is every second part
    parts[::2] = [_fence_outputs(to_pages(part)) for part in parts[::2]]
    return "".join(parts)


def _fence_outputs(text: str) -> str:
    def fence(match: re.Match[str]) -> str:
        lines = "\n".join(line[4:] for line in match[1].rstrip().splitlines())
        if not lines:  # what a picture leaves
            return "\n\n"
        return f"\n\n```{{ .text .output }}\n{lines}\n```\n"

    return re.sub(r"\n\n((?:    .*\n|\n(?=    ))+)", fence, text)
