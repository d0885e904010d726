"""What an audit of a claim proves of faulty implementations: `python -m bench.audits.claim_faults --out JSON`.

Digits, logistic regression, k = 1, full batches, D against D ∪ {poison}, 99%; `[fault]` makes the faults. Each is
audited again without its fault. `--show JSON --page PAGE` writes the kept table between the marks of a page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bench import environment, kept_page
from leakcore import audit

MARKS = ("<!-- claim-faults -->", "<!-- /claim-faults -->")
KEPT = Path(__file__).resolve().parent.parent / "results" / "claim-faults.json"
MODELS = 1000
FAULTS: dict[str, dict[str, Any]] = {
    "noise σ/2, ε = 2 claimed": {"claim": {"epsilon": 2.0}, "fault": {"noise": 0.5}},
    "noise σ/2, ε = 4 claimed": {"claim": {"epsilon": 4.0}, "fault": {"noise": 0.5}},
    "noise σ/4, ε = 2 claimed": {"claim": {"epsilon": 2.0}, "fault": {"noise": 0.25}},
    "the batch's mean clipped, not each sample (C = 0.1), ε = 4 claimed": {
        "claim": {"epsilon": 4.0}, "fault": {"clip": "batch"}, "mechanism": {"max_grad_norm": 0.1},
    },
    "no noise on biases (`zero-input`), ε = 1 claimed": {
        "claim": {"epsilon": 1.0}, "fault": {"bias_noise": 0.0}, "audit": {"attack": "zero-input"},
    },
}  # fmt: skip


def audited(sections: dict[str, Any]) -> dict[str, Any]:
    """What is proved, by each method."""
    report = audit.claim(
        {
            **sections,
            "data": {"name": "digits", "num_rows": 300},
            "mechanism": {"learning_rate": 0.5, "steps": 20, **sections.get("mechanism", {})},
            "audit": {"trials": MODELS, "k": [1], "adjacency": "add-remove", **sections.get("audit", {})},
        }
    )
    return {"proofs": {p.method: p.epsilon for p in report.proofs}, "passed": report.passed}


def run() -> dict[str, Any]:
    """All faults, and the same programs without them."""
    rows = []
    for name, sections in FAULTS.items():
        mended = {key: value for key, value in sections.items() if key != "fault"}
        rows.append({"fault": name, "claimed": sections["claim"]["epsilon"], "faulty": audited(sections)})
        rows[-1]["mended"] = audited(mended)
        print(rows[-1], file=sys.stderr, flush=True)
    return {"schema": "leakcore.claim-faults/1", "machine": environment.facts(), "models": MODELS, "rows": rows}


def text(result: dict[str, Any]) -> str:
    """The table, as the docs show it."""
    rows = result["rows"]
    lines = ["| fault | (ε, δ) | Gaussian | the same program without it |", "|---|---|---|---|"]
    for row in rows:
        faulty = row["faulty"]["proofs"]
        cells = [
            _cell(next((v for m, v in faulty.items() if family in m), None), row["claimed"])
            for family in ("(ε, δ)", "Gauss")
        ]
        best = max(row["mended"]["proofs"].values())
        lines.append(
            f"| {row['fault']} | {' | '.join(cells)} | {best:.2f}, {'passes' if row['mended']['passed'] else 'fails'} |"
        )
    caught, passed = sum(not row["faulty"]["passed"] for row in rows), sum(row["mended"]["passed"] for row in rows)
    verdict = (
        f"Bold exceeds the claim: exit code 1. {caught} of {len(rows)} faults are caught, and {passed} of {len(rows)} "
        f"programs pass without theirs. {result['models']:,} models on each side, by "
        "`python -m bench.audits.claim_faults`."
    )
    lines += ["", verdict]
    return "\n".join(lines)


def _cell(value: float | None, claimed: float) -> str:
    if value is None:
        return "—"
    return f"**{value:.2f}**" if value > claimed else f"{value:.2f}"


if __name__ == "__main__":
    kept_page.main(argparse.ArgumentParser(description=__doc__), lambda options: run(), text, MARKS)
