"""The README's picture, from what `make audit` wrote: `python docs/hooks/cover.py leakcore-report/report.json`.

Its colours read on a light and on a dark page. It carries its numbers as its description, which a test compares with
the bounds and with the README.
"""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).resolve().parents[1] / "img" / "attack-and-bound.svg"
STEPS, DELTA = 100, 1e-5
"""The setting of `make audit`."""
TEXT, BOUND, ATTACK = "#7d8590", "#d9534f", "#3b8eea"


def numbers(report: dict[str, Any]) -> list[dict[str, float]]:
    """One row per noise level: σ, ε, the bound, the attack with the ends of its interval, and guessing."""
    rows = []
    for point in report["reconstruction"]:
        attack = point["attack"]
        rows.append(
            {
                "sigma": point["noise_multiplier"],
                "epsilon": round(point["epsilon"]["value"], 6),
                "bound": point["bound"]["value"],
                "attack": attack["value"],
                "low": attack["interval"][0],
                "high": attack["interval"][1],
                "guessing": 1 / point["num_candidates"],
            }
        )
    return rows


def carried(picture: Path) -> list[dict[str, float]]:
    """The numbers that a picture was drawn from."""
    match = re.search(r"<dc:description>(.*?)</dc:description>", picture.read_text(encoding="utf-8"), re.DOTALL)
    if match is None:
        raise ValueError(f"{picture} carries no numbers")
    rows: list[dict[str, float]] = json.loads(html.unescape(match.group(1)))
    return rows


def draw(rows: list[dict[str, float]], target: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    import numpy as np

    from leakcore import accounting, bounds

    sigmas = np.geomspace(rows[0]["sigma"], rows[-1]["sigma"], 60)
    across = [accounting.epsilon(sigma, 1.0, STEPS, delta=DELTA).value for sigma in sigmas]
    curve = [bounds.reconstruction(sigma, 1.0, STEPS, kappa=rows[0]["guessing"]).value for sigma in sigmas]
    style = {"svg.hashsalt": "cover", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), TEXT)
    epsilon = [row["epsilon"] for row in rows]
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(7.6, 3.3), layout="constrained")
        axes.plot(across, curve, color=BOUND, lw=2)
        axes.plot(epsilon, [row["bound"] for row in rows], "o", color=BOUND, ms=5)
        reached = np.array([row["attack"] for row in rows])
        ends = np.abs(np.array([[row["low"], row["high"]] for row in rows]).T - reached)
        axes.errorbar(epsilon, reached, ends, fmt="s", color=ATTACK, ms=6, capsize=4, lw=1.5)
        axes.axhline(rows[0]["guessing"], color=TEXT, ls=":", lw=1.2)
        axes.text(1.35, 0.47, "no attacker beats this", color=BOUND, ha="left")
        axes.text(11.3, 0.52, "the attack, 1,000 runs each", color=ATTACK, ha="left")
        axes.text(40, rows[0]["guessing"] + 0.025, "guessing among ten", color=TEXT, ha="right")
        axes.set(xscale="log", ylim=(0, 1.03), xlabel="ε at δ = 1e-5 (add/remove)", ylabel="names the training row")
        axes.set_xticks(epsilon, [f"{e:g}" for e in epsilon])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axes.spines[["top", "right"]].set_visible(False)
        about = {"Date": None, "Creator": None, "Description": json.dumps(rows)}
        figure.savefig(target, format="svg", transparent=True, metadata=about)
        plt.close(figure)


if __name__ == "__main__":
    draw(numbers(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), PICTURE)
