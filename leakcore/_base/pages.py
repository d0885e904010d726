"""The frame of every page that leakcore writes: one file, without a network or a script, verdict and picture first.

What templates print is escaped, and control characters are spelt out. The frame's policy lets a browser run no script
and load nothing, whatever a page may hold.
"""

from __future__ import annotations

import datetime
import os
import re
from typing import Any

from leakcore._base.text import escape_controls
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
