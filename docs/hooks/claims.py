"""The tables of measured speed on two pages, from the stored benchmark results: `python docs/hooks/claims.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "performance.md"
STEPS_PAGE = ROOT / "docs" / "how-to" / "fused-optimizer.md"
RESULTS = {name: ROOT / "bench" / "results" / f"cpu-{name}-2core.json" for name in ("epyc", "xeon")}
MECHANISMS = ROOT / "bench" / "results" / "mechanisms-epyc-2core.json"
BEGIN, END = "<!-- claims -->", "<!-- /claims -->"
BEGIN_STEPS, END_STEPS = "<!-- steps -->", "<!-- /steps -->"
BEGIN_MECHANISMS, END_MECHANISMS = "<!-- mechanisms -->", "<!-- /mechanisms -->"


def table(results: dict[str, dict[str, Any]]) -> str:
    """One row per claim that any of the results measured; what misses its target is bold."""
    by_machine = {machine: {c["claim"]: c for c in result["claims"]} for machine, result in results.items()}
    lines = ["| claim | target | AMD EPYC | Intel Xeon |", "|---|---|---|---|"]
    for name, claim in by_machine["epyc"].items():
        cells = [cell(by_machine[machine].get(name, {"met": None})) for machine in ("epyc", "xeon")]
        if set(cells) != {"—"}:
            lines.append(f"| {name} | {claim['wanted']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(claim: dict[str, Any]) -> str:
    """The worst value over sizes and threads; bold where it misses the target."""
    if claim["met"] is None:
        return "—"
    return str(claim["measured"]) if claim["met"] else f"**{claim['measured']}**"


def steps(result: dict[str, Any]) -> str:
    """Whole training steps on one thread, and their peak memory, with how far the quartiles spread."""
    lines = [
        "| model, batch | ours | Opacus flat | Opacus ghost | no privacy | peak: ours | flat | ghost |",
        "|---|---|---|---|---|---|---|---|",
    ]
    spreads = []
    for case in sorted((c for c in result["cases"] if c["kernel"] == "optimizer"), key=lambda c: str(c["size"])):
        rows = [case["contenders"][name] for name in ("leakcore FusedDPOptimizer", "Opacus flat", "Opacus ghost")]
        plain = case["contenders"]["no privacy"]
        spreads += [row["spread"] for row in (*rows, plain)]
        milliseconds = [f"{1e3 * row['median']:.0f} ms" for row in rows]
        mebibytes = [f"{row['peak_bytes'] / 2**20:.0f} MiB" for row in rows]
        cells = [
            case["size"].replace(" float32", ""),
            milliseconds[0],
            *(f"{cell} ({row['ratio']:.3g}×)" for cell, row in zip(milliseconds[1:], rows[1:], strict=True)),
            f"{1e3 * plain['median']:.0f} ms",
            mebibytes[0],
            *(
                f"{cell} ({row['peak_bytes'] / rows[0]['peak_bytes']:.3g}×)"
                for cell, row in zip(mebibytes[1:], rows[1:], strict=True)
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\nThe machine was shared; quartiles spread by up to {max(spreads):.0%}."


def mechanisms(result: dict[str, Any]) -> str:
    """ε of each mechanism on one thread: seconds, how many times as long a peer takes, peak memory."""
    lines = ["| ε of | ours | dp-accounting | jax_privacy | peak memory |", "|---|---|---|---|---|"]
    spreads = []
    for case in result["cases"]:
        rows = case["contenders"]
        spreads += [row["spread"] for row in rows.values() if "spread" in row]
        peers = [_by(rows, name) for name in ("dp-accounting", "jax_privacy")]
        whole = [row for name, row in rows.items() if "extrapolated" not in name and row.get("peak_bytes") is not None]
        peaks = [f"{row['peak_bytes'] / 2**20:.0f}" for row in whole]
        cells = (case["size"].removeprefix("ε, "), _seconds(rows["leakcore"]), *peers, f"{' / '.join(peaks)} MiB")
        lines.append(f"| {' | '.join(cells)} |")
    machine = result["machine"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("dp-accounting", "jax-privacy"))
    shared = f"Load was {machine['load']:.0f} on {machine['processors']} processors; quartiles spread by up to"
    return "\n".join(lines) + f"\n\n{machine['cpu']}, {versions}. {shared} {max(spreads):.0%}."


def _by(rows: dict[str, dict[str, Any]], peer: str) -> str:
    """A peer's time, and how many times ours it is."""
    for name, row in rows.items():
        if name.startswith(peer) and "median" in row:
            note = " (extrapolated)" if "extrapolated" in name else ""
            return f"{_seconds(row)}{note}, {row['ratio']:.3g}×"
    return "—"


def _seconds(row: dict[str, Any]) -> str:
    return f"{1e3 * row['median']:.3g} ms" if row["median"] < 1.0 else f"{row['median']:.3g} s"


def rewritten(page: str, results: dict[str, dict[str, Any]]) -> str:
    """The page with the tables filled that it has."""
    page = re.sub(f"{BEGIN}.*?{END}", f"{BEGIN}\n{table(results)}\n{END}", page, flags=re.DOTALL)
    speeds = json.loads(MECHANISMS.read_text(encoding="utf-8"))
    filled = f"{BEGIN_MECHANISMS}\n{mechanisms(speeds)}\n{END_MECHANISMS}"
    page = re.sub(f"{BEGIN_MECHANISMS}.*?{END_MECHANISMS}", filled, page, flags=re.DOTALL)
    filled = f"{BEGIN_STEPS}\n{steps(results['epyc'])}\n{END_STEPS}"
    return re.sub(f"{BEGIN_STEPS}.*?{END_STEPS}", filled, page, flags=re.DOTALL)


def read() -> dict[str, dict[str, Any]]:
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in RESULTS.items()}


if __name__ == "__main__":
    for _page in (PAGE, STEPS_PAGE):
        _page.write_text(rewritten(_page.read_text(encoding="utf-8"), read()), encoding="utf-8")
