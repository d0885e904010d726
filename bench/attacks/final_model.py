"""How much attacks prove that see the final model alone: `python -m bench.attacks.final_model --out JSON`.

A claim of ε = 8 on 300 digits, 64 steps. Each attack plays 1,000 trials a side; bounds are at 99%. `--show JSON
--page PAGE` writes the kept table between the marks of a page.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench import environment, kept_page
from leakcore import audit

MARKS = ("<!-- final-model -->", "<!-- /final-model -->")
CLAIM, TRIALS = 8.0, 1000
ATTACKS = ("clipbkd", "zero-input", "crafted-gradient")
SETTINGS = (((), 1.0), ((32,), 1.0), ((), 0.1), ((32,), 0.1))


def run(seed: int) -> dict[str, Any]:
    """Every attack on every setting."""
    rows = []
    for hidden, rate in SETTINGS:
        for attack in ATTACKS:
            report = audit.claim(
                {
                    "data": {"name": "digits", "num_rows": 300},
                    "model": {"hidden": list(hidden)},
                    "mechanism": {"steps": 64, "learning_rate": 0.5, "sample_rate": rate},
                    "claim": {"epsilon": CLAIM},
                    "audit": {"attack": attack, "trials": TRIALS, "k": [1], "seed": seed},
                }
            )
            last = report.last_iterate
            assert last is not None
            rows.append(
                {
                    "hidden": list(hidden), "sample_rate": rate, "attack": attack, "proved": report.epsilon,
                    "by": report.best.method, "last_iterate": float(last.value),
                }
            )  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    return {"schema": "leakcore.final-model/1", "machine": environment.facts(), "seed": seed, "rows": rows}


def text(result: dict[str, Any]) -> str:
    """The table, and which attack proves the most, as the docs show them."""
    rows = result["rows"]
    lines = [f"| model | batches | linear loss, estimate | {' | '.join(ATTACKS)} |", "|---|---|---|---|---|---|"]
    best = 0
    for hidden, rate in SETTINGS:
        own = {r["attack"]: r for r in rows if (tuple(r["hidden"]), r["sample_rate"]) == (hidden, rate)}
        most = max(own.values(), key=lambda r: float(r["proved"]))
        best += most["attack"] == "crafted-gradient"
        model = "logistic regression" if not hidden else f"{hidden[0]} hidden units"
        batches = "full" if rate == 1 else f"Poisson, q = {rate:g}"
        cells = " | ".join(f"{own[a]['proved']:.2f}" for a in ATTACKS)
        lines.append(f"| {model} | {batches} | {most['last_iterate']:.2f} | {cells} |")
    lines += ["", f"The crafted gradient proves the most in {best} of {len(SETTINGS)} rows."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    kept_page.main(parser, lambda options: run(options.seed), text, MARKS)


if __name__ == "__main__":
    main()
