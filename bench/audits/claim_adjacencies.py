"""What an audit proves by adding a row, and by replacing one: `python -m bench.audits.claim_adjacencies --out JSON`.

Digits, logistic regression, full batches, half of the noise of ε = 4 under add/remove, 1,000 models on each side.
`--show JSON --page PAGE` writes the kept table between the marks of a page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bench import environment, kept_page
from leakcore import audit

MARKS = ("<!-- claim-adjacencies -->", "<!-- /claim-adjacencies -->")
KEPT = Path(__file__).resolve().parent.parent / "results" / "claim-adjacencies.json"
MODELS, SEEDS = 1000, 5
WAYS: dict[str, dict[str, Any]] = {
    "a row added": {"adjacency": "add-remove"},
    "a row replaced": {"adjacency": "replace"},
    "a row replaced, with `contrast`": {"adjacency": "replace", "contrast": True},
}


def run() -> dict[str, Any]:
    """Every way, with every seed."""
    rows = []
    for name, how in WAYS.items():
        for seed in range(SEEDS):
            report = audit.claim(
                {
                    "data": {"name": "digits", "num_rows": 300},
                    "mechanism": {"learning_rate": 0.5, "steps": 20},
                    "claim": {"epsilon": 4.0, "adjacency": "add-remove"},
                    "fault": {"noise": 0.5},
                    "audit": {"trials": MODELS, "k": [1], "seed": seed, **how},
                }
            )
            rows.append(
                {
                    "way": name, "seed": seed, "proved": float(report.epsilon), "allowed": report.claim.epsilon,
                    "caught": not report.passed,
                }
            )  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    return {"schema": "leakcore.claim-adjacencies/1", "machine": environment.facts(), "models": MODELS, "rows": rows}


def text(result: dict[str, Any]) -> str:
    """The table, as the docs show it."""
    lines = ["| audit | ε proved, mean | ε that the claim allows | the fault is caught |", "|---|---|---|---|"]
    for way in WAYS:
        rows = [row for row in result["rows"] if row["way"] == way]
        mean = sum(row["proved"] for row in rows) / len(rows)
        caught = sum(row["caught"] for row in rows)
        lines.append(f"| {way} | {mean:.2f} | {rows[0]['allowed']:.2f} | with {caught} of {len(rows)} seeds |")
    lines += ["", f"{result['models']:,} models on each side, by `python -m bench.audits.claim_adjacencies`."]
    return "\n".join(lines)


if __name__ == "__main__":
    kept_page.main(argparse.ArgumentParser(description=__doc__), lambda options: run(), text, MARKS)
