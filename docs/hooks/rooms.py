"""The picture of the rooms on the architecture page, made from the imports: `python docs/hooks/rooms.py`.

A row holds rooms that do not import each other; every arrow points down. Dark arrows are those that no way through
another room replaces; the rest are light.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "leakcore"
PICTURE = Path(__file__).resolve().parents[1] / "img" / "rooms.svg"
HIDDEN = {"__init__", "__main__", "reference"}


def arrows() -> Counter[tuple[str, str]]:
    """(room, room that it imports): how many of its files do."""
    out: Counter[tuple[str, str]] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        rooms = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "leakcore":
                parts = str(node.module).split(".")
                rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        out.update((room, other) for other in rooms if other != room and not {room, other} & HIDDEN)
    return out


def rows(pairs: set[tuple[str, str]]) -> dict[str, int]:
    """Room: its height, one above the highest room that it imports."""
    below: dict[str, set[str]] = {}
    for room, other in pairs:
        below.setdefault(room, set()).add(other)
    height: dict[str, int] = {}
    try:
        for room in graphlib.TopologicalSorter(below).static_order():
            height[room] = 1 + max((height[b] for b in below.get(room, ())), default=-1)
    except graphlib.CycleError as error:
        raise ValueError(f"a circle of imports: {' → '.join(error.args[1])}") from error
    return height


def needed(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows that no longer way replaces."""

    def reaches(start: str, end: str, direct: bool) -> bool:
        return any((b == end and direct) or (b != end and reaches(b, end, True)) for a, b in pairs if a == start)

    return {(a, b) for a, b in pairs if not reaches(a, b, False)}


def facts() -> str:
    """What the picture shows, as one line of text."""
    return ", ".join(f"{a} to {b}" for a, b in sorted(arrows()))


def shown(picture: Path) -> str:
    """The facts that a picture was made from, which it carries as its description."""
    match = re.search(r"<dc:description>(.*?)</dc:description>", picture.read_text(encoding="utf-8"), re.DOTALL)
    return "" if match is None else match.group(1).strip()


def draw(target: Path) -> None:
    """The picture as SVG, with `facts` as its description."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    counts = arrows()
    heights, dark = rows(set(counts)), needed(set(counts))
    levels = sorted(set(heights.values()))
    place = {}
    for level in levels:
        row = sorted(room for room in heights if heights[room] == level)
        for i, room in enumerate(row):
            place[room] = ((i - (len(row) - 1) / 2) * 2.6 + 0.35 * (level % 2), 1.05 * level)
    with plt.rc_context({"svg.hashsalt": "rooms", "font.family": "sans-serif", "svg.fonttype": "none"}):
        figure, axes = plt.subplots(figsize=(9, 8.5), layout="constrained")
        for a, b in sorted(counts, key=lambda pair: (pair in dark, pair)):
            style = {"color": "#334155", "lw": 1.2} if (a, b) in dark else {"color": "#d5dbe3", "lw": 0.6}
            axes.annotate(
                "", xy=place[b], xytext=place[a], zorder=2 if (a, b) in dark else 1,
                arrowprops={"arrowstyle": "-|>", "shrinkA": 13, "shrinkB": 13, **style},
            )  # fmt: skip
        for room, (x, y) in place.items():
            axes.text(
                x, y, room, ha="center", va="center", fontsize=9, zorder=3,
                bbox={"boxstyle": "round,pad=0.4", "facecolor": "#eef4ff", "edgecolor": "#334155"},
            )  # fmt: skip
        across, up = zip(*place.values(), strict=True)
        axes.set(xlim=(min(across) - 1.4, max(across) + 1.4), ylim=(min(up) - 0.6, max(up) + 0.6))
        axes.axis("off")
        target.parent.mkdir(exist_ok=True)
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None, "Description": facts()})
        plt.close(figure)


if __name__ == "__main__":
    draw(PICTURE)
