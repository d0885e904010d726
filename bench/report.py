"""Tables for people, JSON for programs: both from the same dictionary."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

SCHEMA = "leakcore.bench/2"
HEAD = ["size", "contender", "thr", "median", "±", "per unit", "÷ ours", "of limit", "peak"]


def show(report: dict[str, Any]) -> None:
    """Machine, limits, a table per kernel, the claims."""
    machine, limits = report["machine"], report["limits"]
    caches = ", ".join(f"{name} {size / 2**20:.3g} MiB" for name, size in machine["caches"].items())
    build = machine["leakcore"]
    print(f"{machine['cpu']}, {machine['processors']} processors, {caches}; load {machine['load']:.2f}")
    print(
        f"leakcore {build['version']} at {machine['commit'][:12] or 'no commit'}, tier {build['simd']}; "
        + ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if name != "leakcore")
    )
    print("\nlimits, per second")
    table(
        [
            ["", *_names(limits)],
            *([who, *(_rate(n, r.get(n)) for n in _names(limits))] for who, r in limits["per_second"].items()),
        ]
    )
    for threads, reader in limits["reader"].items():
        print(f"  read with {threads} thread{'s' if threads != '1' else ''}: {reader}")
    for kernel in dict.fromkeys(case["kernel"] for case in report["cases"]):
        show_kernel([case for case in report["cases"] if case["kernel"] == kernel])
    print("\nclaims (the worst size counts; the best one follows it)")
    rows = [["claim", "wanted", "worst", "best", "met", "where"]]
    for claim in report["claims"]:
        met = {True: "yes", False: "NO", None: "—"}[claim["met"]]
        rows.append(
            [claim["claim"], claim["wanted"], claim["measured"] or "—", claim["best"] or "—", met, claim["where"]]
        )
    table(rows)


def show_kernel(cases: list[dict[str, Any]]) -> None:
    """The table of one kernel: a row for every size and contender."""
    print(f"\n{cases[0]['kernel']} (per unit: {cases[0]['unit']}; ÷ ours: against leakcore with as many threads)")
    rows = [HEAD]
    partial = False
    for case in cases:
        for i, (name, row) in enumerate(case["contenders"].items()):
            size = case["size"] if i == 0 else ""
            if "absent" in row:
                rows.append([size, name, str(row["threads"]), row["absent"]])
                continue
            partial |= row["share"] < 1
            rows.append(
                [
                    size,
                    name + (f" [{row['tier']}]" if row["tier"] and row["tier"] not in name else ""),
                    str(row["threads"]),
                    _time(row["median"]) + ("*" if row["share"] < 1 else ""),
                    f"{row['spread']:.0%}",
                    _time(row["per_unit"]),
                    "" if row["ratio"] is None else f"{row['ratio']:.2f}",
                    "" if row["of_limit"] is None else f"{row['of_limit']:.0%}",
                    _size(row.get("peak_bytes")),
                ]
            )
    table(rows)
    if partial:
        print("  * timed on a part of the blocks and scaled")
    for limit in dict.fromkeys(case["limit"] for case in cases if case["limit"]):
        print(f"  limit: {limit}")
    if any("peak_bytes" in row for case in cases for row in case["contenders"].values()):
        print("  peak: rise of the process's high-water mark during one call, in a process of its own")
    for case in cases:
        if case["extra"]:
            print(f"\n  {case['size']}")
            table(case["extra"])


def table(rows: list[list[str]]) -> None:
    """Columns as wide as they need: the first two to the left, the others to the right."""
    # A row that is cut short ends in a remark, which may run on.
    aligned = [row if len(row) == len(rows[0]) else row[:-1] for row in rows]
    widths = [max(_width(row[j]) for row in aligned if j < len(row)) for j in range(len(rows[0]))]
    last_is_text = rows[0][-1] == "where"
    for row in rows:
        cells = []
        for j, cell in enumerate(row):
            space = " " * max(widths[j] - _width(cell), 0)
            left = (
                j == 0 or rows[0][j] == "contender" or (last_is_text and j == len(row) - 1) or len(row) < len(rows[0])
            )
            cells.append(cell + space if left else space + cell)
        print("  " + "  ".join(cells).rstrip())


def _width(text: str) -> int:
    return sum(not unicodedata.combining(c) for c in text)


def _names(limits: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for rates in limits["per_second"].values() for name in rates))


def _rate(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1e9:.3g} GB" if name == "read" else f"{value / 1e9:.3g} G"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-12:.3g} ps"


def _size(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.0f} MiB"


def write(path: Path, report: dict[str, Any]) -> None:
    """The report as JSON, every round of every contender included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(paths: list[Path]) -> dict[str, Any]:
    """One report from several; a case in two of them is taken from the later one. ValueError for another schema."""
    merged: dict[str, Any] = {}
    cases: dict[tuple[str, str], dict[str, Any]] = {}
    for path in paths:
        report = json.loads(path.read_text(encoding="utf-8"))
        if report.get("schema") != SCHEMA:
            raise ValueError(f"`schema` must be {SCHEMA!r}, got {report.get('schema')!r} in {path}")
        if merged and merged["device"] != report["device"]:
            raise ValueError(
                f"`device` must be {merged['device']!r} as in the others, got {report['device']!r} in {path}"
            )
        for key in ("cpu", "processors"):
            if merged and merged["machine"].get(key) != report["machine"].get(key):
                raise ValueError(
                    f"`{key}` must be {merged['machine'].get(key)!r} as in the others, got "
                    f"{report['machine'].get(key)!r} in {path}"
                )
        if merged and merged["quick"] != report["quick"]:
            raise ValueError(f"`quick` must be {merged['quick']} as in the others, got {report['quick']} in {path}")
        limits = {**merged.get("limits", {}).get("per_second", {}), **report["limits"]["per_second"]}
        readers = {**merged.get("limits", {}).get("reader", {}), **report["limits"]["reader"]}
        merged = {**report, "limits": {"per_second": limits, "reader": readers}}
        cases |= {(case["kernel"], case["size"]): case for case in report["cases"]}
    return {**merged, "cases": list(cases.values())}
