"""The table of speed claims on the performance page, from kept benchmark results: `python docs/hooks/claims.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "performance.md"
RESULTS = {name: ROOT / "bench" / "results" / f"cpu-{name}-2core.json" for name in ("epyc", "xeon")}
BEGIN, END = "<!-- claims -->", "<!-- /claims -->"


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


def rewritten(page: str, results: dict[str, dict[str, Any]]) -> str:
    return re.sub(f"{BEGIN}.*?{END}", f"{BEGIN}\n{table(results)}\n{END}", page, flags=re.DOTALL)


def read() -> dict[str, dict[str, Any]]:
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in RESULTS.items()}


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
