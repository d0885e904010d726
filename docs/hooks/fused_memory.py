"""The picture of a transformer's step, from bench/results/fused-memory.json: `python docs/hooks/fused_memory.py`."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "bench" / "results" / "fused-memory.json"
PICTURE = ROOT / "docs" / "img" / "fused-memory.svg"
TEXT = "#7d8590"
STYLES = {
    "leakcore FusedDPOptimizer": ("#d9534f", "o", "FusedDPOptimizer"),
    "Opacus ghost": ("#3b8eea", "s", "ghost"),
    "Opacus fast gradient clipping": ("#2da44e", "^", "fast gradient clipping"),
    "Opacus flat": ("#bf8700", "D", "flat"),
    "no privacy": (TEXT, "x", "no privacy"),
}


def points(result: dict[str, Any]) -> list[list[Any]]:
    """[method, batch, MiB, seconds] of every point."""
    return [
        [name, case["rows"], round(row["peak_bytes"] / 2**20, 1), round(row["median"], 3)]
        for case in result["cases"]
        for name, row in case["contenders"].items()
    ]


def carried(picture: Path) -> list[list[Any]]:
    """The points that a picture was drawn from."""
    match = re.search(r"<dc:description>(.*?)</dc:description>", picture.read_text(encoding="utf-8"), re.DOTALL)
    if match is None:
        raise ValueError(f"{picture} carries no points")
    result: list[list[Any]] = json.loads(html.unescape(match.group(1)))
    return result


def draw(rows: list[list[Any]], target: Path) -> None:
    """Peak memory and time against the batch."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style: dict[str, Any] = {
        "svg.hashsalt": "fused", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
        "legend.frameon": False,
    }  # fmt: skip
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), TEXT)
    with plt.rc_context(style):
        figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
        for place, label in enumerate(("peak memory of a step (MiB)", "processor time of a step (s)")):
            axes = panels[place]
            for name, (color, mark, short) in STYLES.items():
                own = [row for row in rows if row[0] == name]
                axes.plot([r[1] for r in own], [r[2 + place] for r in own], marker=mark, color=color, label=short)
            batches = sorted({row[1] for row in rows})
            axes.set(xscale="log", yscale="log", xlabel="batch", ylabel=label)
            axes.set_xticks(batches, [str(b) for b in batches])
            axes.minorticks_off()
            values = sorted({row[2 + place] for row in rows})
            ticks = [t for t in (0.2, 0.5, 1, 2, 5, 200, 500, 1000, 2000) if values[0] / 2 < t < values[-1] * 2]
            axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].legend()
        about = {"Date": None, "Creator": None, "Description": json.dumps(rows)}
        figure.savefig(target, format="svg", transparent=True, metadata=about)
        plt.close(figure)


if __name__ == "__main__":
    draw(points(json.loads(RESULT.read_text(encoding="utf-8"))), PICTURE)
