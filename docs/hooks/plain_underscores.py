"""For mkdocs: an underscore is an underscore. Formulas in docstrings have them where Markdown reads emphasis; emphasis
in these pages is written with asterisks."""

from __future__ import annotations

from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import SimpleTextInlineProcessor

AFTER_LINKS_BEFORE_EMPHASIS = 70


class PlainUnderscores(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(SimpleTextInlineProcessor("(_+)"), "underscores", AFTER_LINKS_BEFORE_EMPHASIS)


def on_config(config: Any) -> Any:
    config["markdown_extensions"].append(PlainUnderscores())
    return config
