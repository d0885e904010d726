"""How long accounting takes, and how tight it is: `python -m bench.accounting_grid --out JSON`.

ε, δ at that ε, and the noise for it, of a random part of a grid over σ, q, T, δ and both adjacencies; CPU seconds of
one thread. ε of add/remove is compared with dp-accounting's "pld" on a part where that takes seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIGMA = (0.05, 0.1, 0.15, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0, 5.0, 20.0, 100.0)
RATE = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.5, 0.9, 1.0)
STEPS = (1, 2, 10, 100, 1000, 10**4, 10**5, 10**6, 10**7)
DELTA = (1e-12, 1e-9, 1e-5, 1e-2)
ADJACENCY = ("add-remove", "replace")


def points(count: int, seed: int) -> list[tuple[float, float, int, float, str]]:
    """A random part of the grid."""
    every = list(itertools.product(SIGMA, RATE, STEPS, DELTA, ADJACENCY))
    return random.Random(seed).sample(every, count)


def measure(call: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """CPU seconds of one call with what it answered, or the refusal."""
    start = time.process_time()
    try:
        found = call(**arguments)
    except (ValueError, ArithmeticError) as refusal:
        return {"seconds": time.process_time() - start, "refusal": str(refusal)}
    row = {"seconds": time.process_time() - start, "value": float(found.value), "method": found.method}
    if found.interval is not None:
        row["interval"] = [float(end) for end in found.interval]
    return row


def run(count: int, seed: int, peers: int) -> dict[str, Any]:
    """All rows, with the summary of `summarise`."""
    from leakcore import accounting

    warnings.simplefilter("error")  # a warning that reaches a user ends the run
    rows = []
    for sigma, rate, steps, delta, relation in points(count, seed):
        at = {"noise_multiplier": sigma, "sample_rate": rate, "steps": steps, "delta": delta, "adjacency": relation}
        row: dict[str, Any] = {**at, "epsilon": measure(accounting.epsilon, **at)}
        epsilon = row["epsilon"].get("value", math.inf)
        if math.isfinite(epsilon):
            rest = {"sample_rate": rate, "steps": steps, "adjacency": relation, "epsilon": epsilon}
            row["back"] = measure(accounting.delta, noise_multiplier=sigma, **rest)
            row["noise"] = measure(accounting.noise_multiplier, delta=delta, **rest)
        easy = sigma >= 0.5 and 2 <= steps <= 1000 and rate >= 1e-3 and delta > 1e-9
        if peers > 0 and relation == "add-remove" and easy:
            peers -= 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row["pld"] = measure(accounting.epsilon, **at, method="pld")
        rows.append(row)
        times = " ".join(f"{n} {row[n]['seconds']:.2f}" for n in ("epsilon", "back", "noise") if n in row)
        print(f"[{len(rows)}/{count}] {sigma} {rate} {steps} {delta} {relation} {times}", file=sys.stderr, flush=True)
    return {"schema": "leakcore.accounting-grid/1", "seed": seed, "summary": summarise(rows), "rows": rows}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Slowest calls, refusals, how many are within 1e-6, agreement with "pld"."""
    out: dict[str, Any] = {"points": len(rows)}
    for name in ("epsilon", "back", "noise"):
        calls = [row[name] for row in rows if name in row]
        seconds = sorted(call["seconds"] for call in calls)
        out[name] = {
            "calls": len(calls),
            "slowest": seconds[-1],
            "median": seconds[len(seconds) // 2],
            "above_5_seconds": sum(s > 5.0 for s in seconds),
            "refusals": sum("refusal" in call for call in calls),
            "bounded": sum(call.get("method") == "exact, bounded" for call in calls),
        }
    pairs = [(row["epsilon"], row["pld"]) for row in rows if "pld" in row and "value" in row["pld"]]
    both = [(ours["interval"], peer["value"]) for ours, peer in pairs if math.isfinite(peer["value"])]
    out["pld"] = {
        "compared": len(both),
        "below_ours": sum(peer < low - 1e-9 * (1.0 + low) for (low, _), peer in both),
        "largest_excess": max((peer - high for (_, high), peer in both), default=0.0),
    }
    slowest = sorted(rows, key=lambda row: -row["epsilon"]["seconds"])[:10]
    names = ("noise_multiplier", "sample_rate", "steps", "delta", "adjacency")
    out["slowest_ten"] = [{**{n: row[n] for n in names}, "seconds": row["epsilon"]["seconds"]} for row in slowest]
    return out


def table(summary: dict[str, Any]) -> str:
    """The summary as the docs show it."""
    head = ("call", "calls", "slowest", "median", "above 5 s", "refused", "wider than 1e-6")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    names = {"epsilon": "`epsilon`", "back": "`delta`", "noise": "`noise_multiplier`"}
    for name, text in names.items():
        one = summary[name]
        lines.append(
            f"| {text} | {one['calls']} | {one['slowest']:.1f} s | {one['median']:.2f} s | {one['above_5_seconds']} "
            f"| {one['refusals']} | {one['bounded']} |"
        )
    peer = summary["pld"]
    lines.append("")
    lines.append(
        f'Of {peer["compared"]} values of ε by "pld", {peer["below_ours"]} lie below our lower limit; the largest is '
        f"{peer['largest_excess']:.1g} above our upper one."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--peers", type=int, default=25, help="points at most that dp-accounting answers too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print the table of this result, run nothing")
    options = parser.parse_args()
    if options.show:
        print(table(json.loads(options.show.read_text(encoding="utf-8"))["summary"]))
        return
    found = run(options.points, options.seed, options.peers)
    print(table(found["summary"]))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
