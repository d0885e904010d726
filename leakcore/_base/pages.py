"""The frame of every page that leakcore writes, and drawings from files: one file, without a network or a script.

What templates print is escaped, and control characters are spelt out. The frame's policy lets a browser run no script
and load nothing, whatever a page may hold. A drawing of our own stands in a page as it is. One that was read (a part of
a report.json, a figure of an earlier reproduction) may be anybody's: it is parsed and written again, with the elements,
attributes and styles that a picture of matplotlib's has. Scripts, links, foreign content, rules of style that change
the page around, and addresses outside the drawing are left out.
"""

from __future__ import annotations

import datetime
import os
import re
from html import escape
from typing import Any
from xml.parsers import expat

from leakcore._base.text import escape_controls, printable
from leakcore._base.version import PAGE, __version__, need

SIGNS = {"good": "✓", "neutral": "○", "bad": "✗"}
"""The verdict's colour as a sign, for readers who do not see the colour."""
_UNBROKEN = re.compile(r"\b[εδσκCkqT] (?:[=≥≤]|&lt;|&gt;) [\d.,e∞-]*[\d∞]|\b[\d.]+e-\d+|[\d.]+%–[\d.]+%")


def rendered(template: str, package: str, **values: Any) -> str:
    """A template of the package, which extends page.html, as HTML. ImportError without Jinja2 or matplotlib."""
    need(*PAGE)
    import jinja2

    folders = [jinja2.PackageLoader(package, "."), jinja2.PackageLoader("leakcore._base", "templates")]
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(folders), autoescape=True, undefined=jinja2.StrictUndefined, finalize=_plain
    )
    templates.filters["unbroken"] = unbroken
    templates.globals["signs"] = SIGNS
    html: str = templates.get_template(template).render(version=__version__, date=_today(), **values)
    return html


def _today() -> str:
    """Date and minute, UTC; of SOURCE_DATE_EPOCH where it is set, so that a page can be written again byte for byte."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    zone = datetime.timezone.utc
    now = datetime.datetime.fromtimestamp(int(epoch), zone) if epoch.isdecimal() else datetime.datetime.now(zone)
    return now.strftime("%Y-%m-%d %H:%M UTC")


def unbroken(text: str) -> Any:
    """Escaped, with numbers such as 1e-5 and short equations such as ε = 4 kept on one line."""
    import markupsafe

    escaped = str(markupsafe.escape(escape_controls(text)))
    return markupsafe.Markup(_UNBROKEN.sub(r'<span class="unbroken">\g<0></span>', escaped))


def own_names(svg: str, number: int | str) -> str:
    """The drawing with names of its own: every drawing names its parts alike, and on one page they must differ."""
    return re.sub(r'(\bid="|href="#|url\(#|aria-labelledby="|(?<=figure-title) )', rf"\g<1>{number}-", svg)


def _plain(value: Any) -> Any:
    """Texts with control characters spelt out: bidirectional ones reorder a page as they do a terminal."""
    return type(value)(escape_controls(value)) if isinstance(value, str) else value


_SHAPES = set(
    "svg g defs path use clipPath rect circle ellipse line polyline polygon image title desc text tspan".split()
)
_WORDS = {"title", "desc", "text", "tspan"}
"""Elements whose text is shown."""
_RULE = "*{stroke-linejoin: round; stroke-linecap: butt}"
"""The one style sheet that matplotlib writes; any other could hide what the page says."""
_NUMBERS = re.compile(r"[\w\s,.()+%-]*")
_NAME = re.compile(r"[\w.:-]+( [\w.:-]+)*")
_PLACE = re.compile(r"url\(#[\w.:-]+\)")
_PAINT = re.compile(r"[\w\s#,.()+%-]*")
"""Colours, numbers, and variables of the page."""
_HERE = re.compile(r"#[\w.:-]+")
_PIXELS = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=\s]*")
_ATTRIBUTES = {
    **dict.fromkeys(("id", "role", "aria-labelledby", "aria-hidden", "type"), _NAME),
    "class": re.compile("opaque"),
    **dict.fromkeys(
        tuple(
            (
                "d x y x1 y1 x2 y2 cx cy r rx ry dx dy width height points transform viewBox version "
                "preserveAspectRatio"
            ).split()
        ),
        _NUMBERS,
    ),
    "clip-path": _PLACE,
    "xmlns": re.compile(re.escape("http://www.w3.org/2000/svg")),
    "xmlns:xlink": re.compile(re.escape("http://www.w3.org/1999/xlink")),
}
_STYLES = re.compile(
    r"(fill|stroke)(-[a-z]+)?|opacity|clip-rule|font(-[a-z]+)?|text-anchor|image-rendering|mix-blend-mode"
)


def drawing(markup: Any) -> str:
    """The SVG element in `markup`, with what a drawing may hold; ValueError where there is none that can be read."""
    text = str(markup)
    start = text.find("<svg")
    if start < 0:
        raise ValueError(f"it must be a drawing in SVG, got {printable(repr(text), 60)}")
    writer = _Writer()
    try:
        writer.parse(text[start:])
    except (expat.ExpatError, ValueError) as why:
        raise ValueError(f"it must be a drawing in SVG ({printable(why, 200)})") from None
    return "".join(writer.out)


class _Writer:
    """What expat reads, written again as far as it is known."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self._open: list[str] = []
        self._skipped = 0
        self._style: list[str] | None = None

    def parse(self, text: str) -> None:
        parser = expat.ParserCreate(encoding="utf-8")
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = self._text, self._doctype
        parser.Parse(text.encode("utf-8", "replace"), True)

    def _doctype(self, *_: Any) -> None:
        raise ValueError("it declares a type of document, which could name entities")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._style is None and not self._skipped and name == "style":
            self._style = []
        elif self._skipped or self._style is not None or name not in _SHAPES:
            self._skipped += 1
        else:
            self._open.append(name)
            chosen = "".join(f' {key}="{escape(value)}"' for key, value in _allowed(name, attributes))
            self.out.append(f"<{name}{chosen}>")

    def _end(self, name: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif self._style is not None:
            if "".join(self._style).strip() == _RULE:
                self.out.append(f"<style>{_RULE}</style>")
            self._style = None
        else:
            self._open.pop()
            self.out.append(f"</{name}>")

    def _text(self, text: str) -> None:
        if self._style is not None and not self._skipped:
            self._style.append(text)
        elif self._open and self._open[-1] in _WORDS and not self._skipped:
            self.out.append(escape(escape_controls(text)))
        elif not text.strip():
            self.out.append(text)


def _allowed(element: str, attributes: dict[str, str]) -> list[tuple[str, str]]:
    chosen = []
    for name, value in attributes.items():
        if name in ("href", "xlink:href"):
            fits = (_PIXELS if element == "image" else _HERE).fullmatch(value) is not None
        elif name == "style":
            value = "; ".join(rule for rule in map(str.strip, value.split(";")) if _is_style(rule))
            fits = bool(value)
        elif name in _ATTRIBUTES:
            fits = _ATTRIBUTES[name].fullmatch(value) is not None
        else:
            fits = _is_style(f"{name}: {value}")
        if fits:
            chosen.append((name, value))
    return chosen


def _is_style(rule: str) -> bool:
    name, _, value = rule.partition(":")
    value = value.strip()
    painted = (_PAINT.fullmatch(value) is not None and "url" not in value.lower()) or _PLACE.fullmatch(
        value
    ) is not None
    return _STYLES.fullmatch(name.strip()) is not None and painted
