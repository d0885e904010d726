"""A result in a few lines: for a terminal, a notebook and a log, and as a tidy table of pandas."""

from __future__ import annotations

import dataclasses
import decimal
import html
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore._base.text import escape_controls, line_of, markdown, printable

Rows = Sequence[tuple[str, str]]
"""A name and its value, in words."""
_ROUNDING = {"upper": decimal.ROUND_CEILING, "lower": decimal.ROUND_FLOOR}
_WIDEST = 100
_LISTED = 6
"""Values that are listed; more are summed up."""
_LONGEST = 400
"""Characters of a `repr`."""


def as_text(title: str, rows: Rows) -> str:
    """An aligned table."""
    named = [(printable(name, _WIDEST), printable(text, _WIDEST)) for name, text in rows]
    width = max((len(name) for name, _ in named), default=0)
    return "\n".join([line_of(title, _WIDEST), *(f"  {name:<{width}}  {text}" for name, text in named)])


def as_html(title: str, rows: Rows, *, widest: int = _WIDEST) -> str:
    """The same table for a notebook."""
    lines = "".join(
        f'<tr><th style="text-align:left">{html.escape(printable(name, widest))}</th>'
        f'<td style="text-align:left">{html.escape(printable(text, widest))}</td></tr>'
        for name, text in rows
    )
    return f"<table><caption>{html.escape(printable(title, widest))}</caption><tbody>{lines}</tbody></table>"


def as_line(title: str, rows: Rows) -> str:
    """The same on one line."""
    return f"{title}({', '.join(f'{name}={printable(text, _WIDEST)}' for name, text in rows)})"


def short(value: Any) -> str:
    """A value in a few words: a number of six digits, an array by its ends, anything else by its beginning."""
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.6g}"
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, (tuple, list)):
        inside = [short(v) for v in value[:_LISTED]]
        return f"({', '.join(inside)}{', …' if len(value) > _LISTED else ''})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__
    if isinstance(value, dict):
        return f"{{{', '.join(printable(key, 20) for key in list(value)[:_LISTED])}}}"
    return printable(value if isinstance(value, str) else repr(value), 80)


def rounded(value: Any, side: str) -> str:
    """`short`, but never better than the number: an "upper" one is rounded up, a "lower" one down."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and 0 < value.size <= _LISTED:
        return "[" + ", ".join(rounded(v, side) for v in value.tolist()) + "]"
    if side not in _ROUNDING or np.ndim(value) or not np.isfinite(value):
        return short(value)
    context = decimal.Context(prec=6, rounding=_ROUNDING[side])
    return f"{float(context.create_decimal(float(value))):.6g}"


def _array(value: np.ndarray) -> str:
    if value.dtype.kind not in "biuf" or value.size > _LISTED or value.ndim > 1:
        shape = "×".join(map(str, value.shape))
        if value.dtype.kind not in "biuf" or not value.size:
            return f"{shape} values"
        ends = value[np.isfinite(value)] if value.dtype.kind == "f" else value
        span = f" from {short(ends.min().item())} to {short(ends.max().item())}" if ends.size else ""
        return f"{shape} values{span}"
    return "[" + ", ".join(short(v) for v in value.tolist()) + "]" if value.ndim else short(value.item())


def one_line(value: Any) -> str:
    """Class and fields, cut where they are long."""
    fields = [
        f"{f.name}={short(v) if not isinstance(v, str) else repr(printable(v, 60))}"
        for f in dataclasses.fields(value)
        if f.repr and (v := getattr(value, f.name)) is not None
    ]
    text = ", ".join(fields)
    return f"{type(value).__name__}({text if len(text) <= _LONGEST else text[:_LONGEST] + ', …'})"


COLUMNS = ("quantity", "kind", "value", "low", "high", "confidence", "adjacency")


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text, one for each name in `head`, for a terminal, a page, a comment in Markdown, and pandas."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self) -> str:
        """Aligned columns, a rule under the head."""
        cells = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        top, *rest = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
        return "\n".join([top, "  ".join("─" * w for w in widths), *rest])

    def to_html(self) -> str:
        """A table element; texts are escaped."""

        def line(cells: Sequence[str], tag: str) -> str:
            return "".join(["<tr>", *(f"<{tag}>{html.escape(escape_controls(c))}</{tag}>" for c in cells), "</tr>"])

        body = "".join(line(row, "td") for row in self.rows)
        return f"<table><thead>{line(self.head, 'th')}</thead><tbody>{body}</tbody></table>"

    def to_markdown(self) -> str:
        """Lines between pipes, where nothing of a text is obeyed."""

        def line(cells: Sequence[str]) -> str:
            return f"| {' | '.join(markdown(cell, cell=True) for cell in cells)} |"

        return "\n".join([line(self.head), f"|{'---|' * len(self.head)}", *map(line, self.rows)])

    def to_frame(self) -> Any:
        """A DataFrame of the texts. ImportError where pandas is not installed."""
        return _pandas().DataFrame(list(map(tuple, self.rows)), columns=list(self.head))


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError as why:
        raise ImportError("to_frame() needs pandas: pip install 'leakcore[pandas]'") from why


def to_frame(result: Any) -> Any:
    """One row for each value of a result. ImportError where pandas is not installed."""
    pandas = _pandas()
    value = np.asarray(result.value)
    nothing = (np.nan, np.nan)
    low, high = (np.broadcast_to(np.asarray(end), value.shape) for end in result.interval or nothing)
    columns = {
        "quantity": result.quantity,
        "kind": result.kind,
        "value": value.reshape(-1),
        "low": low.reshape(-1),
        "high": high.reshape(-1),
        "confidence": np.nan if result.confidence is None else result.confidence,
        "adjacency": result.adjacency,
    }
    if value.ndim == 0:
        index = pandas.RangeIndex(1)
    elif value.ndim == 1:
        index = pandas.RangeIndex(len(value), name="index")
    else:
        names = [f"index {axis}" for axis in range(value.ndim)]
        index = pandas.MultiIndex.from_product([range(size) for size in value.shape], names=names)
    return pandas.DataFrame(columns, index=index, columns=list(COLUMNS))
