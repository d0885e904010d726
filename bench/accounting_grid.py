"""How long accounting takes, and how tight it is: `python -m bench.accounting_grid --out JSON`.

ε, δ at that ε, and the noise for it, of a random part of a grid over σ, q, T, δ and both adjacencies; CPU seconds of
one thread. ε of add/remove is compared with dp-accounting's "pld" at more points, of the part where that takes seconds.
`--page PAGE --show JSON` writes what the result says between the marks of a page.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from bench import environment, kept_page

MARKS = ("<!-- accounting-grid -->", "<!-- /accounting-grid -->")
NAMES = ("noise_multiplier", "sample_rate", "steps", "delta", "adjacency")
SIGMA = (0.05, 0.1, 0.15, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0, 5.0, 20.0, 100.0)
RATE = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.5, 0.9, 1.0)
STEPS = (1, 2, 10, 100, 1000, 10**4, 10**5, 10**6, 10**7)
DELTA = (1e-12, 1e-9, 1e-5, 1e-2)
ADJACENCY = ("add-remove", "replace")


Point = dict[str, Any]
"""The arguments of `accounting.epsilon`."""


def grid() -> list[Point]:
    """Every point."""
    axes = itertools.product(SIGMA, RATE, STEPS, DELTA, ADJACENCY)
    return [dict(zip(NAMES, values, strict=True)) for values in axes]


def points_for_peers() -> list[Point]:
    """The points that dp-accounting answers within seconds."""
    return [
        at
        for at in grid()
        if at["adjacency"] == "add-remove"
        and at["noise_multiplier"] >= 0.5
        and 2 <= at["steps"] <= 1000
        and at["sample_rate"] >= 1e-3
        and at["delta"] > 1e-9
    ]


def measure(call: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """CPU seconds of one call with what it answered, or the refusal."""
    start = time.process_time()
    try:
        result = call(**arguments)
    except (ValueError, ArithmeticError) as refusal:
        return {"seconds": time.process_time() - start, "refusal": str(refusal)}
    row = {"seconds": time.process_time() - start, "value": float(result.value), "method": result.method}
    if result.interval is not None:
        row["interval"] = [float(end) for end in result.interval]
    return row


def run(count: int, seed: int, peers: int) -> dict[str, Any]:
    """All rows, with the summary of `summarise`."""
    from leakcore import accounting

    warnings.simplefilter("error")  # a warning that reaches a user ends the run
    rows = []
    for at in random.Random(seed).sample(grid(), count):
        row: dict[str, Any] = {**at, "epsilon": measure(accounting.epsilon, **at)}
        epsilon = row["epsilon"].get("value", math.inf)
        if math.isfinite(epsilon):
            rest = {name: at[name] for name in ("sample_rate", "steps", "adjacency")} | {"epsilon": epsilon}
            row["back"] = measure(accounting.delta, noise_multiplier=at["noise_multiplier"], **rest)
            row["noise"] = measure(accounting.noise_multiplier, delta=at["delta"], **rest)
        rows.append(row)
        times = " ".join(f"{n} {row[n]['seconds']:.2f}" for n in ("epsilon", "back", "noise") if n in row)
        print(f"[{len(rows)}/{count}] {' '.join(map(str, at.values()))} {times}", file=sys.stderr, flush=True)
    compared = []
    for at in random.Random(seed).sample(points_for_peers(), peers):
        row = {**at, "epsilon": measure(accounting.epsilon, **at)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row["pld"] = measure(accounting.epsilon, **at, method="pld")
        compared.append(row)
        print(f"[{len(compared)}/{peers}] pld {row['pld']['seconds']:.2f}", file=sys.stderr, flush=True)
    return {
        "schema": "leakcore.accounting-grid/1",
        "machine": environment.facts(),
        "seed": seed,
        "summary": summarise(rows, compared),
        "rows": rows,
        "peers": compared,
    }


def summarise(rows: list[dict[str, Any]], compared: list[dict[str, Any]]) -> dict[str, Any]:
    """Slowest calls, refusals, how many are wider than 1e-6, agreement with "pld"."""
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
    pairs = [(row["epsilon"], row["pld"]) for row in compared if "value" in row["pld"]]
    both = [(ours["interval"], peer["value"]) for ours, peer in pairs if math.isfinite(peer["value"])]
    out["pld"] = {
        "compared": len(both),
        "below_ours": sum(peer < low - 1e-9 * (1.0 + low) for (low, _), peer in both),
        "largest_excess": max((peer - high for (_, high), peer in both), default=0.0),
    }
    slowest = sorted(rows, key=lambda row: -row["epsilon"]["seconds"])[:10]
    out["slowest_ten"] = [{**{n: row[n] for n in NAMES}, "seconds": row["epsilon"]["seconds"]} for row in slowest]
    return out


def text(result: dict[str, Any]) -> str:
    """What a result says, as the docs show it."""
    summary = result["summary"]
    refused = sum(summary[name]["refusals"] for name in ("epsilon", "back", "noise"))
    lines = [f"{summary['points']} points, drawn from the {len(grid()):,} of the grid; CPU seconds of one thread,"]
    lines += [f"{result['machine']['cpu']}. {refused or 'None'} of the calls refused.", ""]
    head = ("call", "calls", "median", "slowest", "above 5 s", "wider than 1e-6")
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, call in {"epsilon": "`epsilon`", "back": "`delta`", "noise": "`noise_multiplier`"}.items():
        one = summary[name]
        times = (f"{one['median']:.2f} s", f"{one['slowest']:.1f} s")
        cells = (call, one["calls"], *times, one["above_5_seconds"], one["bounded"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    peer = summary["pld"]
    below = "none of its ε lies" if not peer["below_ours"] else f"{peer['below_ours']} of its ε lie"
    lines.append("")
    lines += [f"At {peer['compared']} more points dp-accounting answered, too: {below} below our lower limit, and the"]
    lines += [f"largest is {peer['largest_excess']:.1g} above our upper one."]
    return "\n".join(lines)


def rewritten(page: str, result: dict[str, Any]) -> str:
    """The page with what the result says between its marks."""
    return kept_page.between(page, MARKS, text(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--peers", type=int, default=25, help="more points, that dp-accounting answers too")
    parser.add_argument("--seed", type=int, default=0)
    kept_page.main(parser, lambda options: run(options.points, options.seed, options.peers), text, MARKS)


if __name__ == "__main__":
    main()
