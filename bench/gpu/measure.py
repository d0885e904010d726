"""One row of the bench, in a process of its own: `python -m bench.gpu.measure NAME ANSWER RATES [--emulate]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.gpu import needs

needs.use_installed()

from bench.gpu import rows  # noqa: E402
from bench.gpu.place import Card, Emulated, nvcc_version  # noqa: E402
from bench.harness import spread  # noqa: E402


def limits(place: Any) -> dict[str, Any]:
    """The machine, and what it does at best."""
    from bench import environment

    facts = environment.facts()
    ours = {"nvcc": nvcc_version(), "cpu": facts["cpu"], "python": facts["python"], "numpy": facts["versions"]["numpy"]}
    return {"facts": {**place.facts(), **ours}, "limits": place.limits()}


def measure(row: rows.Row, place: Any, rates: dict[str, float]) -> dict[str, Any]:
    """Seconds of every contender, and which part of them the card needs at least."""
    work = row.make(place, place.emulated)
    out: dict[str, Any] = {}
    stated = {"copy_bytes": "stated_bytes"}.get(work.limit, "")
    for who, call in work.calls.items():
        seconds = place.host_seconds(call) if work.host else place.seconds(call, row.seconds)
        middle = sorted(seconds)[len(seconds) // 2]
        out[who] = {
            "median": middle,
            "spread": spread(seconds),
            "of_limit": work.amount / rates[work.limit] / middle if work.limit in rates else None,
            "of_stated": work.amount / rates[stated] / middle if stated in rates else None,
            "seconds": seconds,
        }
    return {"contenders": out, "amount": work.amount, "limit": work.limit, "where": work.where, "note": work.note}


def main() -> None:
    name, answer, rates = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    place = Emulated() if "--emulate" in sys.argv else Card()
    if name == "limits":
        result = limits(place)
    else:
        row = next(row for row in rows.ROWS if row.name == name)
        result = measure(row, place, rates)
    answer.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
